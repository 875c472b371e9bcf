/* One compressed tensor of a checkpoint as a layer, mapped from its file. */
#ifndef TRF_LAYER_OPEN_H
#define TRF_LAYER_OPEN_H

#include "trf_layer_slice.h"

/* Maps and validates the blob of a tensor, named as in trf_device_layer_load; of a shard, makes a layer of the tiles
 * that it touches. Release with trf_layer_free; the checkpoint may be closed before. options: NULL for the defaults.
 * *shard: what is meant of the layer. Errors: as trf_device_layer_load. */
trf_status trf_layer_open_tensor(const trf_checkpoint *checkpoint, const char *tensor, const trf_load_options *options,
                                 trf_layer **layer, trf_shard_range *shard, trf_error *err);

/* The tiles that the options' shard touches, and where it lies in them. used: its columns, of the whole layer. Errors:
 * TRF_ERR_ARGUMENT. */
trf_status trf_find_shard(const trf_header *header, const trf_load_options *options, trf_tile_range *range,
                          trf_col_range *used, trf_shard_range *shard, trf_error *err);

/* Makes err's offset in a blob, which begins at byte blob_offset of its file, one in the file, and puts it into the
 * message. @return status. */
trf_status trf_fail_in_blob(uint64_t blob_offset, trf_status status, trf_error *err);

/* Whether these are all of a layer's tiles, and all of its columns are used. */
int trf_is_whole_layer(const trf_header *header, const trf_tile_range *range, const trf_col_range *used);

#endif

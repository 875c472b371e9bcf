/* One compressed tensor of a checkpoint as a layer, mapped from its file. */
#ifndef TRF_LAYER_OPEN_H
#define TRF_LAYER_OPEN_H

#include "trf_layer.h"

/* Maps and validates the blob of a tensor, named as in trf_device_layer_load. Release with trf_layer_free; the checkpoint may be closed before.
 * options: NULL for the defaults. Errors: as trf_device_layer_load. */
trf_status trf_layer_open_tensor(const trf_checkpoint *checkpoint, const char *tensor, const trf_load_options *options,
                                 trf_layer **layer, trf_error *err);

#endif

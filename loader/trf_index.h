/* A *.safetensors.index.json: which shard holds which tensor. */
#ifndef TRF_INDEX_H
#define TRF_INDEX_H

#include "trf_shard.h"

/* Where, under "metadata", the index of a compressed checkpoint keeps the source's index. */
#define TRF_METADATA_INDEX "transfuse_source_index"

typedef struct trf_index {
    char *path;
    char *name; /* of the file alone */
    json_t *root;
    json_t *weight_map; /* within root */
} trf_index;

/* Reads and parses. Release with trf_index_free on success only. Errors: TRF_ERR_NOT_FOUND, _IO, _FORMAT, _MEMORY. */
trf_status trf_index_open(const char *path, trf_index *index, trf_error *err);
void trf_index_free(trf_index *index);

/* Checks that every tensor of the map is in its shard, and every tensor of those shards in the map.
 * Errors: TRF_ERR_NOT_FOUND (no such shard), TRF_ERR_FORMAT. */
trf_status trf_index_check(const trf_index *index, const trf_shard *shards, size_t num_shards, trf_error *err);

/* The text of the index that goes with `out`, the shards that the ones of `in` became (same names, same order).
 * Compressing keeps the text of this index in it; decompressing gives that text back. *text is malloc'd.
 * Errors: TRF_ERR_FORMAT (a kept index that does not fit), _IO, _MEMORY. */
trf_status trf_index_convert(const trf_index *index, const trf_shard *in, const trf_shard *out, size_t num_shards,
                             char **text, size_t *bytes, trf_error *err);

#endif

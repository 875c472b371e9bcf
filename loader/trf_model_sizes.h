/* SPDX-License-Identifier: Apache-2.0 */
/* What config.json says of a decoder's sizes: what its KV cache keeps, and how many experts a token has. */
#ifndef TRF_MODEL_SIZES_H
#define TRF_MODEL_SIZES_H

#include "trf_model_config.h"

/* Heads of keys and values. */
typedef struct trf_model_cache {
    uint64_t layers;
    uint64_t kv_heads;    /* 1 if one latent vector is kept, which every GPU has */
    uint64_t head_values; /* numbers that are kept of a token for each of them, in each layer */
    int is_latent;
} trf_model_cache;

/* Reads what the cache keeps of a token. Errors: TRF_ERR_UNSUPPORTED if config.json is missing, lacks a size, or has a
 * field by which the cache is another one. */
trf_status trf_model_cache_read(const trf_source_config *config, trf_model_cache *cache, trf_error *err);

/* @return the bytes of a token in BF16 on each of the GPUs, where every layer keeps every token. */
uint64_t trf_model_cache_token_bytes(const trf_model_cache *cache, uint32_t gpus);

/* Reads how many experts a token has. Errors: TRF_ERR_UNSUPPORTED if config.json does not say. */
trf_status trf_model_routed_read(const trf_source_config *config, uint32_t *routed, trf_error *err);

#endif

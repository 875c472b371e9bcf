/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_model_sizes.h"

#include "trf_error.h"

#include <math.h>
#include <string.h>

static const double kMostOfAnything = 1 << 24;

/* Fields of models whose cache keeps more, or less, or keeps it in another way. */
static const char *const kNotUnderstood[] = {
    "attention_chunk_size", "block_configs",      "compress_ratios",      "cross_attention_layers",
    "index_head_dim",       "is_encoder_decoder", "num_kv_shared_layers", "v_head_dim",
};
static const char *const kRouted[] = {
    "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_top_k", "moe_k"};
static const char kValueHead[] = "v_head_dim"; /* the last of kNotUnderstood, which latent attention has, too */

/* @return the part of config.json that describes the decoder. */
static const json_t *find_text(const trf_source_config *config) {
    const json_t *nested = json_object_get(config->file.root, "text_config");
    return json_is_object(nested) ? nested : config->file.root;
}

static int is_set(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    return value && !json_is_null(value) && !json_is_false(value) &&
           !(json_is_number(value) && json_number_value(value) == 0) &&
           !(json_is_array(value) && json_array_size(value) == 0);
}

/* @return a whole number from 1 on, or 0. */
static uint64_t get_count(const json_t *object, const char *name) {
    const double value = json_number_value(json_object_get(object, name));
    return value >= 1 && value <= kMostOfAnything && value == floor(value) ? (uint64_t)value : 0;
}

static trf_status need_count(const json_t *object, const char *name, uint64_t *count, trf_error *err) {
    *count = get_count(object, name);
    return *count ? TRF_OK
                  : trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                             "config.json does not say %s, which the size of the KV cache depends on", name);
}

static trf_status read_heads(const json_t *text, trf_model_cache *cache, trf_error *err) {
    uint64_t heads, hidden = 0, head_dim = get_count(text, "head_dim");
    trf_status status = need_count(text, "num_attention_heads", &heads, err);
    if (status == TRF_OK && !head_dim)
        status = need_count(text, "hidden_size", &hidden, err);
    if (status != TRF_OK)
        return status;
    const uint64_t kv_heads = get_count(text, "num_key_value_heads");
    cache->kv_heads = kv_heads ? kv_heads : heads;
    cache->head_values = 2 * (head_dim ? head_dim : (hidden + heads - 1) / heads);
    return TRF_OK;
}

static trf_status read_latent(const json_t *text, trf_model_cache *cache, trf_error *err) {
    uint64_t latent, rope;
    trf_status status = need_count(text, "kv_lora_rank", &latent, err);
    if (status == TRF_OK)
        status = need_count(text, "qk_rope_head_dim", &rope, err);
    if (status != TRF_OK)
        return status;
    cache->is_latent = 1;
    cache->kv_heads = 1;
    cache->head_values = latent + rope;
    return TRF_OK;
}

trf_status trf_model_cache_read(const trf_source_config *config, trf_model_cache *cache, trf_error *err) {
    const json_t *text = find_text(config);
    *cache = (trf_model_cache){0};
    if (!text)
        return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                        "there is no config.json, which the size of the KV cache depends on");
    const int is_latent = is_set(text, "kv_lora_rank");
    for (size_t i = 0; i < sizeof kNotUnderstood / sizeof kNotUnderstood[0]; i++) {
        const char *name = kNotUnderstood[i];
        if ((is_set(text, name) || is_set(config->file.root, name)) && !(is_latent && strcmp(name, kValueHead) == 0))
            return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                            "config.json has %s: what the KV cache keeps of a token is not known", name);
    }
    trf_status status = need_count(text, "num_hidden_layers", &cache->layers, err);
    if (status != TRF_OK)
        return status;
    return is_latent ? read_latent(text, cache, err) : read_heads(text, cache, err);
}

uint64_t trf_model_cache_token_bytes(const trf_model_cache *cache, uint32_t gpus) {
    const uint64_t kv_heads = cache->kv_heads > gpus ? (cache->kv_heads + gpus - 1) / gpus : 1;
    return cache->layers * kv_heads * cache->head_values * trf_dtype_bytes(TRF_DTYPE_BF16);
}

trf_status trf_model_routed_read(const trf_source_config *config, uint32_t *routed, trf_error *err) {
    const json_t *text = find_text(config);
    for (size_t i = 0; i < sizeof kRouted / sizeof kRouted[0]; i++)
        if (get_count(text, kRouted[i])) {
            *routed = (uint32_t)get_count(text, kRouted[i]);
            return TRF_OK;
        }
    return trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET,
                    "there are experts, and config.json does not say how many a token has (num_experts_per_tok)");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Reads from a model's config.json, and from modelopt's file beside it, whether its weights are quantized in a way that
 * scaled FP8 takes: codes of E4M3 with a scale a tensor, a row or a square block. */
#ifndef TRF_FP8_CONFIG_H
#define TRF_FP8_CONFIG_H

#include <jansson.h>
#include <stdint.h>

#define TRF_QUANTIZATION_KEY "quantization_config"
#define TRF_MODELOPT_FILE "hf_quant_config.json"

enum {
    TRF_FP8_REASON_BYTES = 160,
    TRF_FP8_IGNORED_LISTS = 8
};

typedef struct trf_fp8_config {
    int is_taken;        /* the weights are FP8 as above, as far as configs tell */
    const char *method;  /* "fp8", "compressed-tensors", "modelopt", "fbgemm_fp8"; NULL if it is none of these */
    uint32_t block_size; /* of square blocks; 0 if there are none */
    char reason[TRF_FP8_REASON_BYTES];            /* why they are not taken, where the method is one of these; or "" */
    const json_t *ignored[TRF_FP8_IGNORED_LISTS]; /* lists of modules that are not quantized; or NULL */
} trf_fp8_config;

/* Reads the configs. root: of config.json; or NULL. modelopt: of hf_quant_config.json; or NULL. Both must outlive
 * *config. */
void trf_fp8_config_read(const json_t *root, const json_t *modelopt, trf_fp8_config *config);

/* @return whether a list of modules that are not quantized has a tensor's module, or one that it is in, by its name or
 * by a glob; or its module by a regular expression ("re:..."), of which one is passed over that POSIX does not have. */
int trf_fp8_config_ignores(const trf_fp8_config *config, const char *tensor);

#endif

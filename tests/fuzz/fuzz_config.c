/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as the config.json of a small model, or as its hf_quant_config.json; the first byte says which. Every
 * reader of it runs, and a config.json that is rewritten for the compressed model must come back from that byte for
 * byte. With bit 1 it is the config.json of a compressed model, which a stranger wrote. */
#include "fuzz_small_model.h"

#include "fuzz_bytes.h"
#include "trf_fp8_model.h"
#include "trf_json.h"
#include "trf_model_sizes.h"
#include "trf_source_kind.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char kFp8Config[] = "{\"model_type\":\"llama\",\"quantization_config\":{\"quant_method\":\"fp8\","
                                 "\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128]}}";

/* Makes the folders once: a model, and what it is compressed. */
static void make_folders(void) {
    static int made;
    if (made++)
        return;
    const fuzz_path source = fuzz_path_of("source"), compressed = fuzz_path_of("compressed");
    const trf_checkpoint_options options = fuzz_checkpoint_options();
    trf_error err;
    fuzz_make_model_folder(source.text);
    fuzz_expect(trf_compress_checkpoint(source.text, compressed.text, &options, NULL, &err), &err);
}

/* Restores the config.json of a compressed model, which is `text`. must_be: what has to come out; or NULL. */
static void restore(const char *text, size_t bytes, const uint8_t *must_be, size_t must_be_bytes) {
    const fuzz_path folder = fuzz_path_of("compressed"), file = fuzz_path_of("compressed/config.json");
    trf_checkpoint *checkpoint;
    trf_model_config config;
    trf_job job;
    trf_error err;
    int lossless;
    fuzz_write(file.text, text, bytes);
    fuzz_expect(trf_checkpoint_open(folder.text, &checkpoint, &err), &err);
    fuzz_expect(trf_model_config_restore(checkpoint, &config, &err), &err);
    if (must_be && (!config.text || config.bytes != must_be_bytes || memcmp(config.text, must_be, must_be_bytes) != 0))
        abort();
    trf_model_config_free(&config);
    fuzz_expect(trf_model_config_is_lossless(checkpoint, &lossless, &err), &err);
    fuzz_expect(trf_job_begin(&job, NULL, &err), &err);
    (void)trf_model_config_check_kept(checkpoint, &job, &err);
    trf_job_end(&job);
    trf_checkpoint_close(checkpoint);
}

static void read_sizes(const trf_source_config *source) {
    trf_model_cache cache;
    uint32_t routed;
    trf_error err;
    if (trf_model_cache_read(source, &cache, &err) == TRF_OK)
        for (uint32_t gpus = 1; gpus <= 8; gpus *= 2)
            (void)trf_model_cache_token_bytes(&cache, gpus);
    (void)trf_model_routed_read(source, &routed, &err);
    (void)trf_source_config_framework(source);
    (void)trf_source_config_dtype(source);
    (void)trf_source_config_weights(source);
    (void)trf_source_config_find_ours(source);
    (void)trf_source_config_is_tied(source);
}

static void read_kind(const trf_checkpoint *checkpoint, const trf_source_config *source) {
    trf_fp8_model model;
    char text[TRF_OBSTACLE_BYTES];
    trf_error err;
    fuzz_expect(trf_fp8_model_read(checkpoint, source, &model, text, &err), &err);
    if (memchr(text, 0, sizeof text) == NULL)
        abort();
    fuzz_expect(trf_source_find_obstacle(checkpoint, source, &model, text, &err), &err);
    if (memchr(text, 0, sizeof text) == NULL)
        abort();
    (void)trf_source_find_dtype(checkpoint, source);
    (void)trf_fp8_config_ignores(&model.config, "a.weight");
    (void)trf_fp8_config_ignores(&model.config, "model.layers.0.mlp.experts.17.down_proj.weight");
    trf_fp8_model_free(&model);
}

/* data: the config.json, if it is rewritten; or NULL. */
static void read_source(const uint8_t *data, size_t size) {
    const fuzz_path folder = fuzz_path_of("source");
    const trf_checkpoint_options options = fuzz_checkpoint_options();
    trf_checkpoint *checkpoint;
    trf_source_config source;
    trf_model_config config;
    trf_error err;
    fuzz_expect(trf_checkpoint_open(folder.text, &checkpoint, &err), &err);
    fuzz_expect(trf_source_config_read(checkpoint, &source, &err), &err);
    read_sizes(&source);
    read_kind(checkpoint, &source);
    if (data) {
        const trf_status status = trf_model_config_compress(&source, &options.encode, 1,
                                                            trf_source_find_dtype(checkpoint, &source), &config, &err);
        if (status == TRF_OK && config.text)
            restore(config.text, config.bytes, data, size);
        else if (status != TRF_OK && status != TRF_ERR_ARGUMENT)
            abort();
        trf_model_config_free(&config);
    }
    trf_source_config_free(&source);
    trf_checkpoint_close(checkpoint);
}

/* Members that are found lie in the text. */
static void find_members(const uint8_t *data, size_t size) {
    static const char *const keys[] = {"quantization_config", "dtype", "", "a"};
    char *strict;
    json_t *root;
    trf_error err;
    if (trf_json_parse_python("config.json", (const char *)data, size, &root, &strict, &err) != TRF_OK)
        return;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && json_is_object(root); i++) {
        trf_json_member member = {0};
        int found;
        size_t last = 0, count = 0;
        while ((found = trf_json_next_member(strict, size, keys[i], &member)) > 0) {
            if (member.begin < last || member.begin >= member.end || member.end > size || member.next < member.end)
                abort();
            last = member.next, count++;
        }
        if (found < 0 || (count == 0) != (json_object_get(root, keys[i]) == NULL))
            abort();
    }
    json_decref(root);
    free(strict);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_bytes bytes = {data, size};
    const uint32_t mode = fuzz_take(&bytes) % 4;
    const fuzz_path config = fuzz_path_of("source/config.json"), modelopt = fuzz_path_of("source/" TRF_MODELOPT_FILE);
    static const uint8_t nothing[1];
    const uint8_t *text = bytes.left > 0 ? bytes.at : nothing;
    make_folders();
    find_members(text, bytes.left);
    if (mode == 0) {
        fuzz_remove(modelopt.text);
        fuzz_write(config.text, text, bytes.left);
        read_source(text, bytes.left);
    } else if (mode == 1) {
        fuzz_write(config.text, kFp8Config, sizeof kFp8Config - 1);
        fuzz_write(modelopt.text, text, bytes.left);
        read_source(NULL, 0);
    } else {
        restore((const char *)text, bytes.left, NULL, 0);
    }
    return 0;
}

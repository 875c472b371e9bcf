/* SPDX-License-Identifier: Apache-2.0 */
/* The layers that checkpoints have to choose layouts for: their sizes, those of the rest, and what each GPU has. */
#include "common/checkpoint_fixture.h"
#include "common/run_suite.h"
#include "common/was_fp8.h"
#include "transfuse/layouts.h"
#include "trf_number_formats.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char kConfig[] =
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 3, \"num_attention_heads\": 8, \"hidden_size\": 512, "
    "\"num_key_value_heads\": 2, \"num_experts_per_tok\": 2}";

static const fixture_tensor kTensors[] = {
    {"model.embed_tokens.weight", "BF16", {1000, 512}, 2, 0},
    {"model.layers.0.self_attn.q_proj.weight", "BF16", {512, 512}, 2, 0},
    {"model.layers.0.self_attn.k_proj.weight", "BF16", {128, 512}, 2, 0},
    {"model.layers.0.self_attn.o_proj.weight", "BF16", {512, 512}, 2, 0},
    {"model.layers.0.mlp.experts.0.gate_proj.weight", "BF16", {256, 512}, 2, 0},
    {"model.layers.0.mlp.experts.0.down_proj.weight", "BF16", {512, 256}, 2, 0},
    {"model.layers.0.mlp.experts.1.gate_proj.weight", "BF16", {256, 512}, 2, 0},
    {"model.layers.0.mlp.experts.1.down_proj.weight", "BF16", {512, 256}, 2, 0},
    {"model.layers.1.mlp.experts.gate_up_proj", "BF16", {4, 256, 512}, 3, 0},
    {"model.layers.1.mlp.experts.gate_up_proj_bias", "BF16", {32, 256}, 2, 0},
    {"model.layers.1.half.weight", "F16", {256, 256}, 2, 0},
    {"model.norm.weight", "BF16", {512}, 1, 0},
};
enum {
    NUM_TENSORS = sizeof kTensors / sizeof kTensors[0]
};

static const char *make_folder(const char *name, const char *config) {
    const char *folder = fixture_path("%s", name);
    fixture_make_folder(folder);
    fixture_write_safetensors(fixture_path("%s/model.safetensors", name), NULL, kTensors, NUM_TENSORS, 8, 3);
    if (config)
        fixture_write(fixture_path("%s/config.json", name), config, strlen(config));
    return folder;
}

static trf_status read_set(const char *path, uint32_t gpus, uint64_t tokens, trf_layout_set **set, trf_error *err) {
    trf_checkpoint *checkpoint;
    trf_layout_set_options options;
    trf_error open_err;
    fixture_check_status(trf_checkpoint_open(path, &checkpoint, &open_err), TRF_OK, &open_err);
    trf_layout_set_options_init(&options);
    options.gpus = gpus;
    options.context_tokens = tokens;
    const trf_status status = trf_layout_set_read(checkpoint, &options, set, err);
    trf_checkpoint_close(checkpoint);
    return status;
}

static trf_layout_set *read_good_set(const char *path, uint32_t gpus, uint64_t tokens) {
    trf_layout_set *set = NULL;
    trf_error err;
    fixture_check_status(read_set(path, gpus, tokens, &set, &err), TRF_OK, &err);
    return set;
}

static const trf_layout_layer *find(const trf_layout_set *set, const char *tensor) {
    const uint32_t index = trf_layout_set_find(set, tensor);
    ck_assert_msg(index != UINT32_MAX, "%s", tensor);
    return &trf_layout_set_layers(set)[index];
}

START_TEST(layers_of_a_plain_checkpoint) {
    trf_layout_set *set = read_good_set(make_folder("plain", kConfig), 1, 100);
    trf_layout_set_info info;
    trf_layout_set_get_info(set, &info);
    ck_assert(info.is_estimated);
    ck_assert_uint_eq(info.num_layers, 6); /* q, k, o, half, and two layers of experts */
    ck_assert_uint_eq(info.tensors, 9);
    ck_assert_uint_eq(trf_layout_set_find(set, "model.norm.weight"), UINT32_MAX);
    ck_assert_uint_eq(trf_layout_set_find(set, "model.layers.1.mlp.experts.gate_up_proj_bias"), UINT32_MAX);
    /* 1 more for each matrix, which is rounded up */
    ck_assert_uint_eq(info.other_bytes, 1000 * 512 * 2 + 1 + 32 * 256 * 2 + 1 + 512 * 2);
    ck_assert_uint_eq(info.cache_bytes, 100 * 3 * 2 * 2 * 64 * 2);
    const trf_layout_layer *q = find(set, "model.layers.0.self_attn.q_proj.weight");
    ck_assert_uint_eq(q->layouts, 7);
    ck_assert(q->rows == 512 && q->cols == 512 && !q->experts && !q->is_lookup);
    ck_assert_uint_eq(q->bytes[TRF_LAYOUT_PLAIN], 256 + 2 * 512 * 512);
    ck_assert_uint_eq(q->bytes[TRF_LAYOUT_PACKED], 1280 + 8 * 16 * 3072);
    ck_assert_double_eq_tol(8.0 * (double)q->bytes[TRF_LAYOUT_CODED] / (512 * 512), 11.2, 0.3);
    ck_assert_uint_eq(find(set, "model.layers.1.half.weight")->layouts,
                      1u << TRF_LAYOUT_CODED | 1u << TRF_LAYOUT_PLAIN);
    const trf_layout_layer *many = find(set, "model.layers.0.mlp.experts.1.down_proj.weight"),
                           *one = find(set, "model.layers.1.mlp.experts.gate_up_proj");
    ck_assert_ptr_eq(many, find(set, "model.layers.0.mlp.experts.0.gate_proj.weight"));
    ck_assert_str_eq(many->name, "model.layers.0.mlp.experts");
    ck_assert(many->experts == 2 && many->routed == 2 && many->rows == 512 && many->cols == 512);
    ck_assert(one->experts == 4 && one->routed == 2 && one->rows == 256 && one->cols == 512);
    ck_assert_uint_eq(one->layouts, 1u << TRF_LAYOUT_CODED | 1u << TRF_LAYOUT_PACKED);
    ck_assert_uint_eq(one->bytes[TRF_LAYOUT_PLAIN], 4 * (256 + 2 * 256 * 512));
    trf_layout_set_free(set);
}
END_TEST

/* A compressed checkpoint says what coded layers take, and samples of its source come near. */
START_TEST(layers_of_a_compressed_checkpoint) {
    const char *source = make_folder("source", kConfig), *path = fixture_path("compressed");
    trf_checkpoint_options options;
    trf_error err;
    trf_checkpoint_options_init(&options);
    options.embeddings = 1;
    fixture_check_status(trf_compress_checkpoint(source, path, &options, NULL, &err), TRF_OK, &err);
    trf_layout_set *set = read_good_set(path, 1, 0), *estimated = read_good_set(source, 1, 0);
    trf_layout_set_info info;
    trf_layout_set_get_info(set, &info);
    ck_assert(!info.is_estimated);
    ck_assert_uint_eq(info.num_layers, 7);
    ck_assert_uint_eq(info.cache_bytes, 0);
    ck_assert(find(set, "model.embed_tokens.weight")->is_lookup);
    const char *const names[] = {"model.layers.0.self_attn.q_proj.weight", "model.layers.1.half.weight",
                                 "model.layers.0.mlp.experts.0.gate_proj.weight",
                                 "model.layers.1.mlp.experts.gate_up_proj"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const double coded = (double)find(set, names[i])->bytes[TRF_LAYOUT_CODED];
        ck_assert_double_ge((double)find(estimated, names[i])->bytes[TRF_LAYOUT_CODED], coded);
        ck_assert_double_le((double)find(estimated, names[i])->bytes[TRF_LAYOUT_CODED], 1.06 * coded);
    }
    trf_layout_set_free(set);
    trf_layout_set_free(estimated);
}
END_TEST

/* BF16 that was FP8 has the layouts of BF16, and sizes of its own, which samples of it show. */
START_TEST(layers_that_were_fp8) {
    static const fixture_tensor tensor = {"model.layers.0.self_attn.q_proj.weight", "BF16", {512, 512}, 2, 0};
    const char *source = fixture_path("was_fp8"), *path = fixture_path("fp8_again");
    test_rng rng = {5};
    trf_error err;
    fixture_make_folder(source);
    fixture_write(fixture_path("was_fp8/config.json"), kConfig, strlen(kConfig));
    fixture_write_safetensors(fixture_path("was_fp8/model.safetensors"), NULL, &tensor, 1, 8, 3);
    uint16_t *const weights = was_fp8_make(&rng, TRF_GRANULARITY_SCALE_BLOCK, 512, 512);
    FILE *const file = fopen(fixture_path("was_fp8/model.safetensors"), "r+b"); /* the weights are its end */
    ck_assert(file && fseek(file, -2 * 512 * 512, SEEK_END) == 0);
    ck_assert(fwrite(weights, 2, 512 * 512, file) == 512 * 512 && fclose(file) == 0);
    free(weights);
    trf_checkpoint_report report = {0};
    fixture_check_status(trf_compress_checkpoint(source, path, NULL, &report, &err), TRF_OK, &err);
    ck_assert_uint_eq(report.scaled_fp8_tensors[TRF_GRANULARITY_SCALE_BLOCK], 1);
    trf_layout_set *set = read_good_set(path, 1, 0), *estimated = read_good_set(source, 1, 0);
    const trf_layout_layer *layer = find(set, tensor.name), *before = find(estimated, tensor.name);
    ck_assert_uint_eq(layer->layouts, 1u << TRF_LAYOUT_CODED | 1u << TRF_LAYOUT_PLAIN | 1u << TRF_LAYOUT_PACKED);
    ck_assert_uint_eq(layer->layouts, before->layouts);
    ck_assert(layer->packed_is_fp8 && before->packed_is_fp8);
    ck_assert_uint_eq(layer->bytes[TRF_LAYOUT_PACKED], 1280 + 8 * 16 * 2048);
    ck_assert_uint_eq(before->bytes[TRF_LAYOUT_PACKED], 1280 + 8 * 16 * 2048);
    ck_assert_uint_lt(layer->bytes[TRF_LAYOUT_CODED], 512 * 512);
    ck_assert_uint_ge(before->bytes[TRF_LAYOUT_CODED], layer->bytes[TRF_LAYOUT_CODED]);
    ck_assert_double_le((double)before->bytes[TRF_LAYOUT_CODED], 1.1 * (double)layer->bytes[TRF_LAYOUT_CODED]);
    trf_layout_set_free(set);
    trf_layout_set_free(estimated);
}
END_TEST

/* Makes the BF16 weights of a file with one tensor those of FP8 codes, one scale for all. */
static void make_fp8(const char *path, size_t count) {
    size_t size;
    uint8_t *file = fixture_read(path, &size);
    ck_assert_uint_gt(size, count * sizeof(uint16_t));
    for (size_t i = 0; i < count; i++) {
        const uint16_t weight = trf_scale_fp8((uint32_t)(i * 2654435761u >> 24) & 0xBF, 0.0123f);
        memcpy(file + size - (count - i) * sizeof weight, &weight, sizeof weight);
    }
    fixture_write(path, file, size);
    free(file);
}

/* A packed layer of FP8 takes a byte a weight, with scales or without; so do experts with scales. */
START_TEST(layers_of_fp8) {
    static const fixture_tensor codes[] = {{"a.q_proj.weight", "F8_E4M3", {512, 512}, 2, 0}},
                                bf16[] = {{"a.mlp.experts.0.down_proj.weight", "BF16", {512, 512}, 2, 0}},
                                scaled[] = {{"a.o_proj.weight", "BF16", {512, 512}, 2, 0}};
    static const struct {
        const fixture_tensor *tensor;
        unsigned layouts;
        uint64_t tile_bytes;
    } cases[] = {{codes, 1u << TRF_LAYOUT_CODED | 1u << TRF_LAYOUT_PACKED, 2048},
                 {bf16, 1u << TRF_LAYOUT_CODED | 1u << TRF_LAYOUT_PACKED, 2048},
                 {scaled, 7, 2048}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *source = fixture_path("fp8_%zu", i), *path = fixture_path("fp8_%zu_trf", i),
                   *file = fixture_path("fp8_%zu/model.safetensors", i);
        trf_checkpoint_options options;
        trf_error err;
        fixture_make_folder(source);
        fixture_write(fixture_path("fp8_%zu/config.json", i), kConfig, strlen(kConfig));
        fixture_write_safetensors(file, NULL, cases[i].tensor, 1, 8, 3);
        if (cases[i].tensor != codes)
            make_fp8(file, 512 * 512);
        trf_checkpoint_options_init(&options);
        options.encode.codec = TRF_CODEC_E4M3;
        fixture_check_status(trf_compress_checkpoint(source, path, &options, NULL, &err), TRF_OK, &err);
        trf_layout_set *set = read_good_set(path, 1, 0);
        const trf_layout_layer *layer = find(set, cases[i].tensor->name);
        ck_assert_int_eq(layer->codec, cases[i].tensor == codes ? TRF_CODEC_E4M3 : TRF_CODEC_BF16); /* the elements' */
        ck_assert_uint_eq(layer->layouts, cases[i].layouts);
        ck_assert_uint_eq(layer->bytes[TRF_LAYOUT_PACKED], 1280 + 8 * 16 * cases[i].tile_bytes);
        trf_layout_set_free(set);
    }
}
END_TEST

/* FP8 with scales is planned as what it will be when it is compressed, and its scales are nobody's tensors. */
START_TEST(layers_of_an_fp8_checkpoint) {
    static const char config[] = "{\"model_type\": \"llama\", \"dtype\": \"bfloat16\", \"num_experts_per_tok\": 2, "
                                 "\"quantization_config\": {\"quant_method\": \"fp8\", "
                                 "\"weight_block_size\": [128, 128]}}";
    static const fixture_tensor tensors[] = {{"a.self_attn.q_proj.weight", "F8_E4M3", {512, 512}, 2, 0},
                                             {"a.self_attn.q_proj.weight_scale_inv", "F32", {4, 4}, 2, 0},
                                             {"a.mlp.experts.0.up_proj.weight", "F8_E4M3", {256, 512}, 2, 0},
                                             {"a.mlp.experts.0.up_proj.weight_scale_inv", "F32", {2, 4}, 2, 0},
                                             {"a.norm.weight", "BF16", {512}, 1, 0}};
    enum {
        COUNT = sizeof tensors / sizeof *tensors
    };
    const char *source = fixture_path("of_fp8"), *path = fixture_path("of_fp8_trf"),
               *name = fixture_path("of_fp8/model.safetensors");
    trf_layout_set_info info;
    trf_error err;
    size_t size;
    fixture_make_folder(source);
    fixture_write(fixture_path("of_fp8/config.json"), config, strlen(config));
    fixture_write_safetensors(name, NULL, tensors, COUNT, 8, 3);
    uint8_t *file = fixture_read(name, &size), *at = file + size - 2 * 512; /* of the norm */
    const float scale = 0.0123f;
    for (int i = 0; i < 8; i++)
        memcpy(at -= sizeof scale, &scale, sizeof scale);
    at -= 256 * 512;
    for (int i = 0; i < 16; i++)
        memcpy(at -= sizeof scale, &scale, sizeof scale);
    fixture_write(name, file, size);
    free(file);
    fixture_check_status(trf_compress_checkpoint(source, path, NULL, NULL, &err), TRF_OK, &err);
    trf_layout_set *set = read_good_set(path, 1, 0), *estimated = read_good_set(source, 1, 0);
    trf_layout_set_get_info(estimated, &info);
    ck_assert(info.is_estimated && info.num_layers == 2 && info.tensors == 2);
    ck_assert_uint_eq(info.other_bytes, 2 * 512); /* the norm's alone */
    for (int i = 0; i < COUNT - 1; i += 2) {
        const trf_layout_layer *layer = find(set, tensors[i].name), *before = find(estimated, tensors[i].name);
        ck_assert_uint_eq(layer->layouts, before->layouts);
        ck_assert_int_eq(layer->codec, before->codec);
        ck_assert(before->packed_is_fp8 && layer->packed_is_fp8);
        ck_assert_uint_eq(layer->bytes[TRF_LAYOUT_PACKED], before->bytes[TRF_LAYOUT_PACKED]);
        ck_assert_uint_eq(layer->bytes[TRF_LAYOUT_PLAIN], before->bytes[TRF_LAYOUT_PLAIN]);
        ck_assert_double_eq_tol((double)before->bytes[TRF_LAYOUT_CODED] / (double)layer->bytes[TRF_LAYOUT_CODED], 1.03,
                                0.03);
    }
    trf_layout_set_free(set);
    trf_layout_set_free(estimated);
}
END_TEST

START_TEST(gpus_share_layers) {
    const char *folder = make_folder("shared", kConfig);
    trf_layout_set *one = read_good_set(folder, 1, 10), *four = read_good_set(folder, 4, 10);
    trf_layout_set_info info;
    const trf_layout_layer *q = find(four, "model.layers.0.self_attn.q_proj.weight"),
                           *k = find(four, "model.layers.0.self_attn.k_proj.weight"),
                           *o = find(four, "model.layers.0.self_attn.o_proj.weight");
    ck_assert(q->rows == 128 && q->cols == 512 && o->rows == 512 && o->cols == 128);
    ck_assert(k->rows == 64 && k->cols == 512); /* of 2 heads each has one */
    ck_assert_uint_eq(q->bytes[TRF_LAYOUT_PLAIN], 256 + 2 * 128 * 512);
    /* 128 rows touch tiles of 256 rows: half of the layer, and not a quarter. */
    const double whole = (double)find(one, "model.layers.0.self_attn.q_proj.weight")->bytes[TRF_LAYOUT_CODED];
    ck_assert_double_eq_tol((double)q->bytes[TRF_LAYOUT_CODED] / whole, 0.5, 0.06);
    const trf_layout_layer *experts = find(four, "model.layers.0.mlp.experts.1.down_proj.weight");
    ck_assert(experts->experts == 2 && experts->rows == 128 && experts->cols == 512);
    trf_layout_set_get_info(four, &info);
    ck_assert_uint_eq(info.cache_bytes, 10 * 3 * 1 * 2 * 64 * 2);
    trf_layout_set_free(one);
    trf_layout_set_free(four);
}
END_TEST

static void expect_refused(const char *path, uint32_t gpus, uint64_t tokens, trf_status status, const char *why) {
    trf_layout_set *set = NULL;
    trf_error err;
    fixture_check_status(read_set(path, gpus, tokens, &set, &err), status, &err);
    ck_assert_msg(strstr(err.message, why) != NULL, "%s", err.message);
    ck_assert_ptr_null(set);
}

START_TEST(says_what_config_lacks) {
    expect_refused(make_folder("none", NULL), 1, 0, TRF_ERR_UNSUPPORTED, "how many a token has");
    expect_refused(fixture_path("none"), 1, 10, TRF_ERR_UNSUPPORTED, "there is no config.json");
    expect_refused(fixture_path("none"), 0, 0, TRF_ERR_ARGUMENT, "gpus is 0");
    expect_refused(make_folder("no_layers", "{\"model_type\": \"llama\", \"num_experts_per_tok\": 2}"), 1, 10,
                   TRF_ERR_UNSUPPORTED, "num_hidden_layers");
    expect_refused(make_folder("index", "{\"num_hidden_layers\": 2, \"index_head_dim\": 64}"), 1, 10,
                   TRF_ERR_UNSUPPORTED, "index_head_dim");
}
END_TEST

/* One latent vector is kept for all heads, on each GPU. */
START_TEST(latent_caches) {
    static const char config[] = "{\"text_config\": {\"num_hidden_layers\": 2, \"kv_lora_rank\": 100, "
                                 "\"qk_rope_head_dim\": 28, \"v_head_dim\": 64, \"num_experts_per_tok\": 1}}";
    trf_layout_set *set = read_good_set(make_folder("latent", config), 2, 10);
    trf_layout_set_info info;
    trf_layout_set_get_info(set, &info);
    ck_assert_uint_eq(info.cache_bytes, 10 * 2 * 128 * 2);
    trf_layout_set_free(set);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("layout_set");
    TCase *tests = tcase_create("layout_set");
    tcase_set_timeout(tests, 120);
    tcase_add_unchecked_fixture(tests, fixture_begin, fixture_end);
    tcase_add_test(tests, layers_of_a_plain_checkpoint);
    tcase_add_test(tests, layers_of_a_compressed_checkpoint);
    tcase_add_test(tests, layers_that_were_fp8);
    tcase_add_test(tests, layers_of_fp8);
    tcase_add_test(tests, layers_of_an_fp8_checkpoint);
    tcase_add_test(tests, gpus_share_layers);
    tcase_add_test(tests, says_what_config_lacks);
    tcase_add_test(tests, latent_caches);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}

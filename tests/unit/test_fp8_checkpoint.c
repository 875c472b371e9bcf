/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of FP8 with scales: each kind of scales is compressed and comes back byte for byte, whichever file the
 * scales are in; what scaled FP8 cannot hold is refused by name; and side tables that do not fit are found. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memmem */
#endif
#include "common/checkpoint_fixture.h"
#include "common/run_suite.h"
#include "trf_base64.h"
#include "trf_fp8_config.h"
#include "trf_fp8_weights.h"
#include "trf_number_formats.h"

#include "transfuse/checkpoints.h"

#include <check.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static trf_error err;

#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))
#define MODEL "\"model_type\": \"a\", \"dtype\": \"bfloat16\", "
#define FP8 "{" MODEL "\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": "

/* ---- files ---- */

enum {
    MOST_TENSORS = 6
};

/* A tensor. F8_E4M3 gets every code; of other types all elements are `value`. */
typedef struct tensor {
    const char *name, *dtype;
    uint64_t shape[4];
    uint32_t num_dims;
    float value;
} tensor;

static uint64_t count_elements(const tensor *tensor) {
    uint64_t count = 1;
    for (uint32_t i = 0; i < tensor->num_dims; i++)
        count *= tensor->shape[i];
    return count;
}

static uint64_t element_bytes(const tensor *tensor) {
    return tensor->dtype[0] == 'B' || strcmp(tensor->dtype, "F16") == 0 ? 2 : strcmp(tensor->dtype, "F32") == 0 ? 4 : 1;
}

static void fill(const tensor *tensor, uint8_t *data) {
    for (uint64_t i = 0; i < count_elements(tensor); i++) {
        const float value = tensor->value * (1 + (float)(i % 7) / 16);
        const uint16_t half = tensor->dtype[0] == 'B' ? trf_f32_to_bf16(value) : trf_f64_to_f16((double)value);
        if (element_bytes(tensor) == 4)
            memcpy(data + 4 * i, &value, 4);
        else if (element_bytes(tensor) == 2)
            memcpy(data + 2 * i, &half, 2);
        else /* all codes, and most of them small ones, as if they had been normally distributed */
            data[i] = (uint8_t)(i < 256 ? i : (i * i + i / 3) % 5 ? 0x40 + i * 7 % 32 + (i & 1) * 128 : i);
    }
}

/* Writes the tensors, up to the one without a name, as a safetensors file. */
static void write_file(const char *path, const tensor tensors[MOST_TENSORS], const char *metadata) {
    char header[4096] = "{";
    uint64_t bytes = 0;
    if (metadata)
        snprintf(header, sizeof header, "{\"__metadata__\":%s", metadata);
    for (int t = 0; t < MOST_TENSORS && tensors[t].name; t++) {
        const uint64_t end = bytes + count_elements(&tensors[t]) * element_bytes(&tensors[t]);
        char shape[96] = "";
        for (uint32_t d = 0; d < tensors[t].num_dims; d++)
            snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%" PRIu64, d ? "," : "",
                     tensors[t].shape[d]);
        snprintf(header + strlen(header), sizeof header - strlen(header),
                 "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                 header[1] ? "," : "", tensors[t].name, tensors[t].dtype, shape, bytes, end);
        bytes = end;
    }
    strcat(header, "}");
    const uint64_t length = strlen(header);
    uint8_t *file = malloc(8 + length + bytes), *at = file + 8 + length;
    memcpy(file, &length, 8);
    memcpy(file + 8, header, length);
    for (int t = 0; t < MOST_TENSORS && tensors[t].name; t++) {
        fill(&tensors[t], at);
        at += count_elements(&tensors[t]) * element_bytes(&tensors[t]);
    }
    fixture_write(path, file, (size_t)(at - file));
    free(file);
}

/* Makes the folder "source" with a config and one file. */
static const char *make_model(const char *config, const tensor tensors[MOST_TENSORS]) {
    const char *folder = fixture_path("source");
    fixture_make_folder(folder);
    fixture_write(fixture_path("source/config.json"), config, strlen(config));
    write_file(fixture_path("source/model.safetensors"), tensors, NULL);
    return folder;
}

/* Compresses "source" to "out", and expects it to come back. */
static void check_round_trip(trf_checkpoint_report *report) {
    trf_checkpoint_report verified, restored;
    const char *source = fixture_path("source"), *out = fixture_path("out"), *back = fixture_path("back");
    fixture_check_status(trf_compress_checkpoint(source, out, NULL, report, &err), TRF_OK, &err);
    fixture_check_status(trf_verify_checkpoint(out, source, NULL, &verified, &err), TRF_OK, &err);
    fixture_check_status(trf_verify_checkpoint(out, NULL, NULL, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_decompress_checkpoint(out, back, NULL, &restored, &err), TRF_OK, &err);
    fixture_check_same(source, back);
    ck_assert_uint_eq(verified.side_tables, report->side_tables);
    ck_assert_uint_eq(restored.unused_side_tables, report->unused_side_tables);
}

/* ---- what is compressed ---- */

static const struct {
    tensor weight, scale;
    const char *config;
    trf_granularity granularity;
    uint32_t block;
} kKinds[] = {
    {{"a.weight", "F8_E4M3", {300, 515}, 2, 0},
     {"a.weight_scale_inv", "F32", {3, 5}, 2, 1e-3f},
     FP8 "[128, 128]}}",
     TRF_GRANULARITY_SCALE_BLOCK,
     128},
    {{"a.weight", "F8_E4M3", {300, 515}, 2, 0},
     {"a.weight_scale_inv", "BF16", {3, 5}, 2, 3e-4f},
     FP8 "[128, 128]}}",
     TRF_GRANULARITY_SCALE_BLOCK,
     128},
    {{"a.weight", "F8_E4M3", {100, 515}, 2, 0},
     {"a.weight_scale_inv", "F32", {4, 17}, 2, 0x1p100f / 2},
     FP8 "[32, 32]}}",
     TRF_GRANULARITY_SCALE_BLOCK,
     32},
    {{"a.weight", "F8_E4M3", {128, 256}, 2, 0},
     {"a.weight_scale", "F32", {1, 1, 2, 1}, 4, 1e-3f},
     "{" MODEL "\"quantization_config\": {\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8_PB_WO\"}}",
     TRF_GRANULARITY_SCALE_BLOCK,
     128},
    {{"x.experts.up", "F8_E4M3", {3, 160, 200}, 3, 0},
     {"x.experts.up_scale_inv", "F32", {3, 2, 2}, 3, 1e-3f},
     FP8 "[128, 128]}}",
     TRF_GRANULARITY_SCALE_BLOCK,
     128},
    {{"a.weight", "F8_E4M3", {65, 99}, 2, 0},
     {"a.weight_scale", "F32", {0}, 0, 0.01f},
     FP8 "null}}",
     TRF_GRANULARITY_TENSOR,
     0},
    {{"a.weight", "F8_E4M3", {65, 99}, 2, 0},
     {"a.weight_scale_inv", "BF16", {1}, 1, 0.01f},
     FP8 "null}}",
     TRF_GRANULARITY_TENSOR,
     0},
    {{"a.weight", "F8_E4M3", {2, 300}, 2, 0},
     {"a.weight_scale", "F32", {1}, 1, 0x1p-100f},
     FP8 "null}}",
     TRF_GRANULARITY_TENSOR,
     0},
    {{"x.up", "F8_E4M3", {3, 64, 200}, 3, 0},
     {"x.up_scale", "F32", {3, 1, 1}, 3, 0.01f},
     FP8 "null}}",
     TRF_GRANULARITY_TENSOR,
     0},
    {{"a.weight", "F8_E4M3", {129, 700}, 2, 0},
     {"a.weight_scale", "F16", {129, 1}, 2, 0.01f},
     "{" MODEL "\"quantization_config\": {\"quant_method\": \"fbgemm_fp8\"}}",
     TRF_GRANULARITY_CHANNEL,
     0},
    {{"a.weight", "F8_E4M3", {129, 700}, 2, 0},
     {"a.weight_scale", "BF16", {129}, 1, 0.01f},
     "{" MODEL "\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"naive-quantized\", "
     "\"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 8, \"type\": \"float\", \"strategy\": "
     "\"channel\"}}}}}",
     TRF_GRANULARITY_CHANNEL,
     0},
    {{"a.weight", "F8_E4M3", {256, 256}, 2, 0},
     {"a.weight_scale", "BF16", {2, 2}, 2, 0.01f},
     "{" MODEL "\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"g\": "
     "{\"weights\": {\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"block\", \"block_structure\": "
     "\"128x128\"}}}}}",
     TRF_GRANULARITY_SCALE_BLOCK,
     128},
};

START_TEST(each_kind_of_scales_comes_back) {
    const tensor tensors[MOST_TENSORS] = {
        {"a.norm", "BF16", {64}, 1, 1}, kKinds[_i].weight, kKinds[_i].scale, {"a.input_scale", "F32", {0}, 0, 0.5f}};
    trf_checkpoint_report report;
    trf_checkpoint *checkpoint;
    trf_tensor_info info;
    uint64_t all, unused;
    make_model(kKinds[_i].config, tensors);
    check_round_trip(&report);
    for (int g = 0; g <= TRF_GRANULARITY_SCALE_BLOCK; g++)
        ck_assert_uint_eq(report.source_fp8_tensors[g], g == (int)kKinds[_i].granularity);
    ck_assert_uint_eq(report.source_fp8_block, kKinds[_i].block);
    ck_assert_uint_eq(report.side_tables, 2);
    ck_assert_uint_eq(report.unused_side_tables, 1);

    fixture_check_status(trf_checkpoint_open(fixture_path("out"), &checkpoint, &err), TRF_OK, &err);
    trf_checkpoint_count_side_tables(checkpoint, &all, &unused);
    ck_assert(all == 2 && unused == 1 && trf_checkpoint_num_tensors(checkpoint) == 2);
    fixture_check_status(trf_checkpoint_tensor(checkpoint, 1, &info, &err), TRF_OK, &err);
    ck_assert_str_eq(info.name, kKinds[_i].weight.name);
    ck_assert_str_eq(info.dtype, "F8_E4M3");
    ck_assert(info.layer.dtype == TRF_DTYPE_BF16 && info.layer.codec == TRF_CODEC_E4M3);
    ck_assert(info.layer.granularity == kKinds[_i].granularity && info.layer.scale_group_size == kKinds[_i].block);
    trf_checkpoint_close(checkpoint);
}
END_TEST

START_TEST(scales_may_be_in_another_file) {
    static const char index[] = "{\"metadata\": {}, \"weight_map\": {\"a.weight\": \"1.safetensors\", "
                                "\"a.weight_scale_inv\": \"2.safetensors\", \"b.weight\": \"3.safetensors\"}}";
    static const char config[] = FP8 "[128, 128]}}";
    const tensor weight[MOST_TENSORS] = {{"a.weight", "F8_E4M3", {256, 256}, 2, 0}},
                 scale[MOST_TENSORS] = {{"a.weight_scale_inv", "F32", {2, 2}, 2, 1e-3f}},
                 other[MOST_TENSORS] = {{"b.weight", "BF16", {16, 16}, 2, 1}};
    trf_checkpoint_report report;
    size_t size;
    fixture_make_folder(fixture_path("source"));
    fixture_write(fixture_path("source/config.json"), config, strlen(config));
    fixture_write(fixture_path("source/model.safetensors.index.json"), index, strlen(index));
    write_file(fixture_path("source/1.safetensors"), weight, NULL);
    write_file(fixture_path("source/2.safetensors"), scale, NULL);
    write_file(fixture_path("source/3.safetensors"), other, NULL);
    check_round_trip(&report);
    ck_assert_uint_eq(report.source_fp8_tensors[TRF_GRANULARITY_SCALE_BLOCK], 1);
    char *text = fixture_read(fixture_path("out/model.safetensors.index.json"), &size);
    const char *map = strstr(text, "\"weight_map\"");
    ck_assert_ptr_nonnull(map);
    ck_assert_msg(strstr(map, "a.weight_trf") && !strstr(map, "scale_inv"), "%s", text);
    free(text);
    /* Each file comes back without the others. */
    for (int i = 1; i <= 2; i++) {
        const char *one = fixture_path("one.%d.safetensors", i);
        fixture_check_status(trf_decompress_checkpoint(fixture_path("out/%d.safetensors", i), one, NULL, NULL, &err),
                             TRF_OK, &err);
        fixture_check_same(fixture_path("source/%d.safetensors", i), one);
    }
}
END_TEST

START_TEST(a_file_of_modelopt_is_enough) {
    static const char told[] = "{\"quantization\": {\"quant_algo\": \"FP8\", \"kv_cache_quant_algo\": \"FP8\"}}",
                      config[] = "{\"model_type\": \"a\", \"torch_dtype\": \"bfloat16\"}";
    const tensor tensors[MOST_TENSORS] = {{"a.weight", "F8_E4M3", {64, 64}, 2, 0},
                                          {"a.weight_scale", "F32", {0}, 0, 0.01f},
                                          {"a.k_scale", "F32", {1}, 1, 0.5f}};
    trf_checkpoint_report report;
    make_model(config, tensors);
    fixture_write(fixture_path("source/hf_quant_config.json"), told, strlen(told));
    check_round_trip(&report);
    ck_assert(report.side_tables == 2 && report.unused_side_tables == 1);
}
END_TEST

START_TEST(what_is_stored_only_stays_fp8) {
    trf_checkpoint_options options;
    trf_checkpoint_report report;
    trf_checkpoint_options_init(&options);
    options.store_only = 1;
    const tensor tensors[MOST_TENSORS] = {kKinds[0].weight, kKinds[0].scale};
    const char *source = make_model(kKinds[0].config, tensors), *out = fixture_path("out");
    fixture_check_status(trf_compress_checkpoint(source, out, &options, &report, &err), TRF_OK, &err);
    ck_assert(report.side_tables == 0 && report.source_fp8_tensors[TRF_GRANULARITY_SCALE_BLOCK] == 0);
    ck_assert_ptr_nonnull(strstr(report.warning, "stored only"));
}
END_TEST

/* A dry run estimates by codes, whose slivers take half of the bytes. */
START_TEST(a_dry_run_counts_the_same) {
    trf_checkpoint_options options;
    trf_checkpoint_report dry, report;
    trf_checkpoint_options_init(&options);
    options.dry_run = 1;
    const tensor tensors[MOST_TENSORS] = {kKinds[0].weight, kKinds[0].scale};
    const char *source = make_model(kKinds[0].config, tensors);
    fixture_check_status(trf_compress_checkpoint(source, NULL, &options, &dry, &err), TRF_OK, &err);
    check_round_trip(&report);
    ck_assert_uint_eq(dry.source_fp8_tensors[TRF_GRANULARITY_SCALE_BLOCK], 1);
    ck_assert_uint_eq(dry.side_tables, report.side_tables);
    ck_assert_double_le(fabs((double)dry.compressed_bytes / (double)report.compressed_bytes - 1), 0.06);
}
END_TEST

/* ---- what is refused ---- */

static const struct {
    tensor weight, scale;
    const char *config;
    const char *found[2];
} kRefused[] = {
#define WEIGHT                                                                                                         \
    { "a.weight", "F8_E4M3", {256, 256}, 2, 0 }
#define BLOCKS FP8 "[128, 128]}}"
    {WEIGHT,
     {"a.weight_scale_inv", "F32", {2, 2}, 2, 0},
     BLOCKS,
     {"'a.weight_scale_inv' (F32) at byte", "scale 0 is 0,"}},
    {WEIGHT, {"a.weight_scale_inv", "F32", {2, 2}, 2, -1e-3f}, BLOCKS, {"weight_scale_inv", "-0.001"}},
    {WEIGHT, {"a.weight_scale_inv", "F32", {2, 2}, 2, NAN}, BLOCKS, {"weight_scale_inv", "nan"}},
    {WEIGHT, {"a.weight_scale_inv", "F32", {2, 2}, 2, 0x1p100f}, BLOCKS, {"scale 1 is", "2^100"}},
    {WEIGHT, {"a.weight_scale_inv", "F32", {2, 2}, 2, 0x1p-101f}, BLOCKS, {"scale 0 is", "2^-100"}},
    {WEIGHT, {"a.weight_scale_inv", "F32", {256, 2}, 2, 1}, BLOCKS, {"[256][2]", "'a.weight'"}},
    {WEIGHT, {"a.weight_scale", "F32", {1, 256}, 2, 1}, BLOCKS, {"[1][256]", "'a.weight'"}},
    {WEIGHT, {"a.weight_scale_inv", "F32", {2, 2}, 2, 1}, FP8 "null}}", {"[2][2]", "square blocks"}},
    {WEIGHT, {"a.weight_scale_inv", "F32", {2, 4}, 2, 1}, FP8 "[128, 64]}}", {"(fp8)", "128 x 64"}},
    {WEIGHT, {"a.weight_scale_inv", "F32", {2, 2}, 2, 1}, FP8 "[100, 100]}}", {"(fp8)", "multiple of 16"}},
    {WEIGHT, {"a.weight_scale_inv", "F8_E8M0", {2, 2}, 2, 1}, BLOCKS, {"F8_E8M0", "F32, BF16 or F16"}},
    {WEIGHT,
     {"a.weight_zero", "F32", {2, 2}, 2, 1},
     BLOCKS,
     {"'a.weight' (F8_E4M3) at byte", "without a tensor of scales"}},
    {{"a.weight", "F8_E4M3", {2, 2, 2, 64}, 4, 0}, {"a.weight_scale", "F32", {1}, 1, 1}, BLOCKS, {"a.weight", "4 dim"}},
    {{"a.weight", "F8_E5M2", {64, 64}, 2, 0},
     {"a.weight_scale", "F32", {1}, 1, 1},
     BLOCKS,
     {"a.weight_scale", "tensor"}},
    {{"a.weight", "I8", {64, 64}, 2, 0}, {"a.weight_scale", "F32", {64}, 1, 1}, BLOCKS, {"a.weight_scale", "tensor"}},
    {WEIGHT,
     {"a.weight_scale", "F32", {1}, 1, 1},
     "{\"model_type\": \"a\", \"torch_dtype\": \"float16\", \"quantization_config\": {\"quant_method\": \"fp8\"}}",
     {"float16", "bfloat16 alone"}},
    {WEIGHT,
     {"a.weight_scale", "F32", {1}, 1, 1},
     "{\"_class_name\": \"A\", \"quantization_config\": {\"quant_method\": "
     "\"fp8\"}}",
     {"(fp8)", "transformers"}},
    {WEIGHT,
     {"a.weight_scale", "F32", {1}, 1, 1},
     "{" MODEL "\"quantization_config\": {\"quant_method\": \"awq\"}}",
     {"(awq)", "quantized already"}},
    {WEIGHT,
     {"a.weight_scale", "F32", {1}, 1, 1},
     "{" MODEL "\"quantization_config\": {\"quant_method\": \"modelopt\", "
     "\"quant_algo\": \"NVFP4\"}}",
     {"(modelopt)", "NVFP4"}},
    {WEIGHT,
     {"a.weight_scale", "F32", {1}, 1, 1},
     "{" MODEL "\"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": "
     "\"e5m2\"}}",
     {"(fp8)", "e5m2"}},
    {WEIGHT,
     {"a.weight_scale", "F32", {1}, 1, 1},
     "{" MODEL "\"text_config\": {\"quantization_config\": {\"quant_method\": "
     "\"gptq\"}}, \"quantization_config\": {\"quant_method\": \"fp8\"}}",
     {"(gptq)", "quantized already"}},
#define GROUPS                                                                                                         \
    "{" MODEL "\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"g\": "
    {WEIGHT,
     {"a.weight_scale", "F32", {1}, 1, 1},
     GROUPS "{\"weights\": {\"num_bits\": 8, \"type\": \"int\"}}}}}",
     {"(compressed-tensors)", "8 bits of type int"}},
    {WEIGHT,
     {"a.weight_scale", "F32", {1}, 1, 1},
     GROUPS "{\"weights\": {\"num_bits\": 4, \"type\": \"float\"}}}}}",
     {"(compressed-tensors)", "4 bits"}},
    {WEIGHT,
     {"a.weight_scale", "F32", {1}, 1, 1},
     GROUPS "{\"weights\": {\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"group\"}}}}}",
     {"'group'", "g has a scale"}},
    {WEIGHT,
     {"a.weight_scale", "F32", {1}, 1, 1},
     GROUPS "{\"weights\": {\"num_bits\": 8, \"type\": \"float\"}}}, "
            "\"transform_config\": {\"a\": 1}}}",
     {"(compressed-tensors)", "transform_config"}},
    {WEIGHT,
     {"a.weight_scale", "F32", {1}, 1, 1},
     GROUPS "{\"weights\": {\"num_bits\": 8, \"type\": \"float\"}}}, "
            "\"sparsity_config\": {\"format\": \"sparse-24-bitmask\"}}}",
     {"sparse", "sparse-24-bitmask"}},
#define BLOCK_TEXT(text)                                                                                               \
    GROUPS "{\"weights\": {\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"block\", \"block_structure\": " text  \
           "}}}}}"
#define BLOCK_TEXT_CASE(text, found)                                                                                   \
    {                                                                                                                  \
        WEIGHT, {"a.weight_scale", "F32", {2, 2}, 2, 1}, BLOCK_TEXT("\"" text "\""), { "(compressed-tensors)", found } \
    }
    BLOCK_TEXT_CASE("0x80x0x80", "g has the block_structure '0x80x0x80'"),
    BLOCK_TEXT_CASE("0x128", "blocks of 0 x 128 weights"),
    BLOCK_TEXT_CASE("", "g has the block_structure ''"),
    BLOCK_TEXT_CASE("128", "g has the block_structure '128'"),
    BLOCK_TEXT_CASE("128x", "g has the block_structure '128x'"),
    BLOCK_TEXT_CASE("x128", "g has the block_structure 'x128'"),
    BLOCK_TEXT_CASE("128x128x128", "g has the block_structure '128x128x128'"),
    BLOCK_TEXT_CASE(" 128x128", "g has the block_structure ' 128x128'"),
    BLOCK_TEXT_CASE("128x+128", "g has the block_structure '128x+128'"),
    BLOCK_TEXT_CASE("1.28e2x128", "g has the block_structure '1.28e2x128'"),
    BLOCK_TEXT_CASE("infxinf", "g has the block_structure 'infxinf'"),
    BLOCK_TEXT_CASE("18446744073709551744x18446744073709551744", "the side of a block is 1.84467e+19"),
    {WEIGHT, {"a.weight_scale", "F32", {2, 2}, 2, 1}, BLOCK_TEXT("[\"128\", \"128\"]"), {"a block", "not two numbers"}},
    {WEIGHT, {"a.weight_scale", "F32", {2, 2}, 2, 1}, BLOCK_TEXT("[128]"), {"a block", "not two numbers"}},
};

START_TEST(others_are_refused_by_name) {
    const tensor tensors[MOST_TENSORS] = {
        {"b.weight", "BF16", {64, 64}, 2, 1}, kRefused[_i].weight, kRefused[_i].scale};
    const char *source = make_model(kRefused[_i].config, tensors), *out = fixture_path("out");
    fixture_check_status(trf_compress_checkpoint(source, out, NULL, NULL, &err), TRF_ERR_UNSUPPORTED, &err);
    for (int i = 0; i < 2; i++)
        ck_assert_msg(strstr(err.message, kRefused[_i].found[i]) != NULL, "%s", err.message);
    ck_assert_msg(strncmp(err.message, source, strlen(source)) == 0 && strstr(err.message, "--store-only"), "%s",
                  err.message);
    ck_assert(!fixture_exists(out));
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.store_only = 1;
    fixture_check_status(trf_compress_checkpoint(source, out, &options, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_decompress_checkpoint(out, fixture_path("back"), NULL, NULL, &err), TRF_OK, &err);
    fixture_check_same(source, fixture_path("back"));
}
END_TEST

START_TEST(scales_of_two_names_are_refused) {
    const tensor tensors[MOST_TENSORS] = {kKinds[0].weight, kKinds[0].scale, {"a.weight_scale", "F32", {1}, 1, 1}};
    make_model(kKinds[0].config, tensors);
    fixture_check_status(trf_compress_checkpoint(fixture_path("source"), fixture_path("out"), NULL, NULL, &err),
                         TRF_ERR_UNSUPPORTED, &err);
    ck_assert_msg(strstr(err.message, "scales of two names") != NULL, "%s", err.message);
}
END_TEST

START_TEST(weights_with_scales_cannot_stay) {
    static const char *const names[] = {"a.weight", NULL}, *const others[] = {"b.*", NULL};
    static const trf_codec codecs[] = {TRF_CODEC_AUTO, TRF_CODEC_E4M3, TRF_CODEC_BF16, TRF_CODEC_INT};
    const tensor tensors[MOST_TENSORS] = {kKinds[0].weight, kKinds[0].scale, {"b.weight", "BF16", {64, 64}, 2, 1}};
    const char *source = make_model(kKinds[0].config, tensors), *out = fixture_path("out");
    for (int i = 0; i < 2 + COUNT(codecs); i++) {
        trf_checkpoint_options options;
        trf_checkpoint_options_init(&options);
        options.overwrite = 1;
        options.encode.codec = i < 2 ? TRF_CODEC_AUTO : codecs[i - 2];
        options.exclude = i == 0 ? names : NULL;
        options.include = i == 1 ? others : NULL;
        const int is_taken = i == 2 || i == 3;
        fixture_check_status(trf_compress_checkpoint(source, out, &options, NULL, &err),
                             is_taken ? TRF_OK : TRF_ERR_ARGUMENT, &err);
        if (!is_taken)
            ck_assert_msg(strstr(err.message, "'a.weight' (F8_E4M3)") && strstr(err.message, "cannot be"), "%s",
                          err.message);
    }
}
END_TEST

/* An FP8 tensor without scales that the config says is not quantized stays what it is. */
START_TEST(what_the_config_leaves_out_needs_no_scales) {
    static const char config[] = "{" MODEL "\"quantization_config\": {\"quant_method\": \"fp8\", "
                                 "\"modules_to_not_convert\": [\"b\"]}}";
    const tensor tensors[MOST_TENSORS] = {{"a.weight", "F8_E4M3", {64, 64}, 2, 0},
                                          {"a.weight_scale", "F32", {1}, 1, 1},
                                          {"b.weight", "F8_E4M3", {64, 64}, 2, 0}};
    trf_checkpoint_report report;
    make_model(config, tensors);
    check_round_trip(&report);
    ck_assert_uint_eq(report.source_fp8_tensors[TRF_GRANULARITY_TENSOR], 1);
}
END_TEST

/* compressed-tensors names modules by regular expressions of Python's, too, which fit the beginning of a name. */
START_TEST(modules_are_left_out_by_regular_expressions) {
    static const struct {
        const char *pattern;
        int fits; /* the module "model.layers.12.mlp.gate" */
    } cases[] = {{"re:.*mlp\\\\.gate$", 1},
                 {"re:.*gate", 1},
                 {"re:model\\\\.layers\\\\.\\\\d+\\\\.mlp", 1},
                 {"re:model.layers.(?:1|12).mlp.gate$", 1},
                 {"re:[a-z]+[.]layers", 1},
                 {"re:.*\\\\bgate\\\\b", 1},
                 {"re:mlp", 0},
                 {"re:.*mlp.gate.weight", 0},
                 {"re:.*gat$", 0},
                 {"re:(?=model)", 0},
                 {"re:.*?gate", 0},
                 {"re:(", 0}};
    for (int i = 0; i < COUNT(cases); i++) {
        char config[512];
        trf_fp8_config read;
        snprintf(config, sizeof config,
                 "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"ignore\": [\"%s\"]}}",
                 cases[i].pattern);
        json_t *root = json_loads(config, 0, NULL);
        ck_assert_msg(root != NULL, "%s", config);
        trf_fp8_config_read(root, NULL, &read);
        ck_assert_msg(trf_fp8_config_ignores(&read, "model.layers.12.mlp.gate.weight") == cases[i].fits, "%s",
                      cases[i].pattern);
        json_decref(root);
    }
}
END_TEST

/* ---- what is corrupt ---- */

/* Replaces the first text in a file after `after` by another one of the same length. */
static void edit(const char *path, const char *after, const char *text, const char *other) {
    size_t size;
    char *file = fixture_read(path, &size);
    char *at = memmem(file, size, after, strlen(after));
    ck_assert_ptr_nonnull(at);
    at = memmem(at, size - (size_t)(at - file), text, strlen(text));
    ck_assert_ptr_nonnull(at);
    memcpy(at, other, strlen(other));
    fixture_write(path, file, size);
    free(file);
}

static const struct {
    const char *text, *other, *found;
} kEdits[] = {
    {"{\\\"un", "[\\\"un", "'unused' is no object"},
    {"\\\"used\\\"", "\\\"uzed\\\"", "'used' is no object"},
    {"a.weight_scale_inv\\\":", "a.weight_scale_inw\\\":", "'a.weight_scale_inw' is not in the kept source header"},
    {"a.weight_scale_inv\\\":\\\"", "a.norm\\\":\\\"AAAAAAAAAAAAAAAA", "'a.norm' "},
    {"_inv\\\":\\\"", "_inv\\\":\\\"*", "'a.weight_scale_inv' is no base64"},
    {"\\\"}}\"", "A\\\"}\"", "'unused' is no object"},
};

START_TEST(side_tables_that_do_not_fit_are_found) {
    const tensor tensors[MOST_TENSORS] = {kKinds[0].weight, kKinds[0].scale, {"a.norm", "BF16", {64}, 1, 1}};
    trf_checkpoint *checkpoint;
    make_model(kKinds[0].config, tensors);
    const char *out = fixture_path("out"), *file = fixture_path("out/model.safetensors");
    fixture_check_status(trf_compress_checkpoint(fixture_path("source"), out, NULL, NULL, &err), TRF_OK, &err);
    edit(file, "transfuse_side_tables", kEdits[_i].text, kEdits[_i].other);
    fixture_check_status(trf_checkpoint_open(out, &checkpoint, &err), TRF_ERR_FORMAT, &err);
    ck_assert_msg(strstr(err.message, kEdits[_i].found) && strstr(err.message, file), "%s", err.message);
}
END_TEST

START_TEST(side_tables_that_differ_are_found) {
    const tensor tensors[MOST_TENSORS] = {kKinds[0].weight, kKinds[0].scale};
    make_model(kKinds[0].config, tensors);
    const char *source = fixture_path("source"), *out = fixture_path("out"),
               *file = fixture_path("out/model.safetensors");
    trf_checkpoint_report report;
    fixture_check_status(trf_compress_checkpoint(source, out, NULL, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_verify_checkpoint(out, NULL, NULL, &report, &err), TRF_OK, &err);
    ck_assert_str_eq(report.warning, "");
    edit(file, "transfuse_side_tables", "_inv\\\":\\\"", "_inv\\\":\\\"zz");
    fixture_check_status(trf_verify_checkpoint(out, NULL, NULL, NULL, &err), TRF_ERR_CHECKSUM, &err);
    ck_assert_msg(strstr(err.message, "transfuse_side_tables") && strstr(err.message, file), "%s", err.message);
    fixture_check_status(trf_decompress_checkpoint(out, fixture_path("back"), NULL, NULL, &err), TRF_ERR_CHECKSUM,
                         &err);
    edit(file, "", "transfuse_side_tables_checksum", "transfuse_side_tables_checksuX"); /* as older versions wrote */
    fixture_check_status(trf_verify_checkpoint(out, NULL, NULL, &report, &err), TRF_OK, &err);
    ck_assert_msg(strstr(report.warning, "its scales have no checksum") != NULL, "%s", report.warning);
    fixture_check_status(trf_verify_checkpoint(out, source, NULL, NULL, &err), TRF_ERR_MISMATCH, &err);
    ck_assert_msg(strstr(err.message, "'a.weight_scale_inv'") != NULL, "%s", err.message);
}
END_TEST

/* A file says that the weights were FP8, and one of its elements, an exception, has no code. */
START_TEST(elements_without_codes_are_found) {
    enum {
        ROWS = 128,
        COLS = 128
    };
    uint16_t weights[ROWS * COLS];
    float scale = 0.01f;
    uint8_t codes[ROWS * COLS];
    const trf_fp8_scales scales = {
        .granularity = TRF_GRANULARITY_TENSOR, .scale_cols = 1, .count = 1, .values = &scale};
    fill(&(tensor){"w", "F8_E4M3", {ROWS, COLS}, 2, 0}, codes);
    trf_fp8_elements(&scales, 0, ROWS, 0, COLS, codes, weights);
    weights[200 * _i + 7] ^= _i; /* at 207 one bit off */
    trf_matrix matrix;
    trf_encode_options options;
    void *blob;
    uint64_t blob_bytes;
    trf_matrix_init(&matrix);
    trf_encode_options_init(&options);
    matrix.weights = weights, matrix.rows = ROWS, matrix.cols = COLS, matrix.dtype = TRF_DTYPE_BF16;
    options.codec = TRF_CODEC_E4M3;
    fixture_check_status(trf_encode_layer(&matrix, &options, &blob, &blob_bytes, NULL, &err), TRF_OK, &err);

    char header[1024];
    snprintf(header, sizeof header,
             "{\"__metadata__\":{\"transfuse_format\":\"1\",\"transfuse_source_header\":\"{\\\"w\\\":{\\\"dtype\\\":"
             "\\\"F8_E4M3\\\",\\\"shape\\\":[%d,%d],\\\"data_offsets\\\":[0,%d]}}\"},\"w_trf\":{\"dtype\":\"U8\","
             "\"shape\":[%" PRIu64 "],\"data_offsets\":[0,%" PRIu64 "]}}",
             ROWS, COLS, ROWS * COLS, blob_bytes, blob_bytes);
    const uint64_t length = strlen(header);
    uint8_t *file = malloc(8 + length + blob_bytes);
    memcpy(file, &length, 8);
    memcpy(file + 8, header, length);
    memcpy(file + 8 + length, blob, blob_bytes);
    const char *path = fixture_path("w.safetensors"), *back = fixture_path("back.safetensors");
    fixture_write(path, file, 8 + length + blob_bytes);
    free(file);
    trf_free(blob);
    const trf_status expected = _i ? TRF_ERR_FORMAT : TRF_OK;
    fixture_check_status(trf_verify_checkpoint(path, NULL, NULL, NULL, &err), expected, &err);
    fixture_check_status(trf_decompress_checkpoint(path, back, NULL, NULL, &err), expected, &err);
    if (_i) {
        ck_assert_msg(strstr(err.message, "row 1, column 79: not an FP8 code") != NULL, "%s", err.message);
        return;
    }
    size_t size;
    uint8_t *restored = fixture_read(back, &size);
    ck_assert_mem_eq(restored + size - sizeof codes, codes, sizeof codes);
    free(restored);
}
END_TEST

START_TEST(base64_is_strict) {
    static const char *const texts[] = {"", "TQ==", "TWE=", "TWFu", "TWFuTQ=="};
    static const char *const wrong[] = {"TR==", "TWF=", "TQ=A", "T===", "TWF\n", "TWE"};
    uint8_t data[8];
    char text[9];
    for (int i = 0; i < COUNT(texts); i++) {
        ck_assert_int_eq(trf_base64_decode(texts[i], strlen(texts[i]), data, (size_t)i), 1);
        ck_assert_mem_eq(data, "ManM", (size_t)i);
        trf_base64_encode(data, (size_t)i, text);
        ck_assert_mem_eq(text, texts[i], strlen(texts[i]));
    }
    for (int i = 0; i < COUNT(wrong); i++)
        for (size_t bytes = 0; bytes < 5; bytes++)
            ck_assert_msg(!trf_base64_decode(wrong[i], strlen(wrong[i]), data, bytes), "%s as %zu", wrong[i], bytes);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("fp8_checkpoint");
    TCase *cases = tcase_create("fp8_checkpoint");
    tcase_add_checked_fixture(cases, fixture_begin, fixture_end);
    tcase_add_loop_test(cases, each_kind_of_scales_comes_back, 0, COUNT(kKinds));
    tcase_add_test(cases, scales_may_be_in_another_file);
    tcase_add_test(cases, a_file_of_modelopt_is_enough);
    tcase_add_test(cases, what_is_stored_only_stays_fp8);
    tcase_add_test(cases, a_dry_run_counts_the_same);
    tcase_add_loop_test(cases, others_are_refused_by_name, 0, COUNT(kRefused));
    tcase_add_test(cases, scales_of_two_names_are_refused);
    tcase_add_test(cases, weights_with_scales_cannot_stay);
    tcase_add_test(cases, what_the_config_leaves_out_needs_no_scales);
    tcase_add_test(cases, modules_are_left_out_by_regular_expressions);
    tcase_add_loop_test(cases, side_tables_that_do_not_fit_are_found, 0, COUNT(kEdits));
    tcase_add_test(cases, side_tables_that_differ_are_found);
    tcase_add_loop_test(cases, elements_without_codes_are_found, 0, 2);
    tcase_add_test(cases, base64_is_strict);
    suite_add_tcase(suite, cases);
    return run_suite(suite);
}

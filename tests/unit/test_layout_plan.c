/* SPDX-License-Identifier: Apache-2.0 */
/* What trf_layout_set_read counts for packed layers is what loading the same folder makes: dense layers and experts, of
 * FP8 checkpoints and of BF16 that was FP8, for each kind of scales, whole and shared by GPUs. */
#include "common/checkpoint_fixture.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "transfuse/experts.h"
#include "transfuse/layouts.h"
#include "trf_number_formats.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK = 128,
    MOST_TENSORS = 48
};

static trf_error err;
static trf_context *cpu;

static void begin(void) { fixture_check_status(trf_context_create(TRF_DEVICE_CPU, &cpu, &err), TRF_OK, &err); }
static void end(void) { trf_context_destroy(cpu); }

/* ---- folders ---- */

/* What the weights of a folder are: of an FP8 checkpoint, or BF16. */
typedef struct kind {
    const char *name;
    int is_fp8_checkpoint;
    trf_granularity granularity;
    float scale; /* is below the scales, which share an exponent, so that the window of packed BF16 has all weights */
    const char *quantization;
} kind;

#define CHANNELS                                                                                                       \
    "\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"g\": {\"weights\": {\"num_bits\": 8, "            \
    "\"type\": \"float\", \"strategy\": \"channel\"}}}"
static const kind kKinds[] = {
    {"was_tensor", 0, TRF_GRANULARITY_TENSOR, 0x1p-7f, NULL},
    {"was_rows", 0, TRF_GRANULARITY_CHANNEL, 0x1p-7f, NULL},
    {"was_blocks", 0, TRF_GRANULARITY_SCALE_BLOCK, 0x1p-7f, NULL},
    {"of_tensor", 1, TRF_GRANULARITY_TENSOR, 0x1p-7f, "\"quant_method\": \"fp8\", \"weight_block_size\": null"},
    {"of_rows", 1, TRF_GRANULARITY_CHANNEL, 0x1p-7f, CHANNELS},
    {"of_blocks", 1, TRF_GRANULARITY_SCALE_BLOCK, 0x1p-7f,
     "\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]"},
    {"too_large", 0, TRF_GRANULARITY_SCALE_BLOCK, 0x1p13f, NULL}, /* these have no constants */
};
enum {
    NUM_KINDS = sizeof kKinds / sizeof *kKinds,
    TOO_LARGE = NUM_KINDS - 1
};

/* A weight, [experts][rows][cols] or [rows][cols]. */
typedef struct weight {
    const char *name;
    uint32_t experts, rows, cols;
} weight;

static const weight kDense[] = {
    {"a.self_attn.q_proj", 0, 384, 512}, {"a.self_attn.k_proj", 0, 480, 512}, {"a.self_attn.o_proj", 0, 192, 768},
    {"a.mlp.down_proj", 0, 192, 480},    {"a.odd_proj", 0, 200, 300}, /* is not cut */
};
/* Experts of three layers: matrices of their own; and gate and up in one, where blocks fit rows in turns, or not. */
static const weight kExperts[] = {
    {"b.experts.0.gate_proj", 0, 96, 256},   {"b.experts.0.up_proj", 0, 96, 256},
    {"b.experts.0.down_proj", 0, 256, 96},   {"b.experts.1.gate_proj", 0, 96, 256},
    {"b.experts.1.up_proj", 0, 96, 256},     {"b.experts.1.down_proj", 0, 256, 96},
    {"c.experts.gate_up_proj", 2, 320, 256}, {"c.experts.down_proj", 2, 256, 160},
    {"d.experts.gate_up_proj", 2, 288, 256}, {"d.experts.down_proj", 2, 256, 144},
};
enum {
    NUM_DENSE = sizeof kDense / sizeof *kDense,
    NUM_EXPERTS = sizeof kExperts / sizeof *kExperts
};

static uint32_t scales_down(const kind *kind, uint32_t rows) {
    return kind->granularity == TRF_GRANULARITY_CHANNEL       ? rows
           : kind->granularity == TRF_GRANULARITY_SCALE_BLOCK ? (rows + BLOCK - 1) / BLOCK
                                                              : 1;
}

static uint32_t scales_across(const kind *kind, uint32_t cols) {
    return kind->granularity == TRF_GRANULARITY_SCALE_BLOCK ? (cols + BLOCK - 1) / BLOCK : 1;
}

static float scale_at(const kind *kind, uint32_t row, uint32_t col) {
    if (kind->granularity == TRF_GRANULARITY_TENSOR)
        return 1.5f * kind->scale;
    const uint32_t side = kind->granularity == TRF_GRANULARITY_CHANNEL ? 1 : BLOCK;
    return kind->scale * (1.5f + (float)((row / side * 5 + (side > 1 ? col / side : 0)) % 8) / 16);
}

/* Fills a matrix of codes or of BF16. @return its end. */
static uint8_t *fill_weights(const kind *kind, const weight *of, test_rng *rng, uint8_t *to) {
    for (uint32_t row = 0; row < of->rows; row++)
        for (uint32_t col = 0; col < of->cols; col++) {
            const uint32_t code = (0x30 + test_below(rng, 0x28)) | 0x80 * test_below(rng, 2);
            const uint16_t bf16 = (uint16_t)trf_scale_fp8(code, scale_at(kind, row, col));
            if (kind->is_fp8_checkpoint)
                *to++ = (uint8_t)code;
            else {
                memcpy(to, &bf16, sizeof bf16);
                to += sizeof bf16;
            }
        }
    return to;
}

static uint8_t *fill_scales(const kind *kind, const weight *of, uint8_t *to) {
    const uint32_t row_side = kind->granularity == TRF_GRANULARITY_CHANNEL ? 1 : BLOCK;
    for (uint32_t i = 0; i < scales_down(kind, of->rows); i++)
        for (uint32_t j = 0; j < scales_across(kind, of->cols); j++) {
            const float scale = scale_at(kind, i * row_side, j * BLOCK);
            memcpy(to, &scale, sizeof scale);
            to += sizeof scale;
        }
    return to;
}

/* @return a tensor's name, which is kept as paths are. */
static const char *keep_name(const char *weight, const char *suffix, const char *end) {
    return strrchr(fixture_path("%s%s%s", weight, suffix, end), '/') + 1;
}

/* Describes a weight, and its scales if they are a tensor of their own. @return how many tensors that is. */
static size_t describe(const kind *kind, const weight *of, fixture_tensor *tensors) {
    const char *suffix = of->experts ? "" : ".weight";
    const uint32_t first = of->experts ? 0 : 1; /* dimension */
    const uint64_t shape[3] = {of->experts, of->rows, of->cols},
                   scales[3] = {of->experts, scales_down(kind, of->rows), scales_across(kind, of->cols)};
    tensors[0] = (fixture_tensor){.name = keep_name(of->name, suffix, ""),
                                  .dtype = kind->is_fp8_checkpoint ? "F8_E4M3" : "BF16",
                                  .num_dims = 3 - first};
    memcpy(tensors[0].shape, shape + first, sizeof *shape * tensors[0].num_dims);
    if (!kind->is_fp8_checkpoint)
        return 1;
    const char *end = kind->granularity == TRF_GRANULARITY_SCALE_BLOCK ? "_scale_inv" : "_scale";
    tensors[1] = (fixture_tensor){.name = keep_name(of->name, suffix, end), .dtype = "F32", .num_dims = 3 - first};
    memcpy(tensors[1].shape, scales + first, sizeof *scales * tensors[1].num_dims);
    return 2;
}

/* Writes the folder of a kind. @return its path. */
static const char *make_folder(const kind *kind, const char *name, const weight *weights, size_t count) {
    const char *folder = fixture_path("%s", name), *file = fixture_path("%s/model.safetensors", name);
    fixture_tensor tensors[MOST_TENSORS];
    char config[512];
    size_t num_tensors = 0, size;
    uint64_t bytes = 0;
    test_rng rng = {17};
    fixture_make_folder(folder);
    snprintf(config, sizeof config,
             "{\"model_type\": \"llama\", \"dtype\": \"bfloat16\", \"num_experts_per_tok\": 2%s%s%s}",
             kind->quantization ? ", \"quantization_config\": {" : "", kind->quantization ? kind->quantization : "",
             kind->quantization ? "}" : "");
    fixture_write(fixture_path("%s/config.json", name), config, strlen(config));
    for (size_t i = 0; i < count; i++)
        num_tensors += describe(kind, &weights[i], tensors + num_tensors);
    for (size_t i = 0; i < num_tensors; i++) {
        uint64_t of_tensor = tensors[i].dtype[0] == 'B' ? 2 : tensors[i].dtype[1] == '8' ? 1 : 4;
        for (uint32_t d = 0; d < tensors[i].num_dims; d++)
            of_tensor *= tensors[i].shape[d];
        bytes += of_tensor;
    }
    fixture_write_safetensors(file, NULL, tensors, num_tensors, 8, 3);
    uint8_t *all = fixture_read(file, &size), *at = all + size - bytes;
    for (size_t i = 0; i < count; i++) {
        const uint32_t matrices = weights[i].experts ? weights[i].experts : 1;
        for (uint32_t e = 0; e < matrices; e++)
            at = fill_weights(kind, &weights[i], &rng, at);
        for (uint32_t e = 0; e < matrices && kind->is_fp8_checkpoint; e++)
            at = fill_scales(kind, &weights[i], at);
    }
    ck_assert_ptr_eq(at, all + size);
    fixture_write(file, all, size);
    free(all);
    return folder;
}

/* Compresses a folder. @return the compressed one's path. */
static const char *compress(const char *folder) {
    const char *path = fixture_path("%s_trf", strrchr(folder, '/') + 1);
    trf_checkpoint_report report = {0};
    fixture_check_status(trf_compress_checkpoint(folder, path, NULL, &report, &err), TRF_OK, &err);
    return path;
}

static trf_checkpoint *open_folder(const char *path) {
    trf_checkpoint *checkpoint;
    fixture_check_status(trf_checkpoint_open(path, &checkpoint, &err), TRF_OK, &err);
    return checkpoint;
}

static trf_layout_set *read_set(const char *path, uint32_t gpus) {
    trf_checkpoint *checkpoint = open_folder(path);
    trf_layout_set_options options;
    trf_layout_set *set;
    trf_layout_set_options_init(&options);
    options.gpus = gpus;
    fixture_check_status(trf_layout_set_read(checkpoint, &options, &set, &err), TRF_OK, &err);
    trf_checkpoint_close(checkpoint);
    return set;
}

static const trf_layout_layer *find(const trf_layout_set *set, const char *tensor) {
    const uint32_t index = trf_layout_set_find(set, tensor);
    ck_assert_msg(index != UINT32_MAX, "%s", tensor);
    return &trf_layout_set_layers(set)[index];
}

/* ---- dense layers ---- */

static trf_device_layer_info load(trf_checkpoint *checkpoint, const char *tensor, const uint32_t shard[4]) {
    trf_load_options options = test_shard(shard);
    trf_device_layer_info info;
    trf_device_layer *layer;
    options.layout = TRF_LAYOUT_PACKED;
    fixture_check_status(trf_device_layer_load(cpu, checkpoint, tensor, &options, &layer, &err), TRF_OK, &err);
    trf_device_layer_get_info(layer, &info);
    trf_device_layer_destroy(layer);
    return info;
}

/* Expects that the GPU with the largest part of the layer takes what was planned. */
static void check_dense(trf_checkpoint *checkpoint, const trf_layout_set *set, const weight *of, uint32_t gpus) {
    const char *tensor = keep_name(of->name, ".weight", "");
    const trf_layout_layer *planned = find(set, tensor);
    uint64_t most = 0;
    int are_fp8 = 1;
    for (uint32_t row = 0; row < of->rows; row += planned->rows)
        for (uint32_t col = 0; col < of->cols; col += planned->cols) {
            const uint32_t rows = of->rows - row < planned->rows ? of->rows - row : planned->rows,
                           cols = of->cols - col < planned->cols ? of->cols - col : planned->cols;
            const trf_device_layer_info made = load(checkpoint, tensor, (const uint32_t[]){row, rows, col, cols});
            are_fp8 = are_fp8 && made.layout == TRF_LAYOUT_PACKED8;
            if (made.memory_bytes > most)
                most = made.memory_bytes;
        }
    if (planned->bytes[TRF_LAYOUT_PACKED] != most || planned->packed_is_fp8 != are_fp8)
        ck_abort_msg("%s of %u GPUs: %" PRIu64 " bytes planned, %s, and %" PRIu64 " made, %s", tensor, gpus,
                     planned->bytes[TRF_LAYOUT_PACKED], planned->packed_is_fp8 ? "FP8" : "BF16", most,
                     are_fp8 ? "FP8" : "not all FP8");
}

/* Expects that a plan of samples agrees with one of blobs. */
static void check_estimate(const trf_layout_layer *before, const trf_layout_layer *layer) {
    ck_assert_str_eq(before->name, layer->name);
    if (before->bytes[TRF_LAYOUT_PACKED] != layer->bytes[TRF_LAYOUT_PACKED] ||
        before->packed_is_fp8 != layer->packed_is_fp8)
        ck_abort_msg("%s: %" PRIu64 " bytes are estimated, and %" PRIu64 " planned when it is compressed", layer->name,
                     before->bytes[TRF_LAYOUT_PACKED], layer->bytes[TRF_LAYOUT_PACKED]);
}

START_TEST(dense_layers) {
    const kind *kind = &kKinds[_i];
    const char *source = make_folder(kind, keep_name("dense_", kind->name, ""), kDense, NUM_DENSE),
               *path = compress(source);
    trf_checkpoint *checkpoint = open_folder(path);
    int fp8 = 0;
    for (uint32_t gpus = 1; gpus < 4; gpus++) {
        trf_layout_set *set = read_set(path, gpus), *estimated = read_set(source, gpus);
        for (size_t i = 0; i < (gpus > 1 ? NUM_DENSE - 1 : NUM_DENSE); i++) {
            check_dense(checkpoint, set, &kDense[i], gpus);
            fp8 += trf_layout_set_layers(set)[i].packed_is_fp8;
            if (_i != TOO_LARGE) /* whose scales a sample does not look at */
                check_estimate(&trf_layout_set_layers(estimated)[i], &trf_layout_set_layers(set)[i]);
        }
        trf_layout_set_free(set);
        trf_layout_set_free(estimated);
    }
    /* The parts of q_proj and o_proj begin where 64 rows and 128 columns of scale blocks do, and no others. */
    ck_assert_int_eq(fp8, kind->granularity == TRF_GRANULARITY_CHANNEL || _i == TOO_LARGE ? 0
                          : kind->granularity == TRF_GRANULARITY_TENSOR                   ? 3 * NUM_DENSE - 2
                                                                                          : NUM_DENSE + 4);
    trf_checkpoint_close(checkpoint);
}
END_TEST

/* ---- experts ---- */

/* What became of experts, and the bytes that they take. */
typedef struct made_experts {
    uint64_t bytes;
    int are_fp8;
} made_experts;

/* Loads coded experts: a 3-D tensor, or matrices called b.experts.N.PART.weight. layers: NULL of the former. */
static trf_experts *load_coded(trf_checkpoint *checkpoint, const char *tensor, const char *part,
                               trf_device_layer *layers[2]) {
    trf_experts *experts;
    if (tensor) {
        fixture_check_status(trf_experts_load(cpu, checkpoint, tensor, NULL, &experts, &err), TRF_OK, &err);
        return experts;
    }
    for (int e = 0; e < 2; e++) {
        char name[64];
        snprintf(name, sizeof name, "b.experts.%d.%s.weight", e, part);
        fixture_check_status(trf_device_layer_load(cpu, checkpoint, name, NULL, &layers[e], &err), TRF_OK, &err);
    }
    fixture_check_status(trf_experts_create(layers, 2, &experts, &err), TRF_OK, &err);
    return experts;
}

/* Packs experts as mixtures need them. */
static made_experts pack(const trf_experts *experts, const trf_experts *up, int has_gate) {
    trf_expert_pack_options options;
    trf_experts *packed;
    made_experts made = {.are_fp8 = 1};
    trf_expert_pack_options_init(&options);
    options.gate_up_order = has_gate ? TRF_GATE_UP_INTERLEAVED_8 : TRF_GATE_UP_HALVES;
    fixture_check_status(trf_experts_convert(experts, up, &options, &packed, &err), TRF_OK, &err);
    for (uint32_t e = 0; e < trf_experts_count(packed); e++) {
        trf_device_layer_info info;
        trf_device_layer_get_info(trf_experts_layer(packed, e), &info);
        made.bytes += info.memory_bytes;
        made.are_fp8 = made.are_fp8 && info.layout == TRF_LAYOUT_PACKED8;
    }
    trf_experts_destroy(packed);
    return made;
}

/* Expects that a layer's experts take what was planned. */
static int check_experts(const trf_layout_set *set, const char *tensor, made_experts gate_up, made_experts down) {
    const trf_layout_layer *planned = find(set, tensor);
    if (planned->bytes[TRF_LAYOUT_PACKED] != gate_up.bytes + down.bytes ||
        planned->packed_is_fp8 != (gate_up.are_fp8 && down.are_fp8))
        ck_abort_msg("%s: %" PRIu64 " bytes planned, %s, and %" PRIu64 " + %" PRIu64 " made, %s and %s", planned->name,
                     planned->bytes[TRF_LAYOUT_PACKED], planned->packed_is_fp8 ? "FP8" : "BF16", gate_up.bytes,
                     down.bytes, gate_up.are_fp8 ? "FP8" : "BF16", down.are_fp8 ? "FP8" : "BF16");
    return planned->packed_is_fp8;
}

/* Experts whose matrices are tensors of their own. */
static int check_single_matrices(trf_checkpoint *checkpoint, const trf_layout_set *set) {
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    trf_device_layer *layers[3][2];
    trf_experts *experts[3];
    for (int i = 0; i < 3; i++)
        experts[i] = load_coded(checkpoint, NULL, parts[i], layers[i]);
    const int is_fp8 =
        check_experts(set, "b.experts.1.up_proj.weight", pack(experts[0], experts[1], 1), pack(experts[2], NULL, 0));
    for (int i = 0; i < 3; i++) {
        trf_experts_destroy(experts[i]);
        for (int e = 0; e < 2; e++)
            trf_device_layer_destroy(layers[i][e]);
    }
    return is_fp8;
}

static int check_tensors(trf_checkpoint *checkpoint, const trf_layout_set *set, const char *gate_up, const char *down) {
    trf_experts *first = load_coded(checkpoint, gate_up, NULL, NULL),
                *second = load_coded(checkpoint, down, NULL, NULL);
    const int is_fp8 = check_experts(set, gate_up, pack(first, NULL, 1), pack(second, NULL, 0));
    trf_experts_destroy(first);
    trf_experts_destroy(second);
    return is_fp8;
}

START_TEST(experts) {
    const kind *kind = &kKinds[_i];
    const char *source = make_folder(kind, keep_name("experts_", kind->name, ""), kExperts, NUM_EXPERTS),
               *path = compress(source);
    trf_checkpoint *checkpoint = open_folder(path);
    trf_layout_set *set = read_set(path, 1), *estimated = read_set(source, 1);
    const int becomes_fp8 = kind->granularity != TRF_GRANULARITY_CHANNEL && _i != TOO_LARGE;
    ck_assert_int_eq(check_single_matrices(checkpoint, set), becomes_fp8);
    ck_assert_int_eq(check_tensors(checkpoint, set, "c.experts.gate_up_proj", "c.experts.down_proj"), becomes_fp8);
    /* up begins at row 16 of a block here */
    ck_assert_int_eq(check_tensors(checkpoint, set, "d.experts.gate_up_proj", "d.experts.down_proj"),
                     kind->granularity == TRF_GRANULARITY_TENSOR);
    for (uint32_t i = 0; i < 3 && _i != TOO_LARGE; i++)
        check_estimate(&trf_layout_set_layers(estimated)[i], &trf_layout_set_layers(set)[i]);
    trf_layout_set_free(set);
    trf_layout_set_free(estimated);
    trf_checkpoint_close(checkpoint);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("layout_plan");
    TCase *tests = tcase_create("layout_plan");
    tcase_set_timeout(tests, 120);
    tcase_add_unchecked_fixture(tests, fixture_begin, fixture_end);
    tcase_add_checked_fixture(tests, begin, end);
    tcase_add_loop_test(tests, dense_layers, 0, NUM_KINDS);
    tcase_add_loop_test(tests, experts, 0, NUM_KINDS);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}

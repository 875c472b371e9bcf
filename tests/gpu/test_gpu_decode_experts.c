/* SPDX-License-Identifier: Apache-2.0 */
/* One call decodes all experts. It gives the bits that trf_device_layer_decode gives for each, and writes nothing
 * between them, for every codec, and for experts that share a launch or do not; corrupt experts; graphs. */
#include "gpu_corrupt.h"
#include "transfuse/experts.h"
#include "trf_experts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DISTINCT = 3,
    MOST_EXPERTS = 128,
    KINDS = 4 /* of trf_decode_as */
};

/* Experts that repeat a few layers. */
typedef struct expert_case {
    uint32_t count;
    gpu_layer layers[DISTINCT];
    trf_experts *experts;
    char name[200];
} expert_case;

/* favor: that of all layers; if it is beyond TRF_FAVOR_SIZE, the layers differ in it. */
static expert_case make_experts(test_rng *rng, const gpu_recipe *recipe, int favor, uint32_t slab_cols, gpu_shape shape,
                                uint32_t count, gpu_weight_kind kind) {
    expert_case c = {.count = count};
    trf_device_layer *list[MOST_EXPERTS];
    trf_error err = {0};
    for (int i = 0; i < DISTINCT; i++)
        c.layers[i] =
            gpu_layer_make(rng, recipe, (trf_favor)(favor > TRF_FAVOR_SIZE ? i % 2 : favor), slab_cols, shape, kind);
    for (uint32_t e = 0; e < count; e++)
        list[e] = c.layers[e % DISTINCT].device;
    snprintf(c.name, sizeof c.name, "%u experts, %s", count, c.layers[0].name);
    gpu_check(trf_experts_create(list, count, &c.experts, &err), TRF_OK, &err, c.name);
    return c;
}

static void free_experts(expert_case *c) {
    trf_experts_destroy(c->experts);
    for (int i = 0; i < DISTINCT; i++)
        gpu_layer_free(&c->layers[i]);
}

static uint64_t matrix_bytes(const gpu_layer *layer, trf_decode_as as) {
    const uint64_t bytes = as == TRF_DECODE_SOURCE ? trf_dtype_bytes(layer->info.dtype) : 2;
    return bytes * layer->info.rows * layer->info.cols;
}

/* Decodes a layer by itself; malloc'd. */
static uint8_t *decode_alone(const gpu_layer *layer, trf_decode_as as) {
    gpu_memory memory = gpu_memory_make(matrix_bytes(layer, as));
    uint8_t *found = gpu_malloc(memory.bytes);
    trf_error err = {0};
    gpu_check(trf_device_layer_decode(layer->device, as, memory.at, memory.bytes, NULL, &err), TRF_OK, &err,
              layer->name);
    gpu_memory_read(&memory, found);
    gpu_memory_free(&memory);
    return found;
}

/* Compares what was decoded at multiples of `stride` with each layer decoded by itself, and expects 0xFF between
 * them. */
static void check_found(const expert_case *c, trf_decode_as as, uint64_t stride, const gpu_memory *memory) {
    const uint64_t bytes = matrix_bytes(&c->layers[0], as);
    uint8_t *found = gpu_malloc(memory->bytes), *alone[DISTINCT];
    for (int i = 0; i < DISTINCT; i++)
        alone[i] = decode_alone(&c->layers[i], as);
    gpu_memory_read(memory, found);
    for (uint32_t e = 0; e < c->count; e++) {
        const uint8_t *at = found + e * stride, *expected = alone[e % DISTINCT];
        for (uint64_t i = 0; memcmp(at, expected, bytes) != 0 && i < bytes; i++)
            if (at[i] != expected[i])
                ck_abort_msg("%s: as %d, %llu bytes apart: expert %u differs in byte %llu: 0x%X, not 0x%X", c->name,
                             (int)as, (unsigned long long)stride, e, (unsigned long long)i, at[i], expected[i]);
        for (uint64_t i = bytes; e + 1 < c->count && i < stride; i++)
            if (at[i] != 0xFF)
                ck_abort_msg("%s: as %d: byte %llu behind expert %u was written", c->name, (int)as,
                             (unsigned long long)(i - bytes), e);
    }
    for (int i = 0; i < DISTINCT; i++)
        free(alone[i]);
    free(found);
}

/* Decodes to matrices with `gap` bytes between them, after `before` bytes. */
static void check_decode(const expert_case *c, trf_decode_as as, uint64_t before, uint64_t gap, trf_stream stream) {
    const uint64_t bytes = matrix_bytes(&c->layers[0], as), stride = bytes + gap, all = (c->count - 1) * stride + bytes;
    gpu_memory memory = gpu_memory_make(before + all);
    gpu_memory behind = memory;
    trf_error err = {0};
    gpu_check(trf_experts_decode(c->experts, as, (uint8_t *)memory.at + before, stride, all, stream, &err), TRF_OK,
              &err, c->name);
    behind.at = (uint8_t *)memory.at + before;
    behind.bytes = all;
    check_found(c, as, stride, &behind);
    gpu_memory_free(&memory);
}

static void check_kinds(const expert_case *c, trf_stream stream) {
    static const uint64_t gaps[] = {64, 48, 32, 4};
    trf_error err = {0};
    for (int as = 0; as < KINDS; as++) {
        const trf_codec codec = c->layers[0].info.codec;
        if ((as == TRF_DECODE_BF16 && codec == TRF_CODEC_FP16) || (as == TRF_DECODE_F16 && codec == TRF_CODEC_BF16))
            continue;
        check_decode(c, (trf_decode_as)as, 0, 0, stream);
        check_decode(c, (trf_decode_as)as, as == TRF_DECODE_SOURCE ? 16 : 2, gaps[as], stream);
    }
    gpu_check(trf_experts_check(c->experts, &err), TRF_OK, &err, c->name);
}

/* ---- the tests ---- */

static const gpu_shape kShapes[] = {{256, 512}, {33, 65}, {300, 515}, {64, 320}, {1, 700}, {96, 2112}, {17, 256}};
enum {
    SHAPES = sizeof kShapes / sizeof kShapes[0],
    QUICK_SHAPES = 3 /* the first ones */
};

START_TEST(every_codec_and_shape) {
    static const uint32_t counts[] = {5, 1, 3, 40, 2};
    const gpu_recipe *recipe = &kGpuRecipes[_i];
    test_rng rng = {5000 + (uint64_t)_i};
    for (int s = 0; s < (test_quick() ? QUICK_SHAPES : SHAPES); s++)
        for (int favor = TRF_FAVOR_SPEED; favor <= TRF_FAVOR_SIZE; favor++) {
            const gpu_weight_kind kind = recipe->codec == TRF_CODEC_INT
                                             ? GPU_WEIGHTS_NORMAL
                                             : (gpu_weight_kind)((s + favor) % (GPU_WEIGHTS_FINITE + 1));
            expert_case c = make_experts(&rng, recipe, favor, kGpuSlabCols[(s + favor) % GPU_NUM_SLAB_COLS], kShapes[s],
                                         counts[(s + _i) % 5], kind);
            check_kinds(&c, NULL);
            free_experts(&c);
        }
}
END_TEST

/* So many experts that rows are gathered, with a narrow slab at the end of each band; they share a launch. loop: bf16,
 * fp16; slabs of either width; favors. */
START_TEST(many_experts) {
    if (test_quick() && _i % 4 != _i / 4)
        return;
    test_rng rng = {6000 + (uint64_t)_i};
    expert_case c = make_experts(&rng, &kGpuRecipes[_i / 4], _i % 2, kGpuSlabCols[_i / 2 % 2], (gpu_shape){288, 2112},
                                 MOST_EXPERTS, GPU_WEIGHTS_NORMAL);
    EXPECT(c.experts->on_device.decode_alike);
    check_decode(&c, TRF_DECODE_SOURCE, 0, 0, NULL);
    check_decode(&c, TRF_DECODE_ELEMENTS, 0, 4096, NULL);
    free_experts(&c);
}
END_TEST

/* Pairs beside quads: one launch each. */
START_TEST(experts_that_differ) {
    test_rng rng = {7000};
    for (int recipe = 0; recipe < 2; recipe++) {
        expert_case c = make_experts(&rng, &kGpuRecipes[recipe], TRF_FAVOR_SIZE + 1, 256, (gpu_shape){288, 544}, 7,
                                     GPU_WEIGHTS_NORMAL);
        EXPECT(!c.experts->on_device.decode_alike);
        check_kinds(&c, NULL);
        free_experts(&c);
    }
}
END_TEST

/* One slab is NaN, as when the layer is decoded by itself. No other expert is affected, and the fault is the
 * expert's. */
START_TEST(corrupt_experts) {
    test_rng rng = {8000 + (uint64_t)_i};
    expert_case c =
        make_experts(&rng, &kGpuRecipes[_i / 2], _i % 2, 128, (gpu_shape){600, 520}, 10, GPU_WEIGHTS_NORMAL);
    gpu_corrupt_layer bad = gpu_corrupt(&rng, &c.layers[1], test_below(&rng, 2) ? 0 : 4);
    trf_device_layer *list[] = {c.layers[0].device, bad.layer.device, c.layers[2].device};
    trf_error err = {0};
    trf_experts_destroy(c.experts);
    gpu_layer_free(&c.layers[1]);
    c.layers[1] = bad.layer;
    c.count = 3;
    gpu_check(trf_experts_create(list, 3, &c.experts, &err), TRF_OK, &err, c.name);
    EXPECT(c.experts->on_device.decode_alike);
    gpu_check(trf_experts_check(c.experts, &err), TRF_OK, &err, c.name);
    const uint64_t bytes = matrix_bytes(&c.layers[0], TRF_DECODE_SOURCE);
    gpu_memory memory = gpu_memory_make(3 * bytes);
    gpu_check(trf_experts_decode(c.experts, TRF_DECODE_SOURCE, memory.at, bytes, memory.bytes, NULL, &err), TRF_OK,
              &err, c.name);
    gpu_check(trf_experts_check(c.experts, &err), TRF_ERR_RANS, &err, c.name);
    if (!strstr(err.message, "expert 1"))
        ck_abort_msg("%s: the message does not name expert 1: %s", c.name, err.message);
    uint16_t *found = gpu_malloc(memory.bytes);
    gpu_memory_read(&memory, found);
    const uint16_t infinity = c.layers[0].info.codec == TRF_CODEC_BF16 ? 0x7F80 : 0x7C00;
    for (uint32_t r = bad.first_row; r < bad.first_row + bad.rows; r++)
        for (uint32_t col = bad.first_col; col < bad.first_col + bad.cols; col++)
            if ((found[bytes / 2 + (uint64_t)r * bad.layer.info.cols + col] & 0x7FFF) <= infinity)
                ck_abort_msg("%s: row %u, column %u of the corrupt slab is a number", c.name, r, col);
    check_found(&c, TRF_DECODE_SOURCE, bytes, &memory);
    free(found);
    gpu_memory_free(&memory);
    free_experts(&c);
}
END_TEST

/* A graph's replays give what the call gives. */
START_TEST(graphs) {
    test_rng rng = {9000 + (uint64_t)_i};
    expert_case c =
        make_experts(&rng, &kGpuRecipes[_i % 2], _i / 2, 256, (gpu_shape){300, 1040}, 16, GPU_WEIGHTS_NORMAL);
    const uint64_t bytes = matrix_bytes(&c.layers[0], TRF_DECODE_SOURCE);
    gpu_memory memory = gpu_memory_make(c.count * bytes);
    trf_error err = {0};
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    gpu_check(trf_experts_decode(c.experts, TRF_DECODE_SOURCE, memory.at, bytes, memory.bytes, stream, &err), TRF_OK,
              &err, c.name);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    gpu_disturbance d = gpu_disturbance_make();
    for (int i = 0; i < (test_quick() ? 2 : 10); i++) {
        gpu_memory_poison(&memory);
        gpu_disturb(&d);
        CUDA(cudaGraphLaunch(executable, stream));
        check_found(&c, TRF_DECODE_SOURCE, bytes, &memory);
    }
    gpu_disturbance_free(&d);
    CUDA(cudaGraphExecDestroy(executable));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(stream));
    gpu_memory_free(&memory);
    free_experts(&c);
}
END_TEST

int main(void) {
    const gpu_test tests[] = {{every_codec_and_shape, GPU_RECIPES},
                              {many_experts, 8},
                              {experts_that_differ, 1},
                              {corrupt_experts, 4},
                              {graphs, 4}};
    return gpu_main("decode_experts", tests, sizeof tests / sizeof tests[0]);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Packed layers, of BF16 and of FP8, whose buffers have changed in device memory: in exception lines, in packed tiles,
 * or anywhere behind the head, which kernels do not read. Each buffer is exactly as large as the layer. No kernel reads
 * or writes outside of it, or takes much longer than for the intact layer; and verifying the layer finds the change.
 *
 * In the environment: as for test_gpu_mutants.c; there are 1,000 mutants, or 100 with TRF_TEST_QUICK. */
#include "common/coded_mutants.h"
#include "common/fp8_matrices.h"
#include "common/packed_weight_kinds.h"
#include "gpu_calls.h"
#include "trf_device_layer.h"
#include "trf_packed8_head.h"
#include "trf_packed_head.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MUTANTS = 1000,
    QUICK_MUTANTS = 100
};

/* What is packed: BF16 weights of a kind, or FP8 with scales of 128x128, of which one weight in `kind` is no code (0:
 * none). */
typedef struct subject {
    int is_fp8;
    uint32_t rows, cols, kind;
} subject;

static const subject kSubjects[] = {
    {0, 320, 640, PACKED_WEIGHTS_NORMAL},
    {0, 130, 2112, PACKED_WEIGHTS_OUTLIERS},
    {0, 65, 1025, PACKED_WEIGHTS_PATTERNS},
    {0, 320, 640, PACKED_WEIGHTS_STORED},
    {0, 192, 1056, PACKED_WEIGHTS_ZEROS_MIXED},
    {1, 256, 512, 0},
    {1, 320, 640, 5000},
    {1, 130, 1030, 8000},
};
enum {
    SUBJECTS = sizeof kSubjects / sizeof kSubjects[0]
};

/* A packed layer, and a mutant of it. */
typedef struct bench {
    char name[64];
    trf_device_layer *intact, *mutant;
    gpu_memory memory; /* the mutant's */
    uint8_t *bytes, *intact_bytes;
    uint64_t lines, lines_bytes, tiles, tile_bytes, num_tiles; /* where they are */
    gpu_call_memory calls_memory;
    gpu_calls calls; /* the intact layer's */
    gpu_call_times times;
} bench;

static struct {
    uint64_t mutants, packed8;
    gpu_call_times slowest;
} totals;

static void find_sections(bench *b) {
    if (test_device_layer_info(b->intact).layout == TRF_LAYOUT_PACKED8) {
        trf_packed8_head head;
        memcpy(&head, b->intact_bytes, sizeof head);
        b->lines = head.lines_offset;
        b->lines_bytes = head.num_lines * TRF_PACKED_LINE_BYTES;
        b->tiles = head.tiles_offset;
        b->num_tiles = head.num_tiles;
        b->tile_bytes = TRF_PACKED8_TILE_BYTES;
        return;
    }
    trf_packed_head head;
    memcpy(&head, b->intact_bytes, sizeof head);
    b->lines = head.lines_offset;
    b->lines_bytes = head.num_lines * TRF_PACKED_LINE_BYTES;
    b->tiles = head.tiles_offset;
    b->num_tiles = head.num_tiles;
    b->tile_bytes = TRF_PACKED_TILE_BYTES;
}

/* Makes a layer of the mutant's memory, which holds the intact layer's bytes so far. */
static void adopt(bench *b) {
    trf_load_options options;
    trf_error err = {0};
    trf_load_options_init(&options);
    options.layout = test_device_layer_info(b->intact).layout;
    options.buffer_is_on_device = 1;
    gpu_check(trf_device_layer_create(gpu_context, b->memory.at, b->memory.bytes, &options, &b->mutant, &err), TRF_OK,
              &err, b->name);
}

/* Packs a subject's weights. */
static void make_intact(bench *b, test_rng *rng, const subject *from) {
    const uint64_t bytes = 2 * (uint64_t)from->rows * from->cols;
    trf_device_matrix matrix;
    trf_pack_options options;
    trf_error err = {0};
    gpu_memory dense;
    if (from->is_fp8) {
        fp8_matrix weights = fp8_dequantized(rng, from->rows, from->cols, 128, 128);
        if (from->kind)
            fp8_spoil(rng, &weights, from->kind);
        dense = gpu_exact_copy_of(weights.weights, bytes);
        free(weights.weights);
    } else {
        trf_packed_window window;
        packed_layer layer = packed_layer_of_kind(rng, from->rows, from->cols, (packed_weight_kind)from->kind, &window);
        dense = gpu_exact_copy_of(layer.weights, bytes);
        packed_layer_free(&layer);
    }
    trf_device_matrix_init(&matrix);
    matrix.weights = dense.at;
    matrix.rows = from->rows;
    matrix.cols = from->cols;
    trf_pack_options_init(&options);
    options.packed_bf16 = !from->is_fp8;
    gpu_check(trf_device_layer_pack(gpu_context, &matrix, &options, &b->intact, &err), TRF_OK, &err, b->name);
    gpu_memory_free(&dense);
}

static void make_bench(bench *b, test_rng *rng, const subject *from) {
    memset(b, 0, sizeof *b);
    snprintf(b->name, sizeof b->name, "%s, %u x %u, kind %u", from->is_fp8 ? "fp8" : "bf16", from->rows, from->cols,
             from->kind);
    make_intact(b, rng, from);
    const uint64_t bytes = test_device_layer_info(b->intact).memory_bytes;
    b->intact_bytes = gpu_malloc(bytes);
    b->bytes = gpu_malloc(bytes);
    CUDA(cudaMemcpy(b->intact_bytes, b->intact->view.buffer, bytes, cudaMemcpyDeviceToHost));
    find_sections(b);
    b->memory = gpu_exact_copy_of(b->intact_bytes, bytes);
    adopt(b);
    b->calls_memory = gpu_call_memory_make(rng, from->rows, from->cols);
    b->calls = gpu_calls_make(b->intact, b->intact, &b->calls_memory);
    b->times = gpu_call_times_of(&b->calls, b->name);
}

static void free_bench(bench *b) {
    gpu_calls_free(&b->calls);
    gpu_call_memory_free(&b->calls_memory);
    trf_device_layer_destroy(b->mutant);
    trf_device_layer_destroy(b->intact);
    gpu_memory_free(&b->memory);
    free(b->bytes);
    free(b->intact_bytes);
}

/* Changes some bytes, or puts a packed tile into another one's place. */
static void mutate(bench *b, test_rng *rng) {
    static const uint8_t ends[] = {0, 1, 0x7F, 0x80, 0xFF};
    memcpy(b->bytes, b->intact_bytes, b->memory.bytes);
    if (test_below(rng, 16) == 0) {
        uint8_t *const tiles = b->bytes + b->tiles;
        const uint64_t to = test_random(rng) % b->num_tiles, of = test_random(rng) % b->num_tiles;
        memmove(tiles + to * b->tile_bytes, tiles + of * b->tile_bytes, b->tile_bytes);
        return;
    }
    for (uint32_t left = 1 + test_below(rng, 8); left > 0; left--) {
        const uint64_t behind = b->memory.bytes - TRF_LAYOUT_HEAD_BYTES;
        const uint64_t at = test_below(rng, 3) ? b->lines + test_random(rng) % b->lines_bytes
                                               : TRF_LAYOUT_HEAD_BYTES + test_random(rng) % behind;
        const uint32_t how = test_below(rng, 3);
        b->bytes[at] = how == 0   ? (uint8_t)(b->bytes[at] ^ 1u << test_below(rng, 8))
                       : how == 1 ? ends[test_below(rng, 5)]
                                  : (uint8_t)test_random(rng);
    }
}

static void try_mutant(bench *b, test_rng *rng, uint64_t number) {
    char what[256];
    trf_error err = {0};
    mutate(b, rng);
    snprintf(what, sizeof what, "%s, %s, mutant %llu", b->name,
             trf_layout_name(test_device_layer_info(b->mutant).layout), (unsigned long long)number);
    if (getenv("TRF_MUTANT_NAMES")) {
        printf("%s\n", what);
        fflush(stdout);
    }
    CUDA(cudaMemcpy(b->memory.at, b->bytes, b->memory.bytes, cudaMemcpyHostToDevice));
    gpu_calls calls = gpu_calls_make(b->mutant, b->intact, &b->calls_memory);
    gpu_call_all(&b->calls, &calls, &b->times, what);
    gpu_convert_all(&calls, what);
    const int is_intact = memcmp(b->bytes, b->intact_bytes, b->memory.bytes) == 0;
    gpu_check(trf_device_layer_verify(b->mutant, &err), is_intact ? TRF_OK : TRF_ERR_CHECKSUM, &err, what);
    gpu_calls_free(&calls);
    totals.mutants++;
    totals.packed8 += test_device_layer_info(b->mutant).layout == TRF_LAYOUT_PACKED8;
}

/* loop: layers. */
START_TEST(mutants_of_packed_layers) {
    const uint64_t all = mutants_number("TRF_MUTANTS", test_quick() ? QUICK_MUTANTS : MUTANTS),
                   count = (all + SUBJECTS - 1) / SUBJECTS;
    test_rng rng = {mutants_number("TRF_MUTANT_SEED", 1) * 1000 + (uint64_t)_i};
    bench b;
    if (!mutants_has_part(_i))
        return;
    make_bench(&b, &rng, &kSubjects[_i]);
    for (uint64_t i = 0; i < count; i++)
        try_mutant(&b, &rng, i);
    gpu_call_times_add(&totals.slowest, &b.times);
    free_bench(&b);
}
END_TEST

int main(void) {
    const gpu_test tests[] = {{mutants_of_packed_layers, SUBJECTS}};
    const int status = gpu_main("packed_mutants", tests, sizeof tests / sizeof *tests);
    if (status != 77)
        printf(
            "packed mutants: %llu, %llu of them packed8; %llu calls, the slowest %.2f times the intact layer's: %s\n",
            (unsigned long long)totals.mutants, (unsigned long long)totals.packed8,
            (unsigned long long)totals.slowest.calls, (double)totals.slowest.most, totals.slowest.slowest);
    return status;
}

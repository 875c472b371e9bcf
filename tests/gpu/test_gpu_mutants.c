/* SPDX-License-Identifier: Apache-2.0 */
/* Mutants of coded layers in device memory, past the validator: no kernel reads or writes outside of the layer's own
 * memory, which is exactly as large as the mutant, or takes much longer than for the intact layer; and what decoding
 * alone can find becomes NaN, or 0, and sticks as the layer's fault.
 *
 * common/coded_mutants.h says in which ways a mutant gets to the device. What the validator takes of forged ones is
 * loaded as any layer is, and must decode to what the CPU decodes.
 *
 * In the environment: TRF_MUTANTS is their number (2,000, or 200 with TRF_TEST_QUICK), TRF_MUTANT_SEED the seed (1),
 * and TRF_MUTANT_PART such as 0/4 does every fourth of the intact layers, so that four processes share the work.
 * With TRF_TEST_QUICK nothing is timed: it is for compute-sanitizer. TRF_MUTANT_NAMES names each mutant beforehand. */
#include "common/coded_mutants.h"
#include "gpu_calls.h"
#include "trf_decode.h"
#include "trf_decoded_bits.h"
#include "trf_device_layer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MUTANTS = 2000,
    QUICK_MUTANTS = 200
};

/* ---- intact layers ---- */

/* A golden file; or a layer that is encoded. */
typedef struct subject {
    const char *golden;
    int recipe; /* of kGpuRecipes */
    trf_favor favor;
    uint32_t slab_cols;
    gpu_shape shape;
    gpu_weight_kind kind;
} subject;

static const subject kSubjects[] = {
    {.golden = "bf16_modes_0123_and_layer_offset.trf"},
    {.golden = "bf16_slabs128_modes_0123_and_stored.trf"},
    {.golden = "bf16_pairs_p12_L16.trf"},
    {.golden = "bf16_quads_exceptions_T5.trf"},
    {.golden = "bf16_no_words.trf"},
    {.golden = "bf16_every_exponent.trf"},
    {.golden = "bf16_1x1.trf"},
    {.golden = "fp16_257x33.trf"},
    {.golden = "fp16_modes_0123_and_layer_offset.trf"},
    {.golden = "fp16_row_offsets_on_one_tile.trf"},
    {.golden = "fp16_pairs_slabs128_53x144.trf"},
    {.golden = "e4m3_20x1040_stored_amid_coded.trf"},
    {.golden = "e4m3_slabs128_all_exceptions.trf"},
    {.golden = "e4m3_modes_0123_and_layer_offset.trf"},
    {.golden = "e5m2_272x273_grid.trf"},
    {.golden = "e5m2_most_words.trf"},
    {.golden = "e5m2_quads_slabs128_16_in_a_tile.trf"},
    {.golden = "int_quads_r8_scale_block_all_f32.trf"},
    {.golden = "int_quads_slabs128_50x407.trf"},
    {.golden = "int_r2_scale_group16_f16.trf"},
    {.golden = "int_all_exceptions.trf"},
    {.golden = "int_i8_pairs_slabs128_31x200.trf"},
    {.golden = "scaled_fp8_block128_pairs.trf"},
    {.golden = "scaled_fp8_block48_quads_stored.trf"},
    {.golden = "scaled_fp8_channel_quads_exceptions.trf"},
    {.golden = "scaled_fp8_all_codes.trf"},
    {NULL, 0, TRF_FAVOR_SPEED, 256, {304, 560}, GPU_WEIGHTS_FINITE},
    {NULL, 0, TRF_FAVOR_SIZE, 128, {320, 640}, GPU_WEIGHTS_NORMAL},
    {NULL, 0, TRF_FAVOR_SPEED, 128, {256, 512}, GPU_WEIGHTS_NORMAL},
    {NULL, 1, TRF_FAVOR_SPEED, 256, {320, 512}, GPU_WEIGHTS_NORMAL},
    {NULL, 1, TRF_FAVOR_SIZE, 128, {288, 640}, GPU_WEIGHTS_FINITE},
    {NULL, 2, TRF_FAVOR_SPEED, 256, {320, 512}, GPU_WEIGHTS_NORMAL},
    {NULL, 2, TRF_FAVOR_SIZE, 128, {273, 530}, GPU_WEIGHTS_NORMAL},
    {NULL, 3, TRF_FAVOR_SPEED, 128, {320, 512}, GPU_WEIGHTS_NORMAL},
    {NULL, 4, TRF_FAVOR_SPEED, 256, {273, 530}, GPU_WEIGHTS_FINITE},
    {NULL, 5, TRF_FAVOR_SIZE, 256, {320, 512}, GPU_WEIGHTS_NORMAL},
    {NULL, 7, TRF_FAVOR_SPEED, 256, {320, 512}, GPU_WEIGHTS_NORMAL},
    {NULL, 10, TRF_FAVOR_SPEED, 128, {288, 512}, GPU_WEIGHTS_NORMAL},
    {NULL, 16, TRF_FAVOR_SIZE, 256, {273, 530}, GPU_WEIGHTS_NORMAL},
};
enum {
    SUBJECTS = sizeof kSubjects / sizeof kSubjects[0]
};

static gpu_layer make_intact(test_rng *rng, const subject *from) {
    return from->golden
               ? gpu_layer_of_golden(from->golden)
               : gpu_layer_make(rng, &kGpuRecipes[from->recipe], from->favor, from->slab_cols, from->shape, from->kind);
}

/* Encodes weights of the same kind, whose tiles are foreign ones. A golden file's are its own, in other places. */
static void *make_other(test_rng *rng, const subject *from, const gpu_layer *intact, uint64_t *bytes) {
    if (!from->golden)
        return gpu_encode(rng, &kGpuRecipes[from->recipe], from->favor, from->slab_cols, from->shape, from->kind,
                          "another blob", bytes);
    void *blob;
    EXPECT(posix_memalign(&blob, 16, intact->blob_bytes) == 0);
    memcpy(blob, intact->blob, intact->blob_bytes);
    *bytes = intact->blob_bytes;
    return blob;
}

/* ---- mutants on the device ---- */

/* What all mutants of a layer share. */
typedef struct bench {
    gpu_layer intact;
    coded_mutants mutants;
    void *other;
    gpu_call_memory memory;
    gpu_calls calls; /* of the intact layer */
    gpu_call_times times;
} bench;

/* A mutant's layer. */
typedef struct mutant_layer {
    trf_device_layer *device;
    gpu_memory blob, directory;
} mutant_layer;

/* What has been tried, over all layers. */
static struct {
    uint64_t mutants[MUTANT_WAYS], corrupt;
    gpu_call_times slowest;
} totals;

/* Makes a layer of the mutant at hand, which nobody has checked: what the library has made of the intact layer, with
 * another view. */
static trf_device_layer *make_unchecked(const bench *b, const mutant_layer *made) {
    trf_device_layer *layer = gpu_malloc(sizeof *layer);
    memcpy(layer, b->intact.device, sizeof *layer);
    atomic_store(&layer->num_plans, 0);
    layer->memory = NULL;
    layer->traits = b->mutants.traits;
    layer->view = coded_mutants_view(&b->mutants, made->blob.at, made->directory.at);
    return layer;
}

/* Loads a forged mutant that the validator takes. */
static void load_forged(const bench *b, mutant_layer *made) {
    trf_load_options options;
    trf_layer_size size;
    trf_error err = {0};
    trf_load_options_init(&options);
    gpu_check(trf_device_layer_get_size(gpu_context, b->mutants.bytes, b->mutants.num_bytes, &options, &size, &err),
              TRF_OK, &err, b->mutants.what);
    made->blob = gpu_exact_memory(size.buffer_bytes);
    made->directory = gpu_exact_memory(size.directory_bytes);
    options.memory = (trf_layer_memory){made->blob.at, size.buffer_bytes, made->directory.at, size.directory_bytes};
    gpu_check(
        trf_device_layer_create(gpu_context, b->mutants.bytes, b->mutants.num_bytes, &options, &made->device, &err),
        TRF_OK, &err, b->mutants.what);
}

/* Puts the mutant at hand on the device. */
static mutant_layer make_mutant_layer(const bench *b) {
    const coded_mutants *c = &b->mutants;
    mutant_layer made = {0};
    if (c->way == MUTANT_FORGED) {
        load_forged(b, &made);
        return made;
    }
    made.blob = gpu_exact_copy_of(c->bytes, c->num_bytes);
    made.directory = gpu_exact_copy_of(c->directory, c->offsets.directory_bytes);
    made.device = make_unchecked(b, &made);
    return made;
}

static void free_mutant_layer(const bench *b, mutant_layer *made) {
    if (b->mutants.way == MUTANT_FORGED)
        trf_device_layer_destroy(made->device);
    else
        free(made->device);
    gpu_memory_free(&made->blob);
    gpu_memory_free(&made->directory);
}

/* ---- what must come of them ---- */

/* What the CPU makes of a tile. */
typedef struct expected_weights {
    uint16_t *elements; /* [rows][cols] */
    uint8_t *good;      /* [tiles] */
} expected_weights;

static expected_weights decode_on_cpu(const bench *b, const trf_blob_view *view) {
    const size_t cols = view->header.cols;
    trf_decode_table *table = gpu_malloc(sizeof *table);
    expected_weights made = {gpu_malloc(view->header.rows * cols * 2), gpu_malloc(view->num_tiles)};
    trf_decode_table_init(table, view);
    for (uint64_t t = 0; t < view->num_tiles; t++) {
        const trf_tile_shape shape = trf_tile_shape_of(&view->header, t, view->tiles[t].coding);
        made.good[t] = trf_decode_tile_ref(view, table, t, b->mutants.bytes + view->tiles[t].data_offset,
                                           made.elements + shape.row * cols + shape.col, cols, NULL) == TRF_OK;
    }
    free(table);
    return made;
}

/* Expects the CPU's elements in a tile that it decodes, and in another one some that are replaced. */
static void check_tile(const bench *b, const trf_blob_view *view, uint64_t tile, const expected_weights *expected,
                       const uint16_t *found, uint32_t corrupt) {
    const trf_tile_shape shape = trf_tile_shape_of(&view->header, tile, view->tiles[tile].coding);
    uint32_t replaced = 0;
    for (uint32_t r = shape.row; r < shape.row + shape.rows; r++)
        for (uint32_t c = shape.col; c < shape.col + shape.cols; c++) {
            const size_t at = (size_t)r * view->header.cols + c;
            replaced += found[at] == corrupt;
            if (expected->good[tile] && found[at] != expected->elements[at])
                ck_abort_msg("%s: element %u, %u is %04x, not %04x", b->mutants.what, r, c, found[at],
                             expected->elements[at]);
        }
    if (!expected->good[tile] && !replaced)
        ck_abort_msg("%s: tile %llu is corrupt, and none of its weights is replaced", b->mutants.what,
                     (unsigned long long)tile);
}

/* Expects a NaN in the rows of y that a corrupt tile has, in all products. */
static void check_products(const bench *b, const gpu_calls *calls, const trf_tile_shape *tile) {
    for (int plan = 0; plan < GPU_CALL_PLANS; plan++) {
        trf_dtype dtype;
        if (!gpu_call_queue(calls, GPU_CALL_LINEAR + plan, b->mutants.what))
            continue;
        const uint64_t bytes = gpu_call_y_bytes(calls, plan, &dtype);
        void *y = gpu_malloc(bytes);
        CUDA(cudaMemcpy(y, gpu_last_bytes(&b->memory.y, bytes), bytes, cudaMemcpyDeviceToHost));
        int has_nan = 0;
        for (uint32_t r = tile->row; r < tile->row + tile->rows; r++)
            has_nan |= isnan(gpu_to_double(y, dtype, r));
        if (!has_nan)
            ck_abort_msg("%s: no NaN in y of plan %d, rows %u to %u", b->mutants.what, plan, tile->row,
                         tile->row + tile->rows - 1);
        free(y);
    }
}

/* Checks the weights, the products and the fault of a mutant that the validator takes. */
static void check_forged(const bench *b, const mutant_layer *made, const gpu_calls *calls) {
    trf_blob_view view;
    trf_error err = {0};
    EXPECT(trf_blob_validate(b->mutants.bytes, b->mutants.num_bytes, &view, NULL) == TRF_OK);
    const uint64_t bytes = 2 * (uint64_t)view.header.rows * view.header.cols;
    expected_weights expected = decode_on_cpu(b, &view);
    uint16_t *found = gpu_malloc(bytes);
    int is_corrupt = 0;
    gpu_call_queue(calls, GPU_CALL_DECODE + TRF_DECODE_ELEMENTS, b->mutants.what);
    CUDA(cudaMemcpy(found, gpu_last_bytes(&b->memory.weights, bytes), bytes, cudaMemcpyDeviceToHost));
    const uint32_t corrupt = trf_decoded_corrupt_bits(&made->device->view, TRF_DECODE_ELEMENTS);
    for (uint64_t t = 0; t < view.num_tiles; t++) {
        check_tile(b, &view, t, &expected, found, corrupt);
        is_corrupt |= !expected.good[t];
        if (!expected.good[t]) {
            const trf_tile_shape shape = trf_tile_shape_of(&view.header, t, view.tiles[t].coding);
            check_products(b, calls, &shape);
        }
    }
    gpu_check(trf_device_layer_check(made->device, &err), is_corrupt ? TRF_ERR_RANS : TRF_OK, &err, b->mutants.what);
    gpu_check(trf_device_layer_verify(made->device, &err), TRF_OK, &err, b->mutants.what);
    totals.corrupt += (uint64_t)is_corrupt;
    free(expected.elements);
    free(expected.good);
    free(found);
}

/* Checks that a change in device memory is found. */
static void check_unforged(const bench *b, const mutant_layer *made) {
    const coded_mutants *c = &b->mutants;
    trf_error err = {0};
    const trf_status found = trf_device_layer_verify(made->device, &err);
    if (c->way <= MUTANT_DIRECTORY && c->num_bytes == b->intact.blob_bytes)
        gpu_check(found, coded_mutants_is_intact(c) ? TRF_OK : TRF_ERR_CHECKSUM, &err, c->what);
    trf_device_layer_check(made->device, NULL);
}

/* ---- the test ---- */

enum {
    FULL_LAYERS = 4
};

/* An exponent that normal weights do not have, and any fraction: 2^-127 to 2^-32 of BF16, 1 to 2^15 of FP16. */
static uint16_t draw_exception(test_rng *rng, trf_dtype dtype) {
    return dtype == TRF_DTYPE_BF16 ? (uint16_t)(test_below(rng, 96) << 7 | test_below(rng, 128))
                                   : (uint16_t)((15 + test_below(rng, 16)) << 10 | test_below(rng, 1024));
}

/* A sound layer; of one of its slabs so many of 32 weights are exceptions, of the others few. */
static gpu_layer make_full_slab(test_rng *rng, const gpu_recipe *recipe, uint32_t of_32) {
    static const char name[] = "a slab full of exceptions";
    static const gpu_shape shape = {256, 512};
    uint16_t *weights = gpu_make_weights(rng, recipe, shape, GPU_WEIGHTS_NORMAL);
    for (uint32_t i = 0; i < TRF_SLAB_ROWS * 256; i++)
        if (test_below(rng, 32) < of_32)
            weights[i / 256 * shape.cols + i % 256] = draw_exception(rng, recipe->dtype);
    uint64_t bytes;
    void *const blob = gpu_encode_weights(weights, recipe, TRF_FAVOR_SPEED, 256, shape, name, &bytes);
    free(weights);
    return gpu_layer_of_blob(name, blob, bytes);
}

/* All 8,192 weights of the first layer are exceptions; its streams are too long for fused products, which take the
 * second one (2,100) and with experts the third one (1,600). Wide products, for which there are no kernels of BF16,
 * take the fourth one (3,100). */
static gpu_layer make_full_layer(test_rng *rng, int i) {
    return i == 0   ? gpu_layer_of_golden("e4m3_all_exceptions.trf")
           : i == 3 ? make_full_slab(rng, &kGpuRecipes[1], 16)
                    : make_full_slab(rng, &kGpuRecipes[0], i == 1 ? 8 : 6);
}

/* @return how long each call takes at most for sound layers with a slab full of exceptions; measured once. */
static const float *time_full_slabs(void) {
    static float most[GPU_CALLS];
    static int is_measured;
    test_rng rng = {1};
    for (int i = 0; i < FULL_LAYERS && !is_measured; i++) {
        gpu_layer layer = make_full_layer(&rng, i);
        gpu_call_memory memory = gpu_call_memory_make(&rng, layer.info.rows, layer.info.cols);
        gpu_calls calls = gpu_calls_make(layer.device, layer.device, &memory);
        const gpu_call_times times = gpu_call_times_of(&calls, layer.name);
        for (int call = 0; call < GPU_CALLS; call++)
            most[call] = fmaxf(most[call], times.least[call]);
        gpu_calls_free(&calls);
        gpu_call_memory_free(&memory);
        gpu_layer_free(&layer);
    }
    is_measured = 1;
    return most;
}

static bench make_bench(test_rng *rng, const subject *from) {
    bench b = {.intact = make_intact(rng, from)};
    uint64_t other_bytes;
    b.other = make_other(rng, from, &b.intact, &other_bytes);
    b.mutants = coded_mutants_of(b.intact.blob, b.intact.blob_bytes, b.other, other_bytes);
    b.memory = gpu_call_memory_make(rng, b.intact.info.rows, b.intact.info.cols);
    return b;
}

static void free_bench(bench *b) {
    gpu_call_memory_free(&b->memory);
    coded_mutants_free(&b->mutants);
    gpu_layer_free(&b->intact);
    free(b->other);
}

static void try_mutant(bench *b) {
    const coded_mutants *c = &b->mutants;
    mutant_layer made = make_mutant_layer(b);
    gpu_calls calls = gpu_calls_make(made.device, b->intact.device, &b->memory);
    if (getenv("TRF_MUTANT_NAMES")) {
        printf("%s, way %d\n", c->what, (int)c->way);
        fflush(stdout);
    }
    gpu_call_all(&b->calls, &calls, &b->times, c->what);
    CUDA(cudaMemset(made.device->view.fault, 0, sizeof(trf_device_fault))); /* conversions look for their own */
    gpu_convert_all(&calls, c->what);
    if (c->way == MUTANT_FORGED)
        check_forged(b, &made, &calls);
    else
        check_unforged(b, &made);
    gpu_check_cuda(cudaDeviceSynchronize(), c->what);
    gpu_calls_free(&calls);
    totals.mutants[c->way]++;
    free_mutant_layer(b, &made);
}

/* loop: intact layers. */
START_TEST(mutants_past_the_validator) {
    const uint64_t all = mutants_number("TRF_MUTANTS", test_quick() ? QUICK_MUTANTS : MUTANTS),
                   count = (all + SUBJECTS - 1) / SUBJECTS;
    test_rng rng = {mutants_number("TRF_MUTANT_SEED", 1) * 1000 + (uint64_t)_i};
    if (!mutants_has_part(_i))
        return;
    bench b = make_bench(&rng, &kSubjects[_i]);
    b.calls = gpu_calls_make(b.intact.device, b.intact.device, &b.memory);
    b.times = gpu_call_times_of(&b.calls, b.intact.name);
    memcpy(b.times.full_slab, time_full_slabs(), sizeof b.times.full_slab);
    for (uint64_t i = 0; i < count; i++) {
        coded_mutants_draw(&b.mutants, &rng, b.intact.name, i);
        try_mutant(&b);
    }
    gpu_call_times_add(&totals.slowest, &b.times);
    gpu_calls_free(&b.calls);
    free_bench(&b);
}
END_TEST

int main(void) {
    const gpu_test tests[] = {{mutants_past_the_validator, SUBJECTS}};
    const int status = gpu_main("mutants", tests, sizeof tests / sizeof *tests);
    if (status != 77)
        printf(
            "mutants: %llu bypassed, %llu with a spoiled directory, %llu forged and refused, %llu with a forged "
            "head, %llu forged (%llu of them corrupt); %llu calls, %llu of them over twice the intact layer's time; "
            "the slowest "
            "%.2f times: %s\n",
            (unsigned long long)totals.mutants[MUTANT_BYPASSED], (unsigned long long)totals.mutants[MUTANT_DIRECTORY],
            (unsigned long long)totals.mutants[MUTANT_FORGED_REFUSED],
            (unsigned long long)totals.mutants[MUTANT_FORGED_HEAD], (unsigned long long)totals.mutants[MUTANT_FORGED],
            (unsigned long long)totals.corrupt, (unsigned long long)totals.slowest.calls,
            (unsigned long long)totals.slowest.over_twice, (double)totals.slowest.most, totals.slowest.slowest);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of layers in shared launches, and products of experts: compared with F64, for every codec and with all kinds
 * of counts; the same bits on every run; graphs whose counts change between replays; corrupt experts. */
#include "gpu_corrupt.h"
#include "gpu_products.h"
#include "transfuse/experts.h"
#include "trf_device_layer.h"
#include "trf_layer_group.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const trf_dtype kXTypes[] = {TRF_DTYPE_BF16, TRF_DTYPE_F16};
static const trf_dtype kYTypes[] = {TRF_DTYPE_F32, TRF_DTYPE_BF16, TRF_DTYPE_F16};
enum {
    MOST_ROWS = 80,   /* of a layer that are computed in F64 */
    SHARING = 9,      /* the first recipes: those that share launches */
    MOST_LAYERS = 12, /* of a group */
    MOST_EXPERTS = 40
};

/* ---- groups ---- */

/* A group with memory of its own. */
typedef struct group_case {
    uint32_t count;
    gpu_layer layers[MOST_LAYERS];
    gpu_input inputs[MOST_LAYERS];
    gpu_product products[MOST_LAYERS]; /* these are not run, but give names and checks; y is the group's */
    const void *x[MOST_LAYERS];
    void *y[MOST_LAYERS];
    trf_layer_group *group;
    gpu_memory workspace;
} group_case;

/* Makes a group with a layer of each recipe; batches and types of y vary. */
static void make_group(group_case *g, test_rng *rng, const int *recipes, const gpu_shape *shapes, uint32_t count,
                       int bf16_x) {
    trf_group_member list[MOST_LAYERS];
    trf_error err = {0};
    *g = (group_case){.count = count};
    for (uint32_t i = 0; i < count; i++) {
        gpu_layer *layer = &g->layers[i];
        const uint32_t m = 1 + test_below(rng, 8);
        *layer = gpu_layer_make(rng, &kGpuRecipes[recipes[i] / 4], (trf_favor)(recipes[i] % 2),
                                kGpuSlabCols[recipes[i] / 2 % 2], shapes[i], GPU_WEIGHTS_NORMAL);
        const trf_dtype x_dtype = kXTypes[gpu_takes(layer, kXTypes[!bf16_x]) ? !bf16_x : bf16_x];
        g->inputs[i] = gpu_input_normal(rng, m, shapes[i].cols);
        EXPECT(gpu_product_make(&g->products[i], layer, m, x_dtype, kYTypes[test_below(rng, 3)], TRF_PATH_AUTO) ==
               TRF_OK);
        g->x[i] = gpu_input_on_device(&g->inputs[i], x_dtype);
        g->y[i] = g->products[i].y.at;
        list[i] = test_group_member(layer->device, m, x_dtype, g->products[i].info.y_dtype);
    }
    gpu_check(trf_layer_group_create(list, count, &g->group, &err), TRF_OK, &err, "a group");
    ck_assert_uint_eq(test_group_info(g->group).members, count);
    g->workspace = gpu_memory_make(test_group_info(g->group).workspace_bytes);
}

/* @return how many layers may run alone: those that the kernels refuse, and those that are the only one of their
 * kind. */
static uint32_t count_apart(const group_case *g) {
    uint32_t apart = 0;
    for (uint32_t i = 0; i < g->count; i++) {
        const trf_device_layer *layer = g->layers[i].device;
        uint32_t others = 0;
        for (uint32_t k = 0; k < g->count; k++)
            others += k != i && trf_group_fits(&g->layers[k].device->view, &layer->view) &&
                      !trf_group_refusal(&g->layers[k].device->view, &g->layers[k].device->traits, &gpu_context->limits,
                                         g->products[k].info.m, g->products[k].info.x_dtype);
        apart += !others || trf_group_refusal(&layer->view, &layer->traits, &gpu_context->limits, g->products[i].info.m,
                                              g->products[i].info.x_dtype) != NULL;
    }
    return apart;
}

static void free_group(group_case *g) {
    trf_layer_group_destroy(g->group);
    gpu_memory_free(&g->workspace);
    for (uint32_t i = 0; i < g->count; i++) {
        gpu_product_free(&g->products[i]);
        gpu_input_free(&g->inputs[i]);
        gpu_layer_free(&g->layers[i]);
    }
}

static void queue_group(const group_case *g, trf_stream stream) {
    trf_error err = {0};
    gpu_check(trf_linear_group(g->group, g->x, g->y, g->workspace.at, stream, &err), TRF_OK, &err, "a group");
}

/* Reads all y, one after the other; malloc'd. */
static uint8_t *read_group(const group_case *g, size_t *bytes) {
    *bytes = 0;
    for (uint32_t i = 0; i < g->count; i++)
        *bytes += g->products[i].y.bytes;
    uint8_t *all = gpu_malloc(*bytes), *at = all;
    for (uint32_t i = 0; i < g->count; at += g->products[i++].y.bytes)
        gpu_memory_read(&g->products[i].y, at);
    return all;
}

static void poison_group(const group_case *g) {
    for (uint32_t i = 0; i < g->count; i++)
        gpu_memory_poison(&g->products[i].y);
    gpu_memory_poison(&g->workspace);
}

static void check_group(const group_case *g, test_rng *rng) {
    size_t bytes;
    poison_group(g);
    queue_group(g, NULL);
    uint8_t *all = read_group(g, &bytes), *y = all;
    for (uint32_t i = 0; i < g->count; y += g->products[i++].y.bytes) {
        gpu_reference reference = gpu_reference_make(
            rng, &g->layers[i], &g->inputs[i],
            g->products[i].info.path == TRF_PATH_TWO_STEP ? g->products[i].info.x_dtype : TRF_DTYPE_NONE, MOST_ROWS);
        gpu_check_product(&g->products[i], &reference, y);
        gpu_reference_free(&reference);
    }
    free(all);
}

/* loop: recipe, favor, slabs. Layers of one kind and many shapes, edges among them, all in one launch. */
START_TEST(groups_near_f64) {
    static const gpu_shape shapes[] = {{512, 768},   {300, 515},  {33, 131}, {2080, 1024},
                                       {1024, 4096}, {160, 4096}, {20, 640}, {288, 777}};
    static const gpu_shape quick_shapes[] = {{224, 1152}, {300, 515}, {33, 131}, {96, 768}};
    const uint32_t count = test_quick() ? 4 : 8;
    if (test_quick() && _i % 4 != _i / 4 % 4)
        return;
    int recipes[8], taken = 0;
    for (uint32_t i = 0; i < count; i++)
        recipes[i] = _i;
    for (int bf16_x = 0; bf16_x < 2; bf16_x++) {
        test_rng rng = {100 + (uint64_t)_i};
        group_case g;
        make_group(&g, &rng, recipes, test_quick() ? quick_shapes : shapes, count, bf16_x);
        const trf_layer_group_info info = test_group_info(g.group);
        if (info.sharing + count_apart(&g) < count)
            ck_abort_msg("%s: %u of %u layers share %u launches", g.layers[0].name, info.sharing, count, info.launches);
        check_group(&g, &rng);
        taken += info.sharing;
        free_group(&g);
    }
    printf("%s: %d layers of 2 groups of %u share launches\n", kGpuRecipes[_i / 4].name, taken, count);
    if (_i / 4 != 5) /* of such i8 weights, symbols are too frequent for quads */
        ck_assert_int_ge(taken, (int)count);
}
END_TEST

/* More layers than one launch takes, of several codecs, and some that run alone: scale groups, more than 8 rows of
 * x. */
START_TEST(mixed_groups) {
    static const int recipes[MOST_LAYERS] = {0, 4, 0, 8, 40, 0, 20, 4, 0, 48, 0, 8};
    gpu_shape shapes[MOST_LAYERS];
    test_rng rng = {200};
    group_case g;
    for (int i = 0; i < MOST_LAYERS; i++)
        shapes[i] = (gpu_shape){64 + 32 * (uint32_t)i, 512 + 64 * (uint32_t)(i % 3)};
    make_group(&g, &rng, recipes, shapes, MOST_LAYERS, 1);
    const trf_layer_group_info info = test_group_info(g.group);
    ck_assert_uint_eq(info.sharing, 9); /* not those with scale groups, nor i8, which only one layer has */
    ck_assert_uint_eq(info.launches, 3);
    check_group(&g, &rng);
    free_group(&g);
}
END_TEST

START_TEST(groups_give_the_same_bits) {
    static const gpu_shape shapes[] = {{2048, 1024}, {300, 515}, {512, 4096}, {1024, 2048}};
    static const int recipes[] = {0, 0, 0, 0};
    const int runs = test_quick() ? 10 : 1000;
    test_rng rng = {300};
    group_case g;
    size_t bytes;
    make_group(&g, &rng, recipes, shapes, 4, 1);
    ck_assert_uint_eq(test_group_info(g.group).sharing, 4);
    poison_group(&g);
    queue_group(&g, NULL);
    uint8_t *first = read_group(&g, &bytes);
    gpu_disturbance d = gpu_disturbance_make();
    for (int i = 0; i < runs; i++) {
        poison_group(&g);
        gpu_disturb(&d);
        queue_group(&g, NULL);
        gpu_disturb(&d);
        uint8_t *again = read_group(&g, &bytes);
        if (memcmp(first, again, bytes) != 0)
            ck_abort_msg("run %d gives other bits", i);
        free(again);
    }
    /* x at odd addresses: the same bits, too. */
    const uint64_t x_bytes = g.inputs[0].bf16.bytes;
    gpu_memory x = gpu_memory_make(x_bytes + 2);
    CUDA(cudaMemcpy((char *)x.at + 2, g.x[0], x_bytes, cudaMemcpyDeviceToDevice));
    g.x[0] = (char *)x.at + 2;
    poison_group(&g);
    queue_group(&g, NULL);
    uint8_t *again = read_group(&g, &bytes);
    ck_assert_mem_eq(first, again, bytes);
    gpu_memory_free(&x);
    free(again);
    free(first);
    gpu_disturbance_free(&d);
    free_group(&g);
}
END_TEST

/* Runs a group of these layers, which share one x in BF16. Each y is F32, at `to` + first[i], with rows `strides[i]`
 * apart. */
static void run_into(const group_case *g, const gpu_input *input, const uint64_t *first, const uint64_t *strides,
                     const gpu_memory *to) {
    trf_group_member list[MOST_LAYERS];
    const void *x[MOST_LAYERS];
    void *y[MOST_LAYERS];
    trf_layer_group *group;
    trf_error err = {0};
    for (uint32_t i = 0; i < g->count; i++) {
        list[i] = test_group_member(g->layers[i].device, input->m, TRF_DTYPE_BF16, TRF_DTYPE_F32);
        list[i].y_stride = strides[i];
        x[i] = gpu_input_on_device(input, TRF_DTYPE_BF16);
        y[i] = (float *)to->at + first[i];
    }
    gpu_check(trf_layer_group_create(list, g->count, &group, &err), TRF_OK, &err, "a group");
    ck_assert_uint_ge(test_group_info(group).sharing, 2);
    gpu_memory workspace = gpu_memory_make(test_group_info(group).workspace_bytes);
    gpu_memory_poison(to);
    gpu_check(trf_linear_group(group, x, y, workspace.at, NULL, &err), TRF_OK, &err, "a group");
    CUDA(cudaDeviceSynchronize());
    trf_layer_group_destroy(group);
    gpu_memory_free(&workspace);
}

/* Members write side by side into one y, whose other columns stay as they are. The layer with edges runs alone
 * there. */
START_TEST(groups_write_into_one_y) {
    enum {
        M = 4,
        COUNT = 4,
        MORE = 5
    };
    static const gpu_shape shapes[COUNT] = {{2048, 1024}, {512, 1024}, {300, 1024}, {512, 1024}};
    static const int recipes[COUNT] = {0, 0, 0, 0};
    test_rng rng = {350};
    group_case g;
    make_group(&g, &rng, recipes, shapes, COUNT, 1);
    gpu_input input = gpu_input_normal(&rng, M, shapes[0].cols);
    uint64_t apart[COUNT], apart_strides[COUNT], beside[COUNT], strides[COUNT], rows = 0;
    for (int i = 0; i < COUNT; rows += shapes[i++].rows) {
        apart[i] = M * rows;
        beside[i] = rows;
        apart_strides[i] = 0;
    }
    const uint64_t stride = rows + MORE;
    for (int i = 0; i < COUNT; i++)
        strides[i] = stride;
    gpu_memory y[2] = {gpu_memory_make(4 * M * stride), gpu_memory_make(4 * M * stride)};
    run_into(&g, &input, apart, apart_strides, &y[0]);
    run_into(&g, &input, beside, strides, &y[1]);
    float *due = gpu_malloc(y[0].bytes), *found = gpu_malloc(y[1].bytes);
    gpu_memory_read(&y[0], due);
    gpu_memory_read(&y[1], found);
    for (int i = 0; i < COUNT; i++)
        for (uint64_t at = 0; at < M * (uint64_t)shapes[i].rows; at++) {
            const uint64_t n = at / shapes[i].rows, row = at % shapes[i].rows;
            const float a = due[apart[i] + at], b = found[n * stride + beside[i] + row];
            if (!(fabsf(a - b) <= 1e-4f * (1 + fabsf(a)))) /* launches of other members add in another order */
                ck_abort_msg("layer %d, y[%d][%d]: %g and %g", i, (int)n, (int)row, a, b);
        }
    for (uint64_t n = 0; n < M; n++) /* after the first y everything is as it was poisoned */
        ck_assert_mem_eq(found + n * stride + rows, due + M * rows, 4 * MORE);
    free(due);
    free(found);
    gpu_memory_free(&y[0]);
    gpu_memory_free(&y[1]);
    gpu_input_free(&input);
    free_group(&g);
}
END_TEST

/* Products that depend on each other: one layer makes the x of a group; one y of the group is the x of another layer,
 * whose y the first layer takes. */
typedef struct ring {
    trf_plan *plans[2];
    trf_layer_group *group;
    gpu_memory memory[5]; /* the first x, x of the group, its two y, y of the last */
    gpu_memory workspace;
} ring;

enum {
    RING_WIDTH = 512,
    RING_BYTES = 2 * RING_WIDTH
};

static void make_ring(ring *r, const group_case *g) {
    trf_group_member list[2];
    trf_error err = {0};
    *r = (ring){.workspace = gpu_memory_make(1 << 20)};
    for (int i = 0; i < 2; i++) {
        gpu_check(
            test_make_plan(g->layers[i].device, 1, TRF_DTYPE_BF16, TRF_DTYPE_BF16, TRF_PATH_AUTO, &r->plans[i], &err),
            TRF_OK, &err, "a plan");
        EXPECT(test_plan_info(r->plans[i]).workspace_bytes <= r->workspace.bytes);
        list[i] = test_group_member(g->layers[i].device, 1, TRF_DTYPE_BF16, TRF_DTYPE_BF16);
    }
    gpu_check(trf_layer_group_create(list, 2, &r->group, &err), TRF_OK, &err, "a group");
    ck_assert_uint_eq(test_group_info(r->group).sharing, 2);
    EXPECT(test_group_info(r->group).workspace_bytes <= r->workspace.bytes);
    for (int i = 0; i < 5; i++)
        r->memory[i] = gpu_memory_make(RING_BYTES);
    CUDA(cudaMemcpy(r->memory[0].at, g->x[0], RING_BYTES, cudaMemcpyDeviceToDevice));
    CUDA(cudaDeviceSynchronize()); /* such a copy may still run, and the ring's stream does not wait for it */
}

static void queue_ring(const ring *r, cudaStream_t stream) {
    const void *x[2] = {r->memory[1].at, r->memory[1].at};
    void *y[2] = {r->memory[2].at, r->memory[3].at};
    trf_error err = {0};
    for (int turn = 0; turn < 20; turn++) {
        gpu_check(
            test_multiply(r->plans[0], r->memory[turn ? 4 : 0].at, r->memory[1].at, r->workspace.at, stream, &err),
            TRF_OK, &err, "the first");
        gpu_check(trf_linear_group(r->group, x, y, r->workspace.at, stream, &err), TRF_OK, &err, "the group");
        gpu_check(
            test_multiply(r->plans[1], r->memory[2 + turn % 2].at, r->memory[4].at, r->workspace.at, stream, &err),
            TRF_OK, &err, "the last");
    }
}

static void free_ring(ring *r) {
    for (int i = 0; i < 5; i++)
        gpu_memory_free(&r->memory[i]);
    gpu_memory_free(&r->workspace);
    for (int i = 0; i < 2; i++)
        trf_plan_destroy(r->plans[i]);
    trf_layer_group_destroy(r->group);
}

/* In a graph, no product reads what the one in front has not written yet. */
START_TEST(groups_in_graphs) {
    static const gpu_shape shapes[] = {{RING_WIDTH, RING_WIDTH}, {RING_WIDTH, RING_WIDTH}};
    static const int recipes[] = {0, 0};
    test_rng rng = {400};
    group_case g;
    ring r;
    uint8_t eager[RING_BYTES], replayed[RING_BYTES];
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    make_group(&g, &rng, recipes, shapes, 2, 1);
    make_ring(&r, &g);
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    queue_ring(&r, stream);
    CUDA(cudaStreamSynchronize(stream));
    gpu_memory_read(&r.memory[4], eager);
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    queue_ring(&r, stream);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < 5; i++) {
        for (int k = 1; k < 5; k++)
            gpu_memory_poison(&r.memory[k]);
        CUDA(cudaGraphLaunch(executable, stream));
        CUDA(cudaStreamSynchronize(stream));
        gpu_memory_read(&r.memory[4], replayed);
        ck_assert_mem_eq(replayed, eager, RING_BYTES);
    }
    CUDA(cudaGraphExecDestroy(executable));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(stream));
    free_ring(&r);
    free_group(&g);
}
END_TEST

/* ---- experts ---- */

enum {
    KINDS = 6, /* of counts */
    DISTINCT = 4
};

/* Experts with memory of their own; they repeat a few layers. */
typedef struct expert_case {
    uint32_t count, max_tokens;
    gpu_shape shape;
    gpu_layer layers[DISTINCT];
    trf_experts *experts;
    trf_experts_plan *plan;
    trf_dtype x_dtype, y_dtype; /* of the plan */
    gpu_input input;
    gpu_memory y, workspace, offsets;
    char name[200];
} expert_case;

static uint32_t *make_offsets(test_rng *rng, uint32_t count, int kind, uint32_t max_tokens) {
    uint32_t *offsets = gpu_malloc((count + 1) * sizeof *offsets);
    offsets[0] = kind == 0 ? 2 : 0;
    const uint32_t chosen = test_below(rng, count);
    for (uint32_t e = 0; e < count; e++) {
        uint32_t tokens = 0;
        switch (kind) {
        case 0: /* routed as for a batch: most have none or a few */
            tokens = test_below(rng, 3) ? 0 : test_below(rng, 12);
            break;
        case 1: /* all to one */
            tokens = e == chosen ? max_tokens : 0;
            break;
        case 2:
            tokens = 1;
            break;
        case 3:
            break;
        case 4: /* more than a fused product takes at once */
            tokens = e == chosen ? 77 : e % 5 == 0 ? 9 : 0;
            break;
        default: /* one expert, one token */
            tokens = e == chosen;
        }
        offsets[e + 1] = offsets[e] + tokens <= max_tokens ? offsets[e] + tokens : max_tokens;
    }
    return offsets;
}

static void make_experts(expert_case *c, test_rng *rng, int recipe, gpu_shape shape, uint32_t count,
                         uint32_t max_tokens, gpu_weight_kind kind) {
    trf_device_layer *list[MOST_EXPERTS];
    trf_error err = {0};
    *c = (expert_case){.count = count, .max_tokens = max_tokens, .shape = shape};
    for (int i = 0; i < DISTINCT; i++)
        c->layers[i] = gpu_layer_make(rng, &kGpuRecipes[recipe / 4], (trf_favor)(recipe % 2),
                                      kGpuSlabCols[recipe / 2 % 2], shape, kind);
    for (uint32_t e = 0; e < count; e++)
        list[e] = c->layers[e % DISTINCT].device;
    snprintf(c->name, sizeof c->name, "%u experts, %s", count, c->layers[0].name);
    gpu_check(trf_experts_create(list, count, &c->experts, &err), TRF_OK, &err, c->name);
    c->input = gpu_input_normal(rng, max_tokens, shape.cols);
    c->offsets = gpu_memory_make((count + 1) * sizeof(uint32_t));
}

/* @return the status. There are a plan and memory only if it is TRF_OK. */
static trf_status plan_experts(expert_case *c, trf_dtype x_dtype, trf_dtype y_dtype) {
    trf_error err = {0};
    trf_status status = trf_experts_plan_create(c->experts, c->max_tokens, x_dtype, y_dtype, &c->plan, &err);
    if (status != TRF_OK) {
        gpu_check(status, TRF_ERR_UNSUPPORTED, &err, c->name);
        return status;
    }
    c->y = gpu_memory_make((uint64_t)c->max_tokens * c->shape.rows * trf_dtype_bytes(y_dtype));
    c->workspace = gpu_memory_make(trf_experts_plan_workspace_bytes(c->plan));
    c->x_dtype = x_dtype;
    c->y_dtype = y_dtype;
    return TRF_OK;
}

/* Whether the kernels may refuse an expert, or experts differ. */
static int may_be_refused(const expert_case *c, trf_dtype x_dtype) {
    for (int i = 0; i < DISTINCT; i++) {
        const trf_device_layer *layer = c->layers[i].device;
        if (trf_group_refusal(&layer->view, &layer->traits, &gpu_context->limits, 1, x_dtype) ||
            !trf_group_fits(&layer->view, &c->layers[0].device->view))
            return 1;
    }
    return 0;
}

static void unplan_experts(expert_case *c) {
    trf_experts_plan_destroy(c->plan);
    gpu_memory_free(&c->y);
    gpu_memory_free(&c->workspace);
}

static void free_experts(expert_case *c) {
    trf_experts_destroy(c->experts);
    for (int i = 0; i < DISTINCT; i++)
        gpu_layer_free(&c->layers[i]);
    gpu_input_free(&c->input);
    gpu_memory_free(&c->offsets);
}

static void put_offsets(const expert_case *c, const uint32_t *offsets) {
    CUDA(cudaMemcpy(c->offsets.at, offsets, (c->count + 1) * sizeof *offsets, cudaMemcpyHostToDevice));
}

static void queue_experts(const expert_case *c, trf_stream stream) {
    trf_error err = {0};
    gpu_check(trf_experts_linear(c->plan, gpu_input_on_device(&c->input, c->x_dtype), c->offsets.at, c->y.at,
                                 c->workspace.at, stream, &err),
              TRF_OK, &err, c->name);
}

/* Runs the experts to poisoned memory. @return y, malloc'd. */
static uint8_t *run_experts(const expert_case *c, const uint32_t *offsets) {
    uint8_t *y = gpu_malloc(c->y.bytes);
    char nothing;
    put_offsets(c, offsets);
    gpu_memory_poison(&c->y);
    gpu_memory_poison(&c->workspace);
    queue_experts(c, NULL);
    gpu_memory_read(&c->y, y);
    const gpu_memory tail = {(char *)c->workspace.at + c->workspace.bytes, 0, c->workspace.guard_bytes};
    gpu_memory_read(&tail, &nothing);
    return y;
}

/* Checks every expert's y, and that no other row is written. */
static void check_experts(const expert_case *c, test_rng *rng, const uint32_t *offsets) {
    const uint64_t row_bytes = c->shape.rows * trf_dtype_bytes(c->y_dtype);
    uint8_t *y = run_experts(c, offsets);
    for (uint32_t e = 0; e < c->count; e++) {
        const uint32_t first = offsets[e], count = offsets[e + 1] - first;
        if (!count)
            continue;
        const gpu_input tokens = {
            .m = count, .cols = c->shape.cols, .values = c->input.values + (size_t)first * c->shape.cols};
        const gpu_layer *layer = &c->layers[e % DISTINCT];
        gpu_product product = {.layer = layer, .info = {.m = count, .x_dtype = c->x_dtype, .y_dtype = c->y_dtype}};
        snprintf(product.name, sizeof product.name, "%s, expert %u of %u: %u tokens from %u", layer->name, e, c->count,
                 count, first);
        gpu_reference reference = gpu_reference_make(rng, layer, &tokens, TRF_DTYPE_NONE, MOST_ROWS);
        gpu_check_product(&product, &reference, y + first * row_bytes);
        gpu_reference_free(&reference);
    }
    for (uint64_t i = 0; i < c->y.bytes; i++)
        if ((i < offsets[0] * row_bytes || i >= offsets[c->count] * row_bytes) && y[i] != 0xFF)
            ck_abort_msg("%s: byte %llu of y is no token's, and was written", c->name, (unsigned long long)i);
    free(y);
}

/* loop: recipe, favor, slabs. */
START_TEST(experts_near_f64) {
    static const gpu_shape shapes[] = {{512, 768}, {300, 515}, {1056, 320}, {33, 131}, {16, 272}};
    const int some = test_quick() ? 2 : 5;
    int taken = 0;
    test_rng rng = {500 + (uint64_t)_i};
    if (test_quick() && _i % 4 != _i / 4 % 4)
        return;
    for (int s = 0; s < some; s++) {
        static const uint32_t counts[] = {MOST_EXPERTS, 5, 1, 33, 8};
        expert_case c;
        make_experts(&c, &rng, _i, shapes[s], counts[(s + _i) % 5], 120, GPU_WEIGHTS_NORMAL);
        for (int t = 0; t < 2; t++) {
            if (!gpu_takes(&c.layers[0], kXTypes[t]))
                continue;
            if (plan_experts(&c, kXTypes[t], kYTypes[(s + _i) % 3]) != TRF_OK) {
                if (!may_be_refused(&c, kXTypes[t]))
                    ck_abort_msg("%s is refused", c.name);
                continue;
            }
            taken++;
            for (int kind = 0; kind < KINDS; kind++) {
                uint32_t *offsets = make_offsets(&rng, c.count, kind, c.max_tokens);
                check_experts(&c, &rng, offsets);
                free(offsets);
            }
            unplan_experts(&c);
        }
        trf_error err = {0};
        gpu_check(trf_experts_check(c.experts, &err), TRF_OK, &err, c.name);
        free_experts(&c);
    }
    printf("%s: products of experts took %d of %d\n", kGpuRecipes[_i / 4].name, taken, 2 * some);
    if (_i / 4 != 5)
        ck_assert_int_gt(taken, 0);
}
END_TEST

/* Infinite weights and NaNs reach their rows of y, and no others. */
START_TEST(nonfinite_experts) {
    test_rng rng = {600};
    expert_case c;
    make_experts(&c, &rng, _i, (gpu_shape){300, 515}, 5, 30, GPU_WEIGHTS_NONFINITE);
    const trf_dtype x_dtype = kXTypes[!gpu_takes(&c.layers[0], TRF_DTYPE_BF16)];
    if (plan_experts(&c, x_dtype, TRF_DTYPE_F32) == TRF_OK) { /* exceptions may be inexact under an offset */
        uint32_t *offsets = make_offsets(&rng, c.count, 0, c.max_tokens);
        check_experts(&c, &rng, offsets);
        free(offsets);
        unplan_experts(&c);
    }
    free_experts(&c);
}
END_TEST

/* A graph takes the counts that it finds. The same counts give the same bits, also beside other work. */
START_TEST(experts_in_graphs) {
    static const gpu_shape shapes[] = {{512, 768}, {300, 515}};
    const int replays = test_quick() ? 6 : 200;
    test_rng rng = {700 + (uint64_t)_i};
    expert_case c;
    uint32_t *offsets[KINDS];
    uint8_t *eager[KINDS];
    make_experts(&c, &rng, 0, shapes[_i], 16, 120, GPU_WEIGHTS_NORMAL);
    EXPECT(plan_experts(&c, TRF_DTYPE_BF16, TRF_DTYPE_BF16) == TRF_OK);
    for (int kind = 0; kind < KINDS; kind++) {
        offsets[kind] = make_offsets(&rng, c.count, kind, c.max_tokens);
        eager[kind] = run_experts(&c, offsets[kind]);
    }
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    queue_experts(&c, stream);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    gpu_disturbance d = gpu_disturbance_make();
    uint8_t *y = gpu_malloc(c.y.bytes);
    for (int i = 0; i < replays; i++) {
        const int kind = (int)test_below(&rng, KINDS);
        put_offsets(&c, offsets[kind]);
        gpu_memory_poison(&c.y);
        gpu_disturb(&d);
        CUDA(cudaGraphLaunch(executable, stream));
        gpu_disturb(&d);
        gpu_memory_read(&c.y, y);
        if (memcmp(y, eager[kind], c.y.bytes) != 0)
            ck_abort_msg("%s: replay %d, counts %d: other bits", c.name, i, kind);
    }
    free(y);
    gpu_disturbance_free(&d);
    CUDA(cudaGraphExecDestroy(executable));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(stream));
    for (int kind = 0; kind < KINDS; kind++) {
        free(offsets[kind]);
        free(eager[kind]);
    }
    unplan_experts(&c);
    free_experts(&c);
}
END_TEST

/* With nonsensical offsets nothing else is touched (guards and compute-sanitizer check it). */
START_TEST(offsets_without_sense) {
    test_rng rng = {800};
    expert_case c;
    make_experts(&c, &rng, 0, (gpu_shape){300, 515}, 16, 20, GPU_WEIGHTS_NORMAL);
    EXPECT(plan_experts(&c, TRF_DTYPE_BF16, TRF_DTYPE_F32) == TRF_OK);
    for (int i = 0; i < 20; i++) {
        uint32_t offsets[17];
        for (int e = 0; e <= 16; e++)
            offsets[e] = test_below(&rng, 3) ? test_below(&rng, 24) : (uint32_t)test_random(&rng);
        free(run_experts(&c, offsets));
    }
    unplan_experts(&c);
    free_experts(&c);
}
END_TEST

/* With a corrupt expert, its tokens' rows of y are NaN where the slab is, all other y is the same, and the fault is the
 * expert's. */
START_TEST(corrupt_experts) {
    static const int recipes[] = {0, 1, 2, 3, 6, 7};
    test_rng rng = {900 + (uint64_t)_i};
    gpu_layer intact = gpu_layer_make(&rng, &kGpuRecipes[recipes[_i / 2]], (trf_favor)(_i % 2), 128,
                                      (gpu_shape){600, 520}, GPU_WEIGHTS_NORMAL);
    gpu_corrupt_layer bad = gpu_corrupt(&rng, &intact, test_below(&rng, 2) ? 0 : 4);
    enum {
        TOKENS = 14
    };
    const uint32_t rows = intact.info.rows, offsets[] = {0, 3, 12, TOKENS}; /* of expert 1: 3 to 11 */
    const trf_dtype x_dtype = kXTypes[!gpu_takes(&intact, TRF_DTYPE_BF16)];
    gpu_input input = gpu_input_normal(&rng, TOKENS, intact.info.cols);
    gpu_memory y = gpu_memory_make((uint64_t)TOKENS * rows * 4),
               offsets_dev = gpu_memory_copy_of(offsets, sizeof offsets);
    float *found[2] = {gpu_malloc(y.bytes), gpu_malloc(y.bytes)};
    for (int corrupt = 0; corrupt < 2; corrupt++) {
        trf_device_layer *list[] = {intact.device, corrupt ? bad.layer.device : intact.device, intact.device};
        trf_experts *experts;
        trf_experts_plan *plan;
        trf_error err = {0};
        gpu_check(trf_experts_create(list, 3, &experts, &err), TRF_OK, &err, intact.name);
        gpu_check(trf_experts_plan_create(experts, TOKENS, x_dtype, TRF_DTYPE_F32, &plan, &err), TRF_OK, &err,
                  intact.name);
        gpu_memory workspace = gpu_memory_make(trf_experts_plan_workspace_bytes(plan));
        gpu_check(trf_experts_linear(plan, gpu_input_on_device(&input, x_dtype), offsets_dev.at, y.at, workspace.at,
                                     NULL, &err),
                  TRF_OK, &err, intact.name);
        gpu_memory_read(&y, found[corrupt]);
        gpu_check(trf_experts_check(experts, &err), corrupt ? TRF_ERR_RANS : TRF_OK, &err, intact.name);
        if (corrupt && !strstr(err.message, "expert 1"))
            ck_abort_msg("%s: the message does not name expert 1: %s", intact.name, err.message);
        trf_experts_plan_destroy(plan);
        trf_experts_destroy(experts);
        gpu_memory_free(&workspace);
    }
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t r = 0; r < rows; r++) {
            const float was = found[0][(size_t)t * rows + r], is = found[1][(size_t)t * rows + r];
            const int meant = t >= offsets[1] && t < offsets[2],
                      in_tile = r >= bad.shape.row && r < bad.shape.row + bad.shape.rows,
                      in_slab = r >= bad.first_row && r < bad.first_row + bad.rows;
            if (meant && in_slab ? !isnan(is) : is != was && !(meant && in_tile && isnan(is)))
                ck_abort_msg("%s: y[%u][%u] = %g, was %g", intact.name, t, r, (double)is, (double)was);
        }
    free(found[0]);
    free(found[1]);
    gpu_memory_free(&y);
    gpu_memory_free(&offsets_dev);
    gpu_input_free(&input);
    gpu_layer_free(&bad.layer);
    gpu_layer_free(&intact);
}
END_TEST

/* Experts that the kernels do not take are refused with a reason, when the plan is made. */
START_TEST(refused_experts) {
    test_rng rng = {1000};
    for (int recipe = SHARING; recipe < GPU_RECIPES; recipe++) {
        expert_case c;
        make_experts(&c, &rng, 4 * recipe, (gpu_shape){64, 288}, 2, 3, GPU_WEIGHTS_NORMAL);
        for (int t = 0; t < 2; t++) {
            trf_error err = {0};
            gpu_check(trf_experts_plan_create(c.experts, 3, kXTypes[t], TRF_DTYPE_F32, &c.plan, &err),
                      TRF_ERR_UNSUPPORTED, &err, c.name);
            if (!strstr(err.message, "expert 0") || !strstr(err.message, "scales"))
                ck_abort_msg("%s: %s", c.name, err.message);
        }
        free_experts(&c);
    }
}
END_TEST

int main(void) {
    const gpu_test tests[] = {{groups_near_f64, 4 * SHARING},
                              {mixed_groups, 1},
                              {groups_give_the_same_bits, 1},
                              {groups_write_into_one_y, 1},
                              {groups_in_graphs, 1},
                              {experts_near_f64, 4 * SHARING},
                              {nonfinite_experts, 4 * GPU_FLOAT_RECIPES},
                              {experts_in_graphs, 2},
                              {offsets_without_sense, 1},
                              {corrupt_experts, 12},
                              {refused_experts, 1}};
    return gpu_main("groups", tests, sizeof tests / sizeof tests[0]);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tunings: what measuring makes of times (on the CPU, and on a fake device with three paths), and contexts that follow
 * them. test_tuning_choices.c tests what tunings and tables choose. */
#include "common/checkpoint_fixture.h"
#include "common/expect.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "transfuse/cpu.h"
#include "trf_context.h"
#include "trf_layout_plans.h"
#include "trf_packed_layer.h"
#include "trf_packed_wgmma_sizes.h"
#include "trf_plan.h"
#include "trf_tuning.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static trf_error err;
static trf_context *cpu;

/* ---- layers ---- */

enum {
    NUM_LAYERS = 4
};

static struct {
    trf_dtype dtype;
    uint32_t rows, cols;
    void *blob;
    trf_device_layer *layer;
} layers[NUM_LAYERS] = {{.dtype = TRF_DTYPE_BF16, .rows = 64, .cols = 128},
                        {.dtype = TRF_DTYPE_F16, .rows = 64, .cols = 128},
                        {.dtype = TRF_DTYPE_BF16, .rows = 64, .cols = 128},
                        {.dtype = TRF_DTYPE_BF16, .rows = 48, .cols = 200}};
static trf_device_layer *all_layers[NUM_LAYERS];

static void begin(void) {
    fixture_begin();
    fixture_check_status(trf_context_create(TRF_DEVICE_CPU, &cpu, &err), TRF_OK, &err);
    trf_context_set_threads(cpu, 1);
    test_rng rng = {1};
    for (int i = 0; i < NUM_LAYERS; i++) {
        uint16_t weights[64 * 200];
        uint64_t bytes;
        trf_encode_options options;
        trf_encode_options_init(&options);
        test_fill_normal(&rng, weights, layers[i].dtype, (size_t)layers[i].rows * layers[i].cols, 0.02);
        const trf_matrix matrix = test_matrix(weights, layers[i].dtype, layers[i].rows, layers[i].cols);
        fixture_check_status(trf_encode_layer(&matrix, &options, &layers[i].blob, &bytes, NULL, &err), TRF_OK, &err);
        fixture_check_status(trf_device_layer_create(cpu, layers[i].blob, bytes, NULL, &layers[i].layer, &err), TRF_OK,
                             &err);
        all_layers[i] = layers[i].layer;
    }
}

static void end(void) {
    for (int i = 0; i < NUM_LAYERS; i++) {
        trf_device_layer_destroy(layers[i].layer);
        trf_free(layers[i].blob);
    }
    trf_context_destroy(cpu);
    fixture_end();
}

/* ---- measuring ---- */

static const trf_card kCpu = {"CPU", 0, 0, 0};

typedef struct steps {
    uint32_t calls, total, stop_at;
} steps;

static int step(void *context, uint32_t done, uint32_t total) {
    steps *s = context;
    ck_assert_uint_eq(done, s->calls);
    s->total = total;
    return ++s->calls == s->stop_at;
}

static trf_tune_options options_to(uint32_t max_m, steps *s) {
    trf_tune_options options;
    trf_tune_options_init(&options);
    ck_assert_uint_eq(options.max_m, 8192);
    options.max_m = max_m;
    options.progress = step;
    options.progress_context = s;
    return options;
}

/* The CPU has only one path, which is therefore the fastest. */
START_TEST(measured_on_the_cpu) {
    static const uint32_t batches[] = {1, 2, 3, 4, 6, 8, 12, 16};
    steps s = {0};
    trf_tune_options options = options_to(17, &s);
    trf_tuning *tuning;
    fixture_check_status(trf_tuning_measure(all_layers, NUM_LAYERS, &options, &tuning, &err), TRF_OK, &err);
    ck_assert_str_eq(tuning->card.name, "CPU");
    ck_assert_uint_eq(tuning->num_layers, 3); /* two of the four are alike */
    ck_assert_uint_eq(s.calls, 24);
    ck_assert_uint_eq(s.total, 24);
    for (uint32_t l = 0; l < 3; l++) {
        const trf_tuned_layer *layer = &tuning->layers[l];
        const trf_tuning_key key = trf_tuning_key_of(all_layers[l < 2 ? l : 3]);
        ck_assert_mem_eq(&layer->key, &key, sizeof key);
        ck_assert_uint_eq(layer->num_points, 8);
        for (uint32_t i = 0; i < 8; i++) {
            const trf_tuned_point *point = &layer->points[i];
            ck_assert_uint_eq(point->m, batches[i]);
            ck_assert_int_eq(point->path, TRF_PATH_FUSED);
            ck_assert(point->microseconds[0] > 0 && point->microseconds[1] == 0 && point->microseconds[2] == 0);
        }
    }
    ck_assert_int_eq(trf_tuning_path(tuning, all_layers[3], 5), TRF_PATH_FUSED);
    ck_assert_int_eq(trf_tuning_path(tuning, all_layers[3], 17), TRF_PATH_AUTO);
    trf_tuning_free(tuning);
}
END_TEST

/* Each layout has an entry of its own, and is never given another's. */
START_TEST(layers_of_all_layouts) {
    enum {
        LAYOUTS = TRF_LAYOUT_PACKED + 1
    };
    static const trf_path paths[LAYOUTS] = {TRF_PATH_FUSED, TRF_PATH_DENSE, TRF_PATH_PACKED};
    steps s = {0};
    trf_tune_options options = options_to(4, &s);
    trf_load_options load;
    trf_device_layer *all[LAYOUTS] = {layers[0].layer};
    trf_tuning *tuning, *read;
    trf_plan *plan;
    trf_load_options_init(&load);
    for (int l = 1; l < LAYOUTS; l++) {
        load.layout = (trf_layout)l;
        fixture_check_status(
            trf_device_layer_create(cpu, layers[0].blob, layers[0].layer->info.blob_bytes, &load, &all[l], &err),
            TRF_OK, &err);
    }
    fixture_check_status(trf_tuning_measure(all, LAYOUTS, &options, &tuning, &err), TRF_OK, &err);
    ck_assert_uint_eq(tuning->num_layers, LAYOUTS);
    const char *path = fixture_path("layouts.json");
    fixture_check_status(trf_tuning_write(tuning, path, 1, &err), TRF_OK, &err);
    fixture_check_status(trf_tuning_read(path, &read, &err), TRF_OK, &err);
    trf_tuning_free(tuning);
    for (int alone = 0; alone < LAYOUTS; alone++) {
        ck_assert_int_eq(trf_tuning_path(read, all[alone], 3), paths[alone]);
        trf_tuning one = *read;
        one.layers = &read->layers[alone];
        one.num_layers = 1;
        fixture_check_status(trf_context_set_tuning(cpu, &one, &err), TRF_OK, &err);
        for (int l = 0; l < LAYOUTS; l++) {
            ck_assert_int_eq(trf_tuning_path(&one, all[l], 3), l == alone ? paths[l] : TRF_PATH_AUTO);
            fixture_check_status(test_make_plan(all[l], 3, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO, &plan, &err),
                                 TRF_OK, &err);
            ck_assert_int_eq(test_plan_info(plan).path, paths[l]);
            trf_plan_destroy(plan);
        }
    }
    trf_context_set_tuning(cpu, NULL, &err);
    trf_tuning_free(read);
    for (int l = 1; l < LAYOUTS; l++)
        trf_device_layer_destroy(all[l]);
}
END_TEST

/* A device with three paths. Wide takes 3 rows or more and is the fastest from 6 to 24; beyond that two-step is the
 * fastest; fused takes up to 8. */
static trf_device_ops made_up;
static trf_layout_ops made_up_layout;
static const trf_device_ops *own_ops;
static trf_path asked[8];
static uint32_t num_asked;
static trf_status failure;

static trf_status plan_made_up(trf_plan *plan, trf_path path, trf_error *error) {
    const uint32_t m = plan->product.m;
    if (num_asked < 8)
        asked[num_asked++] = path;
    if ((path == TRF_PATH_FUSED && m > 8) || (path == TRF_PATH_WIDE && m < 3) || path == TRF_PATH_DENSE ||
        path == TRF_PATH_PACKED)
        return trf_fail(error, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "not taken");
    plan->path = path == TRF_PATH_AUTO ? TRF_PATH_FUSED : path;
    plan->reason = plan->path == TRF_PATH_FUSED ? NULL : "asked for";
    plan->device_workspace_bytes = 256;
    return TRF_OK;
}

static trf_status time_made_up(const trf_timed_product *p, uint32_t repeats, double *microseconds, trf_error *error) {
    const double m = p->plan->product.m;
    if (failure != TRF_OK)
        return trf_fail(error, failure, TRF_NO_OFFSET, "it fails");
    EXPECT(p->operands->x && p->operands->y && p->workspace && p->copies && p->multiply);
    for (uint32_t repeat = 0; repeat < repeats; repeat++) /* outliers at either end */
        microseconds[repeat] = repeat == 1                       ? 1e6
                               : repeat == 3                     ? 1e-6
                               : p->plan->path == TRF_PATH_FUSED ? 20 + 8 * m
                               : p->plan->path == TRF_PATH_WIDE  ? 50 + m
                                                                 : 70 + m / 4;
    return TRF_OK;
}

static void make_up(void) {
    begin();
    own_ops = cpu->ops;
    made_up = *own_ops;
    made_up_layout = *layers[0].layer->layout;
    made_up_layout.create_plan = plan_made_up;
    for (int i = 0; i < NUM_LAYERS; i++)
        layers[i].layer->layout = &made_up_layout;
    made_up.time = time_made_up;
    made_up.timed_repeats = 9;
    cpu->ops = &made_up;
    cpu->cache_bytes = 1000;
    num_asked = 0;
    failure = TRF_OK;
}

static void unmake(void) {
    cpu->ops = own_ops;
    end();
}

START_TEST(crossovers) {
    steps s = {0};
    trf_tune_options options = options_to(96, &s);
    trf_tuning *tuning;
    fixture_check_status(trf_tuning_measure(all_layers, 1, &options, &tuning, &err), TRF_OK, &err);
    ck_assert_uint_eq(tuning->layers[0].num_points, 13);
    for (uint32_t m = 1; m <= 97; m++)
        ck_assert_int_eq(trf_tuning_path(tuning, all_layers[0], m), m <= 4    ? TRF_PATH_FUSED
                                                                    : m <= 24 ? TRF_PATH_WIDE
                                                                    : m <= 96 ? TRF_PATH_TWO_STEP
                                                                              : TRF_PATH_AUTO);
    const double *times = tuning->layers[0].points[4].microseconds; /* of 6 rows */
    ck_assert(times[0] == 68 && times[1] == 71.5 && times[2] == 56);
    ck_assert(tuning->layers[0].points[1].microseconds[TRF_PATH_WIDE - 1] == 0);
    trf_tuning_free(tuning);
}
END_TEST

START_TEST(contexts_follow) {
    trf_tuning *tuning;
    trf_plan *plan;
    const trf_tuning_key key = trf_tuning_key_of(all_layers[0]);
    fixture_check_status(trf_tuning_create(&kCpu, 1, &tuning, &err), TRF_OK, &err);
    tuning->layers[0] = (trf_tuned_layer){
        key,
        3,
        {{.m = 4, .path = TRF_PATH_FUSED}, {.m = 24, .path = TRF_PATH_WIDE}, {.m = 96, .path = TRF_PATH_TWO_STEP}}};
    fixture_check_status(trf_context_set_tuning(cpu, tuning, &err), TRF_OK, &err);
    trf_tuning_free(tuning); /* the context has a copy */
    static const struct {
        uint32_t m;
        trf_path path, due;
    } cases[] = {{1, TRF_PATH_AUTO, TRF_PATH_FUSED},     {5, TRF_PATH_AUTO, TRF_PATH_WIDE},
                 {25, TRF_PATH_AUTO, TRF_PATH_TWO_STEP}, {97, TRF_PATH_AUTO, TRF_PATH_AUTO},
                 {5, TRF_PATH_FUSED, TRF_PATH_FUSED},    {5, TRF_PATH_TWO_STEP, TRF_PATH_TWO_STEP}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        num_asked = 0;
        fixture_check_status(
            test_make_plan(all_layers[0], cases[i].m, TRF_DTYPE_BF16, TRF_DTYPE_F32, cases[i].path, &plan, &err),
            TRF_OK, &err);
        const trf_plan_info info = test_plan_info(plan);
        ck_assert_uint_eq(num_asked, 1);
        ck_assert_int_eq(asked[0], cases[i].due);
        ck_assert_int_eq(info.path == TRF_PATH_FUSED, info.reason == NULL);
        if (cases[i].path == TRF_PATH_AUTO && info.reason)
            ck_assert_ptr_nonnull(strstr(info.reason, "tuning"));
        trf_plan_destroy(plan);
    }
    trf_context_set_tuning(cpu, NULL, &err);
    num_asked = 0;
    fixture_check_status(test_make_plan(all_layers[0], 5, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO, &plan, &err),
                         TRF_OK, &err);
    ck_assert_int_eq(asked[0], TRF_PATH_AUTO);
    trf_plan_destroy(plan);
}
END_TEST

/* Plans follow the table of the context's card, which is here a CPU that says that it is a GPU. */
START_TEST(plans_go_by_the_card) {
    trf_plan *plan;
    static const struct {
        uint32_t capability;
        trf_path due;
    } cases[] = {{90, TRF_PATH_TWO_STEP}, {80, TRF_PATH_AUTO}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cpu->limits.capability = (int)cases[i].capability;
        cpu->limits.multiprocessors = 132;
        cpu->limits.memory_gb_per_second = 4917;
        num_asked = 0;
        fixture_check_status(
            test_make_plan(all_layers[0], 5000, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO, &plan, &err), TRF_OK,
            &err);
        ck_assert_int_eq(asked[0], cases[i].due);
        trf_plan_destroy(plan);
    }
    const trf_card card = trf_card_of(cpu);
    ck_assert_str_eq(card.name, "CPU");
    ck_assert(card.capability == 80 && card.multiprocessors == 132 && card.memory_gb_per_second == 4917);
    cpu->limits.capability = 0;
}
END_TEST

/* If a tuning names a path that the device does not take, another one is taken. */
START_TEST(refused_paths_give_way) {
    trf_tuning *tuning;
    trf_plan *plan;
    fixture_check_status(trf_tuning_create(&kCpu, 1, &tuning, &err), TRF_OK, &err);
    tuning->layers[0] = (trf_tuned_layer){trf_tuning_key_of(all_layers[0]), 1, {{.m = 9, .path = TRF_PATH_WIDE}}};
    fixture_check_status(trf_context_set_tuning(cpu, tuning, &err), TRF_OK, &err);
    fixture_check_status(test_make_plan(all_layers[0], 2, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO, &plan, &err),
                         TRF_OK, &err);
    ck_assert_uint_eq(num_asked, 2);
    ck_assert_int_eq(asked[1], TRF_PATH_AUTO);
    ck_assert_int_eq(test_plan_info(plan).path, TRF_PATH_FUSED);
    ck_assert_ptr_null(test_plan_info(plan).reason);
    trf_plan_destroy(plan);
    memcpy(tuning->card.name, "another", sizeof "another");
    fixture_check_status(trf_context_set_tuning(cpu, tuning, &err), TRF_ERR_DEVICE, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "'another'"));
    fixture_check_status(trf_context_set_tuning(NULL, tuning, &err), TRF_ERR_ARGUMENT, &err);
    trf_tuning_free(tuning);
}
END_TEST

START_TEST(measurements_that_fail) {
    trf_tuning *none = NULL;
    for (uint32_t stop_at = 1; stop_at <= 13; stop_at += 4) {
        steps s = {.stop_at = stop_at};
        trf_tune_options options = options_to(12, &s);
        fixture_check_status(trf_tuning_measure(all_layers, NUM_LAYERS, &options, &none, &err), TRF_ERR_CANCELLED,
                             &err);
        ck_assert_uint_eq(s.calls, stop_at);
    }
    steps s = {0};
    trf_tune_options options = options_to(12, &s);
    failure = TRF_ERR_CUDA;
    fixture_check_status(trf_tuning_measure(all_layers, NUM_LAYERS, &options, &none, &err), TRF_ERR_CUDA, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "the fused path at 1 rows"));
    options.max_m = 0;
    fixture_check_status(trf_tuning_measure(all_layers, NUM_LAYERS, &options, &none, &err), TRF_ERR_ARGUMENT, &err);
    options.max_m = (1 << 20) + 1;
    fixture_check_status(trf_tuning_measure(all_layers, NUM_LAYERS, &options, &none, &err), TRF_ERR_ARGUMENT, &err);
    options.max_m = 1;
    options.x_dtype = TRF_DTYPE_F32;
    fixture_check_status(trf_tuning_measure(all_layers, NUM_LAYERS, &options, &none, &err), TRF_ERR_ARGUMENT, &err);
    options.x_dtype = TRF_DTYPE_F16;
    options.struct_bytes = 0;
    fixture_check_status(trf_tuning_measure(all_layers, NUM_LAYERS, &options, &none, &err), TRF_ERR_ARGUMENT, &err);
    trf_tune_options_init(&options);
    options.max_m = 1;
    options.x_dtype = TRF_DTYPE_F16;
    fixture_check_status(trf_tuning_measure(all_layers, 0, &options, &none, &err), TRF_ERR_ARGUMENT, &err);
    fixture_check_status(trf_tuning_measure(NULL, 1, &options, &none, &err), TRF_ERR_ARGUMENT, &err);
    trf_device_layer *some[] = {all_layers[0], NULL};
    fixture_check_status(trf_tuning_measure(some, 2, &options, &none, &err), TRF_ERR_ARGUMENT, &err);
    ck_assert_ptr_null(none);
}
END_TEST

/* ---- packed layers: a context and a layer that say they are a GPU's, and what a GPU does to plan ---- */

static trf_layout_ops packed_layout;
static trf_device_layer packed_layer;

static int has_two_step;

static trf_status plan_packed(trf_plan *plan, trf_path path, trf_error *error) {
    if (path == TRF_PATH_TWO_STEP && has_two_step) {
        plan->path = path;
        plan->reason = "the two-step path was asked for";
        plan->device_workspace_bytes = 2ull * plan->layer->view.rows * plan->layer->view.cols;
        return TRF_OK;
    }
    trf_status status = trf_packed_take_path(plan, path, error);
    return status == TRF_OK ? trf_packed_choose_partition(plan, error) : status;
}

static void make_packed(void) {
    make_up();
    has_two_step = 1;
    packed_layout = (trf_layout_ops){.layout = TRF_LAYOUT_PACKED, .has_several_paths = 1, .create_plan = plan_packed};
    packed_layer = (trf_device_layer){
        .context = cpu,
        .device = TRF_DEVICE_CPU,
        .layout = &packed_layout,
        .info = {.codec = TRF_CODEC_BF16, .rows = 4096, .cols = 4096, .class_bits = 2, .raw_bits = 8},
        .view = {.rows = 4096, .cols = 4096},
        .shard = {.rows = 4096, .cols = 4096},
        .packed = {.rows = 4096, .cols = 4096, .bands = 64, .tiles_per_band = 128, .lines_per_band = 4}};
    cpu->limits = (trf_device_limits){.multiprocessors = 132,
                                      .shared_bytes = 227 << 10,
                                      .capability = 90,
                                      .memory_gb_per_second = 3352,
                                      .clusters_of = {0, 132, 66, 42, 30, 22, 20, 15, 15}};
}

typedef struct kernel_info {
    const char *reason, *kernel, *cut;
} kernel_info;

static kernel_info plan_of_packed(uint32_t m, trf_path path) {
    trf_plan *plan;
    kernel_info found;
    fixture_check_status(test_make_plan(&packed_layer, m, TRF_DTYPE_BF16, TRF_DTYPE_BF16, path, &plan, &err), TRF_OK,
                         &err);
    const trf_plan_info info = test_plan_info(plan);
    ck_assert_uint_eq(info.workspace_bytes, plan->partition.packed.workspace_bytes);
    trf_plan_get_kernel(plan, &found.kernel, &found.cut);
    found.reason = info.reason;
    ck_assert_str_eq(found.kernel, trf_packed_kernel_name(plan->partition.packed.shape));
    trf_plan_destroy(plan);
    return found;
}

/* A tuned kernel that runs is taken, whether the path was asked for or not; everything else follows the estimate. */
START_TEST(packed_plans_follow) {
    static const struct {
        uint32_t m;
        trf_tuned_kernel tuned;
        int runs;
    } cases[] = {{16, {TRF_PACKED_BULK_256, TRF_PACKED_STREAM_K}, 1},
                 {16, {TRF_PACKED_BULK_32, 1}, 1},
                 {16, {TRF_PACKED_BULK_32, TRF_PACKED_STREAM_K}, 0},
                 {100, {TRF_PACKED_BULK_32, 1}, 0},
                 {100, {TRF_PACKED_WGMMA_192, 2}, 1},
                 {100, {TRF_PACKED_WGMMA_192, 8}, 0}};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        const uint32_t m = cases[i / 2].m;
        const trf_tuned_kernel tuned = cases[i / 2].tuned;
        const trf_path path = i % 2 ? TRF_PATH_PACKED : TRF_PATH_AUTO;
        trf_tuning *tuning;
        const kernel_info usual = plan_of_packed(m, path);
        ck_assert_str_eq(usual.reason, "the layer is packed");
        fixture_check_status(trf_tuning_create(&kCpu, 1, &tuning, &err), TRF_OK, &err);
        tuning->layers[0] = (trf_tuned_layer){trf_tuning_key_of(&packed_layer),
                                              1,
                                              {{.m = 128, .path = TRF_PATH_PACKED, .has_packed = 1, .packed = tuned}}};
        fixture_check_status(trf_context_set_tuning(cpu, tuning, &err), TRF_OK, &err);
        const kernel_info info = plan_of_packed(m, path), beyond = plan_of_packed(129, path);
        ck_assert_str_eq(info.kernel, cases[i / 2].runs ? trf_packed_kernel_name(tuned.shape) : usual.kernel);
        ck_assert_str_eq(info.cut, cases[i / 2].runs ? trf_packed_cut_name(tuned.cut) : usual.cut);
        ck_assert_int_eq(strstr(info.reason, "tuning") != NULL, cases[i / 2].runs);
        ck_assert_str_eq(beyond.reason, "the layer is packed");
        trf_tuning_free(tuning);
        trf_context_set_tuning(cpu, NULL, &err);
    }
}
END_TEST

/* @return the path of a plan, whose reason must contain due_in_reason; NULL means any reason. */
static trf_path path_of_packed(const trf_plan_options *options, const char *due_in_reason) {
    trf_plan *plan;
    fixture_check_status(trf_plan_create(&packed_layer, options, &plan, &err), TRF_OK, &err);
    const trf_plan_info info = test_plan_info(plan);
    ck_assert_msg(!due_in_reason || strstr(info.reason, due_in_reason), "m %u: %s", options->m, info.reason);
    trf_plan_destroy(plan);
    return info.path;
}

/* AUTO takes the two-step path from the crossover on, unless its sums would need a pass of their own. */
START_TEST(packed_plans_go_by_the_card) {
    static const trf_dtype y_dtypes[] = {TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_DTYPE_F16};
    for (int t = 0; t < 3; t++) {
        const int has_sums = y_dtypes[t] == TRF_DTYPE_F16;
        trf_plan_options options = test_plan_options(16383, TRF_DTYPE_BF16, y_dtypes[t], TRF_PATH_AUTO);
        ck_assert_int_eq(path_of_packed(&options, "the layer is packed"), TRF_PATH_PACKED);
        options.m = 16384;
        ck_assert_int_eq(path_of_packed(&options, has_sums ? "the layer is packed" : "another path is faster"),
                         has_sums ? TRF_PATH_PACKED : TRF_PATH_TWO_STEP);
        options.y_stride = 5000;
        ck_assert_int_eq(path_of_packed(&options, NULL), has_sums ? TRF_PATH_PACKED : TRF_PATH_TWO_STEP);
        for (int e = 0; e < 4; e++) {
            trf_plan_options with = options;
            with.activation = e == 0 ? TRF_ACTIVATION_SILU : TRF_ACTIVATION_NONE;
            with.has_bias = e == 1;
            with.has_multiplier = e == 2;
            with.has_residual = e == 3;
            ck_assert_int_eq(path_of_packed(&with, "the layer is packed"), TRF_PATH_PACKED);
            with.path = TRF_PATH_TWO_STEP;
            ck_assert_int_eq(path_of_packed(&with, "was asked for"), TRF_PATH_TWO_STEP);
        }
        options.path = TRF_PATH_PACKED;
        ck_assert_int_eq(path_of_packed(&options, "the layer is packed"), TRF_PATH_PACKED);
        options.path = TRF_PATH_TWO_STEP;
        options.m = 1;
        ck_assert_int_eq(path_of_packed(&options, "was asked for"), TRF_PATH_TWO_STEP);
    }
    trf_plan_options options = test_plan_options(16384, TRF_DTYPE_BF16, TRF_DTYPE_BF16, TRF_PATH_AUTO);
    has_two_step = 0;
    ck_assert_int_eq(path_of_packed(&options, "the layer is packed"), TRF_PATH_PACKED);
    has_two_step = 1;
    cpu->limits.capability = 80; /* there is no table */
    ck_assert_int_eq(path_of_packed(&options, "the layer is packed"), TRF_PATH_PACKED);
    cpu->limits.capability = 90;
}
END_TEST

/* The context's tuning has precedence over the table. */
START_TEST(packed_plans_have_the_tuned_path) {
    static const struct {
        uint32_t m;
        trf_path due;
        const char *reason;
    } cases[] = {{16, TRF_PATH_PACKED, "the layer is packed"},
                 {17, TRF_PATH_TWO_STEP, "tuning has another path"},
                 {9000, TRF_PATH_PACKED, "the layer is packed"},
                 {10001, TRF_PATH_PACKED, "the layer is packed"},
                 {16384, TRF_PATH_TWO_STEP, "another path is faster"}};
    trf_tuning *tuning;
    fixture_check_status(trf_tuning_create(&kCpu, 1, &tuning, &err), TRF_OK, &err);
    tuning->layers[0] = (trf_tuned_layer){trf_tuning_key_of(&packed_layer),
                                          3,
                                          {{.m = 16, .path = TRF_PATH_PACKED},
                                           {.m = 64, .path = TRF_PATH_TWO_STEP},
                                           {.m = 10000, .path = TRF_PATH_PACKED}}};
    fixture_check_status(trf_context_set_tuning(cpu, tuning, &err), TRF_OK, &err);
    trf_tuning_free(tuning);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        trf_plan_options options = test_plan_options(cases[i].m, TRF_DTYPE_BF16, TRF_DTYPE_BF16, TRF_PATH_AUTO);
        ck_assert_int_eq(path_of_packed(&options, cases[i].reason), cases[i].due);
        options.has_bias = 1;
        ck_assert_int_eq(path_of_packed(&options, "the layer is packed"), TRF_PATH_PACKED);
    }
    trf_context_set_tuning(cpu, NULL, &err);
}
END_TEST

static trf_tuned_kernel made_up_fastest;
static double made_up_fastest_time, made_up_two_step_time;
static uint32_t num_timed;

static trf_status time_packed_made_up(const trf_timed_product *p, uint32_t repeats, double *microseconds,
                                      trf_error *error) {
    const trf_packed_partition *partition = &p->plan->partition.packed;
    const int is_fastest = partition->shape == made_up_fastest.shape && partition->cut == made_up_fastest.cut;
    if (failure != TRF_OK)
        return trf_fail(error, failure, TRF_NO_OFFSET, "it fails");
    num_timed++;
    if (p->plan->path == TRF_PATH_TWO_STEP) {
        EXPECT(p->plan->workspace_bytes == 2 * 4096 * 4096 && p->workspace);
        for (uint32_t repeat = 0; repeat < repeats; repeat++)
            microseconds[repeat] = made_up_two_step_time;
        return TRF_OK;
    }
    EXPECT(p->plan->workspace_bytes == partition->workspace_bytes && p->workspace);
    for (uint32_t repeat = 0; repeat < repeats; repeat++)
        microseconds[repeat] = is_fastest ? made_up_fastest_time : 10;
    return TRF_OK;
}

static const trf_tuned_point *measure_packed(trf_tuning **tuning) {
    static trf_device_layer *const measured[] = {&packed_layer};
    trf_tune_options options;
    trf_tune_options_init(&options);
    options.max_m = 2;
    num_timed = 0;
    fixture_check_status(trf_tuning_measure(measured, 1, &options, tuning, &err), TRF_OK, &err);
    ck_assert_uint_eq((*tuning)->layers[0].num_points, 2);
    return &(*tuning)->layers[0].points[1];
}

/* Every candidate is timed, and the tuning gets one that is 1 % faster than the first, whatever tuning the context has
 * meanwhile. */
START_TEST(packed_layers_are_measured) {
    trf_packed_partition candidates[TRF_PACKED_MAX_CANDIDATES];
    trf_tuning *tuning;
    made_up.time = time_packed_made_up;
    const uint32_t count =
        trf_packed_candidates(&packed_layer.packed, &cpu->limits, 2, candidates, TRF_PACKED_MAX_CANDIDATES);
    ck_assert_uint_gt(count, 1);
    made_up_two_step_time = 100;
    for (uint32_t due = 0; due < count; due++)
        for (int is_near = 0; is_near < 2; is_near++) {
            const trf_packed_partition *winner = &candidates[is_near ? 0 : due];
            made_up_fastest = (trf_tuned_kernel){candidates[due].shape, candidates[due].cut};
            made_up_fastest_time = is_near ? 9.95 : 9.8;
            const trf_tuned_point *point = measure_packed(&tuning);
            ck_assert_uint_ge(num_timed, count);
            ck_assert(point->path == TRF_PATH_PACKED && point->has_packed);
            ck_assert_int_eq(point->packed.shape, winner->shape);
            ck_assert_uint_eq(point->packed.cut, winner->cut);
            ck_assert(point->microseconds[TRF_PATH_PACKED - 1] ==
                      (winner == &candidates[due] ? made_up_fastest_time : 10));
            fixture_check_status(trf_context_set_tuning(cpu, tuning, &err), TRF_OK, &err);
            ck_assert_str_eq(plan_of_packed(2, TRF_PATH_AUTO).kernel, trf_packed_kernel_name(winner->shape));
            trf_tuning_free(tuning);
        }
    for (int is_near = 0; is_near < 2; is_near++) { /* the fastest kernel takes 9.95 */
        made_up_two_step_time = is_near ? 9.9 : 9.8;
        const trf_tuned_point *point = measure_packed(&tuning);
        ck_assert_int_eq(point->path, is_near ? TRF_PATH_PACKED : TRF_PATH_TWO_STEP);
        ck_assert(point->has_packed && point->microseconds[TRF_PATH_TWO_STEP - 1] == made_up_two_step_time);
        trf_tuning_free(tuning);
    }
    failure = TRF_ERR_CUDA;
    trf_device_layer *const measured[] = {&packed_layer};
    fixture_check_status(trf_tuning_measure(measured, 1, NULL, &tuning, &err), TRF_ERR_CUDA, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "the two-step path at 1 rows of x"));
    has_two_step = 0;
    fixture_check_status(trf_tuning_measure(measured, 1, NULL, &tuning, &err), TRF_ERR_CUDA, &err);
    ck_assert_ptr_nonnull(strstr(err.message, "the packed path at 1 rows of x: the kernel "));
    has_two_step = 1;
    trf_context_set_tuning(cpu, NULL, &err);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("tuning");
    TCase *tests = tcase_create("tuning"), *on_made_up = tcase_create("made_up"), *of_packed = tcase_create("packed");
    tcase_add_unchecked_fixture(tests, begin, end);
    tcase_add_test(tests, measured_on_the_cpu);
    tcase_add_test(tests, layers_of_all_layouts);
    suite_add_tcase(suite, tests);
    tcase_add_unchecked_fixture(on_made_up, make_up, unmake);
    tcase_add_test(on_made_up, crossovers);
    tcase_add_test(on_made_up, contexts_follow);
    tcase_add_test(on_made_up, plans_go_by_the_card);
    tcase_add_test(on_made_up, refused_paths_give_way);
    tcase_add_test(on_made_up, measurements_that_fail);
    suite_add_tcase(suite, on_made_up);
    tcase_add_unchecked_fixture(of_packed, make_packed, unmake);
    tcase_add_test(of_packed, packed_plans_follow);
    tcase_add_test(of_packed, packed_plans_go_by_the_card);
    tcase_add_test(of_packed, packed_plans_have_the_tuned_path);
    tcase_add_test(of_packed, packed_layers_are_measured);
    suite_add_tcase(suite, of_packed);
    return run_suite(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tunings on a GPU: every path that takes a product is timed, plans follow the results, no device memory stays behind,
 * and some calls are refused. The same is tested for the kernels and cuts of packed layers. */
#include "common/device_layers.h"
#include "gpu_layers.h"
#include "trf_context.h"
#include "trf_tuning.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LAYERS = 3,
    MAX_M = 192
};

static const trf_path kPaths[] = {TRF_PATH_FUSED, TRF_PATH_TWO_STEP, TRF_PATH_WIDE};

static void make_layers(gpu_layer *layers, trf_device_layer **on_device) {
    static const gpu_shape shapes[LAYERS] = {{1024, 2048}, {1024, 2048}, {300, 1000}};
    static const int recipes[LAYERS] = {0, 1, 0};
    test_rng rng = {9500};
    for (int i = 0; i < LAYERS; i++) {
        layers[i] = gpu_layer_make(&rng, &kGpuRecipes[recipes[i]], TRF_FAVOR_SPEED, 0, shapes[i], GPU_WEIGHTS_NORMAL);
        on_device[i] = layers[i].device;
    }
}

static trf_dtype x_dtype_of(const gpu_layer *layer) {
    return layer->info.codec == TRF_CODEC_FP16 ? TRF_DTYPE_F16 : TRF_DTYPE_BF16;
}

static trf_path planned(const gpu_layer *layer, uint32_t m, trf_path path) {
    trf_plan *plan;
    trf_error err = {0};
    const trf_dtype dtype = x_dtype_of(layer);
    trf_status status = test_make_plan(layer->device, m, dtype, dtype, path, &plan, &err);
    if (status == TRF_ERR_UNSUPPORTED)
        return TRF_PATH_AUTO;
    gpu_check(status, TRF_OK, &err, layer->name);
    const trf_path found = test_plan_info(plan).path;
    trf_plan_destroy(plan);
    return found;
}

START_TEST(plans_follow) {
    gpu_layer layers[LAYERS];
    trf_device_layer *on_device[LAYERS];
    trf_tune_options options;
    trf_tuning *tuning;
    trf_error err = {0};
    make_layers(layers, on_device);
    trf_tune_options_init(&options);
    options.max_m = MAX_M;
    gpu_check(trf_tuning_measure(on_device, LAYERS, &options, &tuning, &err), TRF_OK, &err, "a first tuning");
    trf_tuning_free(tuning); /* kernels are loaded now */
    const uint64_t before = gpu_free_bytes();
    gpu_check(trf_tuning_measure(on_device, LAYERS, &options, &tuning, &err), TRF_OK, &err, "a tuning");
    ck_assert_uint_eq(before, gpu_free_bytes());
    gpu_check(trf_context_set_tuning(gpu_context, tuning, &err), TRF_OK, &err, "set");
    for (int i = 0; i < LAYERS; i++) {
        for (uint32_t m = 1; m <= MAX_M; m++) {
            const trf_path due = trf_tuning_path(tuning, layers[i].device, m),
                           found = planned(&layers[i], m, TRF_PATH_AUTO);
            if (found != due)
                ck_abort_msg("%s: path %d at %u rows, not %d", layers[i].name, (int)found, m, (int)due);
        }
        ck_assert_int_ne(trf_tuning_path(tuning, layers[i].device, MAX_M), TRF_PATH_AUTO);
        ck_assert_int_eq(trf_tuning_path(tuning, layers[i].device, MAX_M + 1), TRF_PATH_AUTO);
        for (int p = 0; p < 3; p++) { /* what was asked for is not overruled */
            const trf_path path = planned(&layers[i], 48, kPaths[p]);
            ck_assert(path == kPaths[p] || path == TRF_PATH_AUTO);
        }
    }
    gpu_check(trf_context_set_tuning(gpu_context, NULL, &err), TRF_OK, &err, "unset");
    trf_tuning_free(tuning);
    for (int i = 0; i < LAYERS; i++)
        gpu_layer_free(&layers[i]);
}
END_TEST

/* Without a tuning, AUTO is what the library's table has for this GPU, if that path takes the product. */
START_TEST(plans_follow_the_table) {
    const trf_card card = trf_card_of(gpu_context);
    uint32_t num_tables;
    const trf_crossover_table *tables = trf_crossover_tables(&num_tables),
                              *table = trf_crossovers_for(tables, num_tables, &card);
    gpu_layer layers[LAYERS];
    trf_device_layer *on_device[LAYERS];
    make_layers(layers, on_device);
    for (int i = 0; i < LAYERS; i++) {
        const trf_tuning_key key = trf_tuning_key_of(layers[i].device);
        for (uint32_t m = 1; m <= 2 * MAX_M; m++) {
            const trf_path due = trf_crossover_path(table, &key, m),
                           takes = due == TRF_PATH_AUTO ? TRF_PATH_AUTO : planned(&layers[i], m, due),
                           found = planned(&layers[i], m, TRF_PATH_AUTO);
            if (takes != TRF_PATH_AUTO ? found != due : found != TRF_PATH_FUSED && found != TRF_PATH_TWO_STEP)
                ck_abort_msg("%s: path %d at %u rows, not %d", layers[i].name, (int)found, m, (int)due);
        }
    }
    for (int i = 0; i < LAYERS; i++)
        gpu_layer_free(&layers[i]);
}
END_TEST

/* A tuning of a version that had wide kernels of bf16 is used as it is: plans of such layers take the usual path. */
START_TEST(paths_that_are_gone_give_way) {
    static const gpu_shape shape = {1024, 2048};
    test_rng rng = {9600};
    gpu_layer layer = gpu_layer_make(&rng, &kGpuRecipes[0], TRF_FAVOR_SPEED, 0, shape, GPU_WEIGHTS_NORMAL);
    const trf_card card = trf_card_of(gpu_context);
    trf_tuning *tuning;
    trf_error err = {0};
    gpu_check(trf_tuning_create(&card, 1, &tuning, &err), TRF_OK, &err, "a tuning");
    tuning->layers[0] = (trf_tuned_layer){trf_tuning_key_of(layer.device), 1, {{.m = MAX_M, .path = TRF_PATH_WIDE}}};
    gpu_check(trf_context_set_tuning(gpu_context, tuning, &err), TRF_OK, &err, "set");
    ck_assert_int_eq(planned(&layer, TRF_FUSED_MAX_M, TRF_PATH_AUTO), TRF_PATH_FUSED);
    ck_assert_int_eq(planned(&layer, TRF_FUSED_MAX_M + 1, TRF_PATH_AUTO), TRF_PATH_TWO_STEP);
    gpu_check(trf_context_set_tuning(gpu_context, NULL, &err), TRF_OK, &err, "unset");
    trf_tuning_free(tuning);
    gpu_layer_free(&layer);
}
END_TEST

/* Each path that takes a product has its time in the file, and no other. */
START_TEST(all_paths_are_timed) {
    gpu_layer layers[LAYERS];
    trf_device_layer *on_device[LAYERS];
    trf_tune_options options;
    trf_tuning *tuning;
    trf_error err = {0};
    char path[] = "/tmp/transfuse_tuning_XXXXXX", text[1 << 16];
    make_layers(layers, on_device);
    const int file = mkstemp(path);
    ck_assert_int_ge(file, 0);
    trf_tune_options_init(&options);
    options.max_m = 1;
    for (int i = 0; i < LAYERS; i++) {
        gpu_check(trf_tuning_measure(&on_device[i], 1, &options, &tuning, &err), TRF_OK, &err, layers[i].name);
        gpu_check(trf_tuning_write(tuning, path, 1, &err), TRF_OK, &err, path);
        trf_tuning_free(tuning);
        FILE *stream = fopen(path, "r");
        ck_assert_ptr_nonnull(stream);
        text[fread(text, 1, sizeof text - 1, stream)] = 0;
        fclose(stream);
        for (int p = 0; p < 3; p++) {
            static const char *const keys[] = {"\"fused\": ", "\"two-step\": ", "\"wide\": "};
            const int takes = planned(&layers[i], 1, kPaths[p]) != TRF_PATH_AUTO;
            ck_assert_msg((strstr(text, keys[p]) != NULL) == takes, "%s: %s: %s", layers[i].name, keys[p], text);
        }
        gpu_layer_free(&layers[i]);
    }
    close(file);
    unlink(path);
}
END_TEST

static trf_device_layer *make_packed(const gpu_layer *coded) {
    trf_device_layer *packed;
    trf_error err = {0};
    gpu_check(trf_device_layer_convert(coded->device, TRF_LAYOUT_PACKED, NULL, &packed, &err), TRF_OK, &err, "packed");
    return packed;
}

/* Computes y of m rows, F32, by the path and kernel that plans have. */
static float *multiply(trf_device_layer *layer, uint32_t m, const uint16_t *x) {
    const trf_plan_options options = test_plan_options(m, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_AUTO);
    return (float *)device_multiply(layer, &options, x);
}

/* Checks that plans for these rows have the point's kernel and cut, and that y is the same except for the order of
 * sums. */
static void check_packed_point(trf_device_layer *layer, const trf_tuned_point *point, const uint16_t *x,
                               const float *due) {
    trf_plan *plan;
    trf_error err = {0};
    const char *kernel, *cut;
    gpu_check(test_make_plan(layer, point->m, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_PACKED, &plan, &err), TRF_OK,
              &err, "a plan");
    trf_plan_get_kernel(plan, &kernel, &cut);
    ck_assert_str_eq(kernel, trf_packed_kernel_name(point->packed.shape));
    ck_assert_str_eq(cut, trf_packed_cut_name(point->packed.cut));
    ck_assert_ptr_nonnull(strstr(test_plan_info(plan).reason, "tuning"));
    trf_plan_destroy(plan);
    float *y = multiply(layer, point->m, x);
    for (uint64_t i = 0; i < (uint64_t)point->m * test_layer_info(layer).rows; i++)
        if (!(y[i] - due[i] < 1e-3F && due[i] - y[i] < 1e-3F))
            ck_abort_msg("%u rows, %s, cut %s: y[%llu] is %g, not %g", point->m, kernel, cut, (unsigned long long)i,
                         (double)y[i], (double)due[i]);
    free(y);
}

/* If there are several kernels, the tuning has one of the candidates for each batch; and plans take any candidate that
 * the tuning names, for each batch. */
START_TEST(packed_plans_follow) {
    static const gpu_shape shape = {2048, 2048};
    const int has_choice = trf_has_sm_90a(&gpu_context->limits);
    test_rng rng = {9700};
    gpu_layer coded = gpu_layer_make(&rng, &kGpuRecipes[0], TRF_FAVOR_SPEED, 0, shape, GPU_WEIGHTS_NORMAL);
    trf_device_layer *layer = make_packed(&coded);
    uint16_t *x = gpu_malloc(2ull * MAX_M * shape.cols);
    test_fill_normal(&rng, x, TRF_DTYPE_BF16, (size_t)MAX_M * shape.cols, 1.0);
    float *due = multiply(layer, MAX_M, x); /* each batch has the first rows of this */
    trf_tune_options options;
    trf_tuning *tuning;
    trf_error err = {0};
    trf_tune_options_init(&options);
    options.max_m = MAX_M;
    gpu_check(trf_tuning_measure(&layer, 1, &options, &tuning, &err), TRF_OK, &err, "a tuning");
    trf_tuned_layer *tuned = &tuning->layers[0];
    for (uint32_t i = 0; i < tuned->num_points; i++) {
        trf_packed_partition candidates[TRF_PACKED_MAX_CANDIDATES];
        trf_tuned_point *point = &tuned->points[i];
        const uint32_t count = trf_packed_candidates(&layer->packed, &gpu_context->limits, point->m, candidates,
                                                     TRF_PACKED_MAX_CANDIDATES);
        ck_assert(point->path == TRF_PATH_PACKED && point->microseconds[TRF_PATH_PACKED - 1] > 0);
        ck_assert(point->microseconds[TRF_PATH_TWO_STEP - 1] > 0);
        ck_assert_int_eq(point->has_packed, has_choice);
        ck_assert_int_eq(count > 0, has_choice);
        uint32_t found = 0;
        for (uint32_t c = 0; c < count; c++)
            found += candidates[c].shape == point->packed.shape && candidates[c].cut == point->packed.cut;
        ck_assert_uint_eq(found, has_choice);
        for (uint32_t c = 0; c < count; c++) {
            point->packed = (trf_tuned_kernel){candidates[c].shape, candidates[c].cut};
            gpu_check(trf_context_set_tuning(gpu_context, tuning, &err), TRF_OK, &err, "set");
            check_packed_point(layer, point, x, due);
        }
    }
    gpu_check(trf_context_set_tuning(gpu_context, NULL, &err), TRF_OK, &err, "unset");
    trf_tuning_free(tuning);
    free(due);
    free(x);
    trf_device_layer_destroy(layer);
    gpu_layer_free(&coded);
}
END_TEST

static int stop(void *context, uint32_t done, uint32_t total) {
    (void)context, (void)total;
    return done == 5;
}

START_TEST(stopped) {
    gpu_layer layers[LAYERS];
    trf_device_layer *on_device[LAYERS];
    trf_tune_options options;
    trf_tuning *tuning = NULL;
    trf_error err = {0};
    make_layers(layers, on_device);
    trf_tune_options_init(&options);
    options.progress = stop;
    gpu_check(trf_tuning_measure(on_device, LAYERS, &options, &tuning, &err), TRF_ERR_CANCELLED, &err, "stopped");
    ck_assert_ptr_null(tuning);
    for (int i = 0; i < LAYERS; i++)
        gpu_layer_free(&layers[i]);
}
END_TEST

int main(void) {
    const gpu_test tests[] = {{plans_follow, 1},        {plans_follow_the_table, 1}, {paths_that_are_gone_give_way, 1},
                              {all_paths_are_timed, 1}, {packed_plans_follow, 1},    {stopped, 1}};
    return gpu_main("tuning", tests, sizeof tests / sizeof tests[0]);
}

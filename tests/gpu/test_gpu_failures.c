/* SPDX-License-Identifier: Apache-2.0 */
/* Failures on a GPU: a tensor is missing, memory really runs out, each CUDA call in the life of a context and a layer
 * fails once, and the device is lost. Each time there are a status and a message, no memory is lost, and the next call
 * works (after a lost device, the next process). test_gpu_load.c tests corrupt tiles and cancelled loads. */
#include "gpu_failing_calls.h"
#include "gpu_layer_files.h"
#include "gpu_products.h"
#include "transfuse/experts.h"
#include "transfuse/stacks.h"

#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

GPU_WRAP(cudaHostRegister, (void *memory, size_t bytes, unsigned flags), (memory, bytes, flags))
GPU_WRAP(cudaMemcpyAsync, (void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream),
         (to, from, bytes, kind, stream))
GPU_WRAP(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream))

START_TEST(missing_tensor) {
    fixture_begin();
    gpu_layer_file layer_file = gpu_write_large_file();
    gpu_check_load(&layer_file, 0);
    const uint64_t before = gpu_free_bytes();
    trf_error err = {0};
    trf_checkpoint *checkpoint;
    trf_device_layer *layer = NULL;
    gpu_check(trf_checkpoint_open(layer_file.path, &checkpoint, &err), TRF_OK, &err, layer_file.path);
    gpu_check(trf_device_layer_load(gpu_context, checkpoint, "no.such.weight", NULL, &layer, &err), TRF_ERR_NOT_FOUND,
              &err, layer_file.path);
    ck_assert_ptr_null(layer);
    ck_assert_msg(strstr(err.message, "no.such.weight") && strstr(err.message, "large.trf"), "%s", err.message);
    trf_checkpoint_close(checkpoint);
    gpu_check_load(&layer_file, 0);
    ck_assert_uint_eq(gpu_free_bytes(), before);
    free(layer_file.weights);
    fixture_end();
}
END_TEST

/* ---- no memory ---- */

enum {
    MOST_ALLOCATIONS = 256,
    LEAST_ALLOCATION = 1 << 20
};

/* Takes all device memory except for less than LEAST_ALLOCATION. @return the number of allocations. */
static int take_all(void *allocations[MOST_ALLOCATIONS]) {
    size_t bytes = gpu_free_bytes();
    int count = 0;
    while (bytes >= LEAST_ALLOCATION && count < MOST_ALLOCATIONS) {
        if (cudaMalloc(&allocations[count], bytes) == cudaSuccess) {
            count++;
        } else {
            cudaGetLastError();
            bytes /= 2;
        }
    }
    ck_assert_int_lt(count, MOST_ALLOCATIONS);
    return count;
}

START_TEST(memory_runs_out) {
    if (test_quick()) {
        printf("skipped gpu.failures: memory_runs_out: compute-sanitizer needs device memory of its own\n");
        return;
    }
    fixture_begin();
    gpu_layer_file layer_file = gpu_write_large_file();
    gpu_check_load(&layer_file, 0);
    const uint64_t before = gpu_free_bytes();
    void *allocations[MOST_ALLOCATIONS];
    const int count = take_all(allocations);
    trf_error err = {0};
    trf_device_layer *layer = NULL;
    void *memory = NULL;
    char size[32];
    for (int threads = 0; threads <= 2; threads++) {
        trf_load_options options = gpu_load_options(threads);
        gpu_check(gpu_load(gpu_context, layer_file.path, &options, &layer, &err), TRF_ERR_MEMORY, &err,
                  layer_file.path);
        ck_assert_ptr_null(layer);
        ck_assert_msg(strstr(err.message, "weight") && strstr(err.message, " bytes of device memory"), "%s",
                      err.message);
    }
    const uint64_t bytes = 64 << 20;
    gpu_check(trf_device_allocate(gpu_context, bytes, &memory, &err), TRF_ERR_MEMORY, &err, "allocating");
    ck_assert_ptr_null(memory);
    snprintf(size, sizeof size, "%llu bytes", (unsigned long long)bytes);
    ck_assert_msg(strstr(err.message, size) != NULL, "%s", err.message);
    for (int i = 0; i < count; i++)
        CUDA(cudaFree(allocations[i]));
    gpu_check_load(&layer_file, 0);
    ck_assert_uint_eq(gpu_free_bytes(), before);
    free(layer_file.weights);
    fixture_end();
}
END_TEST

/* ---- each call fails once ---- */

/* Makes a context, a layer, experts of a coded one, and asks about it. If it returns TRF_OK, the weights were right.
 * *failed: whether a call was made to fail. */
static trf_status use_device(const gpu_layer_file *layer_file, trf_layout layout, int threads, int *failed,
                             trf_error *err) {
    trf_context *context = NULL;
    trf_device_layer *layer = NULL;
    trf_experts *experts = NULL;
    trf_load_options options = gpu_load_options(threads);
    options.layout = layout;
    trf_status status = trf_context_create(0, &context, err);
    if (status == TRF_OK)
        status = gpu_load(context, layer_file->path, &options, &layer, err);
    if (status == TRF_OK && layout == TRF_LAYOUT_CODED)
        status = trf_experts_create(&layer, 1, &experts, err);
    if (status == TRF_OK)
        status = trf_device_layer_check(layer, err);
    *failed = gpu_call_has_failed();
    gpu_count_calls(0); /* from here on calls are the test's, or free what was made */
    if (status == TRF_OK)
        ck_assert_msg(gpu_has_weights_of_file(layer, layer_file), "other weights%s",
                      *failed ? ", though all seemed well" : "");
    trf_experts_destroy(experts);
    trf_device_layer_destroy(layer);
    trf_context_destroy(context);
    return status;
}

static void fail_each_call(const gpu_layer_file *layer_file, trf_layout layout, int threads) {
    trf_error err = {0};
    int failed, failures = 0, survived = 0;
    gpu_count_calls(0);
    gpu_check(use_device(layer_file, layout, threads, &failed, &err), TRF_OK, &err, layer_file->path);
    const uint64_t before = gpu_free_bytes();
    for (long number = 1;; number++) {
        gpu_count_calls(number);
        const trf_status status = use_device(layer_file, layout, threads, &failed, &err);
        if (status != TRF_OK)
            gpu_check(status, TRF_ERR_MEMORY, &err, layer_file->path);
        if (gpu_free_bytes() != before)
            ck_abort_msg("%s: call %ld failed, and memory is lost", layer_file->path, number);
        if (!failed)
            break;
        if (status == TRF_OK)
            survived++; /* memory could not be locked, or not fitted: loading is then slower, or takes more */
        else
            failures++;
    }
    printf("%ux%u, %s, %d threads: %d calls failed, and %d were done without\n", layer_file->rows, layer_file->cols,
           trf_layout_name(layout), threads, failures, survived);
    ck_assert_int_gt(failures, 8);
}

/* Layers that are packed in several parts: one straight from its slabs, one that ends within a band. */
START_TEST(each_call_fails_once) {
    fixture_begin();
    static const gpu_shape small = {400, 900}, even = {6912, 4992}, odd = {6900, 5000};
    const gpu_layer_file large = gpu_write_large_file(),
                         others[] = {gpu_write_layer_file("small", &kGpuRecipes[2], small, TRF_FAVOR_SIZE),
                                     gpu_write_layer_file("even", &kGpuRecipes[0], even, TRF_FAVOR_SPEED),
                                     gpu_write_layer_file("odd", &kGpuRecipes[0], odd, TRF_FAVOR_SPEED)};
    for (int threads = 1; threads <= 2; threads++) {
        fail_each_call(&large, TRF_LAYOUT_CODED, threads);
        fail_each_call(&others[0], TRF_LAYOUT_CODED, threads);
        fail_each_call(&others[1], TRF_LAYOUT_PACKED, threads);
        fail_each_call(&others[2], TRF_LAYOUT_PACKED, threads);
        fail_each_call(&others[2], TRF_LAYOUT_PLAIN, threads);
    }
    gpu_check_load(&large, 0);
    free(large.weights);
    free(others[0].weights);
    free(others[1].weights);
    free(others[2].weights);
    fixture_end();
}
END_TEST

/* ---- a lost device ----
 * A kernel that reads where nothing is takes the process's device from it for good. So that happens in a process of its
 * own, this program with kRole set. */

static const char kRole[] = "TRF_TEST_LOSES_ITS_DEVICE";

static int wrong_statuses;

static void expect_lost(trf_status status, const trf_error *err, const char *call) {
    const int told = status == TRF_ERR_CUDA && err->status == status && err->cuda && err->message[0];
    printf("  %s: %s: %s\n", call, trf_status_name(status), status == TRF_OK ? "" : err->message);
    if (!told) {
        printf("gpu.failures: %s is not TRF_ERR_CUDA with CUDA's own number\n", call);
        wrong_statuses++;
    }
}

/* Launches a product whose x is at an address without memory. */
static void lose_device(const trf_plan *plan, void *y, void *workspace) {
    trf_error err = {0};
    const void *nowhere = (const void *)(uintptr_t)0x10000;
    const trf_status status = test_multiply(plan, nowhere, y, workspace, NULL, &err);
    if (status != TRF_OK) /* which launch reports it depends on when the first one ends */
        gpu_check(status, TRF_ERR_CUDA, &err, "the call that loses it");
}

/* Makes every call that takes a context or a layer when the device is lost; then frees everything. */
START_TEST(without_device) {
    enum {
        PLENTY = 1 << 22
    };
    fixture_begin();
    gpu_layer_file layer_file = gpu_write_large_file();
    trf_error err = {0};
    trf_device_layer *layer, *none = NULL;
    trf_layer *host;
    trf_stack *stack;
    trf_experts *experts = NULL, *more = NULL;
    trf_context *context = NULL;
    trf_plan *plan;
    void *memory, *nothing = NULL;
    size_t blob_bytes;
    uint8_t *bytes = calloc(1, PLENTY), *blob = fixture_read(layer_file.path, &blob_bytes);
    gpu_check(gpu_load(gpu_context, layer_file.path, NULL, &layer, &err), TRF_OK, &err, layer_file.path);
    gpu_check(trf_layer_open(layer_file.path, &host, &err), TRF_OK, &err, layer_file.path);
    gpu_check(trf_stack_create(gpu_context, &stack, &err), TRF_OK, &err, "a stack");
    gpu_check(trf_stack_add(stack, host, &err), TRF_OK, &err, "a stack");
    gpu_check(trf_experts_create(&layer, 1, &experts, &err), TRF_OK, &err, "experts");
    gpu_check(trf_device_allocate(gpu_context, 2ull * layer_file.rows * layer_file.cols, &memory, &err), TRF_OK, &err,
              "memory");
    gpu_check(test_make_plan(layer, 1, TRF_DTYPE_BF16, TRF_DTYPE_F32, TRF_PATH_FUSED, &plan, &err), TRF_OK, &err,
              "planning");
    lose_device(plan, memory, (uint8_t *)memory + PLENTY);
    expect_lost(trf_device_layer_check(layer, &err), &err, "trf_device_layer_check");
    if (err.cuda != cudaErrorIllegalAddress) {
        printf("gpu.failures: it was to be an illegal address, and is %d\n", err.cuda);
        wrong_statuses++;
    }
    expect_lost(test_multiply(plan, memory, (uint8_t *)memory + PLENTY / 2, (uint8_t *)memory + PLENTY, NULL, &err),
                &err, "trf_linear");
    expect_lost(trf_device_layer_decode(layer, TRF_DECODE_SOURCE, memory, layer_file.weights_bytes, NULL, &err), &err,
                "trf_device_layer_decode");
    const trf_row_request row =
        test_row_request(memory, 4, 1, TRF_DECODE_SOURCE, (uint8_t *)memory + 256, 2ull * layer_file.cols);
    expect_lost(trf_decode_rows(layer, &row, NULL, &err), &err, "trf_decode_rows");
    for (int threads = 1; threads <= 2; threads++) {
        trf_load_options options = gpu_load_options(threads);
        expect_lost(gpu_load(gpu_context, layer_file.path, &options, &none, &err), &err, "trf_device_layer_load");
    }
    expect_lost(trf_device_layer_create(gpu_context, blob, blob_bytes, NULL, &none, &err), &err,
                "trf_device_layer_create");
    expect_lost(trf_device_allocate(gpu_context, PLENTY, &nothing, &err), &err, "trf_device_allocate");
    expect_lost(trf_device_upload(gpu_context, memory, bytes, PLENTY, &err), &err, "trf_device_upload");
    expect_lost(trf_device_download(gpu_context, bytes, memory, PLENTY, &err), &err, "trf_device_download");
    expect_lost(trf_stack_prepare(stack, 1ull << 30, &err), &err, "trf_stack_prepare");
    expect_lost(trf_experts_create(&layer, 1, &more, &err), &err, "trf_experts_create");
    expect_lost(trf_experts_check(experts, &err), &err, "trf_experts_check");
    expect_lost(trf_context_create(0, &context, &err), &err, "trf_context_create");
    ck_assert(!none && !nothing && !more && !context);
    ck_assert_int_eq(wrong_statuses, 0);
    trf_device_free(gpu_context, memory);
    trf_experts_destroy(experts);
    trf_stack_destroy(stack);
    trf_layer_free(host);
    trf_plan_destroy(plan);
    trf_device_layer_destroy(layer);
    free(bytes);
    free(blob);
    free(layer_file.weights);
    fixture_end();
}
END_TEST

/* Waits for a process to end, and ends it itself after a minute. @return its wait status. */
static int await_process(pid_t process) {
    int status = 0;
    for (int tenths = 0; waitpid(process, &status, WNOHANG) == 0; tenths++) {
        if (tenths == 600)
            kill(process, SIGKILL);
        usleep(100000);
    }
    return status;
}

START_TEST(lost_device) {
    extern char **environ;
    if (test_quick()) {
        printf("skipped gpu.failures: lost_device: compute-sanitizer stops a kernel that reads where nothing is\n");
        return;
    }
    fixture_begin();
    gpu_layer_file layer_file = gpu_write_large_file();
    gpu_check_load(&layer_file, 0);
    const uint64_t before = gpu_free_bytes();
    pid_t process;
    char path[] = "/proc/self/exe", *const arguments[] = {path, NULL};
    setenv(kRole, "1", 1);
    fflush(stdout);
    const int started = posix_spawn(&process, path, NULL, NULL, arguments, environ);
    unsetenv(kRole);
    ck_assert_int_eq(started, 0);
    const int status = await_process(process);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0,
                  "the process that lost its device: status %d, signal %d",
                  WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    gpu_check_load(&layer_file, 0); /* this process still has its device */
    ck_assert_uint_eq(gpu_free_bytes(), before);
    free(layer_file.weights);
    fixture_end();
}
END_TEST

int main(void) {
    const gpu_test alone = {without_device, 1};
    if (getenv(kRole))
        return gpu_main("failures, without a device", &alone, 1);
    const gpu_test tests[] = {{missing_tensor, 1}, {memory_runs_out, 1}, {each_call_fails_once, 1}, {lost_device, 1}};
    return gpu_main("failures", tests, sizeof tests / sizeof tests[0]);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* 16 threads on several contexts and streams of one GPU, which load, run, cancel and close at once
 * (tests/common/soak.h); and layers that are loaded and freed again and again. TRF_TEST_SECONDS and TRF_TEST_CYCLES
 * make them long. Device memory is counted as the GPU's own, so that no other program may allocate there meanwhile.
 *
 * Beside the threads two other processes decode without a pause, in memory that they have had from the start. The GPU
 * takes turns with processes, and stops one's work wherever that is; what two of its streams do then comes in other
 * orders than on a GPU of its own. With TRF_TEST_QUICK there are none: a sanitizer would look into them, too. */
#define _GNU_SOURCE /* pipe2, environ */
#include "common/checkpoint_fixture.h"
#include "common/soak.h"
#include "gpu_layers.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- neighbours ---- */

enum {
    NEIGHBOURS = 2,
    READY_FD = 3, /* of a neighbour, which writes a byte there when it has all of its memory */
    AT_ONCE = 200
};

typedef struct neighbour {
    pid_t process;
    int stop; /* it ends when this end of its standard input is closed, as the kernel does where this process dies */
} neighbour;

START_TEST(neighbours_work) {
    test_rng rng = {1};
    gpu_layer layer =
        gpu_layer_make(&rng, &kGpuRecipes[0], TRF_FAVOR_SPEED, 256, (gpu_shape){2048, 2048}, GPU_WEIGHTS_NORMAL);
    const uint64_t bytes = 2ull * layer.info.rows * layer.info.cols;
    gpu_memory weights = gpu_memory_make(bytes);
    trf_error err = {0};
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    for (int is_ready = 0; poll(&input, 1, 0) == 0; is_ready = 1) {
        for (int i = 0; i < AT_ONCE; i++)
            gpu_check(trf_device_layer_decode(layer.device, TRF_DECODE_SOURCE, weights.at, bytes, NULL, &err), TRF_OK,
                      &err, "a neighbour's layer");
        CUDA(cudaDeviceSynchronize());
        if (!is_ready)
            EXPECT(write(READY_FD, "r", 1) == 1);
    }
    gpu_memory_free(&weights);
    gpu_layer_free(&layer);
}
END_TEST

/* Starts this program once more, and waits until it is at work. */
static neighbour start_neighbour(void) {
    static char name[] = "/proc/self/exe", what[] = "neighbour";
    char *const arguments[] = {name, what, NULL};
    posix_spawn_file_actions_t actions;
    neighbour made;
    int input[2], ready[2];
    char byte;
    EXPECT(pipe2(input, O_CLOEXEC) == 0 && pipe2(ready, O_CLOEXEC) == 0);
    EXPECT(posix_spawn_file_actions_init(&actions) == 0 &&
           posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO) == 0 &&
           posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0) == 0 &&
           posix_spawn_file_actions_adddup2(&actions, ready[1], READY_FD) == 0);
    EXPECT(posix_spawn(&made.process, name, &actions, NULL, arguments, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(input[0]);
    close(ready[1]);
    made.stop = input[1];
    if (read(ready[0], &byte, 1) != 1)
        ck_abort_msg("a process beside this one has ended before it used the GPU");
    close(ready[0]);
    return made;
}

static void stop_neighbour(const neighbour *started) {
    int status = 0;
    close(started->stop);
    waitpid(started->process, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        ck_abort_msg("a process beside this one has failed");
}

/* @return how many there are to be. */
static int count_neighbours(void) {
    int mode = cudaComputeModeDefault;
    if (test_quick())
        return 0;
    CUDA(cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, 0));
    if (mode != cudaComputeModeDefault)
        printf("skipped gpu.soak: neighbours: the GPU takes one process at a time\n");
    return mode == cudaComputeModeDefault ? NEIGHBOURS : 0;
}

/* ---- the device ---- */

static trf_stream make_stream(void) {
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static void destroy_stream(trf_stream stream) { CUDA(cudaStreamDestroy(stream)); }

static int copy(trf_stream stream, void *to, const void *from, uint64_t bytes) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream) == cudaSuccess &&
           cudaStreamSynchronize(stream) == cudaSuccess;
}

static uint64_t used_bytes(void) {
    size_t now = 0, all = 0;
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemGetInfo(&now, &all));
    return all - now;
}

static const soak_device gpu = {.make_stream = make_stream,
                                .destroy_stream = destroy_stream,
                                .copy = copy,
                                .used_bytes = used_bytes,
                                .has_large_layers = 1};

/* ---- the tests ---- */

START_TEST(threads_at_once) {
    const int count = count_neighbours();
    neighbour neighbours[NEIGHBOURS];
    fixture_begin();
    for (int i = 0; i < count; i++)
        neighbours[i] = start_neighbour();
    soak_run(&gpu, (soak_length){.seconds = 2});
    for (int i = 0; i < count; i++)
        stop_neighbour(&neighbours[i]);
    fixture_end();
}
END_TEST

START_TEST(load_and_free) {
    soak_device device = gpu;
    device.has_large_layers = 0;
    fixture_begin();
    soak_cycle(&device, test_quick() ? 40 : 400);
    fixture_end();
}
END_TEST

int main(int argc, char **argv) {
    const gpu_test tests[] = {{threads_at_once, 1}, {load_and_free, 1}}, neighbour_tests[] = {{neighbours_work, 1}};
    if (argc > 1 && !strcmp(argv[1], "neighbour")) {
        unsetenv("CK_RUN_CASE"); /* which may say what this program's first process is to run */
        unsetenv("CK_RUN_SUITE");
        return gpu_main("neighbour", neighbour_tests, 1);
    }
    return gpu_main("soak", tests, sizeof tests / sizeof tests[0]);
}

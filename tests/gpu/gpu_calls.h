/* SPDX-License-Identifier: Apache-2.0 */
/* All calls that read a layer in device memory, for tests of layers whose bytes are not what they were: each is queued
 * by its number, checked and timed. Everything ends the test on failure. */
#ifndef GPU_CALLS_H
#define GPU_CALLS_H

#include "gpu_products.h"
#include "transfuse/experts.h"

enum {
    GPU_CALL_FORMS = 4, /* trf_decode_as */
    GPU_CALL_PLANS = 6,
    GPU_CALL_MAX_M = 130, /* rows of x */
    GPU_CALL_TOKENS = 24, /* of experts */
    /* Numbers of calls. */
    GPU_CALL_DECODE = 0, /* + trf_decode_as */
    GPU_CALL_ROWS = GPU_CALL_DECODE + GPU_CALL_FORMS,
    GPU_CALL_LINEAR = GPU_CALL_ROWS + GPU_CALL_FORMS, /* + number of the plan */
    GPU_CALL_GROUP = GPU_CALL_LINEAR + GPU_CALL_PLANS,
    GPU_CALL_EXPERTS,
    GPU_CALL_DECODE_EXPERTS,
    GPU_CALLS
};

/* Exactly as much device memory as was asked for, without a guard. */
gpu_memory gpu_exact_memory(uint64_t bytes);
gpu_memory gpu_exact_copy_of(const void *host, uint64_t bytes);

/* @return where an output of so many bytes goes, so that it ends where the memory does: at a multiple of 16. */
void *gpu_last_bytes(const gpu_memory *memory, uint64_t bytes);

/* What the calls of layers of one shape read and write beside the layer. */
typedef struct gpu_call_memory {
    uint32_t rows, cols;
    gpu_input input;         /* GPU_CALL_MAX_M rows of x */
    gpu_memory weights;      /* 4 bytes for each of two layers' weights; gpu_last_bytes of what a call writes */
    gpu_memory y;            /* [GPU_CALL_MAX_M][rows] of F32; likewise */
    gpu_memory beside_y[2];  /* other members of a group */
    gpu_memory ids, offsets; /* of rows: all of them and some that are not there; of experts */
    gpu_memory delay;        /* is written before a call that is timed, so that the host is ahead of it */
    cudaEvent_t begin, end;
} gpu_call_memory;

gpu_call_memory gpu_call_memory_make(test_rng *rng, uint32_t rows, uint32_t cols);
void gpu_call_memory_free(gpu_call_memory *memory);

/* A layer's calls, prepared. What a layer does not support is left out. */
typedef struct gpu_calls {
    trf_device_layer *layer, *beside; /* beside: a sound layer that shares groups and experts with it */
    const gpu_call_memory *memory;
    trf_dtype x_dtype;
    trf_plan *plans[GPU_CALL_PLANS];
    gpu_memory workspaces[GPU_CALL_PLANS], group_workspace, experts_workspace;
    trf_layer_group *group;
    trf_experts *experts;
    trf_experts_plan *experts_plan;
} gpu_calls;

gpu_calls gpu_calls_make(trf_device_layer *layer, trf_device_layer *beside, const gpu_call_memory *memory);
void gpu_calls_free(gpu_calls *calls);

/* @return 0 if the layer has no such call. what: for messages. */
int gpu_call_queue(const gpu_calls *calls, int call, const char *what);

/* Times of an intact layer's calls, and the calls of its mutants that took the longest in comparison. */
typedef struct gpu_call_times {
    float least[GPU_CALLS];     /* in milliseconds; negative if there is no such call */
    float full_slab[GPU_CALLS]; /* the longest of sound layers with a slab full of exceptions; 0 if not measured */
    uint64_t calls, over_twice; /* of mutants; those of them that took over twice an intact layer's time */
    float most;                 /* how many times as long as the intact layer's */
    char slowest[384];
} gpu_call_times;

/* Measures an intact layer's calls; with TRF_TEST_QUICK nothing is timed. what: for messages. */
gpu_call_times gpu_call_times_of(const gpu_calls *intact, const char *what);

/* Makes all calls of a mutant, and expects of each at most twice the time of the intact layer's, or times->full_slab:
 * a corrupt slab may say that it is full of exceptions, as a sound one may be. With TRF_TEST_QUICK
 * nothing is timed, and the device is waited for after each call, so that messages name the one that failed. */
void gpu_call_all(const gpu_calls *intact, const gpu_calls *mutant, gpu_call_times *times, const char *what);

/* Adds the counts of some times to others, and keeps the slowest call. */
void gpu_call_times_add(gpu_call_times *to, const gpu_call_times *times);

/* @return the bytes of y that a plan writes, to gpu_last_bytes of memory->y, and the type of its elements. */
uint64_t gpu_call_y_bytes(const gpu_calls *calls, int plan, trf_dtype *dtype);

/* Writes which call it is, for messages. */
void gpu_call_name(const gpu_calls *calls, int call, char name[64]);

/* Makes all other layouts of a layer that it can be converted to, and uses them. Those of a corrupt layer may be
 * TRF_ERR_RANS, and such as cannot be packed TRF_ERR_UNSUPPORTED. */
void gpu_convert_all(const gpu_calls *calls, const char *what);

#endif

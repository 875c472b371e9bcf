/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 199309L /* clock_gettime */
#include "soak.h"

#include "checkpoint_fixture.h"
#include "soak_measure.h"
#include "soak_steps.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    QUARTERS = 4,
    MIB = 1 << 20
};

/* ---- steps ---- */

static const struct {
    const char *name;
    uint32_t weight;
    void (*step)(soak_thread *thread);
} kSteps[] = {
    {"products", 40, soak_step_product},
    {"loads", 12, soak_step_load},
    {"cancelled loads", 8, soak_step_cancel},
    {"layers destroyed early", 6, soak_step_destroy_early},
    {"layers dropped", 4, soak_step_drop},
    {"decoded", 6, soak_step_weights},
    {"rows looked up", 6, soak_step_rows},
    {"verified", 6, soak_step_verify},
    {"encoded", 3, soak_step_encode},
    {"converted", 5, soak_step_convert},
    {"packed", 4, soak_step_pack},
    {"experts and mixtures", 8, soak_step_experts},
    {"cancelled experts", 3, soak_step_cancel_experts},
    {"groups", 4, soak_step_group},
    {"stacks", 3, soak_step_stack},
    {"contexts replaced", 1, soak_step_context},
    {"checkpoints replaced", 3, soak_step_reopen},
    {"checkpoints listed", 3, soak_step_list},
    {"mistakes", 8, soak_step_mistake},
    {"host layers", 3, soak_step_host_layer},
    {"matrices encoded", 1, soak_step_encode_matrix},
    {"files verified", 2, soak_step_verify_files},
    {"files compressed", 1, soak_step_compress},
    {"files decompressed", 1, soak_step_decompress},
};

enum {
    NUM_STEPS = sizeof kSteps / sizeof kSteps[0]
};

/* In the first steps every kind has its turn. */
static uint32_t draw_kind(soak_thread *thread) {
    const uint64_t turn = thread->step * SOAK_THREADS + (uint64_t)thread->number;
    uint32_t all = 0;
    if (turn < NUM_STEPS)
        return (uint32_t)turn;
    for (uint32_t i = 0; i < NUM_STEPS; i++)
        all += kSteps[i].weight;
    uint32_t drawn = soak_draw(thread, all), kind = 0;
    while (drawn >= kSteps[kind].weight)
        drawn -= kSteps[kind++].weight;
    return kind;
}

static double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void *run_thread(void *argument) {
    soak_thread *thread = argument;
    while (thread->deadline != 0 ? now_seconds() < thread->deadline : thread->step < thread->steps) {
        const uint32_t kind = draw_kind(thread);
        kSteps[kind].step(thread);
        thread->counts[kind]++;
        thread->step++;
    }
    return NULL;
}

/* ---- what a quarter's threads share ---- */

static void *upload(const soak *soak, const void *from, uint64_t bytes) {
    trf_error err = {0};
    void *to;
    fixture_check_status(trf_device_allocate(soak->memory_context, bytes, &to, &err), TRF_OK, &err);
    fixture_check_status(trf_device_upload(soak->memory_context, to, from, bytes, &err), TRF_OK, &err);
    return to;
}

void soak_open_shared(soak *soak) {
    trf_error err = {0};
    const uint64_t count = soak->device->has_large_layers ? 130 * 3072 : 32 * 1024; /* elements of any x or y */
    uint16_t *numbers = malloc(4 * count);
    int32_t ids[SOAK_TOKENS * SOAK_TOP_K];
    static const uint32_t offsets[SOAK_NUM_EXPERTS + 1] = {0, 5, 5, 20, SOAK_TOKENS};
    ck_assert_ptr_nonnull(numbers);
    for (uint64_t i = 0; i < 2 * count; i++) /* small numbers as BF16, as F16 and as F32 */
        numbers[i] = (uint16_t)((i % 2 ? 0xB800 : 0x3800) + i * 37 % 0x400);
    for (int32_t i = 0; i < SOAK_TOKENS * SOAK_TOP_K; i++)
        ids[i] = i * 7 % SOAK_NUM_EXPERTS;
    fixture_check_status(trf_context_create(soak->device->ordinal, &soak->memory_context, &err), TRF_OK, &err);
    soak->x = upload(soak, numbers, 2 * count);
    soak->numbers = upload(soak, numbers, 4 * count);
    soak->ids = upload(soak, ids, sizeof ids);
    soak->offsets = upload(soak, offsets, sizeof offsets);
    free(numbers);
}

static void empty(soak *soak, soak_shared **slots, int count) {
    for (int i = 0; i < count; i++)
        soak_put(soak, &slots[i], NULL);
}

void soak_close_shared(soak *soak) {
    empty(soak, soak->layers, SOAK_LAYERS);
    empty(soak, soak->experts, SOAK_EXPERTS);
    empty(soak, soak->checkpoints, SOAK_FILES);
    empty(soak, soak->contexts, SOAK_CONTEXTS);
    void *const memory[] = {soak->x, soak->numbers, soak->ids, soak->offsets};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        trf_device_free(soak->memory_context, memory[i]);
    trf_context_destroy(soak->memory_context);
}

/* ---- a run ---- */

typedef struct soak_totals {
    uint64_t counts[NUM_STEPS], steps;
} soak_totals;

static void run_quarter(soak *soak, int quarter, const soak_length *length, soak_totals *totals) {
    static soak_thread threads[SOAK_THREADS];
    pthread_t handles[SOAK_THREADS];
    soak_open_shared(soak);
    for (int t = 0; t < SOAK_THREADS; t++) {
        soak_thread_begin(soak, t, soak->seed + 1000ull * (uint64_t)(quarter + 1) + (uint64_t)t, &threads[t]);
        threads[t].steps = length->steps;
        threads[t].deadline = length->seconds > 0 ? now_seconds() + length->seconds / QUARTERS : 0;
    }
    for (int i = 0; i < SOAK_CONTEXTS; i++) {
        soak_context *context = soak_make_context(&threads[0], 1 + i);
        ck_assert_ptr_nonnull(context);
        soak_put(soak, &soak->contexts[i], &context->shared);
    }
    for (int t = 0; t < SOAK_THREADS; t++)
        ck_assert_int_eq(pthread_create(&handles[t], NULL, run_thread, &threads[t]), 0);
    for (int t = 0; t < SOAK_THREADS; t++) {
        pthread_join(handles[t], NULL);
        for (int k = 0; k < NUM_STEPS; k++)
            totals->counts[k] += threads[t].counts[k];
        totals->steps += threads[t].step;
    }
    for (int t = 0; t < SOAK_THREADS; t++)
        soak_thread_end(&threads[t]);
    soak_close_shared(soak);
}

static void print_totals(const soak *soak, const soak_totals *totals, double seconds) {
    printf("soak: seed %llu, %d threads, %.1f s, %llu steps:", (unsigned long long)soak->seed, SOAK_THREADS, seconds,
           (unsigned long long)totals->steps);
    for (int k = 0; k < NUM_STEPS; k++)
        printf("%s %llu %s", k ? "," : "", (unsigned long long)totals->counts[k], kSteps[k].name);
    printf("; wrong: %d\n", soak->failures);
    fflush(stdout);
}

/* Covers memory that is not the library's: what malloc cannot give back, CUDA's own, and Check's. */
static soak_slack slack_of(const soak_device *device) {
    return device->used_bytes ? (soak_slack){32 * MIB, 16 * MIB, 32 * MIB, 16, 4}
                              : (soak_slack){16 * MIB, MIB / 8, 0, 0, 0};
}

void soak_run(const soak_device *device, soak_length length) {
    static soak soak;
    soak_totals totals = {{0}, 0};
    soak_measure first = {0};
    const char *seconds = getenv("TRF_TEST_SECONDS");
    const soak_slack slack = slack_of(device);
    if (seconds && *seconds)
        length = (soak_length){.seconds = strtod(seconds, NULL)};
    soak_measure_begin();
    soak_make_world(&soak, device);
    const double began = now_seconds();
    for (int quarter = 0; quarter < QUARTERS; quarter++) {
        char when[64];
        run_quarter(&soak, quarter, &length, &totals);
        snprintf(when, sizeof when, "soak: quarter %d, %llu steps", quarter + 1, (unsigned long long)totals.steps);
        if (soak.failures)
            break;
        const soak_measure now = soak_measure_now(device);
        soak_measure_print(when, &now);
        if (quarter)
            soak_measure_check(when, &first, &now, &slack);
        else
            first = now;
    }
    print_totals(&soak, &totals, now_seconds() - began);
    if (soak.failures)
        ck_abort_msg("%d failures; the first: %s", soak.failures, soak.first_failure);
    for (int k = 0; k < NUM_STEPS; k++)
        ck_assert_msg(totals.counts[k] > 0, "no %s", kSteps[k].name);
    soak_free_world(&soak);
}

/* ---- cycles ---- */

/* Opens a file, loads a layer, maps one, and frees and closes all of it. */
static void run_cycle(soak_thread *thread, const soak_context *context, uint32_t cycle) {
    const soak *soak = thread->soak;
    const soak_subject *subject = &soak->subjects[cycle % soak->num_subjects];
    const trf_load_options options = soak_load_options(subject);
    trf_device_layer *layer = NULL;
    trf_layer *mapped = NULL;
    thread->step = cycle;
    soak_checkpoint *checkpoint = soak_open(thread, subject->file);
    if (!checkpoint)
        return;
    soak_expect(thread,
                trf_device_layer_load(context->context, checkpoint->checkpoint, subject->tensor, &options, &layer,
                                      &thread->err),
                TRF_OK, subject->tensor);
    soak_let_go(&checkpoint->shared);
    trf_device_layer_destroy(layer);
    soak_expect(thread, trf_layer_open(soak->paths[SOAK_WAS_FP8], &mapped, &thread->err), TRF_OK, "a mapped layer");
    trf_layer_free(mapped);
}

void soak_cycle(const soak_device *device, uint32_t cycles) {
    enum {
        MEASURES = 10
    };
    static soak soak;
    soak_thread thread;
    soak_measure first = {0};
    const char *asked = getenv("TRF_TEST_CYCLES");
    const soak_slack slack =
        device->used_bytes ? (soak_slack){16 * MIB, 4 * MIB, 4 * MIB, 4, 4} : (soak_slack){4 * MIB, MIB / 16, 0, 0, 0};
    if (asked && *asked)
        cycles = (uint32_t)strtoul(asked, NULL, 10);
    soak_measure_begin();
    soak_make_world(&soak, device);
    soak_open_shared(&soak);
    soak_thread_begin(&soak, 0, soak.seed, &thread);
    soak_context *context = soak_make_context(&thread, 1);
    ck_assert_ptr_nonnull(context);
    const double began = now_seconds();
    for (uint32_t part = 0; part < MEASURES && !soak.failures; part++) {
        char when[48];
        const uint32_t until = (uint32_t)((uint64_t)cycles * (part + 1) / MEASURES);
        for (uint32_t c = (uint32_t)((uint64_t)cycles * part / MEASURES); c < until && !soak.failures; c++)
            run_cycle(&thread, context, c);
        snprintf(when, sizeof when, "after %u cycles, %.0f s", until, now_seconds() - began);
        const soak_measure now = soak_measure_now(device);
        soak_measure_print(when, &now);
        if (part)
            soak_measure_check(when, &first, &now, &slack);
        else
            first = now;
    }
    if (soak.failures)
        ck_abort_msg("%s", soak.first_failure);
    soak_thread_end(&thread);
    soak_let_go(&context->shared);
    soak_close_shared(&soak);
    soak_free_world(&soak);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Replays stored inputs through a fuzz target, for compilers without libFuzzer and for the test suite.
 *
 *     replay_TARGET [--mutate FILE] INPUT...
 *
 * Inputs are files and folders, walked in depth. One that does not exist is skipped: a target's corpus begins with its
 * first finding. The empty input is always tried.
 *
 * --mutate: then tries mutants of the stored inputs, by the target's own mutations if it has any, for TRF_FUZZ_SECONDS
 * of time (30). Nothing tells which mutants reach new code, as libFuzzer does; this is for targets that would take long
 * to compile for it. FILE holds the input that is being tried, and is there afterwards only if that failed. */
#define _XOPEN_SOURCE 700
#include "common/test_weights.h"

#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed) __attribute__((weak));
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

enum {
    MUTANT_BYTES = 16384 /* of the largest mutant; larger inputs are only replayed */
};

typedef struct stored_input {
    uint8_t *data;
    size_t size;
    double seconds; /* that it took */
} stored_input;

static stored_input *stored_inputs;
static unsigned long stored_count, replayed_count, mutants_count;
static int keep_inputs;
static test_rng rng;

/* ---- replaying ---- */

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void store(uint8_t *data, size_t size, double seconds) {
    stored_input *more = realloc(stored_inputs, (stored_count + 1) * sizeof *more);
    if (!more)
        fail("inputs");
    stored_inputs = more;
    stored_inputs[stored_count++] = (stored_input){data, size, seconds};
}

static int replay_file(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)place;
    if (kind != FTW_F)
        return 0;
    /* Exactly as large as the input, so that the address sanitizer sees a read one byte past it. */
    size_t size = (size_t)info->st_size;
    uint8_t *data = malloc(size ? size : 1);
    FILE *file = fopen(path, "rb");
    int failed = !data || !file || fread(data, 1, size, file) != size;
    const double begin = now();
    if (failed) {
        perror(path);
    } else {
        LLVMFuzzerTestOneInput(data, size);
        replayed_count++;
    }
    if (file)
        fclose(file);
    if (!failed && keep_inputs && size <= MUTANT_BYTES)
        store(data, size, now() - begin);
    else
        free(data);
    return failed;
}

/* ---- mutating ---- */

static size_t below(size_t n) { return test_below(&rng, (uint32_t)n); }

/* Puts count bytes at a place, behind which the others move; those for which there is no room are lost.
 * @return the new size. from does not overlap data. */
static size_t insert(uint8_t *data, size_t size, size_t max_size, const uint8_t *from, size_t count) {
    const size_t at = below(size + 1), end = size + count < max_size ? size + count : max_size;
    const size_t put = count < end - at ? count : end - at;
    memmove(data + at + put, data + at, end - at - put);
    memcpy(data + at, from, put);
    return end;
}

/* One change of bytes, the target's mutators' stand-in for libFuzzer's own. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size) {
    static const uint8_t ends[] = {0, 1, 0x7F, 0x80, 0xFE, 0xFF};
    uint8_t bytes[16];
    const size_t kind = size == 0 ? 5 : below(7), at = size == 0 ? 0 : below(size);
    const stored_input *other = &stored_inputs[below(stored_count)];
    switch (kind) {
    case 0:
        data[at] ^= (uint8_t)(1u << below(8));
        return size;
    case 1:
        data[at] = ends[below(sizeof ends)];
        return size;
    case 2:
        data[at] = (uint8_t)(data[at] + 1 + below(32) - 16);
        return size;
    case 3: { /* some bytes less */
        const size_t count = 1 + below(size - at < 16 ? size - at : 16);
        memmove(data + at, data + at + count, size - at - count);
        return size - count;
    }
    case 4: /* over others, from another input */
        if (at < other->size)
            memcpy(data + at, other->data + at, 1 + below((other->size < size ? other->size : size) - at));
        return size;
    case 5:
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (uint8_t)below(256);
        return insert(data, size, max_size, bytes, 1 + below(sizeof bytes));
    default: { /* between others, from another input */
        const size_t from = below(other->size + 1);
        return from == other->size ? size
                                   : insert(data, size, max_size, other->data + from, 1 + below(other->size - from));
    }
    }
}

static size_t mutate(uint8_t *data, size_t size) {
    for (size_t times = 1 + below(2); times > 0; times--)
        size = LLVMFuzzerCustomMutator ? LLVMFuzzerCustomMutator(data, size, MUTANT_BYTES, (unsigned)below(1u << 31))
                                       : LLVMFuzzerMutate(data, size, MUTANT_BYTES);
    return size;
}

static void try_mutant(FILE *kept) {
    static uint8_t room[MUTANT_BYTES];
    const stored_input *input = &stored_inputs[below(stored_count)], *other = &stored_inputs[below(stored_count)];
    if (other->seconds > input->seconds) /* it gets further */
        input = other;
    memcpy(room, input->data, input->size);
    const size_t size = mutate(room, input->size);
    uint8_t *data = malloc(size ? size : 1);
    if (!data || ftruncate(fileno(kept), 0) != 0 || pwrite(fileno(kept), room, size, 0) != (ssize_t)size)
        fail("a mutant");
    memcpy(data, room, size);
    LLVMFuzzerTestOneInput(data, size);
    mutants_count++;
    free(data);
}

static void try_mutants(const char *path) {
    const char *text = getenv("TRF_FUZZ_SECONDS");
    char *end;
    const double begin = now(), seconds = strtod(text ? text : "30", &end);
    if (*end || !(seconds >= 0)) {
        fprintf(stderr, "TRF_FUZZ_SECONDS is %s, not a number\n", text);
        exit(2);
    }
    FILE *kept = fopen(path, "wb");
    if (!kept)
        fail(path);
    rng.state = (uint64_t)(begin * 1e9);
    while (now() - begin < seconds)
        try_mutant(kept);
    fclose(kept);
    remove(path);
    printf("%lu mutants tried\n", mutants_count);
}

int main(int argc, char **argv) {
    const int first = argc > 2 && strcmp(argv[1], "--mutate") == 0 ? 3 : 1;
    keep_inputs = first > 1;
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    for (int i = first; i < argc; i++)
        if (access(argv[i], F_OK) == 0 && nftw(argv[i], replay_file, 16, FTW_PHYS) != 0)
            return 1;
    printf("%lu inputs replayed\n", replayed_count);
    if (keep_inputs) {
        if (stored_count == 0)
            store(calloc(1, 1), 0, 0);
        try_mutants(argv[2]);
    }
    for (unsigned long i = 0; i < stored_count; i++)
        free(stored_inputs[i].data);
    free(stored_inputs);
    return 0;
}

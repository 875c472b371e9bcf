/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a soak: what its threads share, what each has, and what is due. */
#ifndef SOAK_WORK_H
#define SOAK_WORK_H

#include "soak.h"
#include "test_calls.h"
#include "test_weights.h"
#include "transfuse/experts.h"

#include <pthread.h>

enum {
    SOAK_THREADS = 16,
    SOAK_CONTEXTS = 3,
    SOAK_LAYERS = 24,
    SOAK_EXPERTS = 4,
    SOAK_MOST_SUBJECTS = 24,
    SOAK_MOST_PRODUCTS = 16,
    SOAK_MISTAKES = 8,
    SOAK_MOST_STEPS = 32
};

/* ---- what is due, from a single thread; it does not change while others run ---- */

typedef enum soak_file {
    SOAK_FOLDER, /* two files and an index */
    SOAK_PAIR,   /* a file with two tensors */
    SOAK_WAS_FP8,
    SOAK_INT,
    SOAK_DAMAGED, /* SOAK_WAS_FP8, but a tile has changed */
    SOAK_FILES
} soak_file;

typedef struct soak_product {
    trf_plan_options options;
    uint8_t *y;
    uint64_t y_bytes;
} soak_product;

/* A tensor, and how it is loaded. */
typedef struct soak_subject {
    soak_file file;
    const char *tensor;
    trf_layout layout;
    uint32_t shard[4]; /* as in test_shard */
    int packed_bf16;
    uint32_t rows, cols;
    trf_layout found_layout; /* packed8 where packed was asked for */
    uint8_t *weights;        /* decoded; NULL if that is not possible, as all that follows */
    uint64_t weights_bytes;
    void *blob; /* what trf_device_layer_encode gives */
    uint64_t blob_bytes;
    soak_product products[SOAK_MOST_PRODUCTS];
    uint32_t num_products;
} soak_subject;

/* The experts of two tensors in one layout; is_there: 0 if the device does not have them. */
typedef struct soak_mixture {
    trf_layout layout;
    int is_there;
    uint8_t *experts_y, *mixture_y;
    uint64_t experts_y_bytes, mixture_y_bytes;
} soak_mixture;

typedef struct soak_bytes {
    uint8_t *at;
    size_t size;
} soak_bytes;

typedef struct soak_mistake {
    trf_status status;
    trf_error err;
} soak_mistake;

/* ---- what is shared ---- */

/* Something that goes when its last user lets go of it. */
typedef struct soak_shared {
    struct soak *soak;
    void (*destroy)(struct soak_shared *thing);
    int users; /* under the soak's lock */
} soak_shared;

typedef struct soak_context {
    soak_shared shared;
    trf_context *context;
} soak_context;

typedef struct soak_checkpoint {
    soak_shared shared;
    trf_checkpoint *checkpoint;
} soak_checkpoint;

typedef struct soak_layer {
    soak_shared shared;
    soak_context *context;
    trf_device_layer *layer;
    const soak_subject *subject;
    const soak_product *product; /* of plan; NULL if there is none */
    trf_plan *plan;
    trf_layer_memory memory; /* the caller's, or zeros */
} soak_layer;

typedef struct soak_experts {
    soak_shared shared;
    soak_context *context;
    const soak_mixture *mixture;
    trf_experts *gate_up, *down;
    trf_experts_plan *plan;
    trf_moe *moe; /* NULL if the device does not have it */
} soak_experts;

typedef struct soak {
    const soak_device *device;
    uint64_t seed;
    const char *paths[SOAK_FILES];
    const char *source_folder, *source_pair, *output; /* output: what threads' outputs begin with */
    soak_bytes pair, pair_source;                     /* as compressing and decompressing make them */
    soak_subject subjects[SOAK_MOST_SUBJECTS];
    uint32_t num_subjects;
    soak_mixture mixtures[2]; /* coded, packed */
    soak_mistake mistakes[SOAK_MISTAKES];
    soak_bytes group_y;
    soak_bytes pair_matrix; /* the blob of the pair's first tensor, and its weights */
    uint8_t *pair_weights;
    uint32_t pair_rows, pair_cols;

    /* In device memory, for all threads: x of any product, what biases and residuals are, and the tokens' experts. */
    trf_context *memory_context;
    void *x, *numbers, *ids, *offsets;

    pthread_mutex_t lock; /* protects all that follows */
    soak_shared *contexts[SOAK_CONTEXTS], *checkpoints[SOAK_FILES], *layers[SOAK_LAYERS], *experts[SOAK_EXPERTS];
    int failures;
    char first_failure[2048];
} soak;

/* Takes part in what is in a slot, or gives NULL. */
soak_shared *soak_take(soak *soak, soak_shared *const *slot);
void soak_let_go(soak_shared *thing); /* NULL is allowed */

/* Puts a thing, or NULL, in a slot, and lets go of what was there. The caller is no user any more. */
void soak_put(soak *soak, soak_shared **slot, soak_shared *thing);

/* ---- a thread ---- */

typedef enum soak_buffer {
    SOAK_Y,
    SOAK_WORKSPACE,
    SOAK_WEIGHTS,
    SOAK_IDS,
    SOAK_BUFFERS
} soak_buffer;

typedef struct soak_thread {
    soak *soak;
    int number;
    uint64_t step;
    test_rng rng;
    trf_error err;
    trf_stream stream;
    void *buffers[SOAK_BUFFERS]; /* device memory */
    uint64_t buffer_bytes[SOAK_BUFFERS];
    uint8_t *host; /* where results are read */
    uint64_t host_bytes;
    uint64_t counts[SOAK_MOST_STEPS];
    double deadline; /* 0: there are steps to be done */
    uint64_t steps;
} soak_thread;

void soak_thread_begin(soak *soak, int number, uint64_t seed, soak_thread *thread);
void soak_thread_end(soak_thread *thread);

/* Notes a failure, and prints the first 20 of a run; the first one is told at the end, too. */
void soak_fail(soak_thread *thread, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* @return whether the status is the one that is due, of a call whose error is the thread's; else it is noted. */
int soak_expect(soak_thread *thread, trf_status status, trf_status due, const char *what);

/* @return device memory of at least so many bytes, of all ones (the first 2 MiB of them at least), or NULL. */
void *soak_reserve(soak_thread *thread, soak_buffer buffer, uint64_t bytes);

/* The same, with these bytes at its beginning. */
void *soak_upload(soak_thread *thread, soak_buffer buffer, const void *from, uint64_t bytes);

/* Waits for the thread's stream and reads device memory. @return the thread's host memory, or NULL. */
const uint8_t *soak_read(soak_thread *thread, const void *from, uint64_t bytes);

/* ---- what is done with layers; each notes what fails, and returns whether it succeeded ---- */

trf_load_options soak_load_options(const soak_subject *subject);

/* Makes a context that is nowhere yet. threads: on the CPU. */
soak_context *soak_make_context(soak_thread *thread, int threads);
soak_checkpoint *soak_open(soak_thread *thread, soak_file file);

/* Wraps a layer, and makes a plan of product number `product` if there are so many. memory: or NULL. The layer takes
 * part in the context. */
soak_layer *soak_wrap(soak_thread *thread, soak_context *context, trf_device_layer *layer, const soak_subject *subject,
                      uint32_t product, const trf_layer_memory *memory);

/* Puts a product into the thread's SOAK_Y, without waiting. @return where, or NULL. */
void *soak_queue_product(soak_thread *thread, const trf_plan *plan, const soak_product *product);
int soak_check_product(soak_thread *thread, const trf_plan *plan, const soak_product *product);
int soak_check_weights(soak_thread *thread, const trf_device_layer *layer, const soak_subject *subject);

/* Loads experts of both tensors, and prepares them. @return NULL if that failed; with the status UNSUPPORTED, which is
 * in the thread's error, nothing is noted. */
soak_experts *soak_load_experts(soak_thread *thread, soak_context *context, const soak_mixture *mixture);

/* Queue what experts, or the mixture, give. @return where it is, or NULL. */
void *soak_queue_experts(soak_thread *thread, const soak_experts *experts, uint64_t *bytes);
void *soak_queue_mixture(soak_thread *thread, const soak_experts *experts, uint64_t *bytes);

/* Multiplies by a group of two layers, and compares the products, one after the other, with *y; or, if these are none,
 * sets them. */
int soak_check_group(soak_thread *thread, soak_context *context, soak_bytes *y);

/* Makes mistake number `kind`. *text: what the message must have in it if that is the thread's own; else it is "". */
trf_status soak_make_mistake(soak_thread *thread, trf_context *context, uint32_t kind, char text[64]);

enum {
    SOAK_NUM_EXPERTS = 4,
    SOAK_TOKENS = 24,
    SOAK_TOP_K = 2
};

/* ---- the parts of a run ---- */

/* Makes the files, and all that is due. */
void soak_make_world(soak *soak, const soak_device *device);
void soak_free_world(soak *soak);

/* Makes, or frees, what the threads of a quarter share. */
void soak_open_shared(soak *soak);
void soak_close_shared(soak *soak);

#endif

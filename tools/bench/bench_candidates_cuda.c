/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_candidates_cuda.h"

#include "bench_timer_cuda.h"

enum {
    TRIAL_REPEATS = 5
};

typedef struct trial {
    const bench_cublaslt_product *product;
    const bench_candidate_operands *operands;
    int candidate;
} trial;

static int queue_trial(void *context, uint32_t call, cudaStream_t stream) {
    const trial *t = context;
    const bench_candidate_operands *operands = t->operands;
    return bench_cublaslt_queue(t->product, t->candidate, operands->weights[call * operands->step % operands->count],
                                operands->x, operands->y, stream);
}

int bench_fastest_candidate(const bench_cublaslt_product *product, const bench_candidate_operands *operands,
                            uint32_t calls, cudaStream_t stream) {
    double best_seconds = 0;
    int best = -1;
    for (int i = 0; i < bench_cublaslt_candidates(product); i++) {
        trial t = {product, operands, i};
        bench_figure figure = {0};
        bench_timer timer = {.figure = &figure};
        const int failed =
            bench_timer_make(&timer, queue_trial, &t, calls, stream) || bench_time(&timer, 1, TRIAL_REPEATS, stream);
        bench_figure_finish(&figure);
        const double seconds = figure.median;
        bench_timer_free(&timer);
        bench_figure_clear(&figure);
        if (failed)
            return -1;
        if (best < 0 || seconds < best_seconds) {
            best = i;
            best_seconds = seconds;
        }
    }
    return best;
}

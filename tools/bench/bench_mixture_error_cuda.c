/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_mixture_error_cuda.h"

#include "bench_memory.h"
#include "cli_cuda.h"
#include "cli_float.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SAMPLE_ROWS = 32
};

static double value_of(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return (double)value;
}

/* Four sums, since one alone would wait for each addition: an expert has up to 100 million products. */
static double dot(const uint16_t *a, const uint16_t *b, uint32_t count) {
    double sums[4] = {0};
    for (uint32_t i = 0; i < count; i++)
        sums[i % 4] += value_of(a[i]) * value_of(b[i]);
    return sums[0] + sums[1] + sums[2] + sums[3];
}

/* Copies `count` BF16 from the device's array, from number `first` on. @return them, or NULL after a message. */
static uint16_t *read_back(const void *array, uint64_t first, uint64_t count) {
    uint16_t *values = bench_alloc(2 * count);
    if (values &&
        !cli_cuda_check(cudaMemcpy(values, (const uint16_t *)array + first, 2 * count, cudaMemcpyDeviceToHost),
                        "bench: reading y and weights"))
        return values;
    free(values);
    return NULL;
}

/* The n-th sampled row of so many, spread over all. */
static uint64_t sampled(uint32_t n, uint64_t rows) { return rows <= SAMPLE_ROWS ? n : n * rows / SAMPLE_ROWS; }

static uint32_t samples_of(uint64_t rows) { return rows < SAMPLE_ROWS ? (uint32_t)rows : SAMPLE_ROWS; }

static void add(bench_error *error, double expected, double found) {
    error->energy += expected * expected;
    error->difference += (found - expected) * (found - expected);
}

/* ---- a mixture ---- */

/* silu(gate) * up of one expert, rounded to BF16. @return [inner], or NULL after a message. */
static uint16_t *compute_inner(const bench_mixture_session *s, uint32_t expert, const uint16_t *x) {
    const uint32_t inner = s->of.inner, hidden = s->of.hidden;
    const uint64_t each = 2ull * inner * hidden;
    uint16_t *weights = read_back(s->gate_up.dense, expert * each, each), *values = bench_alloc(2ull * inner);
    for (uint32_t i = 0; weights && values && i < inner; i++) {
        const double gate = dot(weights + (uint64_t)i * hidden, x, hidden),
                     up = dot(weights + (uint64_t)(inner + i) * hidden, x, hidden);
        values[i] = (uint16_t)cli_float_to_bits((float)(gate / (1 + exp(-gate)) * up), TRF_DTYPE_BF16);
    }
    if (!weights) {
        free(values);
        values = NULL;
    }
    free(weights);
    return values;
}

/* Adds what one route gives to the sampled values of y. */
static int add_route(const bench_mixture_session *s, uint64_t route, const uint16_t *x, double *y) {
    const uint32_t expert = (uint32_t)s->routes.ids[route], inner = s->of.inner;
    const double weight = (double)s->routes.weights[route];
    uint16_t *values = compute_inner(s, expert, x);
    int failed = !values;
    for (uint32_t n = 0; !failed && n < samples_of(s->of.hidden); n++) {
        const uint64_t row = (uint64_t)expert * s->of.hidden + sampled(n, s->of.hidden);
        uint16_t *down = read_back(s->down.dense, row * inner, inner);
        failed = !down;
        y[n] += down ? weight * dot(down, values, inner) : 0;
        free(down);
    }
    free(values);
    return failed ? -1 : 0;
}

static int add_token(const bench_mixture_session *s, uint32_t token, bench_error *error) {
    const uint32_t hidden = s->of.hidden;
    const uint64_t first = ((uint64_t)(s->routes.calls - 1) * s->routes.tokens + token) * s->of.routed;
    uint16_t *x = read_back(s->x, (uint64_t)token * hidden, hidden),
             *y = read_back(s->y, (uint64_t)token * hidden, hidden);
    double expected[SAMPLE_ROWS] = {0};
    int failed = !x || !y;
    for (uint32_t i = 0; !failed && i < s->of.routed; i++)
        failed = add_route(s, first + i, x, expected);
    for (uint32_t n = 0; !failed && n < samples_of(hidden); n++)
        add(error, expected[n], value_of(y[sampled(n, hidden)]));
    free(x);
    free(y);
    return failed ? -1 : 0;
}

int bench_mixture_add_error(const bench_mixture_session *s, bench_error *error) {
    const uint32_t last = s->routes.tokens - 1;
    return add_token(s, 0, error) || (last && add_token(s, last, error)) ? -1 : 0;
}

/* ---- cuBLAS's products ---- */

static int add_row(const bench_mixture_side *side, uint32_t expert, uint64_t row, bench_error *error) {
    uint16_t *x = read_back(side->x, row * side->cols, side->cols),
             *y = read_back(side->y, row * side->rows, side->rows);
    int failed = !x || !y;
    for (uint32_t n = 0; !failed && n < samples_of(side->rows); n++) {
        const uint64_t at = sampled(n, side->rows);
        uint16_t *w = read_back(side->dense, ((uint64_t)expert * side->rows + at) * side->cols, side->cols);
        failed = !w;
        if (w)
            add(error, dot(w, x, side->cols), value_of(y[at]));
        free(w);
    }
    free(x);
    free(y);
    return failed ? -1 : 0;
}

int bench_mixture_add_product_error(const bench_mixture_session *s, const bench_mixture_side *side,
                                    bench_error *error) {
    const uint32_t *counts = s->routes.counts + (uint64_t)(s->routes.calls - 1) * s->of.experts;
    const uint64_t routes = (uint64_t)s->routes.tokens * s->of.routed;
    uint32_t first = 0, last = s->of.experts - 1;
    while (!counts[first])
        first++;
    while (!counts[last])
        last--;
    return add_row(side, first, 0, error) || add_row(side, last, routes - 1, error) ? -1 : 0;
}

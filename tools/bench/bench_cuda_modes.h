/* transfuse bench --device cuda --mode ...: what the modes other than layers have in common. Each is one function in a
 * file of its own, bench_cuda_MODE.c; the figures that it leaves are printed and written here. All but the declarations
 * needs device code in the build.
 *
 * What a mode compares takes turns within one run (bench_cuda_timer.h), or is timed in alternation by the mode itself,
 * where a call is more than a graph. */
#ifndef BENCH_CUDA_MODES_H
#define BENCH_CUDA_MODES_H

#include "bench_cuda.h"

struct bench_cuda_timer; /* bench_cuda_timer.h */

/* One thing that was timed. */
typedef struct bench_mode_figure {
    char subject[80]; /* what it was done to, such as "5 x 2048x5632 bf16" */
    char what[48];    /* how, such as "grouped"; of one subject and batch no two are the same */
    char against[48]; /* `what` of the figure that its ratio compares with, of the same subject and batch; "": none */
    uint32_t batch;   /* rows of x; 0 where there are none */
    uint64_t bytes;   /* that one call moves; 0: not told */
    int has_error;
    double error;       /* relative, against F64 */
    const char *reason; /* why there are no times: a static string, or NULL */
    bench_times times;  /* of a call, in seconds */
} bench_mode_figure;

typedef struct bench_mode_figures {
    bench_mode_figure *list;
    size_t count;
} bench_mode_figures;

/* @return a new figure, all else zero, valid until the next one is added; NULL after a message. */
bench_mode_figure *bench_mode_add(bench_cuda *cuda, const char *subject, const char *what, const char *against,
                                  uint32_t batch);

/* Times what the last figures are of, in turns: timers[i] belongs to the figure first + i. Fills the figures' times,
 * all of them or none. @return 0, or -1 after a message. */
int bench_mode_time(bench_cuda *cuda, struct bench_cuda_timer *timers, size_t first);

/* Prints the figures from the first-th on, which are complete. */
void bench_mode_print(bench_cuda *cuda, size_t first);
void bench_mode_free(bench_mode_figures *figures);

/* The modes: each returns 0, or -1 after a message. */
int bench_offload_run(bench_cuda *cuda);
int bench_overlap_run(bench_cuda *cuda);
int bench_moe_run(bench_cuda *cuda);

/* Measures what the options' mode is about. @return 0, or -1 after a message. */
int bench_cuda_run_mode(bench_cuda *cuda);

/* ---- the modes: 0, or -1 after a message ---- */

int bench_load_run(bench_cuda *cuda);

/* ---- files, as bench_write_json has them ---- */

trf_status bench_cuda_write_mode_json(const bench_log *log, FILE *file);
trf_status bench_cuda_write_mode_csv(const bench_log *log, FILE *file);

#endif

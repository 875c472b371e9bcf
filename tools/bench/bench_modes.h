/* SPDX-License-Identifier: Apache-2.0 */
/* All modes. */
#ifndef BENCH_MODES_H
#define BENCH_MODES_H

#include "bench_mode.h"

/* Each is defined in a bench_mode_*.c. Those for a GPU exist only in builds with device code. */
extern const bench_mode bench_mode_layers_cpu, bench_mode_layers_cuda, bench_mode_sweep_cuda, bench_mode_overlap_cuda,
    bench_mode_moe_cuda, bench_mode_load_cuda, bench_mode_offload_cuda;

/* @return NULL if there is no such mode on that device. */
const bench_mode *bench_find_mode(cli_bench_mode mode, cli_device device);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_modes.h"

/* The modes by device, and by their number. */
static const bench_mode *const kModes[][CLI_BENCH_OFFLOAD + 1] = {
    [CLI_DEVICE_CPU] = {[CLI_BENCH_LAYERS] = &bench_mode_layers_cpu},
#ifdef TRF_HAVE_CUDA
    [CLI_DEVICE_CUDA] = {[CLI_BENCH_LAYERS] = &bench_mode_layers_cuda,
                         [CLI_BENCH_SWEEP] = &bench_mode_sweep_cuda,
                         [CLI_BENCH_OVERLAP] = &bench_mode_overlap_cuda,
                         [CLI_BENCH_MOE] = &bench_mode_moe_cuda,
                         [CLI_BENCH_LOAD] = &bench_mode_load_cuda,
                         [CLI_BENCH_OFFLOAD] = &bench_mode_offload_cuda},
#else
    [CLI_DEVICE_CUDA] = {0},
#endif
};

const bench_mode *bench_find_mode(cli_bench_mode mode, cli_device device) { return kModes[device][mode]; }

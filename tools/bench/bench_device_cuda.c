/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_device_cuda.h"

#include "bench_environment.h"
#include "bench_table.h"
#include "cli_cuda.h"
#include "cli_messages.h"

#include <regex.h>
#include <stdlib.h>

/* Reads the driver's own version; CUDA only tells that of the API. The version is the first number with points in the
 * file's first line, such as NVRM version: NVIDIA UNIX Open Kernel Module for x86_64 580.65.06 Release ... */
static void read_driver(char *driver, size_t driver_bytes) {
    char line[256] = "";
    regex_t version;
    regmatch_t match;
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    snprintf(driver, driver_bytes, "unknown");
    if (!file)
        return;
    if (fgets(line, sizeof line, file) && !regcomp(&version, "[0-9]+([.][0-9]+)+", REG_EXTENDED)) {
        if (!regexec(&version, line, 1, &match, 0))
            snprintf(driver, driver_bytes, "%.*s", (int)(match.rm_eo - match.rm_so), line + match.rm_so);
        regfree(&version);
    }
    fclose(file);
}

/* version: encoded as by cudaRuntimeGetVersion. */
static void add_cuda_version(bench_fields *environment, const char *key, int version) {
    char text[32];
    snprintf(text, sizeof text, "%d.%d", version / 1000, version % 1000 / 10);
    bench_add_bare_text(environment, key, text);
}

/* What the CUDA runtime says. */
typedef struct device_numbers {
    int l2_bytes, multiprocessors, driver_cuda, runtime_cuda;
} device_numbers;

static int read_numbers(device_numbers *n) {
    int device = 0;
    return cli_cuda_check(cudaGetDevice(&device), "bench: the device") ||
           cli_cuda_check(cudaDeviceGetAttribute(&n->l2_bytes, cudaDevAttrL2CacheSize, device), "bench: the device") ||
           cli_cuda_check(cudaDeviceGetAttribute(&n->multiprocessors, cudaDevAttrMultiProcessorCount, device),
                          "bench: the device") ||
           cli_cuda_check(cudaDriverGetVersion(&n->driver_cuda), "bench: the driver") ||
           cli_cuda_check(cudaRuntimeGetVersion(&n->runtime_cuda), "bench: the runtime");
}

static void describe(const bench_device *device, const bench_request *request, const device_numbers *numbers) {
    bench_fields *e = &request->record->environment;
    const char *commit = getenv("TRF_COMMIT");
    char text[128];
    trf_context_info info;
    trf_context_get_info(device->context, &info);
    bench_add_bare_text(e, "version", trf_version());
    bench_add_name(e, "commit", cli_printable(commit ? commit : "", text, 64));
    bench_add_machine(e);
    bench_add_bare_text(e, "device", "cuda");
    bench_add_name(e, "gpu", cli_printable(info.name, text, sizeof text));
    bench_add_real(e, "compute_capability", info.capability / 10.0);
    bench_add_integer(e, "multiprocessors", (uint64_t)numbers->multiprocessors);
    bench_add_integer(e, "l2_bytes", (uint64_t)numbers->l2_bytes);
    read_driver(text, sizeof text);
    bench_add_bare_text(e, "driver", text);
    add_cuda_version(e, "driver_cuda_version", numbers->driver_cuda);
    add_cuda_version(e, "cuda_runtime_version", numbers->runtime_cuda);
    bench_add_integer(e, "cublaslt_version", bench_cublaslt_version(device->lt));
    bench_add_conditions(e, request->options);
    if (request->style->names_mode)
        bench_add_bare_text(e, "mode", request->mode);
}

int bench_device_open(bench_device *device, const bench_request *request) {
    device_numbers numbers = {0};
    device->context = request->context;
    if (cli_cuda_check(cudaStreamCreate(&device->stream), "bench: a stream"))
        return -1;
    device->lt = bench_cublaslt_open();
    if (!device->lt || read_numbers(&numbers))
        return -1;
    device->l2_bytes = (uint64_t)numbers.l2_bytes;
    describe(device, request, &numbers);
    bench_print_heading(request->style, request->record);
    return 0;
}

void bench_device_close(bench_device *device) {
    bench_cublaslt_close(device->lt);
    if (device->stream)
        cudaStreamDestroy(device->stream);
}

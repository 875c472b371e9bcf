/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_device_check.h"

#include "cli_messages.h"
#include "cli_progress.h"
#include "cli_report.h"

#include "transfuse/device_memory.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct device_run {
    const cli_options *options;
    trf_context *context;
    trf_checkpoint *checkpoint;
    cli_device_check *check;
    cli_progress progress;
    uint64_t done_bytes, total_bytes; /* of compressed tensors */
    uint32_t layouts;                 /* bit l: a layer of layout l has been verified */
} device_run;

/* Loads a layer as --layout says, or coded if that layout does not take it. */
static trf_status load(const device_run *run, const char *name, trf_device_layer **layer, trf_error *err) {
    trf_load_options options;
    trf_load_options_init(&options);
    options.layout = run->options->layout;
    options.threads = run->options->threads;
    trf_status status = trf_device_layer_load(run->context, run->checkpoint, name, &options, layer, err);
    if (status != TRF_ERR_UNSUPPORTED || options.layout == TRF_LAYOUT_CODED)
        return status;
    options.layout = TRF_LAYOUT_CODED;
    run->check->coded++;
    return trf_device_layer_load(run->context, run->checkpoint, name, &options, layer, err);
}

/* The first call for a layout also loads its kernel, so its first layer is verified twice, and the second time counts.
 */
static trf_status verify(device_run *run, const trf_device_layer *layer, trf_error *err) {
    trf_device_layer_info info;
    trf_status status = TRF_OK;
    trf_device_layer_get_info(layer, &info);
    if (!(run->layouts >> info.layout & 1))
        status = trf_device_layer_verify(layer, err);
    run->layouts |= 1u << info.layout;
    const double start = cli_now();
    if (status == TRF_OK)
        status = trf_device_layer_verify(layer, err);
    run->check->seconds += cli_now() - start;
    run->check->layers++;
    run->check->bytes += info.memory_bytes;
    return status;
}

/* name: as trf_device_layer_load takes it. */
static cli_exit check_layer(device_run *run, const char *name) {
    trf_device_layer *layer = NULL;
    trf_error err = {0};
    if (load(run, name, &layer, &err))
        return cli_report_error(&err);
    const trf_status status = verify(run, layer, &err);
    trf_device_layer_destroy(layer);
    return status == TRF_OK ? CLI_OK
                            : cli_fail(status, "%s: %s, on %s: %s", run->options->arguments[0], name,
                                       run->check->device, err.message);
}

/* Checks a tensor's layer, or those of its experts. */
static cli_exit check_tensor(device_run *run, const trf_tensor_info *tensor) {
    const char *part = "";
    const int part_bytes = cli_find_part(run->options->arguments[0], tensor, &part);
    cli_exit status = CLI_OK;
    for (uint64_t i = 0; i < tensor->blobs && status == CLI_OK; i++) {
        char name[4096], expert[32] = "";
        if (tensor->num_dims == 3)
            snprintf(expert, sizeof expert, "[%" PRIu64 "]", i);
        if (snprintf(name, sizeof name, "%.*s%s%s%s", part_bytes, part, part_bytes ? "/" : "", tensor->name, expert) >=
            (int)sizeof name)
            return cli_fail(TRF_ERR_UNSUPPORTED, "a name of more than %zu bytes", sizeof name);
        trf_error err = {.status = TRF_ERR_CANCELLED};
        snprintf(err.message, sizeof err.message, "verifying was cancelled before %.900s", name);
        if (cli_progress_step(&run->progress, name, run->done_bytes, run->total_bytes))
            return cli_report_error(&err);
        status = check_layer(run, name);
        run->done_bytes += tensor->bytes / tensor->blobs;
    }
    return status;
}

/* Calls check_tensor for all compressed tensors, or adds up their bytes. */
static cli_exit for_tensors(device_run *run, int counts) {
    const uint64_t count = trf_checkpoint_num_tensors(run->checkpoint);
    cli_exit status = CLI_OK;
    for (uint64_t i = 0; i < count && status == CLI_OK; i++) {
        trf_tensor_info tensor;
        trf_error err = {0};
        if (trf_checkpoint_tensor(run->checkpoint, i, &tensor, &err))
            return cli_report_error(&err);
        if (!tensor.compressed)
            continue;
        if (counts)
            run->total_bytes += tensor.bytes;
        else
            status = check_tensor(run, &tensor);
    }
    return status;
}

static cli_exit check_checkpoint(device_run *run) {
    trf_error err = {0};
    const trf_limits limits = cli_limits(run->options);
    if (trf_checkpoint_open_within(run->options->arguments[0], &limits, &run->checkpoint, &err))
        return cli_report_error(&err);
    cli_progress_start(&run->progress, run->options, "verifying in device memory");
    cli_exit status = for_tensors(run, 1);
    if (status == CLI_OK)
        status = for_tensors(run, 0);
    cli_progress_end(&run->progress);
    trf_checkpoint_close(run->checkpoint);
    return status;
}

cli_exit cli_check_on_device(const cli_options *options, trf_context *context, cli_device_check *check) {
    device_run run = {.options = options, .context = context, .check = check};
    trf_context_info info;
    *check = (cli_device_check){0};
    trf_context_get_info(context, &info);
    snprintf(check->device, sizeof check->device, "%s", info.name);
    return check_checkpoint(&run);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Multiplies by one layer of a compressed checkpoint, on the GPU or, where there is none, on the CPU.
 *
 * Usage: product CHECKPOINT TENSOR       The tensor's source is BF16.
 * Prints the first values of y = x . W^T for one x of ones: the sums of the rows of W. */
#include <stdio.h>
#include <stdlib.h>
#include <transfuse.h>
#include <transfuse/device_memory.h> /* device memory; programs with CUDA calls of their own do without */

static void check(trf_status status, const trf_error *err) {
    if (status == TRF_OK)
        return;
    fprintf(stderr, "%s\n", err->message);
    exit(1);
}

int main(int argc, char **argv) {
    trf_error err;
    trf_context *context;
    trf_checkpoint *checkpoint;
    trf_device_layer *layer;
    if (argc != 3)
        return 2;
    check(trf_context_create(TRF_DEVICE_AUTO, &context, &err), &err);
    check(trf_checkpoint_open(argv[1], &checkpoint, &err), &err);
    check(trf_device_layer_load(context, checkpoint, argv[2], NULL, &layer, &err), &err); /* stays compressed */
    trf_checkpoint_close(checkpoint);

    trf_device_layer_info layer_info;
    trf_device_layer_get_info(layer, &layer_info);
    const uint32_t rows = layer_info.layer.rows, cols = layer_info.layer.cols;
    uint16_t *x = malloc(cols * sizeof *x);
    float *y = malloc(rows * sizeof *y);
    if (!x || !y)
        exit(1);
    for (uint32_t i = 0; i < cols; i++)
        x[i] = 0x3F80; /* 1.0 in BF16 */

    trf_plan_options options; /* what does not change from call to call */
    trf_plan_options_init(&options);
    options.m = 1; /* rows of x, the batch */
    options.x_dtype = TRF_DTYPE_BF16;
    options.y_dtype = TRF_DTYPE_F32;
    trf_plan *plan;
    trf_plan_info plan_info;
    check(trf_plan_create(layer, &options, &plan, &err), &err);
    trf_plan_get_info(plan, &plan_info);

    void *x_dev, *y_dev, *workspace;
    check(trf_device_allocate(context, cols * sizeof *x, &x_dev, &err), &err);
    check(trf_device_allocate(context, rows * sizeof *y, &y_dev, &err), &err);
    check(trf_device_allocate(context, plan_info.workspace_bytes, &workspace, &err), &err);
    check(trf_device_upload(context, x_dev, x, cols * sizeof *x, &err), &err);

    trf_operands operands; /* the pointers of one call */
    trf_operands_init(&operands);
    operands.x = x_dev;
    operands.y = y_dev;
    check(trf_linear(plan, &operands, workspace, NULL, &err), &err); /* each time; NULL is the default CUDA stream */

    check(trf_device_download(context, y, y_dev, rows * sizeof *y, &err), &err); /* waits */
    check(trf_device_layer_check(layer, &err), &err);                            /* whether data was corrupt */
    for (uint32_t i = 0; i < 4 && i < rows; i++)
        printf("%g\n", y[i]);

    trf_device_free(context, x_dev);
    trf_device_free(context, y_dev);
    trf_device_free(context, workspace);
    trf_plan_destroy(plan); /* before its layer */
    trf_device_layer_destroy(layer);
    trf_context_destroy(context);
    free(x);
    free(y);
    return 0;
}

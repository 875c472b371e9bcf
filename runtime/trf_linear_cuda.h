/* Products on a GPU, as trf_device_ops has them. */
#ifndef TRF_LINEAR_CUDA_H
#define TRF_LINEAR_CUDA_H

#include "trf_context.h"

trf_status trf_cuda_plan(const trf_device_layer *layer, trf_path path, trf_linear_plan *plan, trf_error *err);
trf_status trf_cuda_linear(const trf_device_layer *layer, const trf_linear_plan *plan, const void *x, void *y,
                           const trf_epilogue *epilogue, void *workspace, trf_stream stream, trf_error *err);
trf_status trf_cuda_decode_ahead(const trf_device_layer *layer, const trf_linear_plan *plan, void *workspace,
                                 trf_stream stream, trf_error *err);
trf_status trf_cuda_apply_epilogue(const trf_context *context, const trf_sums *sums, trf_dtype y_dtype, void *y,
                                   const trf_epilogue *epilogue, trf_stream stream, trf_error *err);

#endif

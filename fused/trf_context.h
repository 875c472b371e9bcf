/* What stands behind trf_context. Made by loader/trf_device.c. */
#ifndef TRF_CONTEXT_H
#define TRF_CONTEXT_H

#include "trf_fused.h"
#include "trf_gemm.h"

struct trf_context {
    int device; /* CUDA ordinal */
    trf_device_limits limits;
    trf_gemm *gemm;
    char name[256];
};

#endif

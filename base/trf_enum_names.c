/* SPDX-License-Identifier: Apache-2.0 */
/* Small parts of the public interface: names and sizes of dtypes, codecs, layouts and paths; the reasons why tensors
 * are left as they are; the version; and the release of memory. */
#include "transfuse/checkpoints.h"
#include "transfuse/device_memory.h"
#include "transfuse/tuning.h"

#include <stdlib.h>

#define STRING_OF(number) #number
#define VERSION_STRING(major, minor, patch) STRING_OF(major) "." STRING_OF(minor) "." STRING_OF(patch)

const char *trf_version(void) { return VERSION_STRING(TRF_VERSION_MAJOR, TRF_VERSION_MINOR, TRF_VERSION_PATCH); }

size_t trf_dtype_bytes(trf_dtype dtype) {
    switch (dtype) {
    case TRF_DTYPE_F32:
        return 4;
    case TRF_DTYPE_F16:
    case TRF_DTYPE_BF16:
        return 2;
    case TRF_DTYPE_F8_E4M3:
    case TRF_DTYPE_F8_E5M2:
    case TRF_DTYPE_I8:
        return 1;
    default:
        return 0;
    }
}

const char *trf_dtype_name(trf_dtype dtype) {
    switch (dtype) {
    case TRF_DTYPE_F32:
        return "F32";
    case TRF_DTYPE_F16:
        return "F16";
    case TRF_DTYPE_BF16:
        return "BF16";
    case TRF_DTYPE_F8_E4M3:
        return "F8_E4M3";
    case TRF_DTYPE_F8_E5M2:
        return "F8_E5M2";
    case TRF_DTYPE_I8:
        return "I8";
    default:
        return "?";
    }
}

const char *trf_codec_name(trf_codec codec) {
    switch (codec) {
    case TRF_CODEC_AUTO:
        return "auto";
    case TRF_CODEC_BF16:
        return "bf16";
    case TRF_CODEC_FP16:
        return "fp16";
    case TRF_CODEC_E4M3:
        return "fp8_e4m3";
    case TRF_CODEC_E5M2:
        return "fp8_e5m2";
    case TRF_CODEC_INT:
        return "int";
    default:
        return "?";
    }
}

const char *trf_path_name(trf_path path) {
    switch (path) {
    case TRF_PATH_AUTO:
        return "auto";
    case TRF_PATH_FUSED:
        return "fused";
    case TRF_PATH_TWO_STEP:
        return "two-step";
    case TRF_PATH_WIDE:
        return "wide";
    case TRF_PATH_DENSE:
        return "dense";
    case TRF_PATH_PACKED:
        return "packed";
    default:
        return "?";
    }
}

const char *trf_layout_name(trf_layout layout) {
    switch (layout) {
    case TRF_LAYOUT_CODED:
        return "coded";
    case TRF_LAYOUT_PLAIN:
        return "plain";
    case TRF_LAYOUT_PACKED:
        return "packed";
    case TRF_LAYOUT_PACKED8:
        return "packed8";
    default:
        return "?";
    }
}

void trf_free(void *memory) { free(memory); }

const char *trf_left_reason_text(trf_left_reason reason) {
    static const char *const texts[TRF_LEFT_COUNT] = {
        [TRF_LEFT_NO_MATRIX] = "not a matrix",
        [TRF_LEFT_SMALL] = "a side below 16",
        [TRF_LEFT_EMBEDDING] = "embeddings",
        [TRF_LEFT_TIED] = "tied to embeddings",
        [TRF_LEFT_F32] = "F32 without a lossless codec",
        [TRF_LEFT_DTYPE] = "a type that the codec does not take",
        [TRF_LEFT_SIDE_TABLE] = "scales of quantized weights",
        [TRF_LEFT_EXCLUDED] = "excluded",
        [TRF_LEFT_NOT_SMALLER] = "would not become smaller",
        [TRF_LEFT_ADAPTER] = "an adapter beside the model",
    };
    return (unsigned)reason < TRF_LEFT_COUNT ? texts[reason] : "?";
}

/* SPDX-License-Identifier: Apache-2.0 */
#define TRF_FP8_CODES trf_fp8_codes_avx512
#include "trf_fp8_codes_body.h"

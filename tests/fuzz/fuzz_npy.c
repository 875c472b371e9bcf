/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as a .npy file. The values of a file that can be read must be those at its end. */
#include "fuzz_file.h"

#include "../../tools/cli_file.c"
#include "../../tools/cli_float.c"
#include "../../tools/cli_messages.c"
#include "../../tools/cli_npy.c"
#include "../../tools/cli_signals.c"

#include "trf_number_formats.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Whether two values are the same, or both are NaNs. */
static int are_same(float a, float b) { return trf_f32_bits(a) == trf_f32_bits(b) || (a != a && b != b); }

static void check_values(const uint8_t *data, size_t size, const float *values, uint64_t count) {
    const size_t value_bytes = memmem(data, size, "<f4", 3) ? 4 : 2;
    if (count > size / value_bytes)
        abort();
    for (uint64_t i = 0; i < count; i++) {
        const uint8_t *at = data + size - (count - i) * value_bytes;
        uint32_t bits = 0;
        memcpy(&bits, at, value_bytes);
        if (!are_same(values[i], value_bytes == 4 ? trf_f32_from_bits(bits) : trf_f16_to_f32((uint16_t)bits)))
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const fuzz_file file = fuzz_file_of(data, size);
    float *values;
    uint64_t rows, cols;
    trf_error err;
    if (cli_read_npy(file.path, &values, &rows, &cols, &err) == TRF_OK) {
        /* A header may name one type where nothing looks for it, and have the other. */
        if (!memmem(data, size, "<f4", 3) || !memmem(data, size, "<f2", 3))
            check_values(data, size, values, rows * cols);
        free(values);
    }
    close(file.fd);
    return 0;
}

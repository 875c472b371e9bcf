/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_base64.h"

#include <string.h>

static const char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void trf_base64_encode(const uint8_t *data, size_t bytes, char *text) {
    for (size_t i = 0; i < bytes; i += 3) {
        const size_t left = bytes - i;
        const uint32_t word =
            (uint32_t)data[i] << 16 | (left > 1 ? (uint32_t)data[i + 1] << 8 : 0) | (left > 2 ? data[i + 2] : 0);
        *text++ = kDigits[word >> 18];
        *text++ = kDigits[word >> 12 & 63];
        *text++ = left > 1 ? kDigits[word >> 6 & 63] : '=';
        *text++ = left > 2 ? kDigits[word & 63] : '=';
    }
}

/* @return the value of a digit, or 64. */
static uint32_t value_of(char digit) {
    const char *found = digit ? strchr(kDigits, digit) : NULL;
    return found ? (uint32_t)(found - kDigits) : 64;
}

int trf_base64_decode(const char *text, size_t length, uint8_t *data, size_t bytes) {
    if (length != trf_base64_length(bytes))
        return 0;
    for (size_t i = 0; i < bytes; i += 3, text += 4) {
        const size_t left = bytes - i < 3 ? bytes - i : 3;
        uint32_t word = 0, wrong = 0;
        for (size_t k = 0; k < 4; k++) {
            const uint32_t digit = k <= left ? value_of(text[k]) : 0;
            wrong |= digit > 63 || (k > left && text[k] != '=');
            word = word << 6 | (digit & 63);
        }
        /* Bits that no byte takes are 0, so that each sequence of bytes has one text. */
        if (wrong || (left < 3 && (word & ((1u << (24 - 8 * left)) - 1))))
            return 0;
        for (size_t k = 0; k < left; k++)
            data[i + k] = (uint8_t)(word >> (16 - 8 * k));
    }
    return 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes in a text: base64 (RFC 4648, section 4) with padding and without line breaks. */
#ifndef TRF_BASE64_H
#define TRF_BASE64_H

#include <stddef.h>
#include <stdint.h>

/* @return the characters of `bytes` bytes. */
static inline size_t trf_base64_length(size_t bytes) { return (bytes + 2) / 3 * 4; }

/* Writes `bytes` bytes as trf_base64_length(bytes) characters, without a NUL. */
void trf_base64_encode(const uint8_t *data, size_t bytes, char *text);

/* Reads a text that stands for `bytes` bytes. data: [bytes]. @return whether it is what trf_base64_encode writes of so
 * many bytes; data is undefined if not. */
int trf_base64_decode(const char *text, size_t length, uint8_t *data, size_t bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Made-up checkpoints in a temporary folder. Everything here ends the test on failure. */
#ifndef CHECKPOINT_FIXTURE_H
#define CHECKPOINT_FIXTURE_H

#include "transfuse.h"

/* Makes a folder that fixture_end removes. Use these as unchecked Check fixtures, so that the folder is removed even
 * when a test fails. */
void fixture_begin(void);
void fixture_end(void);

/* @return a path in the folder, which stays valid for the whole test. */
const char *fixture_path(const char *format, ...) __attribute__((format(printf, 1, 2)));

void fixture_write(const char *path, const void *bytes, size_t size);
void *fixture_read(const char *path, size_t *size); /* malloc'd, a NUL after it */
void fixture_make_folder(const char *path);
int fixture_exists(const char *path);
int fixture_count_entries(const char *path);

/* Fails unless two files, or two folders with all below them, are the same. Links are compared as links. */
void fixture_check_same(const char *a, const char *b);

/* A tensor. If a codec takes its dtype, its weights are normally distributed; else its bytes have no meaning. */
typedef struct fixture_tensor {
    const char *name, *dtype;
    uint64_t shape[4];
    uint32_t num_dims;
    uint64_t bytes; /* 0: from dtype and shape */
} fixture_tensor;

/* Writes a safetensors file, laid out as the tensors are listed. metadata: JSON text, or NULL. pad_to: the multiple to
 * which the header is padded with spaces. Equal seeds give equal bytes. */
void fixture_write_safetensors(const char *path, const char *metadata, const fixture_tensor *tensors, size_t count,
                               uint32_t pad_to, uint64_t seed);

/* Writes such a file, compresses it with the default options to compressed.safetensors of the folder, and opens that.
 * Close it with trf_checkpoint_close. */
trf_checkpoint *fixture_open_compressed(const fixture_tensor *tensors, size_t count);

/* Writes a file with this header and this many zeros after it. */
void fixture_write_header(const char *path, const char *header, uint64_t data_bytes);

/* Fails with the error's message unless status is the one expected. */
void fixture_check_status(trf_status status, trf_status expected, const trf_error *err);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the program same_bytes. */
#ifndef SAME_BYTES_H
#define SAME_BYTES_H

#include "transfuse.h"

extern int same_threads; /* that each call may use */

/* Ends the program with a message if status is no success. */
void same_check(trf_status status, const char *what, const trf_error *err);

/* Prints a line: the bytes' hash, what they are, and of which case. */
void same_print(const void *bytes, uint64_t size, const char *kind, const char *name);

/* Makes a checkpoint in an empty folder, compresses and decompresses it in several ways, and prints the hashes of all
 * files that come of it. */
void same_checkpoint(const char *folder);

#endif

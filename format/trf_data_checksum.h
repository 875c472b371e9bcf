/* SPDX-License-Identifier: Apache-2.0 */
/* The checksum of a layer in device memory whose layout has a head (trf_layout_head.h): of all bytes behind the head.
 * It is made when the layer is made, kept in the head, and computed again to find out whether memory has changed.
 * format/PACKED.md, "The data checksum", is the definition. C and CUDA.
 *
 * The bytes are words of 64 bits, the last one filled up with zeros. Each word is mixed with its index, and the results
 * are added up, so that threads may take the words in any order. Mixing is a bijection: whatever changes within one
 * word changes the sum. A word that becomes a random one leaves the sum as it was with probability 2^-64.
 *
 * A second sum counts each word by the number of its page, from 1 on. If all that changed lies in one page, the two
 * differences say which one. */
#ifndef TRF_DATA_CHECKSUM_H
#define TRF_DATA_CHECKSUM_H

#include "transfuse.h"
#include "trf_blob.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TRF_DATA_WORD_BYTES = 8,
    TRF_DATA_PAGE_BYTES = 4096
};

typedef struct trf_data_checksum {
    uint64_t sum;    /* of all mixed words, modulo 2^64 */
    uint64_t places; /* of each page's sum times the page's number, counted from 1 */
} trf_data_checksum;
TRF_STATIC_ASSERT(sizeof(trf_data_checksum) == 16, "it is the end of a layout's head");

/* Mixes a word with its index, counted from the first byte behind the head. */
TRF_HD uint64_t trf_mix_data_word(uint64_t word, uint64_t index) {
    const uint64_t multiplier = 0xD6E8FEB86659FD93u;
    uint64_t x = word + (index + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 32) * multiplier;
    x = (x ^ x >> 32) * multiplier;
    return x ^ x >> 32;
}

/* Adds what a page's words have come to, all or some of them. */
TRF_HD void trf_add_data_page(trf_data_checksum *to, uint64_t page, uint64_t mixed) {
    to->sum += mixed;
    to->places += (page + 1) * mixed;
}

TRF_HD uint64_t trf_count_data_pages(uint64_t bytes) {
    return bytes / TRF_DATA_PAGE_BYTES + (bytes % TRF_DATA_PAGE_BYTES != 0);
}

/* Computes the checksum of bytes in host memory. threads: as trf_thread_count takes it. Errors: TRF_ERR_MEMORY. */
trf_status trf_compute_data_checksum(const void *data, uint64_t bytes, int threads, trf_data_checksum *checksum,
                                     trf_error *err);

static inline int trf_data_checksums_differ(trf_data_checksum a, trf_data_checksum b) {
    return a.sum != b.sum || a.places != b.places;
}

/* Finds the page whose change explains how two checksums of so many bytes differ. @return its number from 0 on, or
 * UINT64_MAX if no single page does. */
uint64_t trf_find_changed_page(trf_data_checksum kept, trf_data_checksum computed, uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif

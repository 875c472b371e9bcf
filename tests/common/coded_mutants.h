/* SPDX-License-Identifier: Apache-2.0 */
/* Mutants of a coded layer as kernels get them, past the validator (blob_mutants.h). Nothing here is on a device: tests
 * copy the bytes and the directory to one, or run kernels over them in emulated warps.
 *
 * A mutant gets to the kernels in one of these ways:
 *   bypassed   its bytes, with the intact layer's directory and traits, as if the blob had changed in device memory
 *   directory  as well, and the directory has changed, too
 *   forged     sizes and checksums are right again. What the validator takes then is loaded as any layer is. If it
 *              takes the head alone, view, decode table, traits and the entries of the tiles that it takes are the
 *              mutant's; if it refuses the head, nothing is */
#ifndef CODED_MUTANTS_H
#define CODED_MUTANTS_H

#include "blob_mutants.h"
#include "trf_layer_directory.h"
#include "trf_layer_traits.h"

typedef enum mutant_way {
    MUTANT_BYPASSED,
    MUTANT_DIRECTORY,
    MUTANT_FORGED_REFUSED,
    MUTANT_FORGED_HEAD,
    MUTANT_FORGED, /* the validator takes all of it; directory and traits are the ones that loading makes */
    MUTANT_WAYS
} mutant_way;

/* An intact layer and the mutant at hand. Release it with coded_mutants_free. */
typedef struct coded_mutants {
    blob_mutants mutants;
    trf_layer_directory_offsets offsets; /* of all directories */
    uint8_t *intact_directory;           /* offsets.directory_bytes, without a fault */
    trf_layer_traits intact_traits;
    /* The mutant. */
    mutant_way way;
    uint8_t *bytes; /* 16-byte aligned */
    uint64_t num_bytes;
    uint8_t *directory;
    trf_blob_view view; /* of a head: the intact one, or the mutant's in `bytes` */
    trf_layer_traits traits;
    char what[256]; /* name, number, and what the mutant is, for messages */
} coded_mutants;

/* blob, other: as for blob_mutants_of. */
coded_mutants coded_mutants_of(const void *blob, uint64_t bytes, const void *other, uint64_t other_bytes);
void coded_mutants_free(coded_mutants *c);

/* Draws the next mutant whose head is whole: whoever copies a blob to a device has read its head. name: the layer's. */
void coded_mutants_draw(coded_mutants *c, test_rng *rng, const char *name, uint64_t number);

/* Whether the mutant at hand is what it was made of. */
int coded_mutants_is_intact(const coded_mutants *c);

/* @return a number of the environment, such as TRF_MUTANTS, or if it is not there another one. */
uint64_t mutants_number(const char *variable, uint64_t by_default);

/* Whether this process is to do item i: all, or with TRF_MUTANT_PART=2/4 the items 2, 6, 10 ... */
int mutants_has_part(int i);

/* @return the view of the mutant at hand, whose bytes and directory have been copied to these places. */
trf_device_view coded_mutants_view(const coded_mutants *c, const uint8_t *blob, uint8_t *directory);

#endif

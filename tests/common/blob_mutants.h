/* SPDX-License-Identifier: Apache-2.0 */
/* Mutants of a sound blob, for tests of the validator, the decoders and the kernels. Each kind of mutant is numbered,
 * so that a test goes through all of them, or draws some by a seed; a number is the same mutant on every machine. */
#ifndef BLOB_MUTANTS_H
#define BLOB_MUTANTS_H

#include "test_weights.h"
#include "trf_validate.h"

typedef enum blob_mutant_kind {
    BLOB_MUTANT_SET_BYTE,      /* a byte gets one of the other 255 values */
    BLOB_MUTANT_FLIP_BIT,      /* a bit is flipped */
    BLOB_MUTANT_TRUNCATE,      /* the blob ends early, after 0 bytes or more */
    BLOB_MUTANT_ADD_BYTE,      /* in front of a byte, or at the end: a 0, a 0xFF, or the byte before it once more */
    BLOB_MUTANT_REMOVE_BYTE,   /* a byte is left out */
    BLOB_MUTANT_SWAP_DATA,     /* two tiles' data change places, and their metadata do not */
    BLOB_MUTANT_SWAP_METADATA, /* two tiles' metadata change places, as they are */
    BLOB_MUTANT_SWAP_TILES,    /* both do; offsets are those of the new places */
    BLOB_MUTANT_FOREIGN_DATA,  /* a tile's data become those of another blob's tile */
    BLOB_MUTANT_FOREIGN_TILE,  /* its metadata, too; offsets and sizes are right again */
    BLOB_MUTANT_KINDS
} blob_mutant_kind;

/* One mutant. at, with: of bytes the offset, and the value, the bit's number or which of the three bytes; of a
 * truncation the length; of swaps the two tiles; of a foreign tile the tile, and the other blob's. */
typedef struct blob_mutant {
    blob_mutant_kind kind;
    uint64_t at, with;
} blob_mutant;

/* Bytes of a blob that say where others lie, or how many there are. */
typedef struct blob_range {
    uint64_t begin, end;
} blob_range;

/* A sound blob and another one, both validated, the caller's and 16-byte aligned. Release it with blob_mutants_free. */
typedef struct blob_mutants {
    const uint8_t *blob, *other;
    uint64_t bytes;
    trf_blob_view view, other_view;
    uint64_t room;         /* the most bytes that a mutant has */
    blob_range *structure; /* the head, slab tables, and the rANS streams up to their words */
    uint64_t num_structure;
} blob_mutants;

/* Reads the golden file of a name, without .trf. @return 128-byte aligned memory, to be released with free. */
void *blob_of_golden(const char *name, uint64_t *bytes);

/* other: NULL if there are to be no foreign tiles. Ends the test if a blob is not sound. */
blob_mutants blob_mutants_of(const void *blob, uint64_t bytes, const void *other, uint64_t other_bytes);
void blob_mutants_free(blob_mutants *mutants);

uint64_t blob_mutants_count(const blob_mutants *mutants, blob_mutant_kind kind);

/* Mutant `number` of a kind; number < blob_mutants_count. */
blob_mutant blob_mutants_at(const blob_mutants *mutants, blob_mutant_kind kind, uint64_t number);

/* Draws a mutant of any kind that the blob has. Two thirds of those that change bytes do so in head and structure,
 * which are small parts of a large blob. */
blob_mutant blob_mutants_draw(const blob_mutants *mutants, test_rng *rng);

/* Makes a mutant. to: mutants->room bytes, 16-byte aligned. @return its size. */
uint64_t blob_mutant_make(const blob_mutants *mutants, const blob_mutant *mutant, uint8_t *to);

/* Makes sizes and checksums right again, as far as the first bytes are a blob's: blob_bytes, the size of the last tile,
 * and the checksums of all tiles and of the head. */
void blob_mutant_forge(uint8_t *blob, uint64_t bytes);

/* Writes what a mutant is, for messages. */
void blob_mutant_name(const blob_mutant *mutant, char name[96]);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The statistical model of a layer: which classes there are, and how often each symbol occurs. */
#ifndef TRF_SYMBOL_MODEL_H
#define TRF_SYMBOL_MODEL_H

#include "trf_lane.h"
#include "trf_split.h"

enum {
    TRF_EXCEPTION_BITS = 32, /* in the blob, and in what TRF_FAVOR_SIZE chooses with the int codec */
    /* Bits that an exception counts as in other choices, because a kernel takes time to put it in place. Among 32, 64,
     * 96 and 128, this has the fewest exceptions on N(0, sigma): 0.04 to 0.08 % with quads, and 0.02 % with pairs,
     * where 32 has 0.07 %. It costs 0.01 to 0.03 bit a weight. */
    TRF_EXCEPTION_COST = 128,
    /* The same for quads of FP8, whose product is bound by instructions and not by memory. On N(0, sigma) scaled to the
     * type's largest value, E4M3 has 0.003 instead of 0.13 % exceptions, at 0.3 bit more; E5M2 has 0.067 instead of
     * 0.072 %. */
    TRF_EXCEPTION_COST_FP8_QUADS = 512,
    /* The same for pairs of FP8, which are for the least bits and lose more to rare symbols. On N(0, sigma) scaled to
     * the type's largest value, E4M3 takes 6.696 bits with 32, 6.702 with this, and 6.719 with 128; 0.08, 0.04 and
     * 0.01 % are exceptions. */
    TRF_EXCEPTION_COST_FP8_PAIRS = 64,
    TRF_NUM_CODES = 2 * TRF_MAX_CODE + 1, /* counts of codes have the index code + TRF_MAX_CODE */
};

/* The classes of a layer. A class key v (a float's coded exponent C, or an int's code) belongs to the class k with
 * class_value[k] <= v < class_value[k] + 2^shift. */
typedef struct trf_classes {
    uint32_t class_bits;
    uint32_t shift;          /* 0 for float pairs, 2 for float quads, the raw bits for int */
    int16_t class_value[16]; /* ascending; zero from 2^class_bits on */
    int contiguous;          /* each class begins where the one before ends */
    uint32_t likeliest;      /* the class that stands in for class keys that have none */
    double bits;             /* expected bits a weight: order-0 entropy of the classes, raw bits, exceptions */
    double cost;             /* the same, with exceptions as they count in choices; this was minimized */
} trf_classes;

/* Picks the 2^class_bits classes that most weights fall into. counts[C], C = 0 ... max_exponent: weights with that
 * coded exponent. excluded: weights that no class may hold (they are exceptions). raw_bits: the codec's, for `bits`.
 * exception_cost: the bits that an exception counts as in `cost`. */
void trf_choose_float_classes(trf_classes *classes, const uint64_t counts[256], uint64_t excluded,
                              uint32_t max_exponent, uint32_t class_bits, uint32_t raw_bits, double exception_cost);

/* Picks raw bits and lowest code of an int layer. counts: index code + TRF_MAX_CODE. */
void trf_choose_int_classes(trf_classes *classes, const double counts[TRF_NUM_CODES], uint32_t class_bits,
                            double exception_cost);

/* The class of a key, or -1. */
int trf_class_of(const trf_classes *classes, int32_t class_key);

/* The frequency table of a layer, and what symbols that have no slot are coded as. */
typedef struct trf_symbol_model {
    uint32_t probability_bits;
    uint16_t frequency[TRF_ALPHABET];
    uint16_t start[TRF_ALPHABET];
    uint8_t replacement[TRF_ALPHABET]; /* s itself where frequency[s] > 0, else the symbol that is coded instead */
    double cost; /* expected bits a weight without raw bits, with exceptions of replaced symbols as they count */
} trf_symbol_model;

/* Scales counts to slots. Symbols for which a slot costs more than their exceptions get none; at least two
 * symbols have one, so that no frequency reaches 2^p. With the default p of the class_bits no frequency is above
 * TRF_DEFAULT_P_MAX_FREQUENCY where that costs little, since a layer with a larger one gets slower kernels. */
void trf_normalize(trf_symbol_model *model, const uint64_t counts[TRF_ALPHABET], uint32_t class_bits,
                   uint32_t probability_bits, double exception_cost);

/* Shannon entropy of counts, in bits; 0 if they are all zero. */
double trf_entropy(const uint64_t *counts, size_t n);

#endif

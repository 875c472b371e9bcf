/* SPDX-License-Identifier: Apache-2.0 */
/* Tunings: which path is the fastest at which batch, for layers of a codec and a shape. */
#ifndef TRF_TUNING_H
#define TRF_TUNING_H

#include "transfuse/tuning.h"
#include "trf_device_layer.h"
#include "trf_packed_partition.h"

enum {
    TRF_TUNED_PATHS = 5,        /* FUSED, TWO_STEP, WIDE, DENSE, PACKED: trf_path - 1 */
    TRF_TUNING_MAX_POINTS = 64, /* of a layer */
    TRF_TUNING_MAX_LAYERS = 65536
};

/* A packed product's kernel, given by its shape, and its cut, as trf_packed_choose_shape takes them. */
typedef struct trf_tuned_kernel {
    int shape;
    uint32_t cut;
} trf_tuned_kernel;

/* What holds for batches above the point before, up to this one. */
typedef struct trf_tuned_point {
    uint32_t m;
    trf_path path;
    double microseconds[TRF_TUNED_PATHS]; /* median of a call; 0: the path does not take it, or nobody measured it */
    int has_packed;                       /* whether kernels and cuts of the packed path were measured */
    trf_tuned_kernel packed;              /* the fastest */
} trf_tuned_point;

/* What a tuning knows of a layer. rows and cols are the kernels': of a coded layer, those of whole tiles. */
typedef struct trf_tuning_key {
    trf_layout layout;
    trf_codec codec;
    uint32_t class_bits, raw_bits;
    int has_scale_groups; /* or scale blocks */
    uint32_t rows, cols;
} trf_tuning_key;

typedef struct trf_tuned_layer {
    trf_tuning_key key;
    uint32_t num_points;
    trf_tuned_point points[TRF_TUNING_MAX_POINTS]; /* m ascending */
} trf_tuned_layer;

/* A GPU as tunings and the tables of crossovers know it. */
typedef struct trf_card {
    char name[256];                /* as trf_context_info.name has it */
    uint32_t capability;           /* 10 * major + minor; 0: not known, or the CPU */
    uint32_t multiprocessors;      /* likewise */
    uint32_t memory_gb_per_second; /* 10^9 bytes a second, by the memory's clock and width; 0: not known */
} trf_card;

struct trf_tuning {
    trf_card card; /* that was measured */
    uint32_t num_layers;
    trf_tuned_layer *layers;
};

/* Makes a tuning of a card for so many layers, which are all zeros. Errors: TRF_ERR_MEMORY. */
trf_status trf_tuning_create(const trf_card *card, uint32_t num_layers, trf_tuning **tuning, trf_error *err);

trf_card trf_card_of(const trf_context *context);

trf_tuning_key trf_tuning_key_of(const trf_device_layer *layer);

/* @return the distance of two keys: octaves of rows and of columns, and raw bits; infinity if layout, codec, classes or
 * the presence of scale groups differ. Classes and raw bits count for coded layers alone, since others have none in
 * memory. */
double trf_tuning_key_distance(const trf_tuning_key *a, const trf_tuning_key *b);

/* @return the path for a batch, taken from the layer with the nearest key (trf_tuning_key_distance); TRF_PATH_AUTO if
 * there is no such layer, or if the batch is beyond its last point. */
trf_path trf_tuned_path(const trf_tuning *tuning, const trf_tuning_key *key, uint32_t m);

/* Finds the packed path's kernel and cut for a batch, also from the nearest layer, if it is at most half an octave
 * away. @return 1; or 0 if that layer has none, or the batch is beyond its last point. */
int trf_tuned_packed(const trf_tuning *tuning, const trf_tuning_key *key, uint32_t m, trf_tuned_kernel *kernel);

/* The two crossovers of a coded layer: FUSED is the fastest path up to the first batch, WIDE from there up to the
 * second, and TWO_STEP after that. */
typedef struct trf_layer_crossovers {
    trf_tuning_key key;
    uint32_t fused_to, wide_to;
} trf_layer_crossovers;

/* What was measured on one card. */
typedef struct trf_crossover_table {
    trf_card card;
    const trf_layer_crossovers *layers;
    uint32_t num_layers;
    /* Up to this batch PACKED is the fastest path of packed layers, whatever the layer, and after it TWO_STEP; 0:
     * nobody measured this. PACKED is used at all batches if cuBLASLt would leave the sums to a pass of its own. */
    uint32_t packed_to;
} trf_crossover_table;

/* @return the tables that the library brings along (runtime/tuning/crossovers), one for each card that was measured. */
const trf_crossover_table *trf_crossover_tables(uint32_t *num_tables);

/* @return the table for a card: the one with its name; else, among those of its compute capability, the one whose
 * memory bandwidth for each multiprocessor is the nearest, in octaves. If several are equally near, it is the first of
 * them; if a bandwidth is not known, it is the first of all. NULL if there is none. */
const trf_crossover_table *trf_crossovers_for(const trf_crossover_table *tables, uint32_t num_tables,
                                              const trf_card *card);

/* Does what trf_tuned_path does, by a table of crossovers. @return TRF_PATH_AUTO if the table has no layer of this
 * kind. table may be NULL. */
trf_path trf_crossover_path(const trf_crossover_table *table, const trf_tuning_key *key, uint32_t m);

/* Finds what TRF_PATH_AUTO stands for: what the context's tuning has for the batch, or else the card's crossovers.
 * reason: becomes a static text, why another path is taken than the layout's first one. @return TRF_PATH_AUTO if
 * neither knows layers of this kind. */
trf_path trf_path_for_batch(const trf_device_layer *layer, uint32_t m, const char **reason);

/* @return the best candidate by its time: the first one, unless others are faster by 1 %; then the fastest. */
uint32_t trf_fastest_candidate(const double *microseconds, uint32_t num_candidates);

/* @return the best path by its time. FUSED, WIDE, PACKED, TWO_STEP and DENSE are compared in this order, and each that
 * beats the best before it by more than 1 % takes its place. AUTO if there are none. */
trf_path trf_fastest_path(const double microseconds[TRF_TUNED_PATHS]);

#endif

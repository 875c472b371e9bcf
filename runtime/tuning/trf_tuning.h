/* SPDX-License-Identifier: Apache-2.0 */
/* Tunings: for layers of a codec and a shape, which path is the fastest at which batch. */
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

/* The kernel of a packed product, by its shape, and its cut: as trf_packed_choose_shape takes them. */
typedef struct trf_tuned_kernel {
    int shape;
    uint32_t cut;
} trf_tuned_kernel;

/* Batches from the point before up to this one. */
typedef struct trf_tuned_point {
    uint32_t m;
    trf_path path;
    double microseconds[TRF_TUNED_PATHS]; /* of a call, median; 0: the path does not take it, or nobody measured */
    int has_packed;                       /* whether somebody measured kernels and cuts of the packed path */
    trf_tuned_kernel packed;              /* the fastest */
} trf_tuned_point;

/* What a layer is to a tuning. rows, cols: as the kernels have them; of a coded layer, of whole tiles. */
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

/* A tuning of a card for so many layers, all zeros. Errors: TRF_ERR_MEMORY. */
trf_status trf_tuning_create(const trf_card *card, uint32_t num_layers, trf_tuning **tuning, trf_error *err);

trf_card trf_card_of(const trf_context *context);

trf_tuning_key trf_tuning_key_of(const trf_device_layer *layer);

/* How far apart two keys are: octaves of rows and columns, and raw bits; infinitely, if layout, codec, classes or
 * scale groups differ. Classes and raw bits count for coded layers alone, since others have none in memory. */
double trf_tuning_key_distance(const trf_tuning_key *a, const trf_tuning_key *b);

/* The path for a batch: of the layer whose key is the nearest (trf_tuning_key_distance). @return TRF_PATH_AUTO where
 * there is none, or for a batch beyond its last point. */
trf_path trf_tuned_path(const trf_tuning *tuning, const trf_tuning_key *key, uint32_t m);

/* The packed path's kernel and cut for a batch: those of the nearest layer, too, if it is at most half an octave away.
 * @return 0 where it has none, or for a batch beyond its last point; else 1. */
int trf_tuned_packed(const trf_tuning *tuning, const trf_tuning_key *key, uint32_t m, trf_tuned_kernel *kernel);

/* The two crossovers of a coded layer: FUSED is the fastest path up to a batch, WIDE from there up to another one, and
 * then TWO_STEP. */
typedef struct trf_layer_crossovers {
    trf_tuning_key key;
    uint32_t fused_to, wide_to;
} trf_layer_crossovers;

/* What was measured on one card. */
typedef struct trf_crossover_table {
    trf_card card;
    const trf_layer_crossovers *layers;
    uint32_t num_layers;
    /* PACKED is the fastest path of packed layers up to this batch, whatever the layer, and then TWO_STEP; 0: nobody
     * measured where. Products whose sums cuBLASLt would leave to a pass of their own stay with PACKED. */
    uint32_t packed_to;
} trf_crossover_table;

/* @return the tables that the library brings along (runtime/tuning/crossovers), one a card that was measured. */
const trf_crossover_table *trf_crossover_tables(uint32_t *num_tables);

/* @return the table for a card: the one of its name; else, of those of its compute capability, the one whose memory
 * bandwidth a multiprocessor is the nearest (in octaves, the first of those that are equally near; of a bandwidth that
 * is not known the first of all); NULL where there is none. */
const trf_crossover_table *trf_crossovers_for(const trf_crossover_table *tables, uint32_t num_tables,
                                              const trf_card *card);

/* trf_tuned_path, by a table of crossovers. @return TRF_PATH_AUTO where it has no layer of this kind; table may be
 * NULL. */
trf_path trf_crossover_path(const trf_crossover_table *table, const trf_tuning_key *key, uint32_t m);

/* @return the candidate that the times speak for: the first, unless others beat it by 1 %; then the fastest. */
uint32_t trf_fastest_candidate(const double *microseconds, uint32_t num_candidates);

/* @return the path that the times speak for: of FUSED, WIDE, PACKED, TWO_STEP and DENSE, in this order, each that beats
 * the best before it by more than 1 % takes its place; AUTO if there are none. */
trf_path trf_fastest_path(const double microseconds[TRF_TUNED_PATHS]);

#endif

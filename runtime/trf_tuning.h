/* Tunings: for layers of a codec and a shape, which path is the fastest at which batch. */
#ifndef TRF_TUNING_H
#define TRF_TUNING_H

#include "transfuse/tuning.h"
#include "trf_device_layer.h"

enum {
    TRF_TUNED_PATHS = 3,   /* FUSED, TWO_STEP, WIDE: trf_path - 1 */
    TRF_TUNED_POINTS = 64, /* of a layer, at most */
    TRF_TUNED_LAYERS = 65536
};

/* Batches from the point before up to this one. */
typedef struct trf_tuned_point {
    uint32_t m;
    trf_path path;
    double microseconds[TRF_TUNED_PATHS]; /* of a call, median; 0: the path does not take it, or nobody measured */
} trf_tuned_point;

/* What a layer is to a tuning. rows, cols: of whole tiles, as the kernels have them. */
typedef struct trf_tuning_key {
    trf_codec codec;
    uint32_t class_bits, raw_bits;
    int has_scale_groups; /* or scale blocks */
    uint32_t rows, cols;
} trf_tuning_key;

typedef struct trf_tuned_layer {
    trf_tuning_key key;
    uint32_t num_points;
    trf_tuned_point points[TRF_TUNED_POINTS]; /* m ascending */
} trf_tuned_layer;

struct trf_tuning {
    char device[256]; /* as trf_context_info.name has it */
    uint32_t num_layers;
    trf_tuned_layer *layers;
};

/* A tuning for so many layers, all zeros. Errors: TRF_ERR_MEMORY. */
trf_status trf_tuning_create(const char *device, uint32_t num_layers, trf_tuning **tuning, trf_error *err);

trf_tuning_key trf_tuning_key_of(const trf_device_layer *layer);

/* How far apart two keys are: octaves of rows and columns, and raw bits; infinitely, if codec, classes or scale groups
 * differ. */
double trf_tuning_key_distance(const trf_tuning_key *a, const trf_tuning_key *b);

/* The path for a batch: of the layer whose key is the nearest (trf_tuning_key_distance). @return TRF_PATH_AUTO where
 * there is none, or for a batch beyond its last point. */
trf_path trf_tuned_path(const trf_tuning *tuning, const trf_tuning_key *key, uint32_t m);

/* The same by the table that the library brings along, for GPUs of this compute capability (10 * major + minor).
 * @return TRF_PATH_AUTO where it has none. */
trf_path trf_crossover_path(int capability, const trf_tuning_key *key, uint32_t m);

/* @return the path that the times speak for: the first of FUSED, WIDE and TWO_STEP that no other beats by 1 %; AUTO if
 * there are none. */
trf_path trf_fastest_path(const double microseconds[TRF_TUNED_PATHS]);

#endif

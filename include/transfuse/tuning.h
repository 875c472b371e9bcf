/* SPDX-License-Identifier: Apache-2.0 */
/* Tuning: which path is the fastest for a layer and a batch, measured on the device at hand. One needs it where the
 * table of crossovers that the library brings along does not know the device, or for the last few percent. Nothing is
 * timed but by trf_tuning_measure, and one file gives the same choices, and so the same bits of y, on every run.
 * Conventions: transfuse.h. */
#ifndef TRANSFUSE_TUNING_H
#define TRANSFUSE_TUNING_H

#include "../transfuse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* @return "auto", "fused", "two-step", "wide", "dense", "packed" or "?". */
TRF_API const char *trf_path_name(trf_path path);

/* How a plan of a packed layer runs on a GPU, for people to read. *kernel: "general"; "bulk-256" ... "bulk-32", where
 * a block has so many rows of W; "wgmma-64" ... "wgmma-256", where it has 128 and so many rows of x; "wgmma-192x96" ...
 * "wgmma-192x128", where it has 192. *cut: "stream-k", or the blocks of a cluster, "1" ... "8". Static strings. NULL of
 * other plans, and the cut of "general". */
TRF_API void trf_plan_get_kernel(const trf_plan *plan, const char **kernel, const char **cut);

/* The path for each batch of layers of a codec and shape, and the kernel of packed ones. It never changes. */
typedef struct trf_tuning trf_tuning;

/* It is called before each batch of each layer, by the thread that measures, with how many of these are done and how
 * many there are. Returning nonzero asks to stop. */
typedef int (*trf_tune_fn)(void *context, uint32_t done, uint32_t total);

typedef struct trf_tune_options {
    size_t struct_bytes;
    uint32_t max_m;       /* batches of 1, 2, 3, 4, 6, 8, 12 ... up to this one; default 8192, 2^20 at most */
    trf_dtype x_dtype;    /* of x for codecs that multiply either type, BF16 (default) or F16; y has x's */
    trf_tune_fn progress; /* or NULL */
    void *progress_context;
} trf_tune_options;

TRF_API void trf_tune_options_init(trf_tune_options *options);

/* Times every path that takes a layer, for each batch, as the median of 9 calls with the weights in no cache of a GPU.
 * For the packed path it times those kernels and cuts, 8 at most, that should take no more than 15 % longer than the
 * one that plans take without a tuning; another one has to be 1 % faster than that. Of layers with one codec, class
 * bits, raw bits and shape (in whole tiles), all with scale groups or scale blocks or all without, the first is
 * measured. layers is an array [num_layers] with layers of one context that are not a stack's; the device should have
 * nothing else to do. options may be NULL for the defaults. It takes device memory for max_m rows of x, of y, the
 * workspace, and twice the L2 cache; it allocates and waits. A batch that no path takes is left out. Errors:
 * TRF_ERR_CANCELLED; on the CPU TRF_ERR_RANS. */
TRF_API trf_status trf_tuning_measure(trf_device_layer *const *layers, uint32_t num_layers,
                                      const trf_tune_options *options, trf_tuning **tuning, trf_error *err);

/* Writes JSON (docs/guide.md), whole or not at all. Errors: TRF_ERR_EXISTS, TRF_ERR_IO. */
TRF_API trf_status trf_tuning_write(const trf_tuning *tuning, const char *path, int overwrite, trf_error *err);

/* Reads a file that trf_tuning_write wrote. Errors: TRF_ERR_NOT_FOUND, TRF_ERR_IO, TRF_ERR_FORMAT, TRF_ERR_VERSION (it
 * was written by another version of transfuse: measure again); messages name the file and the entry. */
TRF_API trf_status trf_tuning_read(const char *path, trf_tuning **tuning, trf_error *err);
TRF_API void trf_tuning_free(trf_tuning *tuning);

/* @return the path that it has for a product: that of the layer which is the nearest in shape and raw bits, among those
 * of the same layout, codec and class bits, with scale groups or scale blocks or without; TRF_PATH_AUTO if there is
 * none, or for a batch beyond those measured. Class bits and raw bits count for coded layers alone. */
TRF_API trf_path trf_tuning_path(const trf_tuning *tuning, const trf_device_layer *layer, uint32_t m);

/* Gives a context a copy of a tuning, or none with NULL. Plans with TRF_PATH_AUTO that are made from here on follow it;
 * a path that does not take a product after all gives way. All plans of packed layers take its kernel and cut on a GPU,
 * where these run, if it has a layer of nearly the same shape (the factors between their rows and between their
 * columns, multiplied, are at most the square root of 2): the bits of y may change with them. No other thread may use
 * the context meanwhile. Errors: TRF_ERR_DEVICE for a tuning that was measured on a device of another name. */
TRF_API trf_status trf_context_set_tuning(trf_context *context, const trf_tuning *tuning, trf_error *err);

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse: entropy-coded weights of large language models, decoded where they are used.
 *
 * The core of the library: encode and decode a layer, checkpoints, and y = x . W^T on a device from a compressed W.
 * C11, usable from C++ and through FFI. What fewer programs need stands in headers of its own:
 *   transfuse/device_memory.h   device memory without CUDA calls, look-ups of rows, other layouts, blobs
 *   transfuse/tuning.h   measuring which path is the fastest on this device
 *   transfuse/layouts.h  choosing each layer's layout within a memory
 *   transfuse/groups.h   layers that do not wait for each other in one launch
 *   transfuse/experts.h  mixtures of experts whose counts of tokens only the device knows
 *   transfuse/stacks.h   layers that are offloaded to host memory, for models larger than device memory
 *   transfuse/checkpoints.h   limits on what files may ask for, texts for what a report counts
 *   transfuse/cpu.h      the product on the CPU without a device layer, and threads
 * docs/guide.md has the long contracts: what corrupt data leads to, exactness, CUDA graphs, memory.
 *
 * Conventions, for every function here and in those headers:
 * - Sizes are bytes unless the name says otherwise. Matrices are row-major. Strings are UTF-8 and NUL-terminated.
 * - A function that can fail returns a trf_status and fills the caller's trf_error, which may be NULL. On failure
 *   outputs are unchanged, or NULL, and nothing is left behind. NULL for a pointer that must be there, and a value out
 *   of its documented range, are TRF_ERR_ARGUMENT everywhere; TRF_ERR_MEMORY (host or device) and TRF_ERR_CUDA can come
 *   from every call that allocates or uses a GPU. Comments name the other errors.
 * - Structs that the caller fills begin with `struct_bytes`, which their _init sets along with the defaults, so that
 *   they can grow: a program that was compiled against an older one works unchanged.
 * - The library never prints or exits, and keeps no pointer of the caller's beyond the call unless a comment says so.
 * - Functions that take a const object are thread-safe on it. Destroying NULL does nothing.
 * - "Device memory" is that of the context's device: a GPU's, or the process's own on the CPU. Work is ordered on
 *   `stream`. On a GPU a call that takes a stream returns before its work is done. It never allocates, synchronizes or
 *   reads back, and can be captured in a CUDA graph, except for trf_stack_acquire and the calls that go with it
 *   (transfuse/stacks.h). On the CPU streams are ignored, and calls are done when they return. */
#ifndef TRANSFUSE_H
#define TRANSFUSE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(TRF_BUILD_SHARED)
#define TRF_API __attribute__((visibility("default")))
#else
#define TRF_API
#endif

#define TRF_VERSION_MAJOR 0
#define TRF_VERSION_MINOR 2
#define TRF_VERSION_PATCH 0

/* @return the version of the library that runs, such as "0.2.0". While MAJOR is 0, versions of one MINOR are
 * compatible. */
TRF_API const char *trf_version(void);

/* ---- status ---- */

/* New values are appended, and none ever changes. 0 is success. trf_status_name gives the name of each. */
typedef enum trf_status {
    TRF_OK = 0,
    TRF_ERR_ARGUMENT = 1,     /* a parameter of the call is out of its documented range */
    TRF_ERR_MEMORY = 2,       /* an allocation failed */
    TRF_ERR_IO = 3,           /* the operating system refused to open, read, write, sync or rename */
    TRF_ERR_EXISTS = 4,       /* the output exists and overwriting was not asked for */
    TRF_ERR_NOT_FOUND = 5,    /* no such file or tensor */
    TRF_ERR_TRUNCATED = 6,    /* the data ends before what its header promises */
    TRF_ERR_MAGIC = 7,        /* not a layer blob */
    TRF_ERR_VERSION = 8,      /* a format version that this build does not read */
    TRF_ERR_HEADER = 9,       /* a header or extension field is out of range or contradicts another */
    TRF_ERR_TABLE = 10,       /* the frequencies do not add up, or one is too large */
    TRF_ERR_TILE = 11,        /* a tile's metadata or its slab table is out of range */
    TRF_ERR_CHECKSUM = 12,    /* stored and computed checksum differ */
    TRF_ERR_RANS = 13,        /* a lane's rANS words do not end where they must */
    TRF_ERR_FORMAT = 14,      /* a checkpoint or tuning file (safetensors, index, JSON) is malformed */
    TRF_ERR_UNSUPPORTED = 15, /* valid, but nothing that this build can do */
    TRF_ERR_MISMATCH = 16,    /* decoded weights differ from the ones they are compared with */
    TRF_ERR_SHAPE = 17,       /* shapes do not fit each other */
    TRF_ERR_DEVICE = 18,      /* no such device */
    TRF_ERR_CUDA = 19,        /* a CUDA call failed; trf_error.cuda holds its code */
    TRF_ERR_CANCELLED = 20,   /* the caller's progress callback asked to stop */
    TRF_ERR_LIMIT = 21,       /* what a file asks for is more than the caller's trf_limits allow */
    TRF_STATUS_COUNT = 22
} trf_status;

/* The offset of an error that lies at no byte of a file or blob. */
#define TRF_NO_OFFSET UINT64_MAX
typedef struct trf_error {
    trf_status status;
    int32_t cuda;       /* the cudaError_t where status is TRF_ERR_CUDA, else 0 */
    uint64_t offset;    /* byte offset in the file or blob at fault */
    char message[1024]; /* one line: file, tensor, offset, what was expected and what was found */
} trf_error;

/* @return the constant's name, such as "TRF_ERR_TABLE", or "TRF_ERR_?" for a value that is no status. Never NULL. */
TRF_API const char *trf_status_name(trf_status status);

/* ---- what a weight matrix is made of ---- */

/* The values are those of the format's header fields. */
typedef enum trf_dtype {
    TRF_DTYPE_NONE = 0,
    TRF_DTYPE_F32 = 1,
    TRF_DTYPE_F16 = 2,
    TRF_DTYPE_BF16 = 3,
    TRF_DTYPE_F8_E4M3 = 4,
    TRF_DTYPE_F8_E5M2 = 5,
    TRF_DTYPE_I8 = 6
} trf_dtype;

typedef enum trf_codec {
    /* In options only: the lossless codec for the source's dtype; F32 has none. */
    TRF_CODEC_AUTO = 0,
    TRF_CODEC_BF16 = 1,
    TRF_CODEC_FP16 = 2,
    TRF_CODEC_E4M3 = 3, /* also for BF16 weights that are E4M3 numbers times F32 scales: of the matrix, a row, or a
                         * block of 128 x 128. Lossless; the encoder finds the scales */
    TRF_CODEC_E5M2 = 4,
    TRF_CODEC_INT = 5
} trf_codec;

/* Which weights share a scale. */
typedef enum trf_granularity {
    TRF_GRANULARITY_NONE = 0,        /* there are no scales: the codes are the weights */
    TRF_GRANULARITY_TENSOR = 1,      /* all of them */
    TRF_GRANULARITY_CHANNEL = 2,     /* the weights of an output row */
    TRF_GRANULARITY_SCALE_GROUP = 3, /* scale_group_size weights along K */
    TRF_GRANULARITY_SCALE_BLOCK = 4  /* a square of scale_group_size rows and columns */
} trf_granularity;

typedef enum trf_favor {
    TRF_FAVOR_SPEED = 0, /* a decode step gives four weights */
    TRF_FAVOR_SIZE = 1   /* a decode step gives two weights, and the blob is smaller */
} trf_favor;

/* @return the safetensors name of a dtype, such as "BF16", or "?" for a value that is no dtype. */
TRF_API const char *trf_dtype_name(trf_dtype dtype);

/* @return the bytes of one element of a dtype, or 0 for a value that is no dtype. */
TRF_API size_t trf_dtype_bytes(trf_dtype dtype);

/* @return "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "int", "auto" or "?". */
TRF_API const char *trf_codec_name(trf_codec codec);

/* ---- one layer in host memory ---- */

/* A dense matrix in the caller's host memory, row-major [rows][cols]. */
typedef struct trf_matrix {
    size_t struct_bytes;
    const void *weights;
    trf_dtype dtype;
    uint32_t rows, cols;
} trf_matrix;

TRF_API void trf_matrix_init(trf_matrix *matrix);

/* How to encode. The defaults are lossless, favour speed, and use all cores. */
typedef struct trf_encode_options {
    size_t struct_bytes;
    trf_codec codec; /* AUTO is lossless for the dtype. F32 needs BF16, which rounds to nearest even, or INT */
    trf_favor favor;
    /* The bits that a weight takes in the whole blob, 2 to 8, where the codec int quantizes floats; 0 is absmax INT8.
     * The blob of a small or narrow matrix is larger: what its head, edges, and scales of rows or of groups that it
     * cuts take beyond 5 % of the bits is not taken from its codes. */
    double bits;
    trf_granularity granularity; /* where the codec int quantizes floats; NONE is a channel */
    uint32_t scale_group_size;   /* for SCALE_GROUP and SCALE_BLOCK: a multiple of 16, 16 to 2^20 */
    int threads;                 /* 0 is one for each core that the process may run on */
    int verify;                  /* decode and compare each tile before it is handed out; the default is 1 */
    uint32_t probability_bits;   /* 9 to 12; 0 is the encoder's choice */
    uint32_t slab_cols;          /* columns that are coded together, 128 or 256; 0 is the encoder's choice */
} trf_encode_options;

TRF_API void trf_encode_options_init(trf_encode_options *options);

/* What an encoding came to. */
typedef struct trf_layer_report {
    uint64_t weights;
    uint64_t source_bytes;
    uint64_t blob_bytes;
    uint64_t exceptions;
    /* Bits a weight: the order-0 entropy of the exponents, and the sign and mantissa bits; for int that of the codes.
     */
    double entropy_bits;
    double relative_rms_error; /* sqrt(sum (w - w')^2 / sum w^2); 0 for lossless codecs */
    double weight_energy;      /* sum w^2 of a lossy codec's source; 0 for lossless codecs */
    uint32_t predictor_modes;  /* those of all tiles, or-ed: 1 is exponent offsets of rows, 2 of columns */
} trf_layer_report;

/* Encodes a matrix. The caller releases *blob with trf_free. The bytes depend neither on options->threads nor on the
 * machine. options may be NULL for the defaults, and report may be NULL. Errors: TRF_ERR_ARGUMENT also for a dtype that
 * the codec does not take, or for BF16 weights that E4M3 does not; TRF_ERR_MISMATCH where the encoder's own check
 * fails. */
TRF_API trf_status trf_encode_layer(const trf_matrix *matrix, const trf_encode_options *options, void **blob,
                                    uint64_t *blob_bytes, trf_layer_report *report, trf_error *err);

TRF_API void trf_free(void *memory);

/* What a blob says of itself. */
typedef struct trf_layer_info {
    uint32_t rows, cols;
    trf_dtype dtype; /* the source's, which decoding gives back */
    trf_codec codec;
    uint32_t class_bits, raw_bits, probability_bits, state_bits /* L */, slab_cols;
    trf_granularity granularity;
    uint32_t scale_group_size;
    uint32_t predictor_modes; /* as in trf_layer_report */
    uint64_t blob_bytes, tiles, stored_tiles, exceptions;
} trf_layer_info;

/* A compressed layer in host memory, validated. */
typedef struct trf_layer trf_layer;

/* Wraps a blob and validates all of it. The blob is 16-byte aligned, stays the caller's, and must outlive the layer.
 * Errors: those of a malformed blob (TRF_ERR_TRUNCATED to TRF_ERR_RANS). */
TRF_API trf_status trf_layer_from_memory(const void *blob, uint64_t blob_bytes, trf_layer **layer, trf_error *err);

/* Maps a .trf file read-only and validates it. */
TRF_API trf_status trf_layer_open(const char *path, trf_layer **layer, trf_error *err);
TRF_API void trf_layer_free(trf_layer *layer);
TRF_API void trf_layer_get_info(const trf_layer *layer, trf_layer_info *info);

/* Decodes the whole layer to host memory of weights_bytes, row-major [rows][cols] in the layer's dtype. Lossless codecs
 * give the source's bits, and quantized floats come back dequantized and rounded once. threads: 0 is all cores.
 * Errors: TRF_ERR_SHAPE for another size; TRF_ERR_RANS, and then what has been written is unspecified. */
TRF_API trf_status trf_layer_decode(const trf_layer *layer, void *weights, uint64_t weights_bytes, int threads,
                                    trf_error *err);

/* ---- checkpoints: a .safetensors file, a model.safetensors.index.json, or a directory that holds either ---- */

/* How much a call may write, and hold in memory, for what files ask for: transfuse/checkpoints.h. */
typedef struct trf_limits trf_limits;

/* It is called now and then, from one thread at a time, with the tensor at work and bytes of the source checkpoint.
 * Returning nonzero asks to stop (TRF_ERR_CANCELLED). */
typedef int (*trf_progress_fn)(void *context, const char *tensor, uint64_t done_bytes, uint64_t total_bytes);

/* It is called with a line for the user: what stays uncompressed and why, what a config.json lacks, what will not load.
 * The calling thread calls it, during the call; line is valid until it returns. */
typedef void (*trf_note_fn)(void *context, const char *line);

typedef struct trf_checkpoint_options {
    size_t struct_bytes;
    /* For compressing; encode.threads is for all calls. The codecs E4M3 and E5M2 each stand for both: every FP8 tensor
     * takes its own. With them and with AUTO, BF16 takes E4M3 where it is FP8 that was dequantized, else BF16; a tensor
     * of experts takes E4M3 if all of its matrices are that. The codec BF16 looks for nothing. */
    trf_encode_options encode;
    /* For compressing: globs of the tensors to compress, NULL-terminated, each of which has to match a tensor's name.
     * NULL is the usual choice. */
    const char *const *include;
    const char *const *exclude; /* globs of the tensors to leave as they are, in the same way, or NULL */
    int overwrite;              /* replace an existing output, atomically */
    trf_progress_fn progress;   /* or NULL */
    void *progress_context;
    int embeddings; /* compress embeddings and an output layer tied to them, too, where `include` is NULL */
    /* Compress what cannot be loaded afterwards, too: quantized checkpoints and adapters. They are compressed bit for
     * bit, and have to be decompressed before they are loaded. */
    int store_only;
    /* Write nothing; the output's path may be NULL then. Compressing estimates the report's sizes from a sample of each
     * tensor, and decompressing counts them, and does not look at blobs. */
    int dry_run;
    /* Globs of files that compressing and decompressing leave out, and verifying does not compare, by their path below
     * the folder ("original" takes all that is below it), NULL-terminated; or NULL. Files that the checkpoint consists
     * of are never left out. */
    const char *const *skip_extra;
    trf_note_fn note; /* or NULL */
    void *note_context;
    /* For compressing: if the call ends early, keep what is encoded beside the output; and go on from what such a call
     * has left, if it had the same input (names, sizes, times and headers of its files), options and version. Else it
     * begins anew, and a note says why. The bytes of the output are the same either way. */
    int resume;
    const trf_limits *limits; /* or NULL: none; read during the call */
} trf_checkpoint_options;

TRF_API void trf_checkpoint_options_init(trf_checkpoint_options *options);

/* Why a tensor stayed as it was. */
typedef enum trf_left_reason {
    TRF_LEFT_NO_MATRIX = 0,   /* it is neither 2-D nor 3-D */
    TRF_LEFT_SMALL = 1,       /* a side is below 16 */
    TRF_LEFT_EMBEDDING = 2,   /* embeddings, without options.embeddings */
    TRF_LEFT_TIED = 3,        /* an output layer tied to them */
    TRF_LEFT_F32 = 4,         /* F32 has no lossless codec, unless every weight is a BF16 number */
    TRF_LEFT_DTYPE = 5,       /* its type does not go with the codec, or there is no codec for it */
    TRF_LEFT_SIDE_TABLE = 6,  /* scales and zero points of quantized weights, which other programs read */
    TRF_LEFT_EXCLUDED = 7,    /* options.exclude, or options.include without it */
    TRF_LEFT_NOT_SMALLER = 8, /* its blob, or the whole file, would not be smaller */
    TRF_LEFT_ADAPTER = 9,     /* of an adapter that lies beside a model, which other programs read */
    TRF_LEFT_COUNT = 10
} trf_left_reason; /* transfuse/checkpoints.h has a text for each */

typedef struct trf_left_tensors {
    uint64_t tensors, bytes;
} trf_left_tensors;

/* Totals over a checkpoint, or over all models of a pipeline. */
typedef struct trf_checkpoint_report {
    uint64_t tensors, compressed_tensors;
    uint64_t source_bytes;            /* what all tensors take uncompressed */
    uint64_t output_bytes;            /* what they take as the compressed checkpoint holds them */
    uint64_t compressed_source_bytes; /* what the tensors that are compressed take uncompressed ... */
    uint64_t compressed_bytes;        /* ... and compressed */
    uint64_t compressed_weights;
    uint64_t rounded_tensors; /* F32 tensors that the codec bf16 rounded */
    /* Over the weights that a lossy codec took; a dry run's is that of a sample of them, and so an estimate. 0 if every
     * codec was lossless. INFINITY where a finite weight has become infinite, as F32 beyond BF16's range does, or one
     * that is no zero where the source has zeros alone. */
    double relative_rms_error;
    uint64_t peak_buffer_bytes; /* largest sum of the library's own buffers, as far as it counts them */
    char warning[1024];         /* the lines that options.note gets, newlines between them, as many as fit; or "" */
    uint64_t models;            /* 1, or those of a pipeline */
    uint64_t widened_tensors;   /* F32 tensors every weight of which is a BF16 number: compressed without loss */
    uint64_t source_file_bytes, output_file_bytes; /* of whole files: all that are compressed or carried over */
    uint64_t extra_files, extra_bytes;     /* those of them that hold weights and were carried over uncompressed */
    uint64_t skipped_files, skipped_bytes; /* not carried over: options.skip_extra, .git, and caches of downloads */
    trf_left_tensors left[TRF_LEFT_COUNT]; /* compress: tensors that stay as they were, by trf_left_reason */
    uint64_t compared_files;               /* verify: files besides the tensors' that are equal to the source's ... */
    uint64_t added_files;                  /* ... and those that the source does not have */
    /* compress: BF16 tensors that were found to be FP8 E4M3 times scales, and are coded as that, by trf_granularity;
     * blocks are of 128 x 128. A tensor of experts counts if one of them is. */
    uint64_t scaled_fp8_tensors[TRF_GRANULARITY_SCALE_BLOCK + 1];
    /* compress: tensors of FP8 E4M3 with scales, by trf_granularity, and the side of their blocks, or 0. They are
     * stored so that loading gives BF16 weights, and decompressing the source's codes. */
    uint64_t source_fp8_tensors[TRF_GRANULARITY_SCALE_BLOCK + 1];
    uint64_t source_fp8_block;
    uint64_t side_tables;        /* tensors of scales beside FP8 weights, which only decompressing gives back ... */
    uint64_t unused_side_tables; /* ... and those of them that are not of weights: no product uses them */
    uint64_t side_table_bytes;   /* what they take uncompressed; without a checksum of them a note says so */
    uint64_t differing_tensors;  /* verify: tensors that agree with the source, but not in every bit */
} trf_checkpoint_report;

/* Compresses the checkpoint at in_path to out_path, of the same kind: file to file, directory to directory (an index
 * stands for its directory). Matrices and 3-D tensors of experts become blobs; embeddings, tensors tied to them, F32
 * tensors that are more than BF16 and all else are copied unless `include` asks for them, and so are other files of a
 * directory; config.json gets what FORMAT.md, section 10, says. Of a pipeline (a directory with a model_index.json)
 * each model is compressed. A file that would not become smaller stays as it is. Unless encode.verify is 0, each file
 * is read back, decoded and compared with its source before anything appears under out_path; with the codec int on
 * floats each tile is compared as it is encoded, and its checksum is looked at when it is read back. FP8 E4M3 weights
 * with scales of a model whose config.json names them, such as DeepSeek's, become blobs of BF16 weights, and their
 * scales are kept for decompressing. options, report: may be NULL.
 * Errors: TRF_ERR_NOT_FOUND (also what `include` or `exclude` does not find), _EXISTS, _IO (also too little space),
 * _FORMAT (also for blobs under names that do not say so), _CANCELLED, _MISMATCH; _UNSUPPORTED for what nothing could
 * load afterwards, unless options.store_only; _ARGUMENT also where dtype and codec do not fit for a tensor that
 * `include` names. */
TRF_API trf_status trf_compress_checkpoint(const char *in_path, const char *out_path,
                                           const trf_checkpoint_options *options, trf_checkpoint_report *report,
                                           trf_error *err);

/* The inverse: the source's tensors, names and metadata; for lossless codecs bit for bit, and the file byte for byte
 * where its layout was canonical; config.json byte for byte. A .trf file becomes a safetensors file of one tensor named
 * "weight". Errors: as trf_compress_checkpoint, those of blobs; TRF_ERR_FORMAT also where the source's config.json or
 * index cannot be restored. */
TRF_API trf_status trf_decompress_checkpoint(const char *in_path, const char *out_path,
                                             const trf_checkpoint_options *options, trf_checkpoint_report *report,
                                             trf_error *err);

/* Checks every blob of a compressed checkpoint or .trf file and decodes every tile; with against_path (or NULL) also
 * compares every tensor with the source checkpoint: bit for bit; for the int codec on floats it reports the error. The
 * other files are compared as decompressing would give them back; a note names those that the source does not have.
 * Errors: those of blobs; TRF_ERR_FORMAT also for blobs under names that do not say so, and where the source's
 * config.json or index cannot be restored; TRF_ERR_MISMATCH naming tensor, row and column, or files; TRF_ERR_NOT_FOUND
 * (a tensor or a file is missing). */
TRF_API trf_status trf_verify_checkpoint(const char *path, const char *against_path,
                                         const trf_checkpoint_options *options, trf_checkpoint_report *report,
                                         trf_error *err);

/* A checkpoint opened for listing and loading; compressed or not, or a .trf file (one tensor, "weight"). */
typedef struct trf_checkpoint trf_checkpoint;

/* Pointers are the checkpoint's. */
typedef struct trf_tensor_info {
    const char *name;      /* the source's name, without _trf */
    const char *file;      /* path of the file that holds it */
    const char *dtype;     /* the source's safetensors dtype string; of FP8 with scales layer.dtype is BF16 */
    const uint64_t *shape; /* the source's */
    uint32_t num_dims;
    int compressed;
    uint64_t source_bytes; /* uncompressed */
    uint64_t bytes;        /* in this checkpoint */
    uint64_t file_offset;  /* of its first byte in `file` */
    uint64_t blobs;        /* 0 if not compressed; 1, or the number of experts */
    trf_layer_info layer;  /* of the first blob; exceptions, tiles, stored_tiles and blob_bytes summed over all */
    int is_bare_blob;      /* begins as blobs do, though neither name nor file says so: a broken checkpoint */
} trf_tensor_info;

TRF_API trf_status trf_checkpoint_open(const char *path, trf_checkpoint **checkpoint, trf_error *err);
TRF_API void trf_checkpoint_close(trf_checkpoint *checkpoint);
TRF_API uint64_t trf_checkpoint_num_tensors(const trf_checkpoint *checkpoint);

/* index < num_tensors, in order of the files, without side tables. Errors: those of a malformed blob's head. */
TRF_API trf_status trf_checkpoint_tensor(trf_checkpoint *checkpoint, uint64_t index, trf_tensor_info *info,
                                         trf_error *err);

/* Writes one compressed tensor's blob as a .trf file, after validating it. tensor: the source's name, with or without
 * _trf; an expert of a 3-D tensor is "name[3]". In a pipeline it may begin with the part, as "vae/name", and has to
 * where several parts have one of the name. */
TRF_API trf_status trf_extract_layer(const char *in_path, const char *tensor, const char *out_path, int overwrite,
                                     trf_error *err);

/* ---- devices: a GPU (CUDA), or the CPU behind the same calls ---- */

/* cudaStream_t. */
typedef struct CUstream_st *trf_stream;

/* In place of a CUDA ordinal. */
enum {
    TRF_DEVICE_CPU = -1,
    TRF_DEVICE_AUTO = -2 /* CUDA device 0, or the CPU where that would be TRF_ERR_DEVICE */
};

/* One device, and what layers on it share: limits, cuBLASLt if it is found, the staging memory and threads of loads. It
 * is thread-safe after creation, and must outlive its layers. A GPU that is lost is lost to the process
 * (docs/guide.md). */
typedef struct trf_context trf_context;

typedef struct trf_context_info {
    int device;     /* CUDA ordinal, or TRF_DEVICE_CPU */
    int capability; /* compute capability, 90 for 9.0; 0 on the CPU */
    char name[256]; /* such as "NVIDIA H200" */
} trf_context_info;

/* device is a CUDA ordinal, or one of the constants above. Errors: TRF_ERR_DEVICE, but not with AUTO, where the build
 * has no device code, there is no such device or no driver, or its compute capability is below 8.0. A GPU that is there
 * and fails is TRF_ERR_CUDA, also with AUTO. */
TRF_API trf_status trf_context_create(int device, trf_context **context, trf_error *err);
TRF_API void trf_context_destroy(trf_context *context);
TRF_API void trf_context_get_info(const trf_context *context, trf_context_info *info);

/* ---- a compressed layer in device memory ---- */

typedef struct trf_device_layer trf_device_layer;

/* How the weights lie in device memory (docs/guide.md has what each costs). More are to come. */
typedef enum trf_layout {
    TRF_LAYOUT_CODED = 0, /* entropy coded, as in the blob */
    TRF_LAYOUT_PLAIN = 1, /* decoded once, when they are loaded; the codecs bf16 and fp16 */
    /* In fields of fixed width; the codec bf16. FP8 (E4M3 codes, with scales or without) becomes PACKED8 where that
     * takes it, so that this may also give a layer of the layout PACKED8. */
    TRF_LAYOUT_PACKED = 2,
    TRF_LAYOUT_PACKED8 = 3 /* FP8 codes, and constants for each 64x128 of them; refuses what is no FP8 */
} trf_layout;

/* Rows [first, first + count) of a matrix. */
typedef struct trf_row_range {
    uint32_t first, count;
} trf_row_range;

/* Device memory that the caller supplies for a layer, as large as trf_device_layer_get_size says, or for a tensor of a
 * checkpoint trf_device_layer_get_load_size (transfuse/device_memory.h). Both parts are 256-byte aligned; on the CPU
 * the buffer is 16-byte aligned, and the directory, of no bytes (as without coding), is not looked at. No work under
 * way may use it when it is passed, since a stream of the library's writes it. It must stay, and be written by nobody,
 * while the layer lives and work that uses the layer is under way. */
typedef struct trf_layer_memory {
    /* Coded: the blob. Plain: a head of 256 bytes, and weights, row-major [rows][cols] in 16 bits each. */
    void *buffer;
    uint64_t buffer_bytes;
    void *directory; /* of a coded layer: where tiles and slabs lie, and what decoding needs beside the blob */
    uint64_t directory_bytes;
} trf_layer_memory;

/* How to load. The defaults are the whole matrix, coded, in the library's memory, by all cores, without progress. */
typedef struct trf_load_options {
    size_t struct_bytes;
    trf_layout layout;
    /* A shard for tensor parallelism: these rows and columns alone, in multiples of 16. 0 rows or columns mean to the
     * end, which need not be a multiple of 16. Only the tiles of 256x256 that the shard touches are read, checked and
     * kept. Where a coded shard does not begin and end at multiples of 256, or with the matrix, products take a copy of
     * x or y, and trf_device_layer_decode refuses it. Plain and packed shards have their rows and columns alone. */
    uint32_t first_row, num_rows, first_col, num_cols;
    /* Several ranges of rows in place of first_row and num_rows, one after the other, in any order, none twice: for
     * example a part of q, k and v that are stored as one matrix. Two or more ranges have to begin and end at multiples
     * of 256, or with the matrix. Others are TRF_ERR_UNSUPPORTED: load each as a layer of its own, and let them write
     * into one y (trf_plan_options). A single range is the shard of its rows, as by first_row and num_rows. */
    const trf_row_range *row_ranges;
    uint32_t num_row_ranges;
    int buffer_is_on_device; /* what trf_device_layer_create and _get_size are given is in device memory */
    trf_layer_memory memory; /* the caller's, for trf_device_layer_create and _load; zeros: the library allocates */
    int threads;             /* the threads that read and check the blob; 0 is one for each core */
    trf_progress_fn
        progress; /* or NULL; the thread that loads calls it, with the bytes of the tiles that it has read */
    void *progress_context;
    int packed_bf16;          /* PACKED is packed BF16, of FP8 as well */
    const trf_limits *limits; /* or NULL: those of the checkpoint, if there is one; read during the call */
} trf_load_options;

TRF_API void trf_load_options_init(trf_load_options *options);

/* Bytes of trf_layer_memory that a layer takes. */
typedef struct trf_layer_size {
    /* A whole coded layer takes exactly the blob's bytes, and a shard those of a blob of its own. For a packed layer
     * it is the most that one of its shape can take: what it did take is its memory_bytes, and nothing after that is
     * used. */
    uint64_t buffer_bytes;
    uint64_t directory_bytes; /* 0 on the CPU, and of layers that are not coded */
} trf_layer_size;

/* Says what memory a layer will take with these options (NULL: the defaults). buffer is that of
 * trf_device_layer_create. The tiles of a shard that cuts tiles of float weights are read and checked. Errors: those of
 * a malformed blob's head. */
TRF_API trf_status trf_device_layer_get_size(const trf_context *context, const void *buffer, uint64_t buffer_bytes,
                                             const trf_load_options *options, trf_layer_size *size, trf_error *err);

/* Makes a layer from a buffer, and validates the head and the tiles that are loaded. The buffer is a blob in host
 * memory, 16-byte aligned, which is not needed afterwards. With options->buffer_is_on_device it is a blob in device
 * memory, aligned as trf_layer_memory, which is read back to be checked. Where all of that is loaded, and
 * options->memory.buffer is NULL or the same, it is used where it lies, and must stay. With the layout PLAIN, PACKED
 * or PACKED8 it may also be a copy of the whole buffer of such a layer, which is used in the same way. When the call
 * returns any stream may use the layer. options may be NULL for the defaults. Errors: those of a malformed blob;
 * TRF_ERR_ARGUMENT also for memory that is too small or misaligned; TRF_ERR_UNSUPPORTED (row_ranges, a codec that the
 * layout does not take, weights that cannot be packed, on a GPU a blob of more than 512 GiB); for PLAIN and PACKED
 * TRF_ERR_RANS (a tile that does not decode); TRF_ERR_CANCELLED. */
TRF_API trf_status trf_device_layer_create(trf_context *context, const void *buffer, uint64_t buffer_bytes,
                                           const trf_load_options *options, trf_device_layer **layer, trf_error *err);

/* Loads a compressed tensor of a checkpoint to the library's memory, or to options->memory, whose content is
 * unspecified after a failure. tensor is the source's name, with or without _trf; an expert of a 3-D tensor is
 * "name[3]". The checkpoint may be closed afterwards. Several threads may load from one checkpoint to one context at
 * once. On the CPU the file is mapped while a coded layer lives, unless a shard or options->memory was asked for.
 * Errors: as trf_device_layer_create; TRF_ERR_NOT_FOUND (no such tensor or expert), TRF_ERR_ARGUMENT (not compressed; a
 * tensor of experts, and no expert named), TRF_ERR_IO, TRF_ERR_TRUNCATED (a file that was cut). Messages name file and
 * tensor, offsets count from the file's first byte. */
TRF_API trf_status trf_device_layer_load(trf_context *context, trf_checkpoint *checkpoint, const char *tensor,
                                         const trf_load_options *options, trf_device_layer **layer, trf_error *err);

/* Waits for the device, unless all of the layer's memory is the caller's, who then keeps it until the work that uses it
 * is done; such a layer may be destroyed while a stream captures a graph. The layer's plans must be gone by then. */
TRF_API void trf_device_layer_destroy(trf_device_layer *layer);

typedef struct trf_device_layer_info {
    trf_layer_info layer;  /* rows and cols: the shard's */
    trf_layout layout;     /* also PACKED8 where PACKED was asked for */
    uint64_t memory_bytes; /* the device memory that it takes, the caller's included */
    uint32_t plans;        /* how many have been created and not yet destroyed */
} trf_device_layer_info;

TRF_API void trf_device_layer_get_info(const trf_device_layer *layer, trf_device_layer_info *info);

/* What trf_device_layer_decode writes for each weight. */
typedef enum trf_decode_as {
    TRF_DECODE_SOURCE = 0,   /* the source's dtype, as trf_layer_decode */
    TRF_DECODE_ELEMENTS = 1, /* 16 bits: the bit pattern of a float codec's element, or the signed code */
    TRF_DECODE_BF16 = 2,     /* the value rounded once; exact for bf16, fp8, and codes within +-256 without scales */
    TRF_DECODE_F16 = 3       /* the value rounded once; exact for fp16, fp8, and codes without scales */
} trf_decode_as;

/* Decodes the whole layer to device memory of weights_bytes, row-major [rows][cols], 16-byte aligned. Corrupt slabs,
 * which validation cannot see, become NaN, or zero where integers are written (trf_device_layer_check). On the CPU the
 * call fails with TRF_ERR_RANS then, and what it has written is unspecified.
 * Errors: TRF_ERR_SHAPE (size), TRF_ERR_UNSUPPORTED (BF16 or F16 of the other 16-bit float codec; a coded shard that
 * does not begin and end at multiples of 256 or with the matrix: trf_decode_rows takes it). */
TRF_API trf_status trf_device_layer_decode(const trf_device_layer *layer, trf_decode_as as, void *weights,
                                           uint64_t weights_bytes, trf_stream stream, trf_error *err);

/* Waits for the device, and says whether any call since creation met a corrupt tile: TRF_ERR_RANS, whose message names
 * the tile, and whose offset is its place in the blob, or among a shard's own tiles. The fault stays. Only coded layers
 * can have one. */
TRF_API trf_status trf_device_layer_check(const trf_device_layer *layer, trf_error *err);

/* ---- products ---- */

/* How y = x . W^T is computed. */
typedef enum trf_path {
    /* The context's tuning decides, or else a table that the library brings along: the GPU's own, or that of the most
     * similar GPU of its generation. Where neither says anything it is FUSED if that takes the product, else TWO_STEP,
     * and PACKED for packed layers. These have PACKED, too, where the product has an epilogue, or y is F16. */
    TRF_PATH_AUTO = 0,
    /* A coded layer is decoded inside the product. On a GPU m is TRF_FUSED_MAX_M at most, and docs/guide.md says which
     * layers it takes; where TWO_STEP is not possible AUTO takes it for a larger m, too, in passes of so many rows,
     * each of which decodes the layer again. On the CPU it is the only path, for every m. */
    TRF_PATH_FUSED = 1,
    /* A coded or packed layer is decoded to the workspace, then multiplied by cuBLASLt. The CPU does not have it. */
    TRF_PATH_TWO_STEP = 2,
    TRF_PATH_WIDE = 3,  /* decoded inside a product of warpgroups, for every m: compute capability 9.0, not bf16 */
    TRF_PATH_DENSE = 4, /* the only path of plain layers: cuBLASLt, and dot products on the CPU */
    TRF_PATH_PACKED = 5 /* for packed layers and every m; on the CPU they have no other */
} trf_path;

enum {
    TRF_FUSED_MAX_M = 64 /* rows of x, on a GPU */
};

/* What is applied to x . W^T + bias, in F32. The error is at most 2^-20 of the value plus 2^-145. All but NONE give 0
 * for -infinity. */
typedef enum trf_activation {
    TRF_ACTIVATION_NONE = 0,
    TRF_ACTIVATION_SILU = 1,     /* v / (1 + exp(-v)) */
    TRF_ACTIVATION_GELU = 2,     /* v / 2 * (1 + erf(v / sqrt(2))) */
    TRF_ACTIVATION_GELU_TANH = 3 /* v / 2 * (1 + tanh(sqrt(2 / pi) * (v + 0.044715 v^3))) */
} trf_activation;

/* What a plan fixes. The defaults are m 1, the path AUTO, no epilogue, and rows without gaps; the types have to be set.
 */
typedef struct trf_plan_options {
    size_t struct_bytes;
    uint32_t m;        /* rows of x and y, at least 1 */
    trf_dtype x_dtype; /* BF16 for bf16 and FP8 of BF16 weights, F16 for fp16, either for others */
    trf_dtype y_dtype; /* BF16, F16 or F32 */
    trf_path path;
    trf_activation activation;
    int has_bias, has_multiplier, has_residual; /* operands that calls will have */
    /* Leading dimensions: elements from a row to the next, at least the layer's rows and below 2^32. 0 is the layer's
     * rows. With these several layers can write side by side into one wider y. */
    uint64_t y_stride, multiplier_stride, residual_stride;
} trf_plan_options;

TRF_API void trf_plan_options_init(trf_plan_options *options);

/* A prepared product of one layer. It never changes, so that several threads may use it at once, with workspaces of
 * their own. */
typedef struct trf_plan trf_plan;

/* Prepares a product, and does not touch the device. The layer counts its plans, and must outlive them. Errors:
 * TRF_ERR_UNSUPPORTED where the path that was asked for does not take the product, or with AUTO none does; the message
 * says why. */
TRF_API trf_status trf_plan_create(trf_device_layer *layer, const trf_plan_options *options, trf_plan **plan,
                                   trf_error *err);
TRF_API void trf_plan_destroy(trf_plan *plan); /* waits for nothing */

typedef struct trf_plan_info {
    uint32_t m;
    trf_dtype x_dtype, y_dtype;
    trf_path path;            /* the one that runs, never AUTO */
    const char *path_name;    /* "fused", "two-step", "wide", "dense" or "packed": a static string */
    const char *reason;       /* why not FUSED, and whether a tuning has chosen: a static string; NULL if FUSED */
    uint64_t workspace_bytes; /* the device memory that trf_linear needs */
} trf_plan_info;

TRF_API void trf_plan_get_info(const trf_plan *plan, trf_plan_info *info);

/* The pointers of one product. They point to device memory with elements of the plan's types, aligned to these. */
typedef struct trf_operands {
    size_t struct_bytes;
    const void *x; /* [m][cols]; it overlaps nothing else */
    void *y;       /* [m] rows, y_stride apart */
    /* NULL if and only if the plan has none. */
    const void *bias;       /* [rows] of y's dtype; it does not overlap y */
    const void *multiplier; /* [m] rows of y's dtype, multiplier_stride apart; it does not overlap y, or is y itself */
    const void *residual;   /* [m] rows of y's dtype, residual_stride apart; it does not overlap y, or is y itself */
} trf_operands;

TRF_API void trf_operands_init(trf_operands *operands);

/* Computes y = activation(x . W^T + bias) * multiplier + residual, accumulated in F32 and rounded once to y's dtype. A
 * multiplier or residual that is y, with its stride, is overwritten in place. workspace is device memory, 256-byte
 * aligned, of the plan's workspace_bytes or more (NULL if these are 0), which one call at a time may use; it needs no
 * preparation. Every run of a plan with operands of one alignment gives the same bits (docs/guide.md has the exactness
 * of each path). A corrupt slab makes its rows of y NaN, possibly its neighbours' in the tile (trf_device_layer_check).
 * On the CPU all of y is NaN then, and the call returns TRF_ERR_RANS.
 * Errors: TRF_ERR_ARGUMENT for operands other than the plan's, misaligned, or overlapping y in another way;
 * TRF_ERR_UNSUPPORTED (TWO_STEP: cuBLASLt has no algorithm for such alignments). */
TRF_API trf_status trf_linear(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                              trf_error *err);

#ifdef __cplusplus
}
#endif
#endif

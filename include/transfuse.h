/* transfuse: entropy-coded weights of large language models, decoded where they are used.
 *
 * The one public header. C11, usable from C++ and through FFI.
 * Conventions: sizes are bytes unless the name says otherwise; matrices are row-major; strings are UTF-8 and
 * NUL-terminated; every function that can fail returns a trf_status and fills the caller-owned trf_error, which may
 * be NULL. The library never prints, never exits, and never keeps a pointer to memory that the caller passed in
 * beyond the call, unless a declaration says so. */
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

/* Values are append-only; 0 is success. trf_status_name gives the string of each. */
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
    TRF_ERR_TABLE = 10,       /* the frequency table is not one */
    TRF_ERR_TILE = 11,        /* a tile's metadata or its slab table is out of range */
    TRF_ERR_CHECKSUM = 12,    /* stored and computed checksum differ */
    TRF_ERR_RANS = 13,        /* a lane's rANS stream does not end where it must */
    TRF_ERR_FORMAT = 14,      /* a checkpoint or array file (safetensors, index, npy) is malformed */
    TRF_ERR_UNSUPPORTED = 15, /* valid, but nothing that this build can do */
    TRF_ERR_MISMATCH = 16,    /* decoded weights differ from the ones they are compared with */
    TRF_ERR_SHAPE = 17,       /* shapes do not fit each other */
    TRF_ERR_DEVICE = 18,      /* no such device */
    TRF_ERR_CUDA = 19,        /* a CUDA call failed; trf_error.cuda holds its code */
    TRF_ERR_CANCELLED = 20,   /* the caller's progress callback asked to stop */
    TRF_STATUS_COUNT = 21
} trf_status;

/* Where offset does not apply it is TRF_NO_OFFSET. */
#define TRF_NO_OFFSET UINT64_MAX
typedef struct trf_error {
    trf_status status;
    int32_t cuda;       /* cudaError_t of a TRF_ERR_CUDA, else 0 */
    uint64_t offset;    /* byte offset in the file or blob at fault */
    char message[1024]; /* one line: file, tensor, offset, what was expected and what was found */
} trf_error;

/* @return the constant's name, such as "TRF_ERR_TABLE"; "TRF_ERR_?" for a value that is none. Never NULL. */
TRF_API const char *trf_status_name(trf_status status);

/* ---- what a weight matrix is made of ---- */

/* Values are those of the format's header fields. */
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
    TRF_CODEC_AUTO = 0, /* options only: the lossless codec of the source's dtype (none for F32) */
    TRF_CODEC_BF16 = 1,
    TRF_CODEC_FP16 = 2,
    TRF_CODEC_E4M3 = 3,
    TRF_CODEC_E5M2 = 4,
    TRF_CODEC_INT = 5
} trf_codec;

typedef enum trf_granularity {
    TRF_GRANULARITY_NONE = 0, /* no scales: the codes are the weights */
    TRF_GRANULARITY_TENSOR = 1,
    TRF_GRANULARITY_CHANNEL = 2,     /* a scale for each output row */
    TRF_GRANULARITY_SCALE_GROUP = 3, /* for each scale_group_size weights along K */
    TRF_GRANULARITY_BLOCK = 4        /* for each scale_group_size x scale_group_size block */
} trf_granularity;

typedef enum trf_favor {
    TRF_FAVOR_SPEED = 0, /* quads: four weights a decode step */
    TRF_FAVOR_SIZE = 1   /* pairs: two */
} trf_favor;

/* @return bytes of one element of a dtype; 0 for a value that is none. */
TRF_API size_t trf_dtype_bytes(trf_dtype dtype);

/* @return the safetensors name of a dtype, such as "BF16"; "?" for a value that is none. */
TRF_API const char *trf_dtype_name(trf_dtype dtype);

/* @return "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "int", "auto" or "?". */
TRF_API const char *trf_codec_name(trf_codec codec);

/* ---- one layer in memory ---- */

/* How to encode. trf_encode_options_init sets the defaults (lossless, favouring speed). */
typedef struct trf_encode_options {
    trf_codec codec; /* AUTO: lossless for the dtype; F32 needs BF16 (rounds to nearest even) or INT */
    trf_favor favor;
    /* int codec on float weights: bits a weight of the whole blob, 2..8; 0 = absmax INT8. Of a small or narrow matrix
     * the blob is larger: what its head, scales of rows and edges take beyond 5 % of the bits is not taken from its
     * codes. */
    double bits;
    trf_granularity granularity; /* int codec on float weights; NONE = channel */
    uint32_t scale_group_size;   /* of SCALE_GROUP and BLOCK: a multiple of 16, 16..2^20 */
    int threads;                 /* 0 = one for each core that the process may run on */
    int verify;                  /* decode and compare each tile before it is handed out; default 1 */
    uint32_t probability_bits;   /* 9..12; 0 = the encoder's choice */
    uint32_t slab_cols;          /* columns that are coded together: 128 or 256; 0 = the encoder's choice */
} trf_encode_options;

TRF_API void trf_encode_options_init(trf_encode_options *options);

/* What an encoding came to. */
typedef struct trf_layer_report {
    uint64_t weights;
    uint64_t source_bytes;
    uint64_t blob_bytes;
    uint64_t exceptions;
    double entropy_bits; /* bits a weight: order-0 entropy of the classes' source (exponents or codes) + raw bits */
    double relative_rms_error; /* sqrt(sum (w - w')^2 / sum w^2); 0 for lossless codecs */
    double weight_energy;      /* sum w^2 of a lossy codec's source; 0 for lossless codecs */
    uint32_t predictor_modes;
} trf_layer_report;

/* Encodes a matrix in memory. weights: host, row-major [rows][cols] of `dtype`. On success *blob (malloc'd; release
 * with trf_free) and *blob_bytes are set; on failure neither is. report may be NULL.
 * The bytes do not depend on options->threads. Thread-safe.
 * Errors: TRF_ERR_ARGUMENT (bad option, dtype that the codec does not take, no rows or columns), TRF_ERR_MEMORY,
 * TRF_ERR_MISMATCH (the encoder's own check failed). */
TRF_API trf_status trf_encode_layer(const void *weights, trf_dtype dtype, uint32_t rows, uint32_t cols,
                                    const trf_encode_options *options, void **blob, uint64_t *blob_bytes,
                                    trf_layer_report *report, trf_error *err);

TRF_API void trf_free(void *memory);

/* What a blob says of itself. */
typedef struct trf_layer_info {
    uint32_t rows, cols;
    trf_dtype dtype; /* of the source, and of what decoding gives back */
    trf_codec codec;
    uint32_t class_bits, raw_bits, probability_bits, state_bits, slab_cols;
    trf_granularity granularity;
    uint32_t scale_group_size;
    uint32_t predictor_modes;
    uint64_t blob_bytes, tiles, stored_tiles, exceptions;
} trf_layer_info;

/* A compressed layer on the host. */
typedef struct trf_layer trf_layer;

/* Wraps a blob in memory; the memory stays the caller's and must outlive the layer, 16-byte aligned. Validates all of
 * it. Errors: those of a malformed blob (TRF_ERR_TRUNCATED..TRF_ERR_CHECKSUM), TRF_ERR_MEMORY. */
TRF_API trf_status trf_layer_from_memory(const void *blob, uint64_t blob_bytes, trf_layer **layer, trf_error *err);

/* Maps a .trf file read-only and validates it. */
TRF_API trf_status trf_layer_open(const char *path, trf_layer **layer, trf_error *err);

TRF_API void trf_layer_free(trf_layer *layer); /* NULL is allowed */
TRF_API void trf_layer_get_info(const trf_layer *layer, trf_layer_info *info);

/* Decodes the whole layer. weights: host, row-major [rows][cols] of the layer's dtype, weights_bytes large.
 * Lossless codecs give the source's bits; the int codec on floats the dequantized weights, rounded once.
 * threads: 0 = all cores. Thread-safe on one layer. Errors: TRF_ERR_SHAPE (size), TRF_ERR_RANS, TRF_ERR_MEMORY. */
TRF_API trf_status trf_layer_decode(const trf_layer *layer, void *weights, uint64_t weights_bytes, int threads,
                                    trf_error *err);

/* y[m][rows] = x[m][cols] . W^T on the CPU, decoding tile by tile; the matrix is never held whole.
 * x, y: host, F32, row-major. Results do not depend on threads. Errors: as trf_layer_decode; TRF_ERR_ARGUMENT if m <
 * 1. */
TRF_API trf_status trf_layer_matmul_cpu(const trf_layer *layer, const float *x, uint32_t m, float *y, int threads,
                                        trf_error *err);

/* ---- checkpoints: a .safetensors file, a model.safetensors.index.json, or a directory that holds either ---- */

/* Called from one thread at a time, now and then; nonzero asks to stop (TRF_ERR_CANCELLED, nothing is left behind).
 * tensor: the one at work. done and total count bytes of the source checkpoint. */
typedef int (*trf_progress_fn)(void *context, const char *tensor, uint64_t done_bytes, uint64_t total_bytes);

typedef struct trf_checkpoint_options {
    /* compress only; encode.threads serves the others too. The codecs E4M3 and E5M2 each stand for both: every FP8
     * tensor takes its own. */
    trf_encode_options encode;
    const char *const
        *include; /* compress: globs of tensor names to compress; NULL-terminated or NULL = the default choice */
    const char *const *exclude; /* compress: globs of tensor names to leave as they are; NULL-terminated or NULL */
    int overwrite;              /* replace an existing output, atomically */
    trf_progress_fn progress;   /* or NULL */
    void *progress_context;
} trf_checkpoint_options;

TRF_API void trf_checkpoint_options_init(trf_checkpoint_options *options);

/* Totals of a run over a checkpoint. */
typedef struct trf_checkpoint_report {
    uint64_t tensors, compressed_tensors;
    uint64_t source_bytes;            /* of all tensors, uncompressed */
    uint64_t output_bytes;            /* of all tensors as the compressed checkpoint holds them */
    uint64_t compressed_source_bytes; /* of the tensors that are compressed, uncompressed ... */
    uint64_t compressed_bytes;        /* ... and compressed */
    uint64_t compressed_weights;
    uint64_t rounded_tensors;   /* F32 tensors that --codec bf16 rounded */
    double relative_rms_error;  /* over the weights that a lossy codec took; 0 if every codec was lossless */
    uint64_t peak_buffer_bytes; /* largest sum of the library's own buffers, as far as it counts them */
    char warning[1024]; /* compress: a line about a config.json that cannot be read, and may tie tensors; or "" */
} trf_checkpoint_report;

/* Compresses the checkpoint at in_path to out_path (same kind: file to file, directory to directory; an index stands
 * for its directory). 2-D weights and 3-D expert stacks become blobs; embeddings, tensors tied to them, F32 tensors and
 * all else are copied unless `include` asks for them. Other files of a directory are copied. Every tile is decoded and
 * compared before anything appears under out_path; on failure nothing does.
 * Errors: TRF_ERR_NOT_FOUND, _EXISTS, _IO, _FORMAT, _ARGUMENT (dtype and codec do not fit for a tensor that `include`
 * names), _MEMORY, _CANCELLED, _MISMATCH. */
TRF_API trf_status trf_compress_checkpoint(const char *in_path, const char *out_path,
                                           const trf_checkpoint_options *options, trf_checkpoint_report *report,
                                           trf_error *err);

/* The inverse: the source's tensors, names and metadata; for lossless codecs bit for bit, and the file byte for byte
 * where its layout was canonical. A .trf file becomes a safetensors file of one tensor named "weight". */
TRF_API trf_status trf_decompress_checkpoint(const char *in_path, const char *out_path,
                                             const trf_checkpoint_options *options, trf_checkpoint_report *report,
                                             trf_error *err);

/* Checks every blob of a compressed checkpoint or .trf file and decodes every tile; with against_path (may be NULL)
 * also compares every tensor with the source checkpoint: bit for bit, and for the int codec on floats reports the
 * error. Errors: those of blobs; TRF_ERR_MISMATCH naming tensor, row and column; TRF_ERR_NOT_FOUND for a tensor that is
 * missing. */
TRF_API trf_status trf_verify_checkpoint(const char *path, const char *against_path,
                                         const trf_checkpoint_options *options, trf_checkpoint_report *report,
                                         trf_error *err);

/* A checkpoint opened for listing; compressed or not, or a .trf file (one tensor, "weight"). */
typedef struct trf_checkpoint trf_checkpoint;

typedef struct trf_tensor_info {
    const char *name;      /* the source's name, without _trf; owned by the checkpoint */
    const char *file;      /* path of the file that holds it; owned by the checkpoint */
    const char *dtype;     /* the source's safetensors dtype string; owned by the checkpoint */
    const uint64_t *shape; /* the source's; owned by the checkpoint */
    uint32_t num_dims;
    int compressed;
    uint64_t source_bytes; /* uncompressed */
    uint64_t bytes;        /* in this checkpoint */
    uint64_t file_offset;  /* of its first byte in `file` */
    uint64_t blobs;        /* 0 if not compressed; 1, or the number of experts */
    trf_layer_info layer;  /* of the first blob; exceptions, tiles, stored_tiles and blob_bytes summed over all */
} trf_tensor_info;

TRF_API trf_status trf_checkpoint_open(const char *path, trf_checkpoint **checkpoint, trf_error *err);
TRF_API void trf_checkpoint_close(trf_checkpoint *checkpoint); /* NULL is allowed */
TRF_API uint64_t trf_checkpoint_num_tensors(const trf_checkpoint *checkpoint);

/* index < num_tensors, in order of the files. Errors: TRF_ERR_ARGUMENT; those of a malformed blob's head. */
TRF_API trf_status trf_checkpoint_tensor(trf_checkpoint *checkpoint, uint64_t index, trf_tensor_info *info,
                                         trf_error *err);

/* Writes one compressed tensor's blob as a .trf file, after validating it. tensor: the source's name, with or without
 * _trf; an expert of a 3-D stack is "name[3]". */
TRF_API trf_status trf_extract_layer(const char *in_path, const char *tensor, const char *out_path, int overwrite,
                                     trf_error *err);

/* ---- on a device: a GPU (CUDA), or the CPU behind the same calls ----
 * "Device memory" is the CUDA device's, or the process's own on the CPU. There streams are ignored (NULL will do), and
 * calls are done when they return. A GPU that is lost (a kernel of anyone's that reads where nothing is, an error of
 * its memory) is lost to the process: from then on each call that takes it is TRF_ERR_CUDA with CUDA's number, and so
 * is trf_context_create. Everything can still be destroyed; another process can go on. */

/* cudaStream_t. */
typedef struct CUstream_st *trf_stream;

/* In place of a CUDA ordinal. */
enum {
    TRF_DEVICE_CPU = -1,
    TRF_DEVICE_AUTO = -2 /* CUDA device 0 if there is one, else (where 0 itself would be TRF_ERR_DEVICE) the CPU */
};

/* One device. Holds what layers share: on a GPU its limits, a cuBLASLt handle if that library is found (it is opened
 * here; only the two-step path needs it), and from the first load on 32 MiB of page-locked host memory and the threads
 * that load. Thread-safe after creation. */
typedef struct trf_context trf_context;

/* device: CUDA ordinal, or one of the constants above. Errors: TRF_ERR_DEVICE (no device code in the build, no such
 * device, no driver, or compute capability below 8.0; not with AUTO), TRF_ERR_CUDA, TRF_ERR_MEMORY: with AUTO, too,
 * since a GPU that is there and fails is not passed over. */
TRF_API trf_status trf_context_create(int device, trf_context **context, trf_error *err);
TRF_API void trf_context_destroy(trf_context *context);     /* NULL is allowed; after the context's layers */
TRF_API int trf_context_device(const trf_context *context); /* its CUDA ordinal, or TRF_DEVICE_CPU */
TRF_API const char *trf_context_device_name(const trf_context *context); /* such as "NVIDIA H200"; the context's */

/* CPU: threads of each call that follows, and of plans made from here on; 0, the default: one for each core. Not while
 * other threads use the context. */
TRF_API void trf_context_set_threads(trf_context *context, int threads);

/* Device memory, for programs that do not use CUDA themselves. *memory is 256-byte aligned, and NULL for no bytes.
 * Errors: TRF_ERR_MEMORY, TRF_ERR_CUDA. */
TRF_API trf_status trf_device_allocate(const trf_context *context, uint64_t bytes, void **memory, trf_error *err);
TRF_API void trf_device_free(const trf_context *context, void *memory); /* NULL is allowed */

/* Copies between host and device memory: wait for all that the device was given before, and are complete when they
 * return. Errors: TRF_ERR_CUDA. */
TRF_API trf_status trf_device_upload(const trf_context *context, void *to, const void *from_host, uint64_t bytes,
                                     trf_error *err);
TRF_API trf_status trf_device_download(const trf_context *context, void *to_host, const void *from, uint64_t bytes,
                                       trf_error *err);

/* A compressed layer in device memory. */
typedef struct trf_device_layer trf_device_layer;

/* How the weights lie in device memory. More are to come. */
typedef enum trf_layout {
    TRF_LAYOUT_CODED = 0 /* entropy coded, as in the blob */
} trf_layout;

/* Rows [first, first + count) of a matrix. */
typedef struct trf_row_range {
    uint32_t first, count;
} trf_row_range;

/* Device memory that the caller supplies for a layer, both parts 256-byte aligned and as large as
 * trf_device_layer_get_size says. It must stay, and be written by nobody, while the layer lives. */
typedef struct trf_layer_memory {
    void *blob;
    uint64_t blob_bytes;
    void *directory; /* where tiles and slabs lie, and what decoding needs beside the blob */
    uint64_t directory_bytes;
} trf_layer_memory;

/* How to load. Defaults: the whole matrix, coded, in memory of the library's, all cores, no progress. */
typedef struct trf_load_options {
    size_t struct_bytes;
    trf_layout layout;
    /* A shard (tensor parallelism): these rows and columns alone, multiples of 16; num_rows, num_cols 0: up to the last
     * one, which need be none. Only tiles of 256x256 that they touch are read, checked and kept. Where a shard does not
     * begin and end at multiples of 256 (or with the matrix), products take a copy of x or y, and
     * trf_device_layer_decode refuses it. */
    uint32_t first_row, num_rows, first_col, num_cols;
    /* In place of first_row and num_rows: the rows of several pieces, one after the other (a part of q, k and v that
     * are stored as one matrix). Pieces begin and end at multiples of 256 (or with the matrix, the last one); others
     * are TRF_ERR_UNSUPPORTED: load each as a layer of its own, and let them write into one y (trf_plan_options). */
    const trf_row_range *row_ranges;
    uint32_t num_row_ranges;
    int blob_is_on_device;    /* trf_device_layer_create and _get_size: the blob is in device memory */
    trf_layer_memory memory;  /* trf_device_layer_create: the caller's; zeros: the library allocates */
    int threads;              /* that read and check the blob: 0 = one for each core */
    trf_progress_fn progress; /* or NULL; called by the thread that loads; done and total: bytes of the tiles read */
    void *progress_context;
} trf_load_options;

TRF_API void trf_load_options_init(trf_load_options *options);

/* Bytes of trf_layer_memory that a layer takes. */
typedef struct trf_layer_size {
    uint64_t blob_bytes; /* of a whole coded layer exactly the blob's; of a shard those of a blob of its own */
    uint64_t directory_bytes; /* 0 on the CPU */
} trf_layer_size;

/* The memory that a layer will take with these options (NULL: the defaults). blob: as in trf_device_layer_create; of a
 * shard that cuts tiles of float weights, tiles are read and checked. Errors: those of a malformed blob's head. */
TRF_API trf_status trf_device_layer_get_size(const trf_context *context, const void *blob, uint64_t blob_bytes,
                                             const trf_load_options *options, trf_layer_size *size, trf_error *err);

/* Makes a layer of a blob in memory: host memory, 16-byte aligned, which is not needed afterwards, or, with
 * options->blob_is_on_device, device memory, 256-byte aligned. The latter is read back to be checked; where the whole
 * of it is loaded and options->memory.blob is NULL or the same, it is not copied but used where it lies, and must stay.
 * Validates the head and the tiles that are loaded. Synchronous: any stream may use the layer then.
 * options: NULL for the defaults. Errors: those of a malformed blob; TRF_ERR_ARGUMENT also for memory that is too small
 * or misaligned; TRF_ERR_UNSUPPORTED (row_ranges; a GPU: a blob of more than 512 GiB); TRF_ERR_CANCELLED. */
TRF_API trf_status trf_device_layer_create(trf_context *context, const void *blob, uint64_t blob_bytes,
                                           const trf_load_options *options, trf_device_layer **layer, trf_error *err);

/* Loads a compressed tensor of a checkpoint, validated, tiles and all. tensor: the source's name, with or without _trf;
 * an expert of a 3-D stack is "name[3]". options: NULL for the defaults. The checkpoint may be closed afterwards. Any
 * stream may use the layer when this returns. Several threads may load from one checkpoint to one context at once. On a
 * GPU tiles are read, checked and copied side by side, through page-locked memory of the context's (without such memory
 * more slowly); a file that is cut meanwhile is TRF_ERR_TRUNCATED. On the CPU the file is mapped, and stays so while
 * the layer lives (do not change or cut it), unless a shard was asked for; one that was cut since the checkpoint was
 * opened is TRF_ERR_TRUNCATED, too. Errors: as trf_device_layer_create; TRF_ERR_NOT_FOUND (no such tensor or expert),
 * TRF_ERR_ARGUMENT (not compressed; a stack without an index; no such shard), those of a malformed blob, TRF_ERR_IO,
 * TRF_ERR_CANCELLED; nothing is left on the device then. Messages name file and tensor, offsets count from the file's
 * first byte. */
TRF_API trf_status trf_device_layer_load(trf_context *context, trf_checkpoint *checkpoint, const char *tensor,
                                         const trf_load_options *options, trf_device_layer **device_layer,
                                         trf_error *err);
/* Waits for the device. NULL is allowed. */
TRF_API void trf_device_layer_destroy(trf_device_layer *device_layer);
TRF_API void trf_device_layer_get_info(const trf_device_layer *device_layer, trf_layer_info *info);
TRF_API uint64_t trf_device_layer_bytes(const trf_device_layer *device_layer); /* of device memory */

/* What trf_device_layer_decode writes for each weight. */
typedef enum trf_decode_as {
    TRF_DECODE_SOURCE = 0,   /* the source's dtype, as trf_layer_decode */
    TRF_DECODE_ELEMENTS = 1, /* 16 bits: the bit pattern of a float codec's element, or the signed code */
    TRF_DECODE_BF16 =
        2, /* the value rounded once to BF16; exact for bf16 and fp8, and for codes within +-256 without scales */
    TRF_DECODE_F16 = 3 /* the value rounded once to F16; exact for fp16 and fp8, and for codes without scales */
} trf_decode_as;

/* Decodes the whole layer on the device. weights: device, row-major [rows][cols], 16-byte aligned, weights_bytes large.
 * Ordered on `stream`; returns before it is done; capturable in a CUDA graph. Corrupt slabs (which validation cannot
 * see: 32 rows and slab_cols columns of a tile) become NaN, or zero where integers are written; see
 * trf_device_layer_check. On the CPU the call fails with TRF_ERR_RANS, and what it has written is unspecified.
 * Thread-safe. Errors: TRF_ERR_ARGUMENT (kind; alignment), TRF_ERR_SHAPE (size), TRF_ERR_UNSUPPORTED (BF16 or F16 of
 * the other 16-bit float codec; a shard that does not begin and end at multiples of 256 or with the matrix:
 * trf_device_layer_decode_rows takes it, with all of its rows' numbers), TRF_ERR_CUDA. */
TRF_API trf_status trf_device_layer_decode(const trf_device_layer *device_layer, trf_decode_as as, void *weights,
                                           uint64_t weights_bytes, trf_stream stream, trf_error *err);

/* Decodes single rows of a layer on the device: the look-up of token embeddings in a compressed table. row_ids: device,
 * `count` signed integers of id_bytes (4 or 8) each, aligned to that, in any order and as often as wanted. rows:
 * device, row-major [count][cols], aligned to its elements, rows_bytes large; not overlapping row_ids. Of a shard,
 * whatever its bounds, ids count from its first row, and its columns are written. A row is what trf_device_layer_decode
 * gives, bit for bit (but for which NaN it is where NaNs are converted), and only the streams that hold it are read:
 * four of the 32 of each slab.
 * An id that the layer does not have, negative or too large, gives a row of NaN, or of zeros where integers are
 * written; it is the caller's, so trf_device_layer_check does not report it. Corrupt streams are treated as by
 * trf_device_layer_decode, but found in the streams that are read only. Ordered on `stream`; does not allocate,
 * synchronize or read back; capturable in a CUDA graph. Thread-safe. Errors: TRF_ERR_ARGUMENT (NULL, id_bytes, kind;
 * alignment), TRF_ERR_SHAPE (size), TRF_ERR_UNSUPPORTED (BF16 or F16 of the other 16-bit float codec), TRF_ERR_CUDA;
 * TRF_ERR_RANS on the CPU. */
TRF_API trf_status trf_device_layer_decode_rows(const trf_device_layer *device_layer, const void *row_ids,
                                                uint32_t id_bytes, uint32_t count, trf_decode_as as, void *rows,
                                                uint64_t rows_bytes, trf_stream stream, trf_error *err);

/* How y = x . W^T is computed. */
typedef enum trf_path {
    TRF_PATH_AUTO =
        /* by the context's tuning; where that has nothing by a table of crossovers of the GPU's generation, which the
         * library brings along (compute capability 9.0 so far). Where neither has anything, or what takes no such
         * product: FUSED if it takes the layer and the batch, else TWO_STEP */
        0,
    TRF_PATH_FUSED =
        /* decoded inside the product. Batches of 1 to TRF_FUSED_MAX_M; not for layers with column offsets, with row
         * offsets in some tiles only, with offsets beyond 126 or exceptions that they would make inexact; int: codes of
         * at most 8 bits, exact in x's type, groups of scales in multiples of 32 columns; streams that fit in shared
         * memory */
        1,
    TRF_PATH_TWO_STEP =
        /* decoded to the workspace, then multiplied by cuBLASLt; not on the CPU, where FUSED takes every layer and
         * batch */
        2,
    TRF_PATH_WIDE =
        /* decoded inside the product of warpgroups, once for up to 256 rows of x: GPUs of compute capability 9.0, every
         * batch. Of the layers that FUSED takes, those with rows in multiples of 32 and columns of 64, without stored
         * tiles, row offsets and scales of groups */
        3
} trf_path;

/* @return "auto", "fused", "two-step", "wide" or "?". */
TRF_API const char *trf_path_name(trf_path path);

enum {
    TRF_FUSED_MAX_M = 64 /* rows of x */
};

/* A product of one layer and a batch size, prepared. Plain data: copy it freely; it belongs to the layer it was made
 * for. */
typedef struct trf_linear_plan {
    uint32_t m;
    trf_dtype x_dtype, y_dtype;
    trf_path path;                     /* the one that runs: not AUTO */
    const char *reason;                /* why not FUSED: a static string; NULL if FUSED */
    uint64_t workspace_bytes;          /* that trf_linear needs, in device memory */
    uint64_t epilogue_workspace_bytes; /* that trf_linear_with needs: it has room for F32 sums, too */
    uint32_t choice[8];                /* of the launch; opaque */
} trf_linear_plan;

/* m: rows of x, at least 1. x_dtype: BF16 for the bf16 codec, F16 for fp16, either for fp8 and int. y_dtype: BF16, F16
 * or F32. Does not touch the device. Errors: TRF_ERR_ARGUMENT (m; types that do not go together), TRF_ERR_UNSUPPORTED
 * (the path that was asked for does not take the product, or with AUTO none does; the message says why: a layer, batch
 * or device that FUSED or WIDE are not for; TWO_STEP for lack of cuBLASLt, of an algorithm of it, or by size; on the
 * CPU, TWO_STEP and WIDE), TRF_ERR_CUDA, TRF_ERR_MEMORY (cuBLASLt). */
TRF_API trf_status trf_linear_plan_init(const trf_device_layer *device_layer, uint32_t m, trf_dtype x_dtype,
                                        trf_dtype y_dtype, trf_path path, trf_linear_plan *plan, trf_error *err);

/* y[m][rows] = x[m][cols] . W^T, accumulated in F32 and rounded once to y's dtype. x, y: device, row-major, of the
 * plan's types, aligned to their elements, not overlapping. workspace: device, 256-byte aligned, of
 * plan->workspace_bytes or more, in use by one call at a time (calls on one stream may share it, whatever their plans);
 * it needs no preparation: what it holds before a call does not matter, and after one it is arbitrary. May be NULL if
 * plan->workspace_bytes is 0. The same bits on every run of a plan with one alignment of x and y (TWO_STEP may take
 * another algorithm where they are not aligned to 16 bytes; FUSED and WIDE give the same bits: an x that is not is
 * copied to the workspace first). FUSED and WIDE need not have each other's bits: they add in other orders. int codes
 * with scales: sum over scale groups of scale * sum of code * x on the FUSED path; WIDE, whose layers have a scale a
 * row or one for all, multiplies the row's whole sum once; on TWO_STEP the weights are rounded to x's dtype first.
 * On FUSED and WIDE, exponent offsets are put back by scaling sums: one that brings a finite y beyond F32's range in
 * between gives an infinity. Ordered on `stream`; does not allocate, synchronize or read back; capturable in a CUDA
 * graph. Thread-safe for distinct workspaces. A corrupt slab makes its rows of y NaN, on FUSED and WIDE possibly those
 * of its neighbour in the tile as well; see trf_device_layer_check. On the CPU all of y is NaN then, and the call
 * returns TRF_ERR_RANS. Errors: TRF_ERR_ARGUMENT
 * (NULL, alignment, a plan of another layer), TRF_ERR_CUDA; on TWO_STEP TRF_ERR_UNSUPPORTED (no algorithm for x or y
 * that are not aligned to 16 bytes), TRF_ERR_MEMORY (cuBLASLt). */
TRF_API trf_status trf_linear(const trf_device_layer *device_layer, const trf_linear_plan *plan, const void *x, void *y,
                              void *workspace, trf_stream stream, trf_error *err);

/* ---- tuning: which path is the fastest, measured ----
 * Nothing is timed but by trf_tuning_measure. One file gives the same choices, and so the same bits of y, on every
 * run. */

/* For layers of a codec and shape, the path for each batch. Immutable: threads may share it. */
typedef struct trf_tuning trf_tuning;

/* Called before each batch of each layer, by the thread that measures; nonzero asks to stop. done and total count
 * these. */
typedef int (*trf_tune_fn)(void *context, uint32_t done, uint32_t total);

typedef struct trf_tune_options {
    uint32_t max_m;       /* batches of 1, 2, 3, 4, 6, 8, 12 ... up to this one; default 8192, 2^20 at most */
    trf_dtype x_dtype;    /* of x for codecs that multiply either type, BF16 (default) or F16; y has x's */
    trf_tune_fn progress; /* or NULL */
    void *progress_context;
} trf_tune_options;

TRF_API void trf_tune_options_init(trf_tune_options *options);

/* Times every path that takes a layer, for each batch, with the weights in no cache of a GPU: the median of 9 calls. Of
 * layers with one codec, kind of symbols and shape the first is measured. layers: [num_layers], of one context, not of
 * a stack; the device should have nothing else to do. options: NULL for the defaults. Takes device memory for max_m
 * rows of x, of y, the workspace, and twice the L2 cache; allocates and waits. A batch that no path takes is left out.
 * Errors: TRF_ERR_ARGUMENT, TRF_ERR_CANCELLED, TRF_ERR_MEMORY, TRF_ERR_CUDA, TRF_ERR_RANS (CPU). */
TRF_API trf_status trf_tuning_measure(const trf_device_layer *const *layers, uint32_t num_layers,
                                      const trf_tune_options *options, trf_tuning **tuning, trf_error *err);

/* As JSON (docs/guide.md), whole or not at all. Errors: TRF_ERR_EXISTS, TRF_ERR_IO, TRF_ERR_MEMORY. */
TRF_API trf_status trf_tuning_write(const trf_tuning *tuning, const char *path, int overwrite, trf_error *err);

/* Errors: TRF_ERR_NOT_FOUND, TRF_ERR_IO, TRF_ERR_FORMAT, TRF_ERR_VERSION; messages name the file and the entry. */
TRF_API trf_status trf_tuning_read(const char *path, trf_tuning **tuning, trf_error *err);
TRF_API void trf_tuning_free(trf_tuning *tuning); /* NULL is allowed */

/* @return the path that it has for a product: of the layer of the same codec and kind of symbols whose shape is the
 * nearest; TRF_PATH_AUTO if it has none, or for a batch beyond those measured. */
TRF_API trf_path trf_tuning_path(const trf_tuning *tuning, const trf_device_layer *device_layer, uint32_t m);

/* Plans with TRF_PATH_AUTO that are made from here on follow the tuning, which is copied; a path that does not take a
 * product after all gives way. NULL: none any more. Not while other threads use the context. Errors: TRF_ERR_DEVICE
 * (measured on a device of another name), TRF_ERR_MEMORY. */
TRF_API trf_status trf_context_set_tuning(trf_context *context, const trf_tuning *tuning, trf_error *err);

/* What may follow a product, element by element. */
typedef enum trf_activation {
    TRF_ACTIVATION_NONE = 0,
    TRF_ACTIVATION_SILU = 1,     /* v / (1 + exp(-v)) */
    TRF_ACTIVATION_GELU = 2,     /* v / 2 * (1 + erf(v / sqrt(2))) */
    TRF_ACTIVATION_GELU_TANH = 3 /* v / 2 * (1 + tanh(sqrt(2 / pi) * (v + 0.044715 v^3))) */
} trf_activation;

/* Operands: device, of y's dtype, aligned to their elements; NULL: not there. */
typedef struct trf_epilogue {
    trf_activation activation;
    const void *bias;       /* [rows]; apart from y */
    const void *multiplier; /* [m][rows]; apart from y, or y itself (SwiGLU: gate's product with SILU, and y is up's) */
    const void *residual;   /* [m][rows]; apart from y, or y itself */
} trf_epilogue;

/* y = activation(x . W^T + bias) * multiplier + residual, computed in F32 and rounded once to y's dtype; all else as
 * trf_linear, which is this without an epilogue. Activations err by 2^-20 of their value at most, and 2^-145; of
 * -infinity they are 0 (NONE: itself). epilogue: read during the call; what it points to, in the order of the stream
 * (in a CUDA graph, at each replay). NULL, or one with nothing in it: none.
 * workspace: with an epilogue, of plan->epilogue_workspace_bytes or more. A multiplier or residual that is y is
 * overwritten in place, both may be. Of a shard that was loaded by rows, rows are the shard's; of one by columns the
 * sums are parts, and what is not linear belongs behind their addition. A NaN stays NaN, a corrupt slab's too. Errors:
 * as trf_linear; TRF_ERR_ARGUMENT (no such activation; an operand's alignment, or that it overlaps y in another
 * way). */
TRF_API trf_status trf_linear_with(const trf_device_layer *device_layer, const trf_linear_plan *plan, const void *x,
                                   void *y, const trf_epilogue *epilogue, void *workspace, trf_stream stream,
                                   trf_error *err);

/* A TWO_STEP product in two calls, so that a layer is decoded on another stream (of a higher priority) while the
 * product before still runs. The first decodes to the workspace; the second is trf_linear_with without that step,
 * ordered behind it (an event). In between the workspace is the product's own: a chain of layers takes two in turns.
 * The same bits as trf_linear_with. epilogue: the same to both, NULL or not; decode reads whether there is one, and
 * nothing it points to. On other paths decode does nothing, and decoded is trf_linear_with. Errors: decode
 * TRF_ERR_ARGUMENT (NULL, a plan of another layer, the workspace), TRF_ERR_CUDA; decoded those of trf_linear_with. */
TRF_API trf_status trf_linear_decode(const trf_device_layer *device_layer, const trf_linear_plan *plan,
                                     const trf_epilogue *epilogue, void *workspace, trf_stream stream, trf_error *err);
TRF_API trf_status trf_linear_decoded(const trf_device_layer *device_layer, const trf_linear_plan *plan, const void *x,
                                      void *y, const trf_epilogue *epilogue, void *workspace, trf_stream stream,
                                      trf_error *err);

/* Waits for the device, and says whether any call since creation met a corrupt tile. Errors: TRF_ERR_RANS (message:
 * tile; offset: its place in the blob; of a shard, among its own tiles), TRF_ERR_CUDA. The state stays. */
TRF_API trf_status trf_device_layer_check(const trf_device_layer *device_layer, trf_error *err);

/* ---- stacks: layers that are offloaded to host memory, for models larger than device memory ---- */

/* An ordered list of layers that a program runs through again and again, such as a transformer's. On a GPU as many of
 * them as a budget of device memory allows stay there; the others lie compressed in pinned host memory, and are copied
 * ahead of their use while the GPU is busy with those before: to two buffers in turns, each with room for the largest
 * of them (small neighbours share one). On the CPU all layers are simply there. One thread at a time; streams may be
 * several. */
typedef struct trf_stack trf_stack;

/* context: outlives the stack. Errors: TRF_ERR_ARGUMENT (NULL), TRF_ERR_MEMORY. */
TRF_API trf_status trf_stack_create(trf_context *context, trf_stack **stack, trf_error *err);
TRF_API void trf_stack_destroy(trf_stack *stack); /* waits for the device; NULL is allowed */

/* Appends a layer: index 0, 1, 2 ... Not after trf_stack_prepare, which is what copies it. add: `layer`, which
 * trf_layer_from_memory or trf_layer_open has validated, stays the caller's, and as it is until trf_stack_prepare has
 * returned; it may be added several times. load: a tensor of a checkpoint, or a shard of it, validated now, as
 * trf_device_layer_load; the checkpoint may be closed afterwards, its file must not change until trf_stack_prepare has
 * returned (on the CPU while the stack lives). Errors: as trf_device_layer_create and trf_device_layer_load;
 * TRF_ERR_ARGUMENT (prepared already). */
TRF_API trf_status trf_stack_add(trf_stack *stack, const trf_layer *layer, trf_error *err);
TRF_API trf_status trf_stack_load(trf_stack *stack, trf_checkpoint *checkpoint, const char *tensor,
                                  const trf_load_options *options, trf_error *err);

/* Decides which layers stay, spread evenly over the order, and copies all of them, on as many threads as
 * trf_context_set_threads says, for a GPU, too. Synchronous. budget_bytes: of device memory, for layers and buffers;
 * workspaces are the program's own. Nothing else is allocated there, now or later. On the CPU it does not matter. After
 * a failure other than TRF_ERR_CUDA layers may be added, and it may be called again. Errors: TRF_ERR_ARGUMENT (no
 * layers; prepared already; a budget below trf_stack_info.least_bytes, which the message tells), TRF_ERR_MEMORY (device
 * memory, or host memory that cannot be pinned; the message tells sizes), TRF_ERR_CUDA. */
TRF_API trf_status trf_stack_prepare(trf_stack *stack, uint64_t budget_bytes, trf_error *err);

typedef struct trf_stack_info {
    uint32_t layers;
    uint32_t resident; /* layers that stay in device memory; 0 before trf_stack_prepare, as what follows least_bytes */
    uint64_t layer_bytes;   /* of all layers, in device memory */
    uint64_t least_bytes;   /* the least budget that will do: about two of the largest layers */
    uint64_t device_bytes;  /* device memory that the stack has: within the budget */
    uint64_t host_bytes;    /* pinned host memory that it has */
    uint64_t offload_bytes; /* copied in each pass through all layers, in order */
} trf_stack_info;

TRF_API void trf_stack_get_info(const trf_stack *stack, trf_stack_info *info);

/* A layer, for plans (trf_linear_plan_init, wherever it lies) and trf_device_layer_check (any time; corrupt tiles are
 * remembered when the layer has made room for others). Calls that read its weights only between trf_stack_acquire and
 * trf_stack_release. The stack's; the same for its whole life. NULL before trf_stack_prepare, and for an index that
 * there is not. */
TRF_API const trf_device_layer *trf_stack_layer(const trf_stack *stack, uint32_t index);

/* Lets what follows on `stream` use a layer: the stream waits for its copy, the host does not. *layer (or NULL):
 * trf_stack_layer's. In order (0, 1, 2 ..., and 0 again after the last one) layers are there or on their way; layers
 * may be passed over. For any other order the results are the same, but the layer is copied from then on, and those
 * after it ahead again. A layer may be acquired several times, on several streams. Does not allocate or synchronize.
 * Layers that stay cost nothing and may be captured in a CUDA graph; those that are offloaded may not. Errors:
 * TRF_ERR_ARGUMENT (not prepared; no such layer; its place in a buffer is taken by a layer that has not been released),
 * TRF_ERR_UNSUPPORTED (captured), TRF_ERR_CUDA. After a failure it is not acquired. */
TRF_API trf_status trf_stack_acquire(trf_stack *stack, uint32_t index, trf_stream stream,
                                     const trf_device_layer **layer, trf_error *err);

/* Undoes one trf_stack_acquire. What `stream` has been given before may still use the layer; what comes later may not.
 * Starts copies of layers ahead where there is room now. Errors: TRF_ERR_ARGUMENT (not acquired), TRF_ERR_CUDA. */
TRF_API trf_status trf_stack_release(trf_stack *stack, uint32_t index, trf_stream stream, trf_error *err);

/* trf_stack_acquire, trf_linear, trf_stack_release. plan: of trf_stack_layer(stack, index). Errors: theirs. */
TRF_API trf_status trf_stack_linear(trf_stack *stack, uint32_t index, const trf_linear_plan *plan, const void *x,
                                    void *y, void *workspace, trf_stream stream, trf_error *err);

/* ---- several layers at once ---- */

/* Products that do not depend on each other: q, k and v, or gate and up. */
typedef struct trf_layer_group trf_layer_group;

/* One of them; m and types as trf_linear_plan_init has them. */
typedef struct trf_group_layer {
    const trf_device_layer *layer;
    uint32_t m;
    trf_dtype x_dtype, y_dtype;
} trf_group_layer;

/* Prepares a group. layers: host, [count], of one context; they outlive the group, and one layer may be there more than
 * once. On a GPU those of one codec, class and raw bits and type of x share launches, up to 8 in each, where that is
 * estimated to be faster than one after another: batches up to 8, usual probability bits, no symbol more frequent than
 * 255 slots, no scales of groups or blocks, no row or column offsets, compute capability 8.0 or 9.0 and up (not 8.6 and
 * 8.9). All others run as trf_linear would. Does not touch the device. On failure *group is unchanged. Errors:
 * TRF_ERR_ARGUMENT (NULL, no layers, layers of several contexts), those of trf_linear_plan_init, TRF_ERR_MEMORY
 * (host). */
TRF_API trf_status trf_layer_group_create(const trf_group_layer *layers, uint32_t count, trf_layer_group **group,
                                          trf_error *err);
TRF_API void trf_layer_group_destroy(trf_layer_group *group);                   /* NULL is allowed; waits for nothing */
TRF_API uint64_t trf_layer_group_workspace_bytes(const trf_layer_group *group); /* that trf_linear_group needs */

/* @return how many of the layers share launches with others; *launches, which may be NULL: in how many. */
TRF_API uint32_t trf_layer_group_shared(const trf_layer_group *group, uint32_t *launches);

/* y[i] = x[i] . W^T for each layer i of the group, in any order or at once. x, y: host arrays, [count], of pointers to
 * device memory as trf_linear has it; read by the call alone. No y overlaps another or any x; layers may have the same
 * x. workspace, stream, corrupt slabs and errors: as trf_linear. The same bits on every run of a group with one
 * alignment of x and y; where layers share a launch, they need not be those of trf_linear, whose sums are added in
 * another order. Does not allocate, synchronize or read back; capturable in a CUDA graph. Thread-safe for distinct
 * workspaces. On the CPU all of y are computed before a corrupt stream is reported. */
TRF_API trf_status trf_linear_group(const trf_layer_group *group, const void *const *x, void *const *y, void *workspace,
                                    trf_stream stream, trf_error *err);

/* ---- mixtures of experts ---- */

/* Layers of one shape, of which each has its own rows of x: how many, only the device needs to know. */
typedef struct trf_experts trf_experts;

/* layers: host, [count], of one context, shape and codec, no shards of parts of tiles; they outlive the experts. On
 * failure *experts is unchanged. Device memory of a GPU: 208 bytes an expert. Errors: TRF_ERR_ARGUMENT (NULL, no
 * layers, several contexts, shapes or codecs), TRF_ERR_UNSUPPORTED (such a shard), TRF_ERR_CUDA, TRF_ERR_MEMORY. */
TRF_API trf_status trf_experts_create(trf_device_layer *const *layers, uint32_t count, trf_experts **experts,
                                      trf_error *err);

/* Loads all experts of a 3-D stack, which then belong to *experts. tensor, options and errors: as
 * trf_device_layer_load; progress counts each expert by itself. TRF_ERR_ARGUMENT, too, if the tensor is no stack. */
TRF_API trf_status trf_experts_load(trf_context *context, trf_checkpoint *checkpoint, const char *tensor,
                                    const trf_load_options *options, trf_experts **experts, trf_error *err);
TRF_API void trf_experts_destroy(trf_experts *experts); /* waits for the device; NULL is allowed */
TRF_API uint32_t trf_experts_count(const trf_experts *experts);
TRF_API const trf_device_layer *trf_experts_layer(const trf_experts *experts, uint32_t index); /* the experts' own */

/* Plain data: copy it freely; it belongs to the experts that it was made for. */
typedef struct trf_experts_plan {
    uint32_t max_tokens;
    trf_dtype x_dtype, y_dtype;
    uint64_t workspace_bytes; /* that trf_experts_linear needs, in device memory */
    uint32_t choice[8];       /* opaque */
} trf_experts_plan;

/* max_tokens: rows of x and y that calls have at most, 1 to 2^26; types as trf_linear_plan_init. Does not touch the
 * device. Errors: TRF_ERR_ARGUMENT; TRF_ERR_UNSUPPORTED on a GPU if an expert is one that groups do not share launches
 * for (trf_layer_group_create), or differs from the others in class or raw bits or width of slabs; the message says
 * which and why. */
TRF_API trf_status trf_experts_plan_init(const trf_experts *experts, uint32_t max_tokens, trf_dtype x_dtype,
                                         trf_dtype y_dtype, trf_experts_plan *plan, trf_error *err);

/* y[t] = x[t] . W(e)^T for each token t, where expert e has the tokens offsets[e] to offsets[e + 1] - 1: x is sorted by
 * expert. offsets: device, [count + 1], 4-byte aligned, not decreasing, the last one at most max_tokens; work ordered
 * before the call may write it, and a graph's replays take what it holds then. x: device, [offsets[count]][cols]; y:
 * device, [offsets[count]][rows], not overlapping; aligned to their elements. Rows of y before offsets[0] and from
 * offsets[count] on are left alone. Offsets that break these rules lead to y that is unspecified, never beyond
 * max_tokens rows of x and y; but they must not change while the call's work runs. Only experts with tokens are
 * decoded: once for each 8 of their tokens, so that large counts are better served by trf_linear with the counts read
 * back.
 * workspace, stream and thread safety: as trf_linear. The same bits on every run with the same offsets and one
 * alignment of x; a token's bits may depend on the other experts' counts, which change the order of additions. Does not
 * allocate, synchronize or read back; capturable in a CUDA graph. A corrupt slab makes its rows of y NaN for the tokens
 * of its expert, on the CPU all rows, and there the call returns TRF_ERR_RANS after the other experts are done; see
 * trf_experts_check. Errors: TRF_ERR_ARGUMENT (NULL, alignment, a plan of other experts), TRF_ERR_CUDA. */
TRF_API trf_status trf_experts_linear(const trf_experts *experts, const trf_experts_plan *plan, const void *x,
                                      const uint32_t *offsets, void *y, void *workspace, trf_stream stream,
                                      trf_error *err);

/* As trf_device_layer_check, of the first expert that met a corrupt tile; the message names it. */
TRF_API trf_status trf_experts_check(const trf_experts *experts, trf_error *err);

/* ---- arrays in .npy files (F32 and F16 in, F32 out; C order, 1-D or 2-D) ---- */

/* Reads an array as F32. *values is malloc'd (release with trf_free). A 1-D array of n values is 1 x n. Errors:
 * TRF_ERR_FORMAT, _IO, _NOT_FOUND, _MEMORY. */
TRF_API trf_status trf_read_npy(const char *path, float **values, uint64_t *rows, uint64_t *cols, trf_error *err);
TRF_API trf_status trf_write_npy(const char *path, const float *values, uint64_t rows, uint64_t cols, int overwrite,
                                 trf_error *err);

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_compressors.h"

#include "bench_memory.h"
#include "cli_messages.h"

#include <limits.h>
#include <lz4.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

/* LZ4 takes no more than 2 GB at once; a chunk this large loses nothing. */
static const uint64_t kChunkBytes = 1 << 30;

struct bench_compressor {
    const char *source;
    uint64_t source_bytes, capacity;
    char *compressed, *decompressed;
    uint64_t *chunk_bytes; /* compressed */
    uint64_t num_chunks;
    ZSTD_CCtx *compressor; /* NULL: LZ4 */
    ZSTD_DCtx *decompressor;
};

static uint64_t chunk_length(const bench_compressor *work, uint64_t chunk) {
    uint64_t rest = work->source_bytes - chunk * kChunkBytes;
    return rest < kChunkBytes ? rest : kChunkBytes;
}

int bench_compress(void *context) {
    bench_compressor *work = context;
    uint64_t used = 0;
    for (uint64_t i = 0; i < work->num_chunks; i++) {
        const char *source = work->source + i * kChunkBytes;
        uint64_t length = chunk_length(work, i), room = work->capacity - used, compressed;
        if (work->compressor) {
            compressed =
                ZSTD_compressCCtx(work->compressor, work->compressed + used, room, source, length, ZSTD_CLEVEL_DEFAULT);
            compressed = ZSTD_isError(compressed) ? 0 : compressed;
        } else {
            int limit = room < INT_MAX ? (int)room : INT_MAX;
            compressed = (uint64_t)LZ4_compress_default(source, work->compressed + used, (int)length, limit);
        }
        if (compressed == 0) {
            cli_fail(TRF_ERR_UNSUPPORTED, "bench: %s failed to compress", work->compressor ? "zstd" : "lz4");
            return -1;
        }
        work->chunk_bytes[i] = compressed;
        used += compressed;
    }
    return 0;
}

int bench_decompress(void *context) {
    bench_compressor *work = context;
    const char *compressed = work->compressed;
    for (uint64_t i = 0; i < work->num_chunks; compressed += work->chunk_bytes[i++]) {
        char *target = work->decompressed + i * kChunkBytes;
        uint64_t length = chunk_length(work, i), bytes = work->chunk_bytes[i], got;
        if (work->compressor)
            got = ZSTD_decompressDCtx(work->decompressor, target, length, compressed, bytes);
        else
            got = (uint64_t)LZ4_decompress_safe(compressed, target, (int)bytes, (int)length);
        if (got != length) {
            cli_fail(TRF_ERR_UNSUPPORTED, "bench: %s failed to decompress", work->compressor ? "zstd" : "lz4");
            return -1;
        }
    }
    return 0;
}

static uint64_t compressed_bound(const bench_compressor *work) {
    uint64_t bound = 0;
    for (uint64_t i = 0; i < work->num_chunks; i++) {
        uint64_t length = chunk_length(work, i);
        bound += work->compressor ? ZSTD_compressBound(length) : (uint64_t)LZ4_compressBound((int)length);
    }
    return bound;
}

bench_compressor *bench_compressor_open(const char *name, const void *source, uint64_t source_bytes) {
    const int zstd = strcmp(name, "zstd") == 0;
    bench_compressor *work = bench_alloc_zeros(1, sizeof *work);
    if (!work)
        return NULL;
    work->source = source;
    work->source_bytes = source_bytes;
    work->num_chunks = (source_bytes + kChunkBytes - 1) / kChunkBytes;
    work->compressor = zstd ? ZSTD_createCCtx() : NULL;
    work->decompressor = zstd ? ZSTD_createDCtx() : NULL;
    work->capacity = compressed_bound(work);
    work->compressed = bench_alloc(work->capacity);
    work->decompressed = bench_alloc(source_bytes);
    work->chunk_bytes = bench_alloc_zeros(work->num_chunks, sizeof *work->chunk_bytes);
    if (zstd && (!work->compressor || !work->decompressor))
        cli_fail(TRF_ERR_MEMORY, "bench: out of memory for zstd");
    else if (work->compressed && work->decompressed && work->chunk_bytes)
        return work;
    bench_compressor_close(work);
    return NULL;
}

void bench_compressor_close(bench_compressor *work) {
    if (!work)
        return;
    ZSTD_freeCCtx(work->compressor);
    ZSTD_freeDCtx(work->decompressor);
    free(work->compressed);
    free(work->decompressed);
    free(work->chunk_bytes);
    free(work);
}

uint64_t bench_compressor_output_bytes(const bench_compressor *work) {
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < work->num_chunks; i++)
        bytes += work->chunk_bytes[i];
    return bytes;
}

const char *bench_lz4_version(void) { return LZ4_versionString(); }

const char *bench_zstd_version(void) { return ZSTD_versionString(); }

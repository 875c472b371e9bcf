/* SPDX-License-Identifier: Apache-2.0 */
/* Workers take spans in ascending order and encode them in parallel. They get their places in the blob one after the
 * other, and write in parallel again. So a tile's place, and the blob, do not depend on the number of threads. */
#include "trf_encode_tiles.h"

#include "trf_decode.h"
#include "trf_threads.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK_TILES = 16,
    CHUNK_COLS = CHUNK_TILES * TRF_TILE_SIZE
};

/* One worker's buffers. */
typedef struct worker {
    trf_tile_scratch *scratch;
    void *source;       /* [256][CHUNK_COLS] of the source's dtype; NULL if its bytes are the elements */
    uint16_t *elements; /* [256][CHUNK_COLS]; NULL if they are in memory */
    uint16_t *decoded;  /* [256][256] */
    uint8_t *tile;      /* TRF_MAX_TILE_BYTES */
    uint8_t *out;       /* the span's tiles */
    size_t capacity;
} worker;

typedef struct pass_state {
    trf_tile_pass *pass;
    worker *workers;
    trf_decode_table *table;
    uint64_t next_offset;
    pthread_mutex_t lock;
    pthread_cond_t turn;
    uint64_t committed; /* spans */
    int failed;
} pass_state;

static uint32_t spans_across(const trf_header *header) {
    return (header->num_tile_cols + CHUNK_TILES - 1) / CHUNK_TILES;
}

uint64_t trf_count_tile_spans(const trf_header *header) {
    return (uint64_t)header->num_tile_rows * spans_across(header);
}

static void free_worker(worker *w) {
    free(w->scratch);
    free(w->source);
    free(w->elements);
    free(w->decoded);
    free(w->tile);
    free(w->out);
}

static int elements_in_memory(const trf_element_source *from) {
    return from->source->weights && trf_source_holds_elements(from);
}

static trf_status make_worker(worker *w, const trf_tile_pass *pass, trf_error *err) {
    uint32_t cols = pass->encoder->header.cols < CHUNK_COLS ? pass->encoder->header.cols : CHUNK_COLS;
    size_t weights = (size_t)TRF_TILE_SIZE * cols;
    w->capacity = weights * 2;
    w->scratch = aligned_alloc(64, sizeof *w->scratch);
    int copied = !elements_in_memory(pass->from), converted = !trf_source_holds_elements(pass->from);
    w->source = converted ? malloc(weights * trf_dtype_bytes(pass->from->source->dtype)) : NULL;
    w->elements = copied ? malloc(weights * sizeof *w->elements) : NULL;
    w->decoded = malloc(TRF_TILE_SIZE * TRF_TILE_SIZE * sizeof *w->decoded);
    w->tile = aligned_alloc(64, TRF_MAX_TILE_BYTES);
    w->out = malloc(w->capacity);
    if (!w->scratch || (converted && !w->source) || (copied && !w->elements) || !w->decoded || !w->tile || !w->out)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for an encoder's buffers");
    return TRF_OK;
}

/* Decodes what was encoded, through the validator and the decoder that readers use, and compares. */
static trf_status verify_tile(const pass_state *state, worker *w, uint64_t tile, const uint16_t *elements,
                              size_t stride, trf_error *err) {
    const trf_tile_encoder *encoder = state->pass->encoder;
    trf_blob_view view = {
        .header = encoder->header,
        .extension = encoder->extension,
        .frequency = encoder->model.frequency,
        .tiles = state->pass->metas,
        .row_offsets = encoder->row_offsets,
        .col_offsets = encoder->col_offsets,
        .fields = trf_fields_of(encoder->header.codec),
    };
    if (encoder->scales) {
        view.scales = encoder->scales->values;
        view.num_scales = encoder->scales->count;
        view.scale_cols = encoder->scales->scale_cols;
    }
    view.num_planes = trf_plane_widths(encoder->header.raw_bits, view.plane_width);
    trf_status status = trf_blob_check_tile(&view, tile, w->tile, err);
    if (status == TRF_OK)
        status = trf_decode_tile_best()(&view, state->table, tile, w->tile, w->decoded, TRF_TILE_SIZE, err);
    if (status != TRF_OK)
        return trf_prefix_error(err, TRF_ERR_MISMATCH, "the encoder's own check of a tile failed");
    trf_tile_shape shape = trf_tile_shape_of(&encoder->header, tile, view.tiles[tile].coding);
    for (uint32_t r = 0; r < shape.rows; r++) {
        const uint16_t *want = elements + r * stride, *got = w->decoded + r * TRF_TILE_SIZE;
        if (memcmp(want, got, shape.cols * sizeof *want) == 0)
            continue;
        uint32_t c = 0;
        while (want[c] == got[c])
            c++;
        return trf_fail(err, TRF_ERR_MISMATCH, TRF_NO_OFFSET,
                        "the encoder's own check failed: row %u, column %u is 0x%04X and decodes to 0x%04X",
                        shape.row + r, shape.col + c, want[c], got[c]);
    }
    return TRF_OK;
}

/* Encodes the tiles of a span into w->out. */
static trf_status encode_span(const pass_state *state, worker *w, uint64_t first_tile, uint32_t tiles,
                              const uint16_t *span, size_t stride, trf_tile_meta *metas, size_t *bytes,
                              trf_error *err) {
    const trf_tile_pass *pass = state->pass;
    *bytes = 0;
    for (uint32_t t = 0; t < tiles; t++) {
        const uint16_t *elements = span + t * TRF_TILE_SIZE;
        trf_encode_tile(pass->encoder, first_tile + t, elements, stride, w->scratch, w->tile, &metas[t]);
        if (pass->verify) {
            trf_status status = verify_tile(state, w, first_tile + t, elements, stride, err);
            if (status != TRF_OK)
                return status;
        }
        if (*bytes + metas[t].data_size > w->capacity) {
            size_t capacity = 2 * (w->capacity + metas[t].data_size);
            uint8_t *grown = realloc(w->out, capacity);
            if (!grown)
                return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for an encoder's buffers");
            w->out = grown;
            w->capacity = capacity;
        }
        memcpy(w->out + *bytes, w->tile, metas[t].data_size);
        *bytes += metas[t].data_size;
    }
    return TRF_OK;
}

/* Called in the span's turn: gives its tiles their places and adds up the results. *offset: where the span goes. */
static trf_status commit_span(pass_state *state, uint32_t tiles, size_t bytes, uint64_t weights, trf_tile_meta *metas,
                              const trf_energy *energy, uint64_t *offset, trf_error *err) {
    trf_tile_pass *pass = state->pass;
    *offset = state->next_offset;
    for (uint32_t t = 0; t < tiles; t++) {
        metas[t].data_offset = state->next_offset;
        state->next_offset += metas[t].data_size;
        pass->exceptions += metas[t].exception_count;
        pass->predictor_modes |= metas[t].predictor_mode;
    }
    pass->data_bytes += bytes;
    pass->weights += weights;
    pass->energy.weights += energy->weights;
    pass->energy.error += energy->error;
    if (pass->progress && pass->progress->tick(pass->progress->context, pass->weights,
                                               (uint64_t)pass->encoder->header.rows * pass->encoder->header.cols))
        return trf_fail(err, TRF_ERR_CANCELLED, TRF_NO_OFFSET, "cancelled");
    return TRF_OK;
}

static trf_status encode_and_commit_span(void *context, uint64_t index, int worker_index, trf_error *err) {
    pass_state *state = context;
    const trf_header *h = &state->pass->encoder->header;
    worker *w = &state->workers[worker_index];
    uint64_t span = index * state->pass->span_stride;
    /* A row of tiles is cut into spans of nearly equal size, since a worker with a small one would only wait for its
     * turn. */
    uint64_t across = spans_across(h), place = span % across;
    uint32_t tile_col = (uint32_t)(place * h->num_tile_cols / across);
    uint32_t tiles = (uint32_t)((place + 1) * h->num_tile_cols / across) - tile_col, col = tile_col * TRF_TILE_SIZE;
    uint32_t row = (uint32_t)(span / across) * TRF_TILE_SIZE;
    uint32_t rows = h->rows - row < TRF_TILE_SIZE ? h->rows - row : TRF_TILE_SIZE;
    uint32_t cols = h->cols - col < tiles * TRF_TILE_SIZE ? h->cols - col : tiles * TRF_TILE_SIZE;
    uint64_t first_tile = (uint64_t)(row / TRF_TILE_SIZE) * h->num_tile_cols + tile_col;
    trf_tile_meta local[CHUNK_TILES], *metas = state->pass->metas ? state->pass->metas + first_tile : local;
    trf_energy energy = {0, 0};
    size_t bytes = 0;
    trf_status status = TRF_OK;
    if (!w->scratch)
        status = make_worker(w, state->pass, err);
    const trf_element_source *from = state->pass->from;
    const uint16_t *span_elements = w->elements;
    size_t stride = cols;
    if (elements_in_memory(from)) {
        stride = h->cols;
        span_elements = (const uint16_t *)from->source->weights + row * stride + col;
    } else if (status == TRF_OK) {
        status = trf_read_elements(from, row, rows, col, cols, w->source, w->elements, &energy, err);
    }
    if (status == TRF_OK)
        status = encode_span(state, w, first_tile, tiles, span_elements, stride, metas, &bytes, err);

    uint64_t offset = 0;
    pthread_mutex_lock(&state->lock);
    while (state->committed != index && !state->failed)
        pthread_cond_wait(&state->turn, &state->lock);
    /* After another span has failed this one has nothing left to do. The caller will see the failure of the lowest
     * span. */
    int go_on = status == TRF_OK && !state->failed;
    if (go_on)
        status = commit_span(state, tiles, bytes, (uint64_t)rows * cols, metas, &energy, &offset, err);
    state->failed |= status != TRF_OK;
    state->committed++;
    pthread_cond_broadcast(&state->turn);
    pthread_mutex_unlock(&state->lock);
    if (go_on && status == TRF_OK && state->pass->sink) {
        const trf_sink *sink = state->pass->sink;
        status = sink->write(sink->context, offset, w->out, bytes, err);
    }
    return status;
}

trf_status trf_encode_tiles(trf_tile_pass *pass, uint64_t data_offset, trf_error *err) {
    const trf_header *h = &pass->encoder->header;
    uint64_t spans = trf_count_tile_spans(h), count = (spans + pass->span_stride - 1) / pass->span_stride;
    int threads = trf_thread_count(pass->threads);
    if ((uint64_t)threads > count)
        threads = (int)count;
    pass_state state = {.pass = pass, .next_offset = data_offset};
    pass->data_bytes = pass->weights = pass->exceptions = 0;
    pass->predictor_modes = 0;
    pass->energy = (trf_energy){0, 0};
    state.workers = calloc((size_t)threads, sizeof *state.workers);
    state.table = malloc(sizeof *state.table);
    trf_status status;
    pthread_mutex_init(&state.lock, NULL);
    pthread_cond_init(&state.turn, NULL);
    if (!state.workers || !state.table) {
        status = trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory for an encoder's buffers");
    } else {
        trf_blob_view view = {.header = *h, .frequency = pass->encoder->model.frequency};
        trf_decode_table_init(state.table, &view);
        status = trf_parallel_for(threads, count, encode_and_commit_span, &state, err);
    }
    for (int i = 0; state.workers && i < threads; i++)
        free_worker(&state.workers[i]);
    free(state.workers);
    free(state.table);
    pthread_mutex_destroy(&state.lock);
    pthread_cond_destroy(&state.turn);
    return status;
}

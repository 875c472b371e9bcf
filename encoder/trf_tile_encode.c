#include "trf_tile_encode.h"

#include <string.h>

void trf_plan_finish(trf_plan *plan, const trf_classes *classes) {
    trf_header *h = &plan->header;
    trf_split_rule *rule = &plan->rule;
    h->magic = TRF_MAGIC;
    h->version = TRF_FORMAT_VERSION;
    h->tile_size = TRF_TILE_SIZE;
    h->num_tiles_row = (h->rows + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE;
    h->num_tiles_col = (h->cols + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE;
    h->slab_rows = TRF_SLAB_ROWS;
    h->slab_cols = TRF_SLAB_COLS;
    h->streams_per_lane = 1;
    h->extension_offset = TRF_EXTENSION_OFFSET;
    h->extension_bytes = sizeof(trf_extension);
    h->raw_bits = (uint8_t)(h->codec == TRF_CODEC_INT ? classes->shift : trf_float_raw_bits(h->codec, h->class_bits));
    memcpy(plan->extension.class_value, classes->class_value, sizeof classes->class_value);

    memset(rule, 0, sizeof *rule);
    rule->codec = h->codec;
    rule->class_bits = h->class_bits;
    rule->raw_bits = h->raw_bits;
    rule->num_planes = trf_plane_widths(h->raw_bits, rule->plane_width);
    rule->classes = *classes;
    rule->exponent_offset = plan->extension.exponent_offset;
    rule->predicted = h->predictor_modes != 0;
    rule->offsets = rule->exponent_offset != 0 || rule->predicted;
    for (int32_t v = 0; v < 256; v++)
        rule->class_of[v] = (uint8_t)trf_class_of(classes, v);
    for (uint32_t s = 0; s < TRF_ALPHABET; s++)
        plan->missing[s] = plan->model.replacement[s] != s;
    trf_encode_symbols_init(plan->symbols, &plan->model, h->state_bits);
    plan->split = trf_split_slab_best();
}

/* Eight rows of one or two column steps, `steps` a constant. Row r of them has 2 * steps 32-bit registers of each of the lanes 4r ... 4r+3,
 * one lane after the other. to: where the first one's registers go, one every 4 * TRF_LANES; step_size: from one step to the next. */
static inline __attribute__((always_inline)) void gather_rows(const uint16_t *from, size_t stride, uint32_t steps,
                                                              uint16_t *to, size_t step_size) {
    uint32_t runs[4 * TRF_LANES], registers[4][TRF_LANES];
    for (uint32_t row = 0; row < 8; row++)
        memcpy(runs + 8 * steps * row, from + row * stride, 32 * steps);
    for (uint32_t lane = 0; lane < TRF_LANES; lane++)
        for (uint32_t k = 0; k < 2 * steps; k++)
            registers[k][lane] = runs[2 * steps * lane + k];
    for (uint32_t k = 0; k < 2 * steps; k++)
        memcpy(to + k / 2 * step_size + k % 2 * 4 * TRF_LANES, registers[k], sizeof registers[k]);
}

void trf_gather_lanes(const uint16_t *rows, size_t stride, trf_slab_shape shape, uint16_t *lanes) {
    const size_t fragment = 8 * TRF_LANES, step_size = shape.blocks * fragment;
    for (uint32_t half = 0; half < 2 * shape.blocks; half++) /* of a block of 16 rows */
        for (uint32_t step = 0; step < shape.steps; step += 2) {
            const uint16_t *from = rows + 8 * half * stride + TRF_BLOCK_ROWS * step;
            uint16_t *to = lanes + step * step_size + half / 2 * fragment + half % 2 * 2 * TRF_LANES;
            if (step + 1 < shape.steps)
                gather_rows(from, stride, 2, to, step_size);
            else
                gather_rows(from, stride, 1, to, step_size);
        }
}

void trf_gather_offsets(const trf_plan *plan, const trf_tile_shape *shape, uint32_t slab, trf_slab_shape slab_shape,
                        trf_tile_scratch *scratch) {
    uint32_t rows = 16 * slab_shape.blocks, cols = 16 * slab_shape.steps;
    uint32_t first_row = shape->row + slab * TRF_SLAB_ROWS;
    for (uint32_t r = 0; r < rows; r++) {
        int of_row = plan->row_offsets ? plan->row_offsets[first_row + r] : 0;
        for (uint32_t c = 0; c < cols; c++)
            scratch->offsets[r * TRF_SLAB_COLS + c] =
                (uint16_t)(of_row + (plan->col_offsets ? plan->col_offsets[shape->col + c] : 0));
    }
    trf_gather_lanes(scratch->offsets, TRF_SLAB_COLS, slab_shape, scratch->work.offset);
}

/* Codes symbols without a slot as their replacements; weights whose class that changes become exceptions. */
static void replace_symbols(const trf_plan *plan, uint32_t weights, trf_slab_work *work) {
    const uint32_t c = plan->header.class_bits, per_symbol = 8 / c, count = weights / per_symbol * TRF_LANES;
    const uint8_t *replacement = plan->model.replacement;
    for (uint32_t at = 0; at < count; at++) {
        if (at % 8 == 0) { /* nearly always a run of eight has nothing to replace */
            const uint8_t *run = work->symbol + at;
            uint8_t missing = 0;
            for (uint32_t k = 0; k < 8; k++)
                missing |= plan->missing[run[k]];
            if (!missing) {
                at += 7;
                continue;
            }
        }
        uint32_t s = work->symbol[at], to = replacement[s];
        if (s == to)
            continue;
        work->symbol[at] = (uint8_t)to;
        for (uint32_t q = 0; q < per_symbol; q++)
            if (((s ^ to) >> (c * q)) & ((1u << c) - 1))
                trf_note_exception(work, trf_exception_position(per_symbol * (at / TRF_LANES) + q, at % TRF_LANES));
    }
}

/* The exceptions in ascending order of position. out: 4-byte aligned. @return the byte behind them. */
static uint8_t *put_exceptions(const trf_slab_work *work, uint8_t *out) {
    uint32_t *exception = (uint32_t *)out;
    for (uint32_t word = 0; word < TRF_SLAB_WEIGHTS / 64; word++)
        for (uint64_t bits = work->exception_mask[word]; bits; bits &= bits - 1) {
            uint32_t position = 64 * word + (uint32_t)__builtin_ctzll(bits), i = position / TRF_LANES,
                     lane = position % TRF_LANES;
            *exception++ = trf_exception_make(position, work->element[i / 2 * 64 + 2 * lane + i % 2]);
        }
    return (uint8_t *)exception;
}

/* The lanes' states and, to out, their words, pair by pair. @return the byte behind them. */
static uint8_t *put_lanes(const trf_coded_lanes *lanes, const trf_slab_layout *layout, uint8_t *slab, uint8_t *out) {
    memcpy(slab + layout->states, lanes->start_state, sizeof lanes->start_state);
    for (uint32_t pair = 0; pair < TRF_LANE_PAIRS; pair++) {
        uint32_t up = lanes->count[pair], down = lanes->count[pair + TRF_LANE_PAIRS];
        slab[layout->pair_words + pair] = (uint8_t)(up + down);
        memcpy(out, lanes->words[pair] + TRF_MAX_LANE_WORDS - up, 2 * up);
        out += 2 * up;
        memcpy(out, lanes->words[pair + TRF_LANE_PAIRS], 2 * down);
        out += 2 * down;
    }
    return out;
}

static uint32_t pad_to_alignment(uint8_t *out, uint32_t used) {
    uint32_t end = (uint32_t)trf_align(used);
    memset(out + used, 0, end - used);
    return end;
}

/* @return the slab's bytes. */
static uint32_t encode_slab(const trf_plan *plan, const trf_tile_shape *shape, uint32_t slab, const uint16_t *elements,
                            size_t stride, trf_tile_scratch *scratch, uint8_t *out) {
    trf_slab_layout layout = trf_slab_layout_of(shape, slab, plan->rule.raw_bits);
    trf_slab_work *work = &scratch->work;
    uint32_t weights = trf_lane_weights(layout.shape);
    trf_gather_lanes(elements + (size_t)slab * TRF_SLAB_ROWS * stride, stride, layout.shape, work->element);
    if (plan->rule.predicted)
        trf_gather_offsets(plan, shape, slab, layout.shape, scratch);
    plan->split(&plan->rule, layout.shape, work, out);
    replace_symbols(plan, weights, work);
    trf_encode_lanes(plan->symbols, work->symbol, weights * plan->header.class_bits / 8, plan->header.state_bits,
                     &scratch->lanes);
    uint8_t *end = put_lanes(&scratch->lanes, &layout, out, put_exceptions(work, out + layout.exceptions));
    return pad_to_alignment(out, (uint32_t)(end - out));
}

/* A row-major rectangle of elements, uncoded. @return bytes written. */
static uint32_t put_stored(const uint16_t *elements, size_t stride, uint32_t rows, uint32_t cols, uint32_t stored_bytes,
                           uint8_t *out) {
    for (uint32_t r = 0; r < rows; r++, elements += stride) {
        if (stored_bytes == 2)
            memcpy(out + (size_t)r * cols * 2, elements, (size_t)cols * 2);
        else
            for (uint32_t c = 0; c < cols; c++)
                out[(size_t)r * cols + c] = (uint8_t)elements[c];
    }
    return rows * cols * stored_bytes;
}

/* Slivers of a tile of which coded_rows x coded_cols are coded. @return the padded end of the tile. */
static uint32_t put_slivers(const trf_tile_shape *shape, const uint16_t *elements, size_t stride, uint32_t stored_bytes,
                            uint8_t *out, uint32_t used) {
    used += put_stored(elements + shape->coded_cols, stride, shape->coded_rows, shape->cols - shape->coded_cols,
                       stored_bytes, out + used);
    used += put_stored(elements + shape->coded_rows * stride, stride, shape->rows - shape->coded_rows, shape->cols,
                       stored_bytes, out + used);
    return pad_to_alignment(out, used);
}

void trf_encode_tile(const trf_plan *plan, uint64_t tile, const uint16_t *elements, size_t stride,
                     trf_tile_scratch *scratch, uint8_t *out, trf_tile_meta *meta) {
    const uint32_t stored_bytes = plan->header.stored_bytes;
    trf_tile_shape shape = trf_tile_shape_of(&plan->header, tile, TRF_TILE_CODED);
    uint32_t stored_size = (uint32_t)trf_align((uint64_t)shape.rows * shape.cols * stored_bytes);
    memset(meta, 0, sizeof *meta);
    meta->kind = TRF_TILE_STORED;
    if (shape.coded_rows && shape.coded_cols) {
        trf_slab_entry *table = (trf_slab_entry *)out;
        uint32_t used = pad_to_alignment(out, (uint32_t)sizeof *table * shape.slabs);
        for (uint32_t slab = 0; slab < shape.slabs; slab++) {
            used += encode_slab(plan, &shape, slab, elements, stride, scratch, out + used);
            table[slab].end_units = (uint16_t)(used / TRF_ALIGNMENT);
            table[slab].exceptions = (uint16_t)scratch->work.exceptions;
            meta->exception_count += scratch->work.exceptions;
        }
        meta->data_size = put_slivers(&shape, elements, stride, stored_bytes, out, used);
        meta->predictor_mode = plan->header.predictor_modes;
        meta->kind = TRF_TILE_CODED;
    }
    if (meta->kind == TRF_TILE_STORED || meta->data_size >= stored_size) {
        memset(meta, 0, sizeof *meta);
        meta->kind = TRF_TILE_STORED;
        shape.coded_rows = shape.coded_cols = 0;
        meta->data_size = put_slivers(&shape, elements, stride, stored_bytes, out, 0);
    }
    meta->checksum = trf_tile_checksum(out, meta->data_size, tile);
}

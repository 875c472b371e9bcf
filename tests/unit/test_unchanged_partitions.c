/* SPDX-License-Identifier: Apache-2.0 */
/* Partitions of fused, wide and grouped products, which must not change by accident. They are pinned by hashes over a
 * grid of shapes, batches and devices and by sums of their estimated times, and some are spelled out. They decide how
 * fast a product is and, by the order of additions, its bits. After changing them on purpose, copy the numbers that the
 * test prints to this file. */
#include "common/planned_devices.h"
#include "common/run_suite.h"
#include "trf_fused_partition.h"
#include "trf_group_partition.h"
#include "trf_wide_partition.h"

#include <check.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

static const trf_device_limits kDevices[] = {
    PLANNED_HOPPER(132, 66, 32, 16), PLANNED_HOPPER(132, 66, 0, 0),   PLANNED_HOPPER(132, 0, 0, 0),
    PLANNED_HOPPER(16, 7, 3, 1),     PLANNED_AMPERE(108, 166912, 80), PLANNED_AMPERE(128, 101376, 89),
    PLANNED_AMPERE(1, 101376, 86),
};
enum {
    NUM_DEVICES = sizeof kDevices / sizeof kDevices[0]
};

/* A layer without its shape. */
typedef struct pinned_layer {
    const char *name;
    uint32_t codec, class_bits, raw_bits;
    uint32_t probability_bits; /* 0: the usual ones */
    uint32_t slab_cols, granularity, predictor_modes;
} pinned_layer;

static const pinned_layer kLayers[] = {
    {"bf16 quads", TRF_CODEC_BF16, 2, 10, 0, 256, TRF_GRANULARITY_NONE, 0},
    {"bf16 pairs", TRF_CODEC_BF16, 4, 8, 0, 256, TRF_GRANULARITY_NONE, 0},
    {"bf16 quads, p 12", TRF_CODEC_BF16, 2, 10, 12, 256, TRF_GRANULARITY_NONE, 0},
    {"bf16 pairs, p 12", TRF_CODEC_BF16, 4, 8, 12, 256, TRF_GRANULARITY_NONE, 0},
    {"bf16 quads, narrow slabs", TRF_CODEC_BF16, 2, 10, 0, 128, TRF_GRANULARITY_NONE, 0},
    {"bf16 pairs, narrow slabs", TRF_CODEC_BF16, 4, 8, 0, 128, TRF_GRANULARITY_NONE, 0},
    {"bf16 quads, row offsets", TRF_CODEC_BF16, 2, 10, 0, 256, TRF_GRANULARITY_NONE, TRF_PREDICT_ROW},
    {"fp16 quads", TRF_CODEC_FP16, 2, 13, 0, 256, TRF_GRANULARITY_NONE, 0},
    {"fp16 pairs", TRF_CODEC_FP16, 4, 11, 0, 256, TRF_GRANULARITY_NONE, 0},
    {"e4m3 quads", TRF_CODEC_E4M3, 2, 6, 0, 256, TRF_GRANULARITY_NONE, 0},
    {"e4m3 pairs", TRF_CODEC_E4M3, 4, 4, 0, 256, TRF_GRANULARITY_NONE, 0},
    {"e5m2 quads", TRF_CODEC_E5M2, 2, 5, 0, 256, TRF_GRANULARITY_NONE, 0},
    {"e5m2 pairs", TRF_CODEC_E5M2, 4, 3, 0, 128, TRF_GRANULARITY_NONE, 0},
    {"int quads, 6 raw bits", TRF_CODEC_INT, 2, 6, 0, 256, TRF_GRANULARITY_CHANNEL, 0},
    {"int quads, 3 raw bits", TRF_CODEC_INT, 2, 3, 0, 256, TRF_GRANULARITY_TENSOR, 0},
    {"int quads, 4 raw bits", TRF_CODEC_INT, 2, 4, 0, 128, TRF_GRANULARITY_CHANNEL, 0},
    {"int pairs", TRF_CODEC_INT, 4, 4, 0, 256, TRF_GRANULARITY_CHANNEL, 0},
    {"int quads, scale groups", TRF_CODEC_INT, 2, 3, 0, 256, TRF_GRANULARITY_SCALE_GROUP, 0},
    {"int pairs, scale groups", TRF_CODEC_INT, 4, 4, 0, 256, TRF_GRANULARITY_SCALE_GROUP, 0},
};
enum {
    NUM_LAYERS = sizeof kLayers / sizeof kLayers[0]
};

static trf_device_view view_of(const pinned_layer *layer, uint32_t rows, uint32_t cols) {
    trf_device_view view;
    memset(&view, 0, sizeof view);
    view.rows = rows;
    view.cols = cols;
    view.num_tile_rows = (rows + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE;
    view.num_tile_cols = (cols + TRF_TILE_SIZE - 1) / TRF_TILE_SIZE;
    view.slab_cols = layer->slab_cols;
    view.num_panels = (cols + layer->slab_cols - 1) / layer->slab_cols;
    view.num_bands = (rows + TRF_SLAB_ROWS - 1) / TRF_SLAB_ROWS;
    view.codec = layer->codec;
    view.class_bits = layer->class_bits;
    view.raw_bits = layer->raw_bits;
    view.probability_bits = view.state_bits = layer->probability_bits  ? layer->probability_bits
                                              : layer->class_bits == 2 ? 9
                                                                       : 10;
    view.granularity = layer->granularity;
    view.scale_group_size = layer->granularity == TRF_GRANULARITY_SCALE_GROUP ? 128 : 0;
    return view;
}

static trf_layer_traits traits_of(const pinned_layer *layer, uint64_t irregular_weights) {
    trf_layer_traits traits;
    memset(&traits, 0, sizeof traits);
    traits.max_rans_bytes = (layer->class_bits == 4 ? 2832u : 928u) / (layer->slab_cols == 128 ? 2 : 1);
    traits.max_frequency = 240;
    traits.irregular_weights = irregular_weights;
    traits.exceptions_fit_fragments = 1;
    traits.predictor_modes = layer->predictor_modes;
    return traits;
}

static trf_dtype x_dtype_of(const pinned_layer *layer) {
    return layer->codec == TRF_CODEC_FP16 ? TRF_DTYPE_F16 : TRF_DTYPE_BF16;
}

/* FNV-1a over words. */
static void hash_words(uint64_t *hash, const uint32_t *words, size_t count) {
    for (size_t i = 0; i < 4 * count; i++)
        *hash = (*hash ^ (words[i / 4] >> 8 * (i % 4) & 0xFF)) * 0x100000001B3ull;
}
static void hash_bytes(uint64_t *hash, uint64_t bytes) {
    const uint32_t words[2] = {(uint32_t)bytes, (uint32_t)(bytes >> 32)};
    hash_words(hash, words, 2);
}
static void hash_text(uint64_t *hash, const char *text) {
    for (; *text; text++)
        *hash = (*hash ^ (uint8_t)*text) * 0x100000001B3ull;
}
static void hash_smem(uint64_t *hash, const trf_smem_layout *smem) {
    const uint32_t words[9] = {smem->table_log,    smem->lane_pair_masks, smem->first_warp,
                               smem->warp_bytes,   smem->slab_bytes,      smem->narrow_bytes,
                               smem->rans_streams, smem->rans_bytes,      smem->total};
    hash_words(hash, words, 9);
}

enum {
    MOST_DEVICES = 8
};

/* The results of all cases of a layer: a hash for each device, and the sum of log(1 + microseconds). */
typedef struct pinned_row {
    uint64_t hashes[MOST_DEVICES];
    double log_us;
} pinned_row;

static const pinned_row kNoCases = {{0}, 0};

static void begin_hashes(pinned_row *row) {
    *row = kNoCases;
    for (int i = 0; i < MOST_DEVICES; i++)
        row->hashes[i] = 0xCBF29CE484222325ull;
}

static void check_row(const pinned_layer *layer, const pinned_row *row, const pinned_row *pinned, uint32_t devices) {
    for (uint32_t i = 0; i < devices; i++)
        if (row->hashes[i] != pinned->hashes[i])
            ck_abort_msg("%s, device %u: other partitions than before, hash 0x%016" PRIX64, layer->name, i,
                         row->hashes[i]);
    if (fabs(row->log_us - pinned->log_us) > 1e-9 * pinned->log_us)
        ck_abort_msg("%s: other estimates than before, sum of logarithms %.17g", layer->name, row->log_us);
}

/* One case spelled out, on kDevices[0]: the layer of kLayers, its shape, and rows of x or, for groups, the number of
 * layers. */
typedef struct pinned_case {
    uint32_t layer, rows, cols, m, fields[11];
} pinned_case;

static void check_fields(const pinned_case *pinned, const uint32_t *fields, size_t count, const char *const *names) {
    for (size_t i = 0; i < count; i++)
        if (fields[i] != pinned->fields[i])
            ck_abort_msg("%s, %ux%u, m %u: %s is %u, was %u", kLayers[pinned->layer].name, pinned->rows, pinned->cols,
                         pinned->m, names[i], fields[i], pinned->fields[i]);
}

/* ---- fused ---- */

enum {
    FUSED_ROWS = 12,
    FUSED_COLS = 10,
    FUSED_BATCHES = 9
};

static const pinned_row kFused[NUM_LAYERS] = {
    {{0xBEA993E3B09450CB, 0x15377D92C3EE3DB1, 0xAE3D62D815DAC379, 0x63923EAEF4B3A68C, 0x01B445ACB25BBECD,
      0x6FAF3F754AE949B0, 0x303E3152D7689F7B},
     18693.803219834},
    {{0xFA2E27D54C10C0A8, 0x56BCE3926CC0DDF9, 0xC2BD7CBE537881F2, 0x1C7DBBF12E08F5BC, 0xF2F2D936CB667E08,
      0x889F8D061EC740F1, 0x24250A9E0BCB6655},
     15174.746559512},
    {{0x3BB281930F6CDBE2, 0x775BD79064E12DBB, 0x035394B0BF502860, 0x687D5118B2275709, 0x5ECCAFF0925F0267,
      0xA58F5F1A1E23F885, 0xA58F5F1A1E23F885},
     13689.014285843},
    {{0xEF44A4DE88A8A8AE, 0x342458DAFAF3E87C, 0x9D54248B2C901087, 0x30BE1657246A0196, 0xB086C7F43B2A81D4,
      0xA58F5F1A1E23F885, 0xA58F5F1A1E23F885},
     14030.873134874},
    {{0xAAA76406DCACF1C0, 0x219A521C8020CCE5, 0x3DA241F7D5DF6B76, 0xDC658CD848F68572, 0x8F5010DEEEAA1502,
      0xD17B6808E41FB925, 0x145778CEFABDEF87},
     17294.041618510},
    {{0x141C0EB193A50453, 0x8C81F522A1E7C8EE, 0x195DA718C02D04A2, 0x86B5178BD98B7E3A, 0xA843DDF3DE45F440,
      0x4C075DE116F99D6E, 0xB8A3EB50859175EC},
     18380.125232671},
    {{0x8A911AD126810076, 0x9C36B2D0A4DF7BBF, 0xEE17E553365E5644, 0x86B943B26B662311, 0xCAD101F1E6A3236F,
      0x6FAF3F754AE949B0, 0x303E3152D7689F7B},
     20750.443967419},
    {{0x973BFEAC8C8CAB4B, 0x3C1B50C204BFF356, 0x7588AD4373EB766C, 0xD9EBF08E069F98F7, 0x6327B939D07537AC,
      0x269D964DECE3D24F, 0x7F6483278D03BA7A},
     19431.730846052},
    {{0x4B97A9CA8D3A5C0F, 0x9AB10991EFEFEE5E, 0xFED92AA9F1FD9D59, 0x900F4CE4901E477B, 0x1EE0B8EBE0AF63D2,
      0xE343E497DE42B299, 0x0464F8EDC65FABD0},
     15509.197593296},
    {{0xEA551338FC56BABC, 0x73428D2D06CC668D, 0x80C77FB96234075D, 0x8624C091881DA218, 0xB34C8652F92D10DF,
      0x9223AC4975672844, 0xCE4CA9D766026A1E},
     18754.795990958},
    {{0x138EDE091CF4D65C, 0xBBC5CB2273752E4D, 0xB1826A1F4351D36E, 0x081B861219550E3F, 0x88508D080DED9324,
      0x8203DDFF85865455, 0xD1852A8025F21D7D},
     15174.746559512},
    {{0x7AF9920801746EBF, 0x6A1DD521FED5A199, 0xD61ADD5C1727F244, 0x89540A6E1FCD90EE, 0x8629790D94393176,
      0x773380D267310BDC, 0x8ADFB46D969F50EC},
     18751.065460094},
    {{0x9483BAA57B3A8541, 0xE6A1FCF13FA41880, 0x939CF5139B7A4CC6, 0xDDD850C1F4872A52, 0x12C9D0EEB1D67B9D,
      0xA2E57C9871EF3E29, 0xA100ADBDCDB239EB},
     18342.057089198},
    {{0xEA551338FC56BABC, 0x73428D2D06CC668D, 0x80C77FB96234075D, 0x8624C091881DA218, 0xB34C8652F92D10DF,
      0x9223AC4975672844, 0xCE4CA9D766026A1E},
     18754.795990958},
    {{0x5BB0385B4DFA3B98, 0x54D2FBEBAFF8D8CD, 0xBCB28A1D4A735B28, 0x60F644A74B8ADB41, 0xA29EE791BFD9F8E0,
      0x74EB6BB82BCCEE3B, 0xDF9E1FC981BACCE6},
     18701.344068858},
    {{0x0B1A0F3BD9828A6F, 0x7CBB2ECDB328C2E6, 0x1615BE9E3954D4E6, 0x57071D6EF60E330A, 0xF69EDF7D6E91BE9B,
      0x2A15EF4C16259472, 0x128C4F978A9C7E1D},
     17506.789225470},
    {{0x138EDE091CF4D65C, 0xBBC5CB2273752E4D, 0xB1826A1F4351D36E, 0x081B861219550E3F, 0x88508D080DED9324,
      0x8203DDFF85865455, 0xD1852A8025F21D7D},
     15174.746559512},
    {{0x626FD04068CDB4E8, 0x5FCDC2B83A509638, 0x94C46F996123F912, 0x957A813A295D929F, 0x8E41D6549047D248,
      0xF143FF22584C4DE0, 0xAA78DEFF1AE06FD5},
     18856.438070021},
    {{0x5C5AD26684B2F6AD, 0x5AFAB85425E4EC50, 0x2312AC2128E1D006, 0xD6AAA115921A112E, 0xBF5E0EB979B0E501,
      0x8203DDFF85865455, 0xD1852A8025F21D7D},
     15149.614737936},
};

static const char *const kFusedFields[] = {
    "variant",     "x_tiles",  "warps",      "table_log",   "cluster_size",
    "clusters",    "k_splits", "wave_units", "is_stream_k", "cluster_sums_replace_buffers",
    "x_stage_cols"};
static const pinned_case kFusedCases[] = {
    {0, 8192, 8192, 1, {0, 1, 16, 15, 1, 128, 16, 1, 0, 0, 0}},
    {0, 8192, 8192, 8, {0, 1, 16, 15, 1, 128, 16, 1, 0, 0, 0}},
    {0, 8192, 8192, 16, {0, 2, 16, 15, 1, 128, 16, 1, 0, 0, 0}},
    {0, 8192, 8192, 24, {0, 3, 12, 15, 1, 128, 12, 1, 0, 0, 0}},
    {0, 8192, 8192, 32, {0, 4, 12, 15, 1, 128, 12, 1, 0, 0, 0}},
    {0, 8192, 8192, 64, {1, 8, 8, 16, 4, 32, 1, 8, 0, 0, 128}},
    {0, 1024, 4096, 1, {1, 1, 16, 16, 1, 32, 16, 1, 0, 0, 0}},
    {0, 28672, 8192, 4, {0, 1, 16, 15, 1, 132, 4, 4, 0, 0, 0}},
    {0, 4096, 14336, 16, {0, 2, 16, 15, 2, 64, 12, 1, 0, 0, 0}},
    {1, 4096, 4096, 1, {1, 1, 20, 16, 1, 128, 16, 1, 0, 0, 0}},
    {2, 4096, 4096, 1, {2, 1, 8, 16, 1, 128, 8, 1, 0, 0, 0}},
    {9, 4096, 14336, 8, {0, 1, 16, 15, 2, 64, 14, 1, 0, 0, 0}},
    {13, 4096, 4096, 32, {0, 4, 12, 15, 2, 64, 8, 1, 0, 0, 0}},
    {17, 4096, 4096, 1, {1, 1, 16, 16, 1, 128, 16, 1, 0, 0, 0}},
    {17, 4096, 4096, 64, {1, 8, 8, 16, 4, 32, 2, 4, 0, 0, 128}},
};

static trf_fused_partition choose_fused(const trf_device_view *view, const trf_layer_traits *traits,
                                        const trf_device_limits *limits, uint32_t m, int has_bias) {
    const trf_product product = {.m = m, .has_bias = has_bias, .y_stride = view->rows};
    trf_fused_partition partition;
    trf_fused_choose(view, traits, limits, &product, &partition);
    return partition;
}

static void add_fused(uint64_t *hash, double *log_us, const pinned_layer *layer, const trf_device_limits *limits,
                      const trf_device_view *view, uint32_t m) {
    const trf_layer_traits traits = traits_of(layer, (layer - kLayers) % 2);
    const char *reason = trf_fused_refusal(view, &traits, limits, m, x_dtype_of(layer));
    if (reason) {
        hash_text(hash, reason);
        return;
    }
    const trf_fused_partition c = choose_fused(view, &traits, limits, m, 0);
    const uint32_t replace = c.cluster_sums_replace_buffers;
    const uint32_t words[] = {c.variant,      c.x_tiles,     c.warps,           c.unit_slabs,  c.smem.table_log,
                              c.cluster_size, c.clusters,    c.units,           c.panels,      c.k_splits,
                              c.wave_units,   c.waves,       c.block_panels,    c.is_stream_k, c.wave_panels,
                              c.sums_offset,  c.sums_stride, c.x_stages_offset, replace,       c.x_stage_cols,
                              c.shared_bytes};
    hash_words(hash, words, sizeof words / sizeof words[0]);
    hash_smem(hash, &c.smem);
    hash_bytes(hash, c.workspace_bytes);
    hash_bytes(hash, choose_fused(view, &traits, limits, m, 1).workspace_bytes);
    *log_us += log1p(trf_fused_microseconds(view, &traits, limits, m));
}

START_TEST(fused_partitions) {
    static const uint32_t rows[FUSED_ROWS] = {1, 31, 32, 33, 100, 1024, 2080, 4096, 8192, 65536, 151936, 1u << 24},
                          cols[FUSED_COLS] = {1, 48, 64, 100, 128, 256, 300, 1024, 4096, 14336},
                          batches[FUSED_BATCHES] = {1, 2, 8, 9, 16, 17, 32, 33, 64};
    const pinned_layer *layer = &kLayers[_i];
    pinned_row row;
    begin_hashes(&row);
    for (uint32_t device = 0; device < NUM_DEVICES; device++)
        for (uint32_t i = 0; i < FUSED_ROWS * FUSED_COLS * FUSED_BATCHES; i++) {
            const trf_device_view view =
                view_of(layer, rows[i / FUSED_BATCHES / FUSED_COLS], cols[i / FUSED_BATCHES % FUSED_COLS]);
            add_fused(&row.hashes[device], &row.log_us, layer, &kDevices[device], &view, batches[i % FUSED_BATCHES]);
        }
    check_row(layer, &row, &kFused[_i], NUM_DEVICES);
}
END_TEST

START_TEST(fused_cases) {
    const pinned_case *pinned = &kFusedCases[_i];
    const trf_device_view view = view_of(&kLayers[pinned->layer], pinned->rows, pinned->cols);
    const trf_layer_traits traits = traits_of(&kLayers[pinned->layer], 0);
    const trf_fused_partition c = choose_fused(&view, &traits, &kDevices[0], pinned->m, 0);
    const uint32_t replace = c.cluster_sums_replace_buffers;
    const uint32_t fields[] = {c.variant,  c.x_tiles,    c.warps,       c.smem.table_log, c.cluster_size, c.clusters,
                               c.k_splits, c.wave_units, c.is_stream_k, replace,          c.x_stage_cols};
    check_fields(pinned, fields, sizeof fields / sizeof fields[0], kFusedFields);
}
END_TEST

/* ---- wide ---- */

enum {
    WIDE_DEVICES = 3,
    WIDE_ROWS = 8,
    WIDE_COLS = 6,
    WIDE_BATCHES = 15
};

static const trf_device_limits kWideDevices[WIDE_DEVICES] = {
    PLANNED_HOPPER(132, 66, 32, 16),
    PLANNED_HOPPER(132, 66, 0, 0),
    PLANNED_HOPPER(114, 0, 0, 0),
};

static const pinned_row kWide[NUM_LAYERS] = {
    {{0x6B05831884205BD5, 0x6B05831884205BD5, 0x6B05831884205BD5}, 0}, /* bf16 has none */
    {{0x6B05831884205BD5, 0x6B05831884205BD5, 0x6B05831884205BD5}, 0},
    {{0x6B05831884205BD5, 0x6B05831884205BD5, 0x6B05831884205BD5}, 0},
    {{0x6B05831884205BD5, 0x6B05831884205BD5, 0x6B05831884205BD5}, 0},
    {{0x6B05831884205BD5, 0x6B05831884205BD5, 0x6B05831884205BD5}, 0},
    {{0x6B05831884205BD5, 0x6B05831884205BD5, 0x6B05831884205BD5}, 0},
    {{0x6B05831884205BD5, 0x6B05831884205BD5, 0x6B05831884205BD5}, 0},
    {{0xFC00CF256CC8A76A, 0x186FE8DFB9BFE21A, 0xF666BE2AD48D5DDA}, 0},
    {{0x42DB4A5855FD78D2, 0x028DD2711C9BF0F2, 0xFE153B70E973EFFA}, 0},
    {{0x12CB34B5E19D08DA, 0xE09E9318174BA072, 0xCCC886E2ED8F412E}, 0},
    {{0xCBF2AA15FCF6659A, 0x97BFA8F0C48EE4DE, 0xAA55CD93F7C38FF6}, 0},
    {{0x5272A2E0D1E2821A, 0x4E09B321D5E0170A, 0x56934E586AB70556}, 0},
    {{0xA4326997672716AE, 0x0B1827D0CC529D86, 0x621AC1B94DAE8A02}, 0},
    {{0x12CB34B5E19D08DA, 0xE09E9318174BA072, 0xCCC886E2ED8F412E}, 0},
    {{0x6EB06D77EB420236, 0x799CBC05085DEB22, 0xF7D0DA8566E44206}, 0},
    {{0x904B0A5F01367B2A, 0x2654E5995D1C5036, 0x9061A3B18E869002}, 0},
    {{0xCBF2AA15FCF6659A, 0x97BFA8F0C48EE4DE, 0xAA55CD93F7C38FF6}, 0},
    {{0xE8E9C6415E1BE905, 0xE8E9C6415E1BE905, 0xE8E9C6415E1BE905}, 0},
    {{0xE8E9C6415E1BE905, 0xE8E9C6415E1BE905, 0xE8E9C6415E1BE905}, 0},
};

static const char *const kWideFields[] = {"x_rows", "decoding_blocks", "k_splits", "clusters", "producers"};
static const pinned_case kWideCases[] = {
    {9, 8192, 8192, 48, {48, 1, 2, 64, 6}},     {9, 8192, 8192, 64, {64, 1, 2, 64, 6}},
    {9, 8192, 8192, 128, {128, 1, 2, 64, 4}},   {9, 8192, 8192, 256, {128, 2, 1, 64, 8}},
    {9, 2048, 4096, 64, {64, 1, 4, 16, 4}},     {10, 8192, 8192, 128, {128, 1, 2, 64, 4}},
    {9, 14336, 4096, 8192, {128, 2, 1, 66, 8}},
};

static trf_wide_partition choose_wide(const trf_device_view *view, const trf_layer_traits *traits,
                                      const trf_device_limits *limits, uint32_t m, int has_bias) {
    const trf_product product = {.m = m, .has_bias = has_bias, .y_stride = view->rows};
    trf_wide_partition partition;
    trf_wide_choose(view, traits, limits, &product, &partition);
    return partition;
}

static void add_wide(uint64_t *hash, const pinned_layer *layer, const trf_device_limits *limits,
                     const trf_device_view *view, uint32_t m) {
    const trf_layer_traits traits = traits_of(layer, 0);
    const char *reason = trf_wide_refusal(view, &traits, limits, m, x_dtype_of(layer));
    if (reason) {
        hash_text(hash, reason);
        return;
    }
    const trf_wide_partition c = choose_wide(view, &traits, limits, m, 0);
    const uint32_t words[] = {c.threads,         c.x_rows,          c.x_stage_bytes, c.producers,  c.panels,
                              c.decoding_blocks, c.k_splits,        c.x_ranges,      c.work_items, c.clusters,
                              c.stages_offset,   c.x_stages_offset, c.shared_bytes};
    hash_words(hash, words, sizeof words / sizeof words[0]);
    hash_smem(hash, &c.smem);
    hash_bytes(hash, c.workspace_bytes);
    hash_bytes(hash, choose_wide(view, &traits, limits, m, 1).workspace_bytes);
}

START_TEST(wide_partitions) {
    static const uint32_t rows[WIDE_ROWS] = {32, 96, 128, 160, 2048, 8192, 14336, 151936},
                          cols[WIDE_COLS] = {64, 128, 512, 1344, 4096, 14336},
                          batches[WIDE_BATCHES] = {1, 48, 49, 64, 65, 80, 81, 128, 129, 192, 193, 300, 513, 1024, 8192};
    const pinned_layer *layer = &kLayers[_i];
    pinned_row row;
    begin_hashes(&row);
    for (uint32_t device = 0; device < WIDE_DEVICES; device++)
        for (uint32_t i = 0; i < WIDE_ROWS * WIDE_COLS * WIDE_BATCHES; i++) {
            const trf_device_view view =
                view_of(layer, rows[i / WIDE_BATCHES / WIDE_COLS], cols[i / WIDE_BATCHES % WIDE_COLS]);
            add_wide(&row.hashes[device], layer, &kWideDevices[device], &view, batches[i % WIDE_BATCHES]);
        }
    check_row(layer, &row, &kWide[_i], WIDE_DEVICES);
}
END_TEST

START_TEST(wide_cases) {
    const pinned_case *pinned = &kWideCases[_i];
    const trf_device_view view = view_of(&kLayers[pinned->layer], pinned->rows, pinned->cols);
    const trf_layer_traits traits = traits_of(&kLayers[pinned->layer], 0);
    const trf_wide_partition c = choose_wide(&view, &traits, &kDevices[0], pinned->m, 0);
    const uint32_t fields[] = {c.x_rows, c.decoding_blocks, c.k_splits, c.clusters, c.producers};
    check_fields(pinned, fields, sizeof fields / sizeof fields[0], kWideFields);
}
END_TEST

/* ---- groups and experts ---- */

enum {
    GROUP_ROWS = 10,
    GROUP_COLS = 10,
    GROUP_SHAPES = GROUP_ROWS * GROUP_COLS,
    EXPERTS = 64,
    EXPERT_BATCHES = 4
};

static const uint32_t kGroupRows[GROUP_ROWS] = {1, 31, 32, 33, 100, 1024, 2048, 4096, 14336, 65536},
                      kGroupCols[GROUP_COLS] = {1, 48, 64, 100, 128, 256, 1024, 1536, 4096, 5632};

/* Groups, then experts. */
static const pinned_row kGroups[NUM_LAYERS] = {
    {{0xABD19252EFFC9EE6, 0xABD19252EFFC9EE6, 0xABD19252EFFC9EE6, 0x4067149B42EB2F0F, 0x3EE6CB7869043F3C,
      0x73961CA262159D15, 0x73961CA262159D15},
     458.653547214},
    {{0xB68E6CB41535F408, 0xB68E6CB41535F408, 0xB68E6CB41535F408, 0x94238CB6EBB3629C, 0xFDAD9BE8F2701D2A,
      0x73961CA262159D15, 0x73961CA262159D15},
     551.592465950},
    {{0x2FEF3E539E1424EC, 0x2FEF3E539E1424EC, 0x2FEF3E539E1424EC, 0x08E243998E363D79, 0x437D29E4C9CACCFA,
      0x73961CA262159D15, 0x73961CA262159D15},
     0},
    {{0x276D079CF3016E36, 0x276D079CF3016E36, 0x276D079CF3016E36, 0x276D079CF3016E36, 0xE8A3BCF60B210E82,
      0x73961CA262159D15, 0x73961CA262159D15},
     0},
    {{0xC1DEE6B2C2EAD22F, 0xC1DEE6B2C2EAD22F, 0x7B308F291CB3ED2D, 0x46371EBF0B1CACC5, 0x22D0E6D9403E5D5E,
      0x73961CA262159D15, 0x73961CA262159D15},
     429.918653000},
    {{0xE5FE3EB7BC5D7DF1, 0xE5FE3EB7BC5D7DF1, 0x5FE9B59C5B2EC847, 0x45D43137BF60EF6D, 0x1AA586439C4E18CC,
      0x73961CA262159D15, 0x73961CA262159D15},
     495.504165063},
    {{0x96E79BB8D8FE6B70, 0x96E79BB8D8FE6B70, 0x96E79BB8D8FE6B70, 0x12334A5C9A8B8905, 0x207880E2BAEC6436,
      0x73961CA262159D15, 0x73961CA262159D15},
     0},
    {{0xB416DAB2690E2A36, 0xB416DAB2690E2A36, 0x4EBBD16DBDEA3E29, 0xB24DC4A74510F51D, 0x6E7723DA4B3CB784,
      0x73961CA262159D15, 0x73961CA262159D15},
     479.913366466},
    {{0x7FFA9A21C9CD5606, 0x7FFA9A21C9CD5606, 0x7FFA9A21C9CD5606, 0x729085D445208E23, 0x586683159D79D082,
      0x73961CA262159D15, 0x73961CA262159D15},
     557.120894526},
    {{0x32AC8F6016A41A32, 0x32AC8F6016A41A32, 0x1B13629924ABE410, 0x2A67BBC9A3FD1899, 0xCAC9F0202C28ECB0,
      0x73961CA262159D15, 0x73961CA262159D15},
     479.062787262},
    {{0xEEF8ED2213266428, 0xEEF8ED2213266428, 0xEEF8ED2213266428, 0xED5C7054B88A7E04, 0x271A85D8DABA4AB2,
      0x73961CA262159D15, 0x73961CA262159D15},
     551.592465950},
    {{0x3BBC97596DB5FB42, 0x3BBC97596DB5FB42, 0xB39FCE183E2AF3B4, 0xB1FB2F6B8D7602F1, 0x5004905F7EBD0167,
      0x73961CA262159D15, 0x73961CA262159D15},
     477.576035506},
    {{0x57C22B05D1BC880F, 0x57C22B05D1BC880F, 0xB7ECEC447487E111, 0xC1728FEFD8BA603F, 0x70D2056092CC1736,
      0x73961CA262159D15, 0x73961CA262159D15},
     498.135739113},
    {{0x32AC8F6016A41A32, 0x32AC8F6016A41A32, 0x1B13629924ABE410, 0x2A67BBC9A3FD1899, 0xCAC9F0202C28ECB0,
      0x73961CA262159D15, 0x73961CA262159D15},
     479.062787262},
    {{0x9767C99103866139, 0x9767C99103866139, 0x1030508800129D4D, 0xB49EE008CB5DD4F1, 0x6304EE6C3DA4A3B6,
      0x5750EC376966224E, 0x5750EC376966224E},
     476.716643057},
    {{0x99EBA520E79A7177, 0x7F9FF6CA2AB88A34, 0x9B1F5ED15C5E6EA6, 0xD88184EE4AAF73AE, 0xFB177343240B2617,
      0xC4F9CB0A93E6E0EE, 0xC4F9CB0A93E6E0EE},
     454.182231182},
    {{0xEEF8ED2213266428, 0xEEF8ED2213266428, 0xEEF8ED2213266428, 0xED5C7054B88A7E04, 0x271A85D8DABA4AB2,
      0x73961CA262159D15, 0x73961CA262159D15},
     551.592465950},
    {{0xD31D6FC43FC98AE6, 0xD31D6FC43FC98AE6, 0xD31D6FC43FC98AE6, 0xD31D6FC43FC98AE6, 0xD31D6FC43FC98AE6,
      0x5750EC376966224E, 0x5750EC376966224E},
     0},
    {{0x00F60490CCFFF4F6, 0x00F60490CCFFF4F6, 0x00F60490CCFFF4F6, 0x00F60490CCFFF4F6, 0x69C3C881AC9B581A,
      0x73961CA262159D15, 0x73961CA262159D15},
     0},
};

static const char *const kGroupFields[] = {"slabs", "warps", "cluster_size", "clusters", "k_splits", "wave_units"};
static const pinned_case kGroupCases[] = {
    {0, 2048, 5632, 2, {2, 12, 2, 32, 11, 1}}, {0, 4096, 4096, 3, {1, 16, 1, 43, 1, 1}},
    {0, 1024, 4096, 8, {2, 16, 1, 16, 1, 1}},  {1, 4096, 4096, 2, {1, 16, 1, 64, 1, 1}},
    {9, 4096, 4096, 3, {2, 12, 2, 22, 4, 3}},
};

static trf_device_view group_view(const pinned_layer *layer, uint32_t shape) {
    return view_of(layer, kGroupRows[shape / GROUP_COLS], kGroupCols[shape % GROUP_COLS]);
}

static void hash_group(uint64_t *hash, const trf_group_partition *c, uint32_t count) {
    const uint32_t words[] = {c->unit_slabs,       c->warps,     c->cluster_size, c->max_rans_bytes,
                              c->smem.sums_offset, c->smem.bytes};
    hash_words(hash, words, sizeof words / sizeof words[0]);
    hash_smem(hash, &c->smem.layout);
    hash_bytes(hash, c->workspace_bytes);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t own[] = {c->layers[i].clusters, c->layers[i].k_splits, c->layers[i].wave_units};
        hash_words(hash, own, sizeof own / sizeof own[0]);
        hash_bytes(hash, c->layers[i].edge_sums_offset);
        hash_bytes(hash, c->layers[i].padded_x_offset);
    }
}

/* A group of 1 to 8 layers of several shapes. */
static void add_group(uint64_t *hash, double *log_us, const pinned_layer *layer, const trf_device_limits *limits,
                      uint32_t first) {
    const uint32_t count = 1 + first % TRF_GROUP_MAX_LAYERS;
    const trf_layer_traits traits = traits_of(layer, first % 2);
    trf_device_view views[TRF_GROUP_MAX_LAYERS];
    trf_group_product products[TRF_GROUP_MAX_LAYERS];
    trf_group_partition partition;
    for (uint32_t i = 0; i < count; i++) {
        views[i] = group_view(layer, (first + 37 * i) % GROUP_SHAPES);
        products[i] = (trf_group_product){&views[i],         &traits,       1 + (first + i) % 8,
                                          x_dtype_of(layer), TRF_DTYPE_F32, views[i].rows};
        const char *reason = trf_group_refusal(&views[i], &traits, limits, products[i].m, products[i].x_dtype);
        if (reason) {
            hash_text(hash, reason);
            return;
        }
    }
    if (!trf_group_choose(products, count, limits, &partition)) {
        hash_text(hash, "none");
        return;
    }
    hash_group(hash, &partition, count);
    *log_us += log1p(partition.microseconds);
}

static void add_experts(uint64_t *hash, const pinned_layer *layer, const trf_device_limits *limits, uint32_t shape,
                        uint32_t tokens) {
    const trf_device_view view = group_view(layer, shape);
    trf_experts_partition c = {.max_rans_bytes = traits_of(layer, 0).max_rans_bytes, .has_edges = shape % 2};
    if (!trf_experts_choose(&view, EXPERTS, tokens, limits, &c)) {
        hash_text(hash, "none");
        return;
    }
    const trf_expert_cost_model *cost = &c.cost_model;
    const uint32_t words[] = {c.unit_slabs,       c.warps,     c.max_rans_bytes, c.has_edges,    cost->units,
                              cost->panels,       cost->warps, cost->step_ns,    cost->begin_ns, cost->begin_quarters,
                              c.smem.sums_offset, c.smem.bytes};
    hash_words(hash, words, sizeof words / sizeof words[0]);
    hash_smem(hash, &c.smem.layout);
    hash_bytes(hash, trf_experts_workspace_bytes(&view, &c, tokens));
}

START_TEST(group_partitions) {
    static const uint32_t tokens[EXPERT_BATCHES] = {1, 8, 128, 10000};
    const pinned_layer *layer = &kLayers[_i];
    pinned_row row;
    begin_hashes(&row);
    for (uint32_t device = 0; device < NUM_DEVICES; device++) {
        for (uint32_t first = 0; first < GROUP_SHAPES; first += 3)
            add_group(&row.hashes[device], &row.log_us, layer, &kDevices[device], first);
        for (uint32_t i = 0; i < EXPERT_BATCHES * GROUP_SHAPES; i++)
            add_experts(&row.hashes[device], layer, &kDevices[device], i / EXPERT_BATCHES, tokens[i % EXPERT_BATCHES]);
    }
    check_row(layer, &row, &kGroups[_i], NUM_DEVICES);
}
END_TEST

START_TEST(group_cases) {
    const pinned_case *pinned = &kGroupCases[_i];
    const trf_layer_traits traits = traits_of(&kLayers[pinned->layer], 0);
    const trf_device_view view = view_of(&kLayers[pinned->layer], pinned->rows, pinned->cols);
    trf_group_product products[TRF_GROUP_MAX_LAYERS];
    trf_group_partition c;
    for (int i = 0; i < TRF_GROUP_MAX_LAYERS; i++)
        products[i] = (trf_group_product){&view, &traits, 1, TRF_DTYPE_BF16, TRF_DTYPE_BF16, view.rows};
    ck_assert(trf_group_choose(products, pinned->m, &kDevices[0], &c));
    const uint32_t fields[] = {
        c.unit_slabs, c.warps, c.cluster_size, c.layers[0].clusters, c.layers[0].k_splits, c.layers[0].wave_units};
    check_fields(pinned, fields, sizeof fields / sizeof fields[0], kGroupFields);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("pinned partitions");
    TCase *tests = tcase_create("unchanged_partitions");
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, fused_partitions, 0, NUM_LAYERS);
    tcase_add_loop_test(tests, fused_cases, 0, sizeof kFusedCases / sizeof kFusedCases[0]);
    tcase_add_loop_test(tests, wide_partitions, 0, NUM_LAYERS);
    tcase_add_loop_test(tests, wide_cases, 0, sizeof kWideCases / sizeof kWideCases[0]);
    tcase_add_loop_test(tests, group_partitions, 0, NUM_LAYERS);
    tcase_add_loop_test(tests, group_cases, 0, sizeof kGroupCases / sizeof kGroupCases[0]);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}

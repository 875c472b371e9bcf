/* SPDX-License-Identifier: Apache-2.0 */
/* The choice among partitions of packed products: of bulk and wgmma kernels, each cut in each way, the one that should
 * take the least time; the general kernel where neither runs. */
#include "trf_packed_partition.h"

#include "trf_packed_wgmma_sizes.h"

enum {
    BLOCKS_A_MULTIPROCESSOR = 2, /* of the general kernel that run at once, by their registers */
    LEAST_TILES = 16,            /* packed tiles of a k split: fewer are over before their sums are */
    LEAST_K_BLOCKS = 4,          /* of a cluster's block, likewise */
    MORE_K_BLOCKS = 6,           /* of a front than an equal share */
    X_TILE_ROWS = 8
};
static const uint64_t kMostBlocks = 0x7FFFFFFF, kMostBytes = 1ull << 48;
static const double kCandidateSlack =
    1.15; /* of the least time: the estimate is wrong by less, but for a few products */

static uint64_t ceil_div(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

static uint32_t x_tiles_of(uint32_t m) {
    uint32_t x_tiles = 1;
    while (x_tiles < TRF_PACKED_MMA_MAX_X_TILES && x_tiles * X_TILE_ROWS < m)
        x_tiles *= 2;
    return x_tiles;
}

int trf_packed_choose_general(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                              trf_packed_partition *partition) {
    trf_packed_partition made = {.shape = TRF_PACKED_GENERAL, .x_tiles = x_tiles_of(m), .cluster_size = 1};
    made.x_blocks = (uint32_t)ceil_div(m, made.x_tiles * X_TILE_ROWS);

    /* As many k splits as fill the device once, unless they become so short that their sums cost more. */
    const uint64_t alone = (uint64_t)view->bands * made.x_blocks,
                   room = (uint64_t)limits->multiprocessors * BLOCKS_A_MULTIPROCESSOR,
                   most = view->tiles_per_band / LEAST_TILES;
    uint64_t k_splits = alone < room ? room / alone : 1;
    k_splits = k_splits < most ? k_splits : most;
    made.k_splits = k_splits > 1 ? (uint32_t)k_splits : 1;
    made.blocks = alone * made.k_splits;
    if (made.blocks > kMostBlocks)
        return 0;
    if (made.k_splits > 1) {
        const uint64_t sums = (uint64_t)view->bands * TRF_PACKED_TILE_ROWS * m;
        if (sums > kMostBytes / sizeof(float) / made.k_splits)
            return 0;
        made.workspace_bytes = sums * made.k_splits * sizeof(float);
    }
    *partition = made;
    return 1;
}

/* Room for a copy of x whose rows are whole 16 bytes, where it may not be so itself. */
static uint64_t padded_x_bytes(const trf_packed_view *view, uint32_t m) {
    return ((uint64_t)m * ceil_div(view->cols, 8) * 16 + 255) / 256 * 256;
}

/* ---- bulk and wgmma kernels ---- */

static int has_kernel(int shape, uint32_t x_tiles) {
    return shape == TRF_PACKED_BULK_32 || (shape == TRF_PACKED_BULK_64_8_WARPS) == (x_tiles == 8);
}

/* Sets blocks and clusters, one for each tile. @return 0 if they do not all run at once, or have little to do. */
static int give_clusters(const trf_device_limits *limits, uint32_t blocks, trf_packed_partition *made) {
    made->cluster_size = blocks;
    made->blocks = (uint64_t)made->tiles * blocks;
    return blocks <= TRF_MAX_CLUSTER && made->tiles <= limits->clusters_of[blocks] &&
           (blocks == 1 || made->k_blocks / blocks >= LEAST_K_BLOCKS);
}

/* Sets tiles, k blocks and the place of partial sums. @return 0 if there are too many. */
static int count_k_blocks(const trf_packed_view *view, uint32_t m, uint64_t tiles, uint64_t k_blocks,
                          trf_packed_partition *made) {
    if (tiles > kMostBlocks || tiles * k_blocks > kMostBlocks)
        return 0;
    made->tiles = (uint32_t)tiles;
    made->k_blocks = (uint32_t)k_blocks;
    made->handover_offset = padded_x_bytes(view, m);
    made->workspace_bytes = made->handover_offset;
    return 1;
}

static int choose_bulk(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m, uint32_t cut,
                       trf_packed_partition *made) {
    const int shape = made->shape;
    made->x_tiles = x_tiles_of(m);
    made->x_blocks = 1;
    if (m > TRF_PACKED_BULK_MAX_M || !has_kernel(shape, made->x_tiles) ||
        trf_packed_bulk_is_stream_k(shape) != (cut == TRF_PACKED_STREAM_K) ||
        !trf_smem_fits(trf_packed_bulk_shared_bytes(shape, made->x_tiles), limits) ||
        !count_k_blocks(view, m, ceil_div((uint64_t)view->bands * TRF_PACKED_TILE_ROWS, trf_packed_bulk_rows(shape)),
                        ceil_div(view->tiles_per_band, trf_packed_bulk_col_warps(shape)), made))
        return 0;
    if (cut != TRF_PACKED_STREAM_K)
        return give_clusters(limits, cut, made);
    const uint64_t blocks = (uint64_t)limits->multiprocessors, all = (uint64_t)made->tiles * made->k_blocks;
    made->blocks = blocks < all ? blocks : all;
    made->workspace_bytes += trf_packed_handover_bytes(made->blocks, trf_packed_bulk_acc_tiles(shape, made->x_tiles));
    return 1;
}

/* How many k blocks the front of a tile has, if blocks share so many; 0: none. With less than a third of a tile a
 * block, backs would be as scattered as equal shares are. A back's block has several beginnings and ends, each of which
 * takes as long as some k blocks: of 0, 3, 6, 10 and 16 more for fronts 6 were the best on an H100, for all shapes. */
static uint32_t front_k_blocks(uint64_t shared, const trf_packed_partition *p) {
    if (3 * shared < p->blocks)
        return 0;
    const uint64_t k_blocks = ceil_div(shared * p->k_blocks, p->blocks) + MORE_K_BLOCKS;
    return (uint32_t)(k_blocks < p->k_blocks ? k_blocks : p->k_blocks - 1);
}

static int choose_wgmma(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m, uint32_t cut,
                        trf_packed_partition *made) {
    const uint64_t room = (uint64_t)limits->multiprocessors;
    const uint32_t x_rows = trf_packed_wgmma_x_rows(made->shape);
    made->x_tiles = x_rows / X_TILE_ROWS;
    made->x_blocks = (uint32_t)ceil_div(m, x_rows);
    if (!trf_smem_fits(trf_packed_wgmma_shared_bytes(made->shape), limits) ||
        !count_k_blocks(view, m, ceil_div(view->bands, trf_packed_wgmma_bands(made->shape)) * made->x_blocks,
                        ceil_div(view->tiles_per_band, TRF_PACKED_WGMMA_STAGE_PACKED_TILES), made))
        return 0;
    made->whole_tiles = made->tiles;
    made->front_k_blocks = made->k_blocks;
    if (cut > 1)
        return give_clusters(limits, cut, made);
    const uint64_t all = (uint64_t)made->tiles * made->k_blocks, most = cut == TRF_PACKED_STREAM_K ? all : made->tiles;
    made->blocks = room < most ? room : most;
    if (cut != TRF_PACKED_STREAM_K)
        return 1;
    const uint64_t shared = made->tiles % made->blocks;
    made->whole_tiles = (uint32_t)(made->tiles - shared);
    made->front_k_blocks = front_k_blocks(shared, made);
    made->workspace_bytes += trf_packed_handover_bytes(made->blocks, trf_packed_wgmma_acc_tiles(made->shape));
    return shared > 0;
}

int trf_packed_choose_shape(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m, int shape,
                            uint32_t cut, trf_packed_partition *partition) {
    trf_packed_partition made = {.shape = shape, .k_splits = 1, .cut = cut, .cluster_size = 1};
    if (limits->missing_kernels & TRF_KERNELS_SM_90A || limits->capability != 90 ||
        !(trf_packed_is_wgmma(shape) ? choose_wgmma : choose_bulk)(view, limits, m, cut, &made))
        return 0;
    *partition = made;
    return 1;
}

/* ---- how long a product should take ----
 *
 * Fitted to 953 products of 28 layers by 1 to 8,192 rows of x on an H100, each by all kernels in all ways: the one with
 * the least cost is at most 3 % slower than the fastest for 920 of them, and at most 8.5 % for all; in a later run of
 * 14 of the layers for 559 of 576, and of 7 others for 144 of 146. The search let what an H200 takes at batches of
 * whole blocks stay as it was, which had been fitted there, but where a shape is the fastest on an H100 that there was
 * not then (docs/notebook/2026-11-26-packed-shapes.md). It has found the constants: together they give the time, one by
 * one they are no measurements. Nanoseconds; bytes a nanosecond. */

enum {
    BULK_START = 3007,    /* launch, first stage, sums to y */
    BULK_STREAM_K = 6356, /* sums by way of memory */
    WGMMA_START = 360,
    WGMMA_REGISTERS = 1110, /* more of a start, if registers are moved */
    WGMMA_STREAM_K = 573,   /* sums by way of memory, without fronts */
    WGMMA_FRONTS = 4197,    /* ... and with them */
    WGMMA_TILE = 464,       /* of each tile of a block: begin and end */
    WGMMA_SHARED_X = 161,   /* more for a k block of shared tiles without fronts, where several x blocks read weights */
    USUAL_GB = 3352         /* a second, where the driver does not say */
};
static const double kBulkCopy = 67.27, kWgmmaCopy = 68.6;        /* bytes that a multiprocessor gets */
static const double kBulkRead = 0.9329, kWgmmaRead = 0.8958;     /* of the memory's bandwidth by its clock */
static const double kWgmmaRow = 25.09, kWgmmaClusterRow = 8.874; /* for each row of x: sums to y, and to other blocks */
static const double kWgmmaBackRow = 18;                          /* likewise: a back's sums to a front */
static const double kWgmmaBackKBlock = 1.058; /* a k block of a back where there are several x blocks */
static const double kWgmmaSharerRow = 3.069;  /* for each block that shares a tile without a front */
/* A k block of a wgmma kernel, whose copies are there: a warpgroup's way through it, and more for each row of x; what
 * the tensor cores take for each row of x and band, and what they may by the power that there is; and how much more of
 * all that with three bands. */
static const double kWgmmaKBlock = 305.8, kWgmmaKBlockRow = 0.7717, kWgmmaProductRow = 1.435, kWgmmaPowerRow = 1.54,
                    kWgmma192KBlock = 1.434, kWgmma192Product = 1.114;

/* A cluster's meetings, by its blocks. */
static const uint32_t kBulkCluster[TRF_MAX_CLUSTER + 1] = {0, 0, 473, 544, 1458, 1204, 1301, 1302, 1462};
static const uint32_t kWgmmaCluster[TRF_MAX_CLUSTER + 1] = {0, 0, 1107, 1809, 2461, 2981, 6234, 3374, 3669};

/* A k block, whose copies are there: of bulk kernels by 1, 2, 4 and 8 x tiles. 0: there is no kernel. */
static const uint32_t kBulkKBlock[TRF_PACKED_BULK_SHAPES][4] = {
    [TRF_PACKED_BULK_256] = {718, 227, 1100, 0}, [TRF_PACKED_BULK_128] = {677, 680, 918, 0},
    [TRF_PACKED_BULK_64] = {696, 670, 46, 0},    [TRF_PACKED_BULK_64_8_WARPS] = {0, 0, 0, 1132},
    [TRF_PACKED_BULK_32] = {450, 464, 477, 640},
};

static double larger(double a, double b) { return a > b ? a : b; }

/* Nanoseconds that memory takes; passes: over the weights; share: of its bandwidth that is reached. */
static double read_ns(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m, double passes,
                      double share) {
    const uint64_t gb = limits->memory_gb_per_second ? limits->memory_gb_per_second : USUAL_GB,
                   tile_bytes = TRF_PACKED_TILE_BYTES + TRF_PACKED_LINE_BYTES / TRF_PACKED_LINE_TILES;
    const double bytes = passes * (double)((uint64_t)view->bands * view->tiles_per_band * tile_bytes) +
                         2.0 * m * ((double)view->cols + view->rows);
    return bytes / ((double)gb * share);
}

static double bulk_ns(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                      const trf_packed_partition *p) {
    const int is_stream_k = trf_packed_bulk_is_stream_k(p->shape), log = p->x_tiles == 8   ? 3
                                                                         : p->x_tiles == 4 ? 2
                                                                                           : (int)p->x_tiles - 1;
    const double bytes =
                     trf_packed_bulk_weight_bytes(p->shape) + trf_packed_bulk_x_bytes(p->shape, 1) / X_TILE_ROWS * m,
                 k_block_ns = larger(bytes / kBulkCopy, kBulkKBlock[p->shape][log]),
                 k_blocks = (double)(is_stream_k ? ceil_div((uint64_t)p->tiles * p->k_blocks, p->blocks)
                                                 : ceil_div(p->k_blocks, p->cluster_size));
    return BULK_START + larger(read_ns(view, limits, m, 1, kBulkRead), k_blocks * k_block_ns) +
           (is_stream_k ? BULK_STREAM_K : kBulkCluster[p->cluster_size]);
}

/* A product by a wgmma kernel. */
typedef struct wgmma_product {
    const trf_packed_view *view;
    const trf_device_limits *limits;
    const trf_packed_partition *p;
    uint32_t m, x_rows; /* of a tile */
    double k_block_ns;  /* of one whose copies are there */
} wgmma_product;

/* Of so many of the product's tiles, by so many passes over their weights: what memory takes, or what k blocks do. */
static double wgmma_copy_ns(const wgmma_product *w, uint64_t tiles, double passes, double k_blocks_ns) {
    return larger(read_ns(w->view, w->limits, w->m, passes, kWgmmaRead) * (double)tiles / w->p->tiles, k_blocks_ns);
}

/* Blocks with the same weights read them at the same time. */
static double shared_passes(const wgmma_product *w) { return (double)ceil_div(w->p->x_blocks, TRF_PACKED_WGMMA_X_RUN); }

/* Of a tile that a block finishes: its begin and end. */
static double tile_ns(const wgmma_product *w) {
    return WGMMA_TILE + kWgmmaRow * w->x_rows * trf_packed_wgmma_bands(w->p->shape) / 2;
}

static double cluster_ns(const wgmma_product *w) {
    const uint32_t blocks = w->p->cluster_size;
    return wgmma_copy_ns(w, w->p->tiles, shared_passes(w), (double)ceil_div(w->p->k_blocks, blocks) * w->k_block_ns) +
           kWgmmaCluster[blocks] + WGMMA_TILE + (kWgmmaRow + kWgmmaClusterRow * (blocks - 1)) * w->x_rows / blocks;
}

/* Of so many whole tiles, which are no more than blocks. */
static double whole_tiles_ns(const wgmma_product *w, uint64_t tiles) {
    return tiles ? wgmma_copy_ns(w, tiles, shared_passes(w), w->p->k_blocks * w->k_block_ns) + tile_ns(w) : 0;
}

/* Of the shared tiles, where they have no fronts. */
static double equal_shares_ns(const wgmma_product *w, uint64_t tiles) {
    const trf_packed_partition *p = w->p;
    const double k_block_ns = w->k_block_ns + (p->x_blocks > 1 ? WGMMA_SHARED_X : 0);
    return wgmma_copy_ns(w, tiles, p->x_blocks, (double)ceil_div(tiles * p->k_blocks, p->blocks) * k_block_ns) +
           WGMMA_STREAM_K + 2 * tile_ns(w) + kWgmmaSharerRow * w->x_rows * (double)p->blocks / (double)tiles;
}

/* ... where they have fronts. */
static double fronts_ns(const wgmma_product *w, uint64_t tiles) {
    const trf_packed_partition *p = w->p;
    const uint64_t others = p->blocks - tiles, back = ceil_div(tiles * (p->k_blocks - p->front_k_blocks), others),
                   backs = ceil_div(tiles, others) + 1; /* of which a block has some */
    const double back_k_block_ns = w->k_block_ns * (p->x_blocks > 1 ? kWgmmaBackKBlock : 1),
                 back_ns = (double)back * back_k_block_ns + (double)backs * kWgmmaBackRow * w->x_rows;
    return wgmma_copy_ns(w, tiles, shared_passes(w), larger(p->front_k_blocks * w->k_block_ns, back_ns)) +
           WGMMA_FRONTS + tile_ns(w);
}

static double staying_ns(const wgmma_product *w) {
    const trf_packed_partition *p = w->p;
    const uint64_t shared = p->tiles - p->whole_tiles;
    return (double)(p->whole_tiles / p->blocks) * whole_tiles_ns(w, p->blocks) +
           whole_tiles_ns(w, p->whole_tiles % p->blocks) +
           (shared == 0         ? 0
            : p->front_k_blocks ? fronts_ns(w, shared)
                                : equal_shares_ns(w, shared));
}

static double wgmma_ns(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                       const trf_packed_partition *p) {
    const uint32_t x_rows = trf_packed_wgmma_x_rows(p->shape), bands = trf_packed_wgmma_bands(p->shape);
    const double bytes = trf_packed_wgmma_stage_bytes(p->shape) + trf_packed_wgmma_stage_lines_bytes(p->shape);
    const double rows = bands * x_rows * (bands == 3 ? kWgmma192Product : 1),
                 k_block_ns = larger((kWgmmaKBlock + kWgmmaKBlockRow * x_rows) * (bands == 3 ? kWgmma192KBlock : 1),
                                     kWgmmaProductRow * rows),
                 power_ns = (double)p->tiles * p->k_blocks * kWgmmaPowerRow * rows / limits->multiprocessors;
    const double start_ns = WGMMA_START + (trf_packed_wgmma_moves_registers(p->shape) ? WGMMA_REGISTERS : 0);
    const wgmma_product w = {view, limits, p, m, x_rows, larger(bytes / kWgmmaCopy, k_block_ns)};
    return start_ns + larger(p->cluster_size > 1 ? cluster_ns(&w) : staying_ns(&w), power_ns);
}

/* ---- the choice ---- */

/* Puts a partition among those of less time, of which there are `count`; the last of n falls out. @return how many
 * there are then. */
static uint32_t insert(const trf_packed_partition *made, double made_ns, trf_packed_partition *out, double *ns,
                       uint32_t count, uint32_t n) {
    uint32_t at = count;
    while (at > 0 && made_ns < ns[at - 1])
        at--;
    if (at == n)
        return count;
    count = count < n ? count + 1 : n;
    for (uint32_t i = count - 1; i > at; i--) {
        out[i] = out[i - 1];
        ns[i] = ns[i - 1];
    }
    out[at] = *made;
    ns[at] = made_ns;
    return count;
}

uint32_t trf_packed_candidates(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                               trf_packed_partition *out, uint32_t n) {
    double ns[TRF_PACKED_MAX_CANDIDATES];
    uint32_t count = 0;
    n = n < TRF_PACKED_MAX_CANDIDATES ? n : TRF_PACKED_MAX_CANDIDATES;
    for (int shape = 0; shape < TRF_PACKED_SHAPES; shape++)
        for (uint32_t cut = 0; cut <= TRF_MAX_CLUSTER; cut++) {
            trf_packed_partition made;
            if (trf_packed_choose_shape(view, limits, m, shape, cut, &made))
                count = insert(&made, (trf_packed_is_wgmma(shape) ? wgmma_ns : bulk_ns)(view, limits, m, &made), out,
                               ns, count, n);
        }
    while (count > 1 && ns[count - 1] > kCandidateSlack * ns[0])
        count--;
    return count;
}

int trf_packed_choose(const trf_packed_view *view, const trf_device_limits *limits, uint32_t m,
                      trf_packed_partition *partition) {
    return trf_packed_candidates(view, limits, m, partition, 1) ||
           trf_packed_choose_general(view, limits, m, partition);
}

/* ---- names ---- */

const char *trf_packed_kernel_name(int shape) {
    static const char *const names[TRF_PACKED_SHAPES] = {
        [TRF_PACKED_BULK_256] = "bulk-256",
        [TRF_PACKED_BULK_128] = "bulk-128",
        [TRF_PACKED_BULK_64] = "bulk-64",
        [TRF_PACKED_BULK_64_8_WARPS] = "bulk-64-8-warps",
        [TRF_PACKED_BULK_32] = "bulk-32",
        [TRF_PACKED_WGMMA_64] = "wgmma-64",
        [TRF_PACKED_WGMMA_80] = "wgmma-80",
        [TRF_PACKED_WGMMA_96] = "wgmma-96",
        [TRF_PACKED_WGMMA_112] = "wgmma-112",
        [TRF_PACKED_WGMMA_128] = "wgmma-128",
        [TRF_PACKED_WGMMA_144] = "wgmma-144",
        [TRF_PACKED_WGMMA_160] = "wgmma-160",
        [TRF_PACKED_WGMMA_176] = "wgmma-176",
        [TRF_PACKED_WGMMA_192] = "wgmma-192",
        [TRF_PACKED_WGMMA_208] = "wgmma-208",
        [TRF_PACKED_WGMMA_224] = "wgmma-224",
        [TRF_PACKED_WGMMA_240] = "wgmma-240",
        [TRF_PACKED_WGMMA_256] = "wgmma-256",
        [TRF_PACKED_WGMMA_192X96] = "wgmma-192x96",
        [TRF_PACKED_WGMMA_192X112] = "wgmma-192x112",
        [TRF_PACKED_WGMMA_192X128] = "wgmma-192x128",

    };
    if (shape == TRF_PACKED_GENERAL)
        return "general";
    return shape >= 0 && shape < TRF_PACKED_SHAPES ? names[shape] : "?";
}

const char *trf_packed_cut_name(uint32_t cut) {
    static const char *const names[TRF_MAX_CLUSTER + 1] = {"stream-k", "1", "2", "3", "4", "5", "6", "7", "8"};
    return cut <= TRF_MAX_CLUSTER ? names[cut] : "?";
}

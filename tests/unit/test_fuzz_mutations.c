/* SPDX-License-Identifier: Apache-2.0 */
/* The fuzz targets' own mutations of blobs write nothing outside of the blob, also where a tile's metadata say that its
 * data lie over the metadata themselves. The address sanitizer's run sees what is written elsewhere. */
#include "common/golden_blob.h"
#include "common/run_suite.h"
#include "fuzz/fuzz_mutate_blob.h"

enum {
    SEEDS = 5000
};

START_TEST(tiles_that_lie_over_their_metadata) {
    blob golden = read_golden(MODES); /* all but the first tile: where weights are coded, so that no byte is likely 0 */
    for (uint64_t tile = 0; tile < golden.view.num_tiles; tile++) {
        trf_tile_meta *meta = tile_meta(&golden, tile);
        meta->data_offset = tile ? golden.size / 2 : TRF_TILES_OFFSET;
        meta->data_size = 256;
    }
    fuzz_mend_checksums(golden.bytes, golden.size);
    uint8_t *mutant;
    unsigned changed = 0;
    ck_assert_int_eq(posix_memalign((void **)&mutant, TRF_TILE_ALIGNMENT, golden.size), 0);
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        memcpy(mutant, golden.bytes, golden.size);
        ck_assert_int_eq(fuzz_mutate_blob(mutant, golden.size, seed), 1);
        changed += memcmp(mutant, golden.bytes, golden.size) != 0;
    }
    ck_assert_uint_gt(changed, SEEDS / 2);
    free(mutant);
    free(golden.bytes);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("fuzz_mutations");
    TCase *tcase = tcase_create("blobs");
    tcase_add_test(tcase, tiles_that_lie_over_their_metadata);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}

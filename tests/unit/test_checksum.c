/* SPDX-License-Identifier: Apache-2.0 */
/* Every build of the checksum that this CPU runs gives the same result, at any length and alignment. */
#include "common/run_suite.h"
#include "common/test_weights.h"
#include "trf_checksum.h"
#include "trf_cpu.h"

#include <check.h>

START_TEST(all_agree) {
    enum {
        BYTES = 5000
    };
    static uint8_t bytes[BYTES + 64];
    test_rng rng = {1};
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)test_random(&rng);
    for (size_t size = 0; size <= BYTES; size += 1 + size / 9) {
        const uint64_t seed = test_random(&rng);
        const uint8_t *at = bytes + test_below(&rng, 64);
        const uint64_t due = trf_checksum_portable(at, size, seed);
        ck_assert(trf_checksum_best()(at, size, seed) == due);
#ifdef TRF_HAVE_X86_SIMD
        if (trf_cpu_has_avx2())
            ck_assert(trf_checksum_avx2(at, size, seed) == due);
#endif
    }
    ck_assert(trf_checksum_portable("", 0, 0) == 0x2D06800538D394C2ull); /* XXH3's own for no bytes */
}
END_TEST

int main(void) {
    Suite *suite = suite_create("checksum");
    TCase *tests = tcase_create("checksum");
    tcase_add_test(tests, all_agree);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}

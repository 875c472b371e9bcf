/* SPDX-License-Identifier: Apache-2.0 */
/* What tunings, and the tables of crossovers that the library brings along, choose. */
#include "common/expect.h"
#include "common/made_tuning.h"
#include "common/run_suite.h"
#include "trf_tuning.h"

#include <check.h>

static const trf_card kCpu = {"CPU", 0, 0, 0}, kH200 = {"NVIDIA H200", 90, 132, 4917};

static void expect_path_at_32_rows(const trf_card *card, trf_path path) {
    static const trf_tuning_key key = {TRF_LAYOUT_CODED, TRF_CODEC_E5M2, 2, 5, 0, 1024, 4096};
    uint32_t num_tables;
    const trf_crossover_table *tables = trf_crossover_tables(&num_tables);
    ck_assert_int_eq(trf_crossover_path(trf_crossovers_for(tables, num_tables, card), &key, 32), path);
}

/* At 32 rows of a small layer an H100 is still faster fused, and an H200 is not. Cards that were not measured are
 * treated like one or the other. */
START_TEST(shipped_crossovers_of_two_cards) {
    static const trf_card h100 = {"NVIDIA H100 80GB HBM3", 90, 132, 3352}, pcie = {"NVIDIA H100 PCIe", 90, 114, 2039},
                          faster = {"a faster GPU of 9.0", 90, 132, 6000};
    expect_path_at_32_rows(&h100, TRF_PATH_FUSED);
    expect_path_at_32_rows(&pcie, TRF_PATH_FUSED);
    expect_path_at_32_rows(&kH200, TRF_PATH_WIDE);
    expect_path_at_32_rows(&faster, TRF_PATH_WIDE);
}
END_TEST

/* A table that the library brings along chooses fused, then wide, then two-step, whatever the layer, except for layers
 * that have no wide kernels. It has nothing for other generations. */
START_TEST(shipped_crossovers) {
    static const trf_tuning_key keys[] = {{TRF_LAYOUT_CODED, TRF_CODEC_BF16, 2, 10, 0, 8192, 8192},
                                          {TRF_LAYOUT_CODED, TRF_CODEC_BF16, 4, 8, 0, 28672, 8192},
                                          {TRF_LAYOUT_CODED, TRF_CODEC_FP16, 2, 13, 0, 96, 64},
                                          {TRF_LAYOUT_CODED, TRF_CODEC_E4M3, 2, 6, 0, 151936, 896},
                                          {TRF_LAYOUT_CODED, TRF_CODEC_E5M2, 4, 3, 0, 4096, 4096},
                                          {TRF_LAYOUT_CODED, TRF_CODEC_INT, 2, 1, 0, 4096, 11008},
                                          {TRF_LAYOUT_CODED, TRF_CODEC_INT, 4, 1, 1, 5120, 13824}};
    static const trf_card older = {"NVIDIA A100-SXM4-80GB", 80, 108, 2039}, unknown = {"a GPU of 9.0", 90, 64, 0};
    uint32_t num_tables;
    const trf_crossover_table *tables = trf_crossover_tables(&num_tables),
                              *table = trf_crossovers_for(tables, num_tables, &kH200);
    ck_assert_ptr_nonnull(table);
    ck_assert_str_eq(table->card.name, "NVIDIA H200");
    ck_assert_ptr_null(trf_crossovers_for(tables, num_tables, &older));
    ck_assert_ptr_null(trf_crossovers_for(tables, num_tables, &kCpu));
    ck_assert_ptr_nonnull(trf_crossovers_for(tables, num_tables, &unknown));
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        static const trf_path order[] = {TRF_PATH_FUSED, TRF_PATH_WIDE, TRF_PATH_TWO_STEP};
        int at = 0;
        for (uint32_t m = 1; m <= 10000; m += 1 + m / 64) {
            const trf_path path = trf_crossover_path(table, &keys[i], m);
            while (at < 2 && order[at] != path)
                at++;
            EXPECT(order[at] == path);
            EXPECT(path != TRF_PATH_FUSED || m <= TRF_FUSED_MAX_M);
            EXPECT(path != TRF_PATH_WIDE || keys[i].codec != TRF_CODEC_BF16);
            EXPECT(trf_crossover_path(NULL, &keys[i], m) == TRF_PATH_AUTO);
        }
        ck_assert_int_eq(trf_crossover_path(table, &keys[i], 1), TRF_PATH_FUSED);
        ck_assert_int_eq(at, 2);
    }
    ck_assert_int_eq(trf_crossover_path(table, &keys[0], 64), TRF_PATH_FUSED);
    ck_assert_int_eq(trf_crossover_path(table, &keys[0], 65), TRF_PATH_TWO_STEP);
    ck_assert_int_eq(trf_crossover_path(table, &keys[3], 48), TRF_PATH_WIDE);
    ck_assert_int_eq(trf_crossover_path(table, &keys[6], 100), TRF_PATH_TWO_STEP); /* wide takes no scale groups */
}
END_TEST

/* Packed layers of any shape follow one number for each card. Both cards have the same number, and cards of other
 * generations have none. */
START_TEST(shipped_crossovers_of_packed_layers) {
    static const trf_tuning_key keys[] = {{TRF_LAYOUT_PACKED, TRF_CODEC_BF16, 2, 8, 0, 8192, 8192},
                                          {TRF_LAYOUT_PACKED, TRF_CODEC_BF16, 4, 8, 0, 1, 77}},
                                plain = {TRF_LAYOUT_PLAIN, TRF_CODEC_BF16, 2, 8, 0, 8192, 8192};
    uint32_t num_tables;
    const trf_crossover_table *tables = trf_crossover_tables(&num_tables);
    ck_assert_uint_eq(num_tables, 2);
    for (uint32_t t = 0; t < num_tables; t++) {
        for (int k = 0; k < 2; k++) {
            ck_assert_int_eq(trf_crossover_path(&tables[t], &keys[k], 1), TRF_PATH_PACKED);
            ck_assert_int_eq(trf_crossover_path(&tables[t], &keys[k], 16383), TRF_PATH_PACKED);
            ck_assert_int_eq(trf_crossover_path(&tables[t], &keys[k], 16384), TRF_PATH_TWO_STEP);
            ck_assert_int_eq(trf_crossover_path(&tables[t], &keys[k], UINT32_MAX), TRF_PATH_TWO_STEP);
        }
        ck_assert_int_eq(trf_crossover_path(&tables[t], &plain, 16384), TRF_PATH_AUTO);
    }
    ck_assert_int_eq(trf_crossover_path(NULL, &keys[0], 16384), TRF_PATH_AUTO);
}
END_TEST

/* Made-up tables of two cards of one generation, whose memory has 20 and 40 GB/s a multiprocessor, and of an older one
 * with 30. */
START_TEST(tables_of_cards) {
    static const trf_tuning_key layer = {TRF_LAYOUT_CODED, TRF_CODEC_BF16, 2, 10, 0, 4096, 4096},
                                no_layer = {TRF_LAYOUT_CODED, TRF_CODEC_INT, 2, 10, 0, 4096, 4096},
                                packed = {TRF_LAYOUT_PACKED, TRF_CODEC_BF16, 2, 10, 0, 4096, 4096};
    static const trf_layer_crossovers slow[] = {{{TRF_LAYOUT_CODED, TRF_CODEC_BF16, 2, 10, 0, 4096, 4096}, 64, 128}},
                                      fast[] = {{{TRF_LAYOUT_CODED, TRF_CODEC_BF16, 2, 10, 0, 4096, 4096}, 16, 32}},
                                      older[] = {{{TRF_LAYOUT_CODED, TRF_CODEC_BF16, 2, 10, 0, 4096, 4096}, 8, 8}};
    static const trf_crossover_table tables[] = {{{"slow", 90, 100, 2000}, slow, 1, 700},
                                                 {{"fast", 90, 100, 4000}, fast, 1, 0},
                                                 {{"older", 80, 100, 3000}, older, 1, 1}};
    static const struct {
        trf_card card;
        int due; /* of tables, or -1 */
    } cases[] = {
        {{"slow", 90, 100, 2000}, 0},
        {{"fast", 90, 100, 4000}, 1},
        {{"fast", 90, 0, 0}, 1},        /* by its name alone, */
        {{"fast", 90, 100, 2000}, 1},   /* whatever else is said of it */
        {{"slower", 90, 100, 1000}, 0}, /* beyond either end: the nearer one */
        {{"faster", 90, 100, 9000}, 1},
        {{"like slow", 90, 100, 2800}, 0}, /* 0.49 octaves from slow, 0.51 from fast */
        {{"like fast", 90, 100, 2900}, 1},
        {{"smaller", 90, 50, 1900}, 1}, /* 38 GB/s a multiprocessor, less than slow's in all */
        {{"larger", 90, 200, 4200}, 0}, /* 21, more than fast's in all */
        {{"not known", 90, 100, 0}, 0}, /* the first of the generation */
        {{"not known", 90, 0, 4000}, 0},
        {{"another A100", 80, 108, 4000}, 2}, /* another generation: whatever is nearer in bandwidth */
        {{"fast", 80, 100, 4000}, 2},
        {{"newer", 100, 100, 4000}, -1},
        {{"CPU", 0, 0, 0}, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const trf_crossover_table *found = trf_crossovers_for(tables, 3, &cases[i].card);
        ck_assert_msg(found == (cases[i].due < 0 ? NULL : &tables[cases[i].due]), "case %zu: %s", i,
                      found ? found->card.name : "none");
    }
    for (uint32_t m = 1; m <= 256; m++) {
        ck_assert_int_eq(trf_crossover_path(&tables[0], &layer, m), m <= 64    ? TRF_PATH_FUSED
                                                                    : m <= 128 ? TRF_PATH_WIDE
                                                                               : TRF_PATH_TWO_STEP);
        ck_assert_int_eq(trf_crossover_path(&tables[1], &layer, m), m <= 16   ? TRF_PATH_FUSED
                                                                    : m <= 32 ? TRF_PATH_WIDE
                                                                              : TRF_PATH_TWO_STEP);
        ck_assert_int_eq(trf_crossover_path(&tables[2], &layer, m), m <= 8 ? TRF_PATH_FUSED : TRF_PATH_TWO_STEP);
    }
    ck_assert_int_eq(trf_crossover_path(&tables[0], &no_layer, 1), TRF_PATH_AUTO);
    ck_assert_int_eq(trf_crossover_path(&tables[0], &packed, 700), TRF_PATH_PACKED);
    ck_assert_int_eq(trf_crossover_path(&tables[0], &packed, 701), TRF_PATH_TWO_STEP);
    ck_assert_int_eq(trf_crossover_path(&tables[1], &packed, 1000000), TRF_PATH_AUTO); /* nobody measured */
    ck_assert_int_eq(trf_crossover_path(&tables[2], &packed, 2), TRF_PATH_TWO_STEP);
    ck_assert_ptr_null(trf_crossovers_for(tables, 0, &cases[0].card));
}
END_TEST

START_TEST(choices) {
    trf_tuning *made = make_tuning();
    static const struct {
        trf_tuning_key key;
        uint32_t m;
        trf_path due;
    } cases[] = {
        {{TRF_LAYOUT_CODED, TRF_CODEC_BF16, 2, 8, 0, 8192, 8192}, 1, TRF_PATH_FUSED},
        {{TRF_LAYOUT_CODED, TRF_CODEC_BF16, 2, 8, 0, 8192, 8192}, 32, TRF_PATH_FUSED},
        {{TRF_LAYOUT_CODED, TRF_CODEC_BF16, 2, 8, 0, 8192, 8192}, 33, TRF_PATH_WIDE},
        {{TRF_LAYOUT_CODED, TRF_CODEC_BF16, 2, 8, 0, 8192, 8192}, 385, TRF_PATH_TWO_STEP},
        {{TRF_LAYOUT_CODED, TRF_CODEC_BF16, 2, 8, 0, 8192, 8192}, 8193, TRF_PATH_AUTO},
        {{TRF_LAYOUT_CODED, TRF_CODEC_BF16, 2, 8, 0, 14336, 4096}, 33, TRF_PATH_WIDE}, /* the nearer shape */
        {{TRF_LAYOUT_CODED, TRF_CODEC_BF16, 2, 8, 0, 512, 4096}, 33, TRF_PATH_TWO_STEP},
        {{TRF_LAYOUT_CODED, TRF_CODEC_BF16, 2, 8, 0, 512, 4096}, 65, TRF_PATH_AUTO},
        {{TRF_LAYOUT_CODED, TRF_CODEC_BF16, 4, 8, 0, 8192, 8192}, 1, TRF_PATH_AUTO}, /* pairs are something else, */
        {{TRF_LAYOUT_CODED, TRF_CODEC_FP16, 2, 8, 0, 8192, 8192}, 1, TRF_PATH_AUTO}, /* codecs, */
        {{TRF_LAYOUT_CODED, TRF_CODEC_INT, 4, 3, 0, 1024, 4096}, 1, TRF_PATH_AUTO},  /* scales too */
        {{TRF_LAYOUT_CODED, TRF_CODEC_INT, 4, 5, 1, 99, 40960}, 1, TRF_PATH_FUSED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        ck_assert_int_eq(trf_tuned_path(made, &cases[i].key, cases[i].m), cases[i].due);
    made->num_layers = 0;
    ck_assert_int_eq(trf_tuned_path(made, &cases[0].key, 1), TRF_PATH_AUTO);
    trf_tuning_free(made);
    trf_tuning_free(NULL);
}
END_TEST

/* The nearest shape decides, as for paths, but not one that is far away; classes do not matter. */
START_TEST(choices_of_packed_layers) {
    trf_tuning *made = make_tuning();
    static const struct {
        trf_tuning_key key;
        uint32_t m;
        trf_tuned_kernel due; /* cut 9: none */
    } cases[] = {
        {{TRF_LAYOUT_PACKED, TRF_CODEC_BF16, 2, 8, 0, 4096, 4096}, 1, {TRF_PACKED_BULK_256, TRF_PACKED_STREAM_K}},
        {{TRF_LAYOUT_PACKED, TRF_CODEC_BF16, 2, 8, 0, 4096, 4096}, 17, {0, 9}}, /* which has a path alone */
        {{TRF_LAYOUT_PACKED, TRF_CODEC_BF16, 2, 8, 0, 4096, 4096}, 65, {TRF_PACKED_WGMMA_128, 2}},
        {{TRF_LAYOUT_PACKED, TRF_CODEC_BF16, 2, 8, 0, 4096, 4096}, 129, {0, 9}},
        {{TRF_LAYOUT_PACKED, TRF_CODEC_BF16, 4, 8, 0, 4096, 4096}, 65, {TRF_PACKED_WGMMA_128, 2}},
        {{TRF_LAYOUT_PACKED, TRF_CODEC_BF16, 2, 8, 0, 5792, 4096}, 65, {TRF_PACKED_WGMMA_128, 2}},
        {{TRF_LAYOUT_PACKED, TRF_CODEC_BF16, 2, 8, 0, 4096, 2897}, 65, {TRF_PACKED_WGMMA_128, 2}},
        {{TRF_LAYOUT_PACKED, TRF_CODEC_BF16, 2, 8, 0, 8192, 4096}, 65, {0, 9}},
        {{TRF_LAYOUT_PACKED, TRF_CODEC_BF16, 2, 8, 0, 5120, 5120}, 65, {0, 9}},
        {{TRF_LAYOUT_CODED, TRF_CODEC_BF16, 2, 8, 0, 8192, 8192}, 1, {0, 9}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        trf_tuned_kernel found = {0, 9};
        ck_assert_int_eq(trf_tuned_packed(made, &cases[i].key, cases[i].m, &found), cases[i].due.cut != 9);
        EXPECT(found.shape == cases[i].due.shape && found.cut == cases[i].due.cut);
    }
    trf_tuning_free(made);
}
END_TEST

START_TEST(fastest_candidates) {
    static const struct {
        double times[3];
        uint32_t due;
    } cases[] = {{{10, 11, 12}, 0}, {{10, 9.95, 9.91}, 0}, {{10, 9.8, 9.5}, 2}, {{10, 9.5, 9.5}, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        ck_assert_uint_eq(trf_fastest_candidate(cases[i].times, 3), cases[i].due);
    ck_assert_uint_eq(trf_fastest_candidate(cases[2].times, 1), 0);
}
END_TEST

START_TEST(fastest) {
    static const struct {
        double times[TRF_TUNED_PATHS]; /* fused, two-step, wide, dense, packed */
        trf_path due;
    } cases[] = {{{0, 0, 0}, TRF_PATH_AUTO},
                 {{10, 0, 0}, TRF_PATH_FUSED},
                 {{0, 10, 0}, TRF_PATH_TWO_STEP},
                 {{10, 9.95, 9.95}, TRF_PATH_FUSED},
                 {{10, 9, 9.05}, TRF_PATH_WIDE},
                 {{10, 8, 9}, TRF_PATH_TWO_STEP},
                 {{8, 9, 10}, TRF_PATH_FUSED},
                 {{0, 9.95, 0, 0, 10}, TRF_PATH_PACKED},
                 {{0, 9.8, 0, 0, 10}, TRF_PATH_TWO_STEP}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        ck_assert_int_eq(trf_fastest_path(cases[i].times), cases[i].due);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("tuning_choices");
    TCase *tests = tcase_create("tuning_choices");
    tcase_add_test(tests, shipped_crossovers);
    tcase_add_test(tests, shipped_crossovers_of_two_cards);
    tcase_add_test(tests, shipped_crossovers_of_packed_layers);
    tcase_add_test(tests, tables_of_cards);
    tcase_add_test(tests, choices);
    tcase_add_test(tests, choices_of_packed_layers);
    tcase_add_test(tests, fastest);
    tcase_add_test(tests, fastest_candidates);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}

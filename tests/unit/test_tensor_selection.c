/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors are compressed: the default choice, what --include, --exclude and an explicit codec change, and the
 * codec of each. */
#include "common/checkpoint_fixture.h"
#include "common/run_suite.h"
#include "trf_tensor_selection.h"

#include <check.h>
#include <string.h>

typedef struct choice_case {
    const char *name, *dtype;
    uint64_t shape[4];
    uint32_t num_dims;
    trf_codec codec;
    trf_tensor_selection selection;
} choice_case;

static const choice_case kDefault[] = {
    {"model.layers.0.mlp.up_proj.weight", "BF16", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_COMPRESS},
    {"a.weight", "F16", {16, 16}, 2, TRF_CODEC_AUTO, TRF_SELECT_COMPRESS},
    {"a.weight", "F8_E4M3", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_COMPRESS},
    {"a.weight", "F8_E5M2", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_COMPRESS},
    {"a.weight", "I8", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_COMPRESS},
    {"experts.gate_up_proj", "BF16", {8, 64, 32}, 3, TRF_CODEC_AUTO, TRF_SELECT_COMPRESS},
    {"lm_head.weight", "BF16", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_COMPRESS},

    {"a.weight", "F32", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_COMPRESS}, /* if its weights allow it */
    {"a.norm.weight", "F32", {64}, 1, TRF_CODEC_AUTO, TRF_SELECT_KEEP},
    {"model.embed_tokens.weight", "F32", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP},
    {"a.weight", "F64", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP},
    {"a.weight", "U8", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP},
    {"a.weight", "Q3", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP},
    {"a.bias", "BF16", {64}, 1, TRF_CODEC_AUTO, TRF_SELECT_KEEP},
    {"a.scalar", "BF16", {0}, 0, TRF_CODEC_AUTO, TRF_SELECT_KEEP},
    {"conv.weight", "BF16", {64, 64, 16, 16}, 4, TRF_CODEC_AUTO, TRF_SELECT_KEEP},
    {"conv1d.weight", "BF16", {64, 1, 4}, 3, TRF_CODEC_AUTO, TRF_SELECT_KEEP},
    {"a.weight", "BF16", {15, 64}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP},
    {"a.weight", "BF16", {64, 15}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP},
    {"a.weight", "BF16", {0, 64}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP},
    {"a.weight", "BF16", {0, 64, 64}, 3, TRF_CODEC_AUTO, TRF_SELECT_KEEP},
    {"a.weight", "BF16", {2147483648, 64}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP},

    {"model.embed_tokens.weight", "BF16", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP},
    {"transformer.wte.weight", "BF16", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP},
    {"wpe.weight", "BF16", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP},
    {"shared.weight", "BF16", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP},
    {"bert.embeddings.word_embeddings.weight", "F16", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP},
    {"embeddings.position_embedding.weight", "F16", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP},
    {"tok_embeddings.weight", "BF16", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP},
    {"vit.pos_embed", "BF16", {1, 64, 32}, 3, TRF_CODEC_AUTO, TRF_SELECT_KEEP},
    {"gpt_neox.embed_in.weight", "F16", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP},
    /* within an embedding module, but linear layers */
    {"model.embed_tokens_extend.vision.layers.0.fc1.weight", "BF16", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_COMPRESS},
    {"time_embedding.linear_1.weight", "F16", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_COMPRESS},
    {"mlp.shared_expert.up_proj.weight", "BF16", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_COMPRESS},

    {"a.weight", "F32", {64, 32}, 2, TRF_CODEC_BF16, TRF_SELECT_COMPRESS},
    {"a.weight_scale_inv", "F32", {64, 32}, 2, TRF_CODEC_BF16, TRF_SELECT_KEEP},
    {"a.weight", "BF16", {64, 32}, 2, TRF_CODEC_BF16, TRF_SELECT_COMPRESS},
    {"a.weight", "F16", {64, 32}, 2, TRF_CODEC_BF16, TRF_SELECT_KEEP},
    {"a.weight", "F16", {64, 32}, 2, TRF_CODEC_FP16, TRF_SELECT_COMPRESS},
    {"a.weight", "BF16", {64, 32}, 2, TRF_CODEC_FP16, TRF_SELECT_KEEP},
    {"a.weight", "F8_E5M2", {64, 32}, 2, TRF_CODEC_E4M3, TRF_SELECT_COMPRESS},
    {"a.weight", "F8_E4M3", {64, 32}, 2, TRF_CODEC_E4M3, TRF_SELECT_COMPRESS},
    {"a.weight", "BF16", {64, 32}, 2, TRF_CODEC_E4M3, TRF_SELECT_COMPRESS}, /* it may have been FP8 */
    {"a.weight", "F16", {64, 32}, 2, TRF_CODEC_E4M3, TRF_SELECT_KEEP},
    {"a.weight", "F32", {64, 32}, 2, TRF_CODEC_INT, TRF_SELECT_COMPRESS},
    {"a.weight", "F16", {64, 32}, 2, TRF_CODEC_INT, TRF_SELECT_COMPRESS},
    {"a.weight", "I8", {64, 32}, 2, TRF_CODEC_INT, TRF_SELECT_COMPRESS},
    {"a.weight", "F8_E4M3", {64, 32}, 2, TRF_CODEC_INT, TRF_SELECT_KEEP},
};

static trf_tensor tensor_of(const char *name, const char *dtype, const uint64_t *shape, uint32_t num_dims) {
    return (trf_tensor){(char *)name, (char *)dtype, (uint64_t *)shape, num_dims, 0, 0};
}

START_TEST(default_choice) {
    const choice_case *c = &kDefault[_i];
    const char *const nothing[] = {NULL};
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.encode.codec = c->codec;
    trf_selection_rules rules = {.options = &options};
    trf_tensor tensor = tensor_of(c->name, c->dtype, c->shape, c->num_dims);
    trf_tensor_selection selection;
    trf_left_reason reason;
    for (int empty_lists = 0; empty_lists < 2; empty_lists++) {
        options.include = options.exclude = empty_lists ? nothing : NULL;
        ck_assert_int_eq(trf_select_tensor(&rules, &tensor, &selection, &reason, NULL), TRF_OK);
        ck_assert_msg(selection == c->selection, "%s %s: %d", c->name, c->dtype, selection);
    }
}
END_TEST

START_TEST(tied_tensors_stay) {
    static const uint64_t shape[] = {64, 32};
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    trf_selection_rules rules = {.options = &options, .tied_embeddings = 1};
    trf_tensor head = tensor_of("lm_head.weight", "BF16", shape, 2), other = tensor_of("a.weight", "BF16", shape, 2);
    trf_tensor_selection selection;
    trf_left_reason reason;
    ck_assert_int_eq(trf_select_tensor(&rules, &head, &selection, &reason, NULL), TRF_OK);
    ck_assert_int_eq(selection, TRF_SELECT_KEEP);
    ck_assert_int_eq(trf_select_tensor(&rules, &other, &selection, &reason, NULL), TRF_OK);
    ck_assert_int_eq(selection, TRF_SELECT_COMPRESS);
    const char *const include[] = {"lm_head.weight", NULL};
    options.include = include;
    ck_assert_int_eq(trf_select_tensor(&rules, &head, &selection, &reason, NULL), TRF_OK);
    ck_assert_int_eq(selection, TRF_SELECT_ALWAYS);
}
END_TEST

START_TEST(embeddings_on_request) {
    static const uint64_t shape[] = {64, 32};
    static const struct {
        const char *name;
        trf_tensor_selection selection;
    } kNames[] = {{"lm_head.weight", TRF_SELECT_COMPRESS},        {"model.embed_tokens.weight", TRF_SELECT_COMPRESS},
                  {"shared.weight", TRF_SELECT_COMPRESS},         {"a.weight", TRF_SELECT_COMPRESS},
                  {"a.weight_scale_inv", TRF_SELECT_KEEP},        {"lm_head.weight_scale", TRF_SELECT_KEEP},
                  {"transformer.wte.weight", TRF_SELECT_COMPRESS}};
    const char *const exclude[] = {"*.wte.*", NULL}, *const include[] = {"b.*", NULL};
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    ck_assert_int_eq(options.embeddings, 0);
    options.embeddings = 1;
    trf_selection_rules rules = {.options = &options, .tied_embeddings = 1};
    trf_tensor_selection selection;
    trf_left_reason reason;
    for (size_t i = 0; i < sizeof kNames / sizeof kNames[0]; i++) {
        trf_tensor tensor = tensor_of(kNames[i].name, "BF16", shape, 2);
        ck_assert_int_eq(trf_select_tensor(&rules, &tensor, &selection, &reason, NULL), TRF_OK);
        ck_assert_msg(selection == kNames[i].selection, "%s: %d", kNames[i].name, selection);
    }
    trf_tensor wte = tensor_of("transformer.wte.weight", "BF16", shape, 2);
    options.exclude = exclude;
    ck_assert_int_eq(trf_select_tensor(&rules, &wte, &selection, &reason, NULL), TRF_OK);
    ck_assert_int_eq(selection, TRF_SELECT_KEEP);
    options.exclude = NULL;
    options.include = include; /* only this decides */
    ck_assert_int_eq(trf_select_tensor(&rules, &wte, &selection, &reason, NULL), TRF_OK);
    ck_assert_int_eq(selection, TRF_SELECT_KEEP);
}
END_TEST

typedef struct glob_case {
    const char *include[3], *exclude[3];
    const char *name, *dtype;
    uint32_t num_dims;
    trf_codec codec;
    trf_status status;
    trf_tensor_selection selection;
} glob_case;

static const glob_case kGlobs[] = {
    {{"a.*"}, {0}, "a.weight", "BF16", 2, TRF_CODEC_AUTO, TRF_OK, TRF_SELECT_COMPRESS},
    {{"a.*"}, {0}, "b.weight", "BF16", 2, TRF_CODEC_AUTO, TRF_OK, TRF_SELECT_KEEP},
    {{"a.*", "b.*"}, {0}, "b.weight", "BF16", 2, TRF_CODEC_AUTO, TRF_OK, TRF_SELECT_COMPRESS},
    {{"*"}, {0}, "x.embed_tokens.weight", "BF16", 2, TRF_CODEC_AUTO, TRF_OK, TRF_SELECT_COMPRESS},
    {{"*"}, {0}, "a.weight", "F32", 2, TRF_CODEC_AUTO, TRF_OK, TRF_SELECT_COMPRESS},
    {{"*"}, {0}, "a.weight", "F32", 2, TRF_CODEC_BF16, TRF_OK, TRF_SELECT_COMPRESS},
    {{"*"}, {0}, "a.bias", "BF16", 1, TRF_CODEC_AUTO, TRF_OK, TRF_SELECT_KEEP},
    {{"a.weight"}, {0}, "a.weight", "BF16", 2, TRF_CODEC_AUTO, TRF_OK, TRF_SELECT_ALWAYS},
    {{"a.weight"}, {0}, "a.weight", "F32", 2, TRF_CODEC_AUTO, TRF_OK, TRF_SELECT_ALWAYS},
    {{"a.weight"}, {0}, "a.weight", "F32", 2, TRF_CODEC_INT, TRF_OK, TRF_SELECT_ALWAYS},
    {{"a.weight"}, {0}, "a.weight", "F16", 2, TRF_CODEC_BF16, TRF_ERR_ARGUMENT, TRF_SELECT_KEEP},
    {{"a.bias"}, {0}, "a.bias", "BF16", 1, TRF_CODEC_AUTO, TRF_ERR_ARGUMENT, TRF_SELECT_KEEP},
    {{0}, {"a.*"}, "a.weight", "BF16", 2, TRF_CODEC_AUTO, TRF_OK, TRF_SELECT_KEEP},
    {{0}, {"a.*"}, "b.weight", "BF16", 2, TRF_CODEC_AUTO, TRF_OK, TRF_SELECT_COMPRESS},
    {{"a.weight"}, {"*"}, "a.weight", "BF16", 2, TRF_CODEC_AUTO, TRF_OK, TRF_SELECT_KEEP},
    {{"a.bias"}, {"a.bias"}, "a.bias", "BF16", 1, TRF_CODEC_AUTO, TRF_OK, TRF_SELECT_KEEP},
};

START_TEST(globs_choose) {
    static const uint64_t shape[] = {64, 32};
    const glob_case *c = &kGlobs[_i];
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.include = c->include[0] ? c->include : NULL;
    options.exclude = c->exclude[0] ? c->exclude : NULL;
    options.encode.codec = c->codec;
    trf_selection_rules rules = {.options = &options};
    trf_tensor tensor = tensor_of(c->name, c->dtype, shape, c->num_dims);
    trf_tensor_selection selection;
    trf_left_reason reason;
    trf_error err = {0};
    trf_status status = trf_select_tensor(&rules, &tensor, &selection, &reason, &err);
    fixture_check_status(status, c->status, &err);
    if (status == TRF_OK)
        ck_assert_int_eq(selection, c->selection);
    else
        ck_assert_msg(strstr(err.message, c->name) != NULL, "%s", err.message);
}
END_TEST

START_TEST(eight_bit_integers_are_not_quantized) {
    trf_encode_options asked, options;
    trf_encode_options_init(&asked);
    asked.codec = TRF_CODEC_INT;
    asked.bits = 4;
    asked.granularity = TRF_GRANULARITY_SCALE_GROUP;
    asked.scale_group_size = 128;
    ck_assert(trf_encode_options_for(&asked, TRF_DTYPE_I8, &options));
    ck_assert(options.codec == TRF_CODEC_INT && options.bits == 0 && options.granularity == 0 &&
              options.scale_group_size == 0);
    ck_assert(trf_encode_options_for(&asked, TRF_DTYPE_BF16, &options));
    ck_assert(options.codec == TRF_CODEC_INT && options.bits == 4 && options.scale_group_size == 128);
    ck_assert(!trf_encode_options_for(&asked, TRF_DTYPE_NONE, &options));
}
END_TEST

/* ---- why a tensor stays ---- */

static const struct {
    choice_case tensor;
    trf_left_reason reason;
} kReasons[] = {
    {{"a.bias", "BF16", {64}, 1, TRF_CODEC_AUTO, TRF_SELECT_KEEP}, TRF_LEFT_NO_MATRIX},
    {{"conv.weight", "BF16", {64, 64, 16, 16}, 4, TRF_CODEC_AUTO, TRF_SELECT_KEEP}, TRF_LEFT_NO_MATRIX},
    {{"a.weight", "BF16", {15, 64}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP}, TRF_LEFT_SMALL},
    {{"a.weight", "BF16", {0, 64}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP}, TRF_LEFT_SMALL},
    {{"a.weight", "F32", {64, 15}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP}, TRF_LEFT_SMALL},
    {{"wte.weight", "BF16", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP}, TRF_LEFT_EMBEDDING},
    {{"lm_head.weight", "BF16", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP}, TRF_LEFT_TIED},
    {{"a.weight", "U8", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP}, TRF_LEFT_DTYPE},
    {{"a.weight", "F16", {64, 32}, 2, TRF_CODEC_BF16, TRF_SELECT_KEEP}, TRF_LEFT_DTYPE},
    {{"a.weight_scale", "BF16", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP}, TRF_LEFT_SIDE_TABLE},
    {{"excluded.weight", "BF16", {64, 32}, 2, TRF_CODEC_AUTO, TRF_SELECT_KEEP}, TRF_LEFT_EXCLUDED},
};

START_TEST(it_says_why_a_tensor_stays) {
    const choice_case *c = &kReasons[_i].tensor;
    const char *const exclude[] = {"excluded.*", NULL};
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.encode.codec = c->codec;
    options.exclude = exclude;
    trf_selection_rules rules = {.options = &options, .tied_embeddings = 1};
    trf_tensor tensor = tensor_of(c->name, c->dtype, c->shape, c->num_dims);
    trf_tensor_selection selection;
    trf_left_reason reason;
    ck_assert_int_eq(trf_select_tensor(&rules, &tensor, &selection, &reason, NULL), TRF_OK);
    ck_assert_int_eq(selection, TRF_SELECT_KEEP);
    ck_assert_msg(reason == kReasons[_i].reason, "%s: %d", c->name, reason);
}
END_TEST

START_TEST(what_include_does_not_name_is_excluded) {
    static const uint64_t shape[] = {64, 32};
    const char *const include[] = {"a.*", NULL};
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.include = include;
    trf_selection_rules rules = {.options = &options};
    trf_tensor other = tensor_of("b.weight", "BF16", shape, 2), integers = tensor_of("a.weight", "I64", shape, 2);
    trf_tensor_selection selection;
    trf_left_reason reason;
    ck_assert_int_eq(trf_select_tensor(&rules, &other, &selection, &reason, NULL), TRF_OK);
    ck_assert_int_eq(reason, TRF_LEFT_EXCLUDED);
    ck_assert_int_eq(trf_select_tensor(&rules, &integers, &selection, &reason, NULL), TRF_OK);
    ck_assert_int_eq(reason, TRF_LEFT_DTYPE);
}
END_TEST

START_TEST(stored_only_takes_all_that_is_lossless) {
    static const uint64_t shape[] = {64, 32};
    static const char *const names[] = {"lm_head.weight", "wte.weight", "a.weight_scale", "a.weight"};
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.store_only = 1;
    trf_selection_rules rules = {.options = &options, .tied_embeddings = 1, .is_stored = 1};
    trf_tensor_selection selection;
    trf_left_reason reason;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        trf_tensor tensor = tensor_of(names[i], "BF16", shape, 2);
        ck_assert_int_eq(trf_select_tensor(&rules, &tensor, &selection, &reason, NULL), TRF_OK);
        ck_assert_msg(selection == TRF_SELECT_COMPRESS, "%s", names[i]);
    }
    options.encode.codec = TRF_CODEC_INT;
    trf_tensor floats = tensor_of("a.weight", "BF16", shape, 2), codes = tensor_of("b.weight", "I8", shape, 2);
    ck_assert_int_eq(trf_select_tensor(&rules, &floats, &selection, &reason, NULL), TRF_ERR_ARGUMENT);
    ck_assert_int_eq(trf_select_tensor(&rules, &codes, &selection, &reason, NULL), TRF_OK);
    ck_assert_int_eq(selection, TRF_SELECT_COMPRESS);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("tensor_selection");
    TCase *tests = tcase_create("tensor_selection");
    tcase_add_loop_test(tests, default_choice, 0, sizeof kDefault / sizeof kDefault[0]);
    tcase_add_test(tests, tied_tensors_stay);
    tcase_add_test(tests, embeddings_on_request);
    tcase_add_loop_test(tests, globs_choose, 0, sizeof kGlobs / sizeof kGlobs[0]);
    tcase_add_test(tests, eight_bit_integers_are_not_quantized);
    tcase_add_loop_test(tests, it_says_why_a_tensor_stays, 0, sizeof kReasons / sizeof kReasons[0]);
    tcase_add_test(tests, what_include_does_not_name_is_excluded);
    tcase_add_test(tests, stored_only_takes_all_that_is_lossless);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation fails, once and from then on, of what other tests of this kind do not call: encoding, decoding and
 * multiplying in memory, tensors of a checkpoint, layers that are decoded and converted on the CPU device, and
 * experts. TRF_TEST_WRAPS_ALLOCATIONS. */
#include "common/checkpoint_fixture.h"
#include "common/failing_memory.h"
#include "common/run_suite.h"
#include "common/test_calls.h"
#include "common/test_weights.h"
#include "transfuse/cpu.h"
#include "transfuse/experts.h"

#include <check.h>

enum {
    ROWS = 64,
    COLS = 256,
    EXPERTS = 2
};

static trf_error err;
static uint16_t weights[ROWS * COLS], decoded[EXPERTS * ROWS * COLS];
static float x[COLS], y[ROWS];
static trf_context *context;
static trf_checkpoint *checkpoint;
static trf_device_layer *coded;
static trf_experts *experts;
static const char *compressed;
static void *blob;
static uint64_t blob_bytes;

static void begin(void) {
    static const fixture_tensor tensors[] = {{"a.weight", "BF16", {ROWS, COLS}, 2, 0},
                                             {"e.weight", "BF16", {EXPERTS, ROWS, COLS}, 3, 0}};
    test_rng rng = {4};
    fixture_begin();
    fixture_write_safetensors(fixture_path("in.safetensors"), NULL, tensors, 2, 8, 3);
    compressed = fixture_path("out.safetensors");
    fixture_check_status(trf_compress_checkpoint(fixture_path("in.safetensors"), compressed, NULL, NULL, &err), TRF_OK,
                         &err);
    test_fill_normal(&rng, weights, TRF_DTYPE_BF16, ROWS * COLS, 1.0);
    const trf_matrix matrix = test_matrix(weights, TRF_DTYPE_BF16, ROWS, COLS);
    fixture_check_status(trf_encode_layer(&matrix, NULL, &blob, &blob_bytes, NULL, &err), TRF_OK, &err);
    fixture_check_status(trf_context_create(TRF_DEVICE_CPU, &context, &err), TRF_OK, &err);
    fixture_check_status(trf_checkpoint_open(compressed, &checkpoint, &err), TRF_OK, &err);
    fixture_check_status(trf_device_layer_load(context, checkpoint, "a.weight", NULL, &coded, &err), TRF_OK, &err);
    fixture_check_status(trf_experts_load(context, checkpoint, "e.weight", NULL, &experts, &err), TRF_OK, &err);
}

static void end(void) {
    trf_experts_destroy(experts);
    trf_device_layer_destroy(coded);
    trf_checkpoint_close(checkpoint);
    trf_context_destroy(context);
    trf_free(blob);
    fixture_end();
}

/* ---- what is done ---- */

static trf_status encode(void *unused) {
    (void)unused;
    void *made = NULL;
    uint64_t bytes;
    err = (trf_error){0};
    const trf_matrix matrix = test_matrix(weights, TRF_DTYPE_BF16, ROWS, COLS);
    trf_status status = trf_encode_layer(&matrix, NULL, &made, &bytes, NULL, &err);
    trf_free(made);
    return status;
}

static trf_status use_in_memory(void *unused) {
    (void)unused;
    trf_layer *layer = NULL;
    trf_status status = trf_layer_from_memory(blob, blob_bytes, &layer, &err);
    if (status == TRF_OK)
        status = trf_layer_decode(layer, decoded, ROWS * COLS * sizeof *decoded, 2, &err);
    if (status == TRF_OK)
        status = trf_layer_matmul_cpu(layer, x, 1, y, 2, &err);
    trf_layer_free(layer);
    return status;
}

static trf_status list_tensors(void *unused) {
    (void)unused;
    trf_checkpoint *opened = NULL;
    trf_tensor_info info;
    trf_status status = trf_checkpoint_open(compressed, &opened, &err);
    for (uint64_t i = 0; status == TRF_OK && i < trf_checkpoint_num_tensors(opened); i++)
        status = trf_checkpoint_tensor(opened, i, &info, &err);
    trf_checkpoint_close(opened);
    return status;
}

static trf_status decode_on_device(void *unused) {
    (void)unused;
    return trf_device_layer_decode(coded, TRF_DECODE_SOURCE, decoded, ROWS * COLS * sizeof *decoded, NULL, &err);
}

static trf_status create(void *unused) {
    (void)unused;
    trf_device_layer *layer = NULL;
    trf_status status = trf_device_layer_create(context, blob, blob_bytes, NULL, &layer, &err);
    trf_device_layer_destroy(layer);
    return status;
}

static trf_status convert(void *unused) {
    (void)unused;
    trf_device_layer *packed = NULL, *plain = NULL;
    trf_status status = trf_device_layer_convert(coded, TRF_LAYOUT_PACKED, NULL, &packed, &err);
    if (status == TRF_OK)
        status = trf_device_layer_convert(packed, TRF_LAYOUT_PLAIN, NULL, &plain, &err);
    trf_device_layer_destroy(plain);
    trf_device_layer_destroy(packed);
    return status;
}

static trf_status load_experts(void *unused) {
    (void)unused;
    trf_experts *loaded = NULL;
    trf_status status = trf_experts_load(context, checkpoint, "e.weight", NULL, &loaded, &err);
    if (status == TRF_OK)
        status = trf_experts_decode(loaded, TRF_DECODE_SOURCE, decoded, ROWS * COLS * sizeof *decoded, sizeof decoded,
                                    NULL, &err);
    trf_experts_destroy(loaded);
    return status;
}

static const struct {
    const char *name;
    trf_status (*act)(void *unused);
    long least;      /* allocations */
    trf_status also; /* IO: of mmap; OK: memory is not made smaller, which is as good */
} kActs[] = {{"encode", encode, 5, TRF_OK},
             {"in memory", use_in_memory, 2, TRF_ERR_MEMORY},
             {"list", list_tensors, 5, TRF_ERR_MEMORY},
             {"create", create, 2, TRF_ERR_MEMORY},
             {"on the device", decode_on_device, 0, TRF_ERR_MEMORY},
             {"convert", convert, 3, TRF_ERR_MEMORY},
             {"experts", load_experts, 5, TRF_ERR_IO}};

START_TEST(every_allocation_fails) {
    const long failures = fail_each_allocation(kActs[_i].act, NULL, kActs[_i].also, &err);
    printf("%s: %ld allocations\n", kActs[_i].name, failures - 1);
    ck_assert_int_ge(failures - 1, kActs[_i].least);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("layers_no_memory");
    TCase *tests = tcase_create("layers_no_memory");
    tcase_add_unchecked_fixture(tests, begin, end);
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, every_allocation_fails, 0, (int)(sizeof kActs / sizeof kActs[0]));
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}

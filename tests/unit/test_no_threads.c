/* SPDX-License-Identifier: Apache-2.0 */
/* The creation of each thread fails once, and then of all from one on, while checkpoints are compressed, verified,
 * decompressed and loaded. The work is done by fewer threads then, with the same result. TRF_TEST_WRAPS: pthread_create
 */
#include "common/checkpoint_fixture.h"
#include "common/run_suite.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

static atomic_long threads_asked_for;
static long fails_at; /* from 1; 0: none */
static int fails_on;  /* whether all later ones fail, too */

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
    const long number = atomic_fetch_add(&threads_asked_for, 1) + 1;
    if (fails_at && (fails_on ? number >= fails_at : number == fails_at))
        return EAGAIN;
    return __real_pthread_create(thread, attributes, start, argument);
}

static trf_error err;

static trf_status compress(void) {
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.encode.threads = 3;
    options.overwrite = 1;
    return trf_compress_checkpoint(fixture_path("in.safetensors"), fixture_path("out.safetensors"), &options, NULL,
                                   &err);
}

static trf_status verify(void) {
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.encode.threads = 3;
    return trf_verify_checkpoint(fixture_path("good.safetensors"), fixture_path("in.safetensors"), &options, NULL,
                                 &err);
}

static trf_status decompress(void) {
    trf_checkpoint_options options;
    trf_checkpoint_options_init(&options);
    options.encode.threads = 3;
    options.overwrite = 1;
    return trf_decompress_checkpoint(fixture_path("good.safetensors"), fixture_path("back.safetensors"), &options, NULL,
                                     &err);
}

/* Loads a layer on the CPU device, and decodes it. */
static trf_status load(void) {
    trf_context *context = NULL;
    trf_checkpoint *checkpoint = NULL;
    trf_device_layer *layer = NULL;
    trf_status status = trf_context_create(TRF_DEVICE_CPU, &context, &err);
    if (status == TRF_OK)
        status = trf_checkpoint_open(fixture_path("good.safetensors"), &checkpoint, &err);
    if (status == TRF_OK)
        status = trf_device_layer_load(context, checkpoint, "a.weight", NULL, &layer, &err);
    trf_device_layer_destroy(layer);
    trf_checkpoint_close(checkpoint);
    trf_context_destroy(context);
    return status;
}

static void begin(void) {
    static const fixture_tensor tensors[] = {{"a.weight", "BF16", {700, 900}, 2, 0},
                                             {"b.weight", "F16", {300, 5000}, 2, 0}};
    fixture_begin();
    fixture_write_safetensors(fixture_path("in.safetensors"), NULL, tensors, 2, 8, 5);
    fixture_check_status(compress(), TRF_OK, &err);
    ck_assert_int_eq(rename(fixture_path("out.safetensors"), fixture_path("good.safetensors")), 0);
}

static trf_status (*const kActs[])(void) = {compress, verify, decompress, load};

START_TEST(work_is_done_without_threads) {
    long most = 0;
    for (fails_on = 0; fails_on <= 1; fails_on++)
        for (long number = 1;; number++) {
            atomic_store(&threads_asked_for, 0);
            fails_at = number;
            const trf_status status = kActs[_i]();
            fails_at = 0;
            fixture_check_status(status, TRF_OK, &err);
            if (_i == 0)
                fixture_check_same(fixture_path("out.safetensors"), fixture_path("good.safetensors"));
            if (_i == 2)
                fixture_check_same(fixture_path("back.safetensors"), fixture_path("in.safetensors"));
            most = number > most ? number : most;
            if (atomic_load(&threads_asked_for) < number)
                break;
        }
    ck_assert_msg(_i == 3 || most > 3, "act %d asked for %ld threads", _i, most - 1);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("no_threads");
    TCase *tests = tcase_create("no_threads");
    tcase_add_unchecked_fixture(tests, begin, fixture_end);
    tcase_set_timeout(tests, 240);
    tcase_add_loop_test(tests, work_is_done_without_threads, 0, (int)(sizeof kActs / sizeof kActs[0]));
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}

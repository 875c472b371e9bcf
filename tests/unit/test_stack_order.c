/* SPDX-License-Identifier: Apache-2.0 */
/* What a stack decides without a device: which layers stay and where they lie, and what is copied when. A fake device
 * keeps track of every byte. */
#include "common/expect.h"
#include "common/run_suite.h"
#include "common/test_weights.h"
#include "trf_stack_order.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST = 60,
    FIXED = 256,
    MIB = 1 << 20
};

static trf_error err;

/* Checks everything that a placement promises. */
static void check_placement(const trf_stack_place *places, uint32_t count, uint64_t budget,
                            const trf_stack_placement *placement) {
    uint64_t offloaded = 0, end = FIXED + 2 * placement->buffer_bytes;
    uint32_t resident = 0;
    const trf_stack_place *before = NULL;
    for (uint32_t i = 0; i < count; i++) {
        const trf_stack_place *place = &places[i];
        if (place->is_resident) {
            EXPECT(place->offset == end); /* one after the other */
            end += place->bytes;
            resident++;
            continue;
        }
        const uint64_t in_buffer = (place->offset - FIXED) % placement->buffer_bytes;
        EXPECT(place->offset >= FIXED);
        EXPECT(place->offset < FIXED + 2 * placement->buffer_bytes);
        EXPECT(in_buffer + place->bytes <= placement->buffer_bytes);
        EXPECT(!before || before->offset + before->bytes <= place->offset ||
               place->offset + place->bytes <= before->offset);
        before = place;
        offloaded += place->bytes;
        EXPECT(budget - placement->device_bytes < place->bytes); /* no room is left that it could have had */
    }
    EXPECT(placement->device_bytes == end);
    EXPECT(end <= budget);
    EXPECT(placement->offloaded_bytes == offloaded);
    EXPECT(placement->num_resident == resident);
    EXPECT(!offloaded == !placement->buffer_bytes);
}

START_TEST(plans_keep_their_promises) {
    test_rng rng = {(uint64_t)_i + 1};
    trf_stack_place places[MOST];
    const uint32_t count = 1 + test_below(&rng, MOST), kinds = 1 + test_below(&rng, 5);
    uint64_t sizes[5], all = FIXED;
    for (uint32_t k = 0; k < kinds; k++)
        sizes[k] = 256ull * (1 + test_below(&rng, _i % 2 ? 40 : 400000)); /* to 10 KiB, or to 100 MiB */
    for (uint32_t i = 0; i < count; i++) {
        places[i] = (trf_stack_place){.bytes = sizes[test_below(&rng, kinds)]};
        all += places[i].bytes;
    }
    const uint64_t least = trf_stack_least_bytes(places, count, FIXED);
    EXPECT(least <= all);
    trf_stack_placement placement;
    for (int step = 0; step <= 20; step++) {
        const uint64_t budget = least + (all - least) * (uint64_t)step / 20;
        EXPECT(trf_stack_placement_make(places, count, FIXED, budget, &placement, &err) == TRF_OK);
        check_placement(places, count, budget, &placement);
        EXPECT(step < 20 || placement.num_resident == count);
    }
    EXPECT(trf_stack_placement_make(places, count, FIXED, UINT64_MAX, &placement, &err) == TRF_OK);
    EXPECT(placement.num_resident == count);
    const uint64_t too_small[] = {least - 1, FIXED, FIXED - 1, 0};
    char number[32];
    snprintf(number, sizeof number, "%llu", (unsigned long long)least);
    for (int i = 0; i < 4; i++) {
        err = (trf_error){0};
        EXPECT(trf_stack_placement_make(places, count, FIXED, too_small[i], &placement, &err) == TRF_ERR_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(err.message, number));
    }
}
END_TEST

START_TEST(layers_that_stay_are_spread) {
    trf_stack_place places[40];
    for (uint32_t stay = 0; stay < 38; stay++) {
        for (uint32_t i = 0; i < 40; i++)
            places[i] = (trf_stack_place){.bytes = 1000};
        trf_stack_placement placement;
        ck_assert_int_eq(trf_stack_placement_make(places, 40, 0, 2000 + 1000ull * stay, &placement, &err), TRF_OK);
        ck_assert_uint_eq(placement.num_resident, stay);
        ck_assert_uint_eq(placement.buffer_bytes, 1000);
        uint32_t so_far = 0;
        for (uint32_t i = 0; i < 40; i++) { /* every beginning of the list has its share */
            so_far += (uint32_t)places[i].is_resident;
            const double share = stay * (i + 1) / 40.0;
            ck_assert_msg(so_far > share - 1.001 && so_far < share + 1.001, "%u of %u among the first %u", so_far, stay,
                          i + 1);
        }
    }
}
END_TEST

/* Blocks of a transformer with 8 G parameters, 11 bits a weight: layers too large for a small buffer stay, if the
 * budget allows it. */
START_TEST(small_buffers_leave_more_room) {
    static const uint64_t block[7] = {22 * MIB, 6 * MIB, 6 * MIB, 22 * MIB, 80 * MIB, 80 * MIB, 80 * MIB};
    trf_stack_place places[56];
    trf_stack_placement placement;
    for (uint32_t i = 0; i < 56; i++)
        places[i].bytes = block[i % 7];
    ck_assert_uint_eq(trf_stack_least_bytes(places, 56, 0), 160 * MIB);
    ck_assert_int_eq(trf_stack_placement_make(places, 56, 0, 160 * MIB, &placement, &err), TRF_OK);
    ck_assert_uint_eq(placement.num_resident, 0);
    ck_assert_uint_eq(placement.buffer_bytes, 80 * MIB);
    /* q, k, v and o share a buffer; gate, up and down take turns with the next four. */
    static const uint64_t offsets[7] = {0, 22 * MIB, 28 * MIB, 34 * MIB, 80 * MIB, 0, 80 * MIB};
    for (uint32_t i = 0; i < 56; i++)
        ck_assert_uint_eq(places[i].offset, offsets[i % 7]);

    const uint64_t large = 24ull * 80 * MIB; /* of all blocks */
    ck_assert_int_eq(trf_stack_placement_make(places, 56, 0, large + 43 * MIB, &placement, &err), TRF_OK);
    ck_assert_uint_eq(placement.buffer_bytes, 80 * MIB);
    ck_assert_int_eq(trf_stack_placement_make(places, 56, 0, large + 44 * MIB, &placement, &err), TRF_OK);
    ck_assert_uint_eq(placement.buffer_bytes, 22 * MIB); /* the largest below 32 MiB; not 6 */
    ck_assert_uint_eq(placement.num_resident, 24);
    for (uint32_t i = 0; i < 56; i++)
        ck_assert_int_eq(places[i].is_resident, i % 7 >= 4);

    /* One huge layer stays, since otherwise two buffers of its size would be needed. */
    places[30].bytes = 700 * MIB;
    ck_assert_uint_eq(trf_stack_least_bytes(places, 56, 0), 860 * MIB);
}
END_TEST

/* ---- order ---- */

/* A device that does everything at once. */
typedef struct fake_device {
    trf_stack_place places[MOST];
    trf_stack_usage usage[MOST];
    trf_stack_order order;
    trf_stack_placement placement;
    uint32_t count;
    uint8_t owner[4096];    /* 1 + the layer that lies in a unit of memory; 0: none */
    uint32_t uses[MOST];    /* by the test's own count */
    int used_since[MOST];   /* released since its copy ... */
    int waited_since[MOST]; /* ... and a wait for that was queued */
    uint32_t copies;
    uint32_t copy_number[MOST]; /* of the last copy */
    long fails_in;              /* actions; -1: none fails */
} fake_device;

static int due_to_fail(fake_device *d) { return d->fails_in >= 0 && d->fails_in-- == 0; }

static trf_status fake_copy(void *context, uint32_t layer, trf_error *error) {
    fake_device *d = context;
    const trf_stack_place *place = &d->places[layer];
    if (due_to_fail(d))
        return trf_fail(error, TRF_ERR_CUDA, TRF_NO_OFFSET, "a copy fails");
    EXPECT(!place->is_resident);
    for (uint64_t i = place->offset; i < place->offset + place->bytes; i++) {
        if (d->owner[i]) {
            const uint32_t old = d->owner[i] - 1u;
            if (d->uses[old] != 0)
                ck_abort_msg("layer %u is copied over layer %u, which is in use", layer, old);
            if (d->used_since[old] && !d->waited_since[old])
                ck_abort_msg("layer %u is copied over layer %u without waiting for its uses", layer, old);
        }
        d->owner[i] = (uint8_t)(layer + 1);
    }
    d->used_since[layer] = d->waited_since[layer] = 0;
    d->copy_number[layer] = ++d->copies;
    return TRF_OK;
}

static trf_status fake_wait(void *context, uint32_t layer, trf_error *error) {
    fake_device *d = context;
    if (due_to_fail(d))
        return trf_fail(error, TRF_ERR_CUDA, TRF_NO_OFFSET, "a wait fails");
    EXPECT(d->used_since[layer]);
    EXPECT(d->uses[layer] == 0);
    d->waited_since[layer] = 1;
    return TRF_OK;
}

static fake_device *make_device(const uint64_t *sizes, uint32_t count, uint64_t budget) {
    fake_device *d = calloc(1, sizeof *d);
    d->count = count;
    d->fails_in = -1;
    for (uint32_t i = 0; i < count; i++)
        d->places[i].bytes = sizes[i];
    EXPECT(trf_stack_placement_make(d->places, count, 3, budget, &d->placement, &err) == TRF_OK);
    EXPECT(d->placement.device_bytes <= sizeof d->owner);
    d->order =
        (trf_stack_order){.places = d->places, .usage = d->usage, .count = count, .actions = {d, fake_copy, fake_wait}};
    EXPECT(trf_stack_order_begin(&d->order, &err) == TRF_OK);
    return d;
}

static trf_status acquire(fake_device *d, uint32_t layer) {
    trf_status status = trf_stack_order_acquire(&d->order, layer, &err);
    if (status != TRF_OK)
        return status;
    d->uses[layer]++;
    const trf_stack_place *place = &d->places[layer];
    for (uint64_t i = place->offset; !place->is_resident && i < place->offset + place->bytes; i++)
        if (d->owner[i] != layer + 1)
            ck_abort_msg("layer %u is acquired, and layer %d lies there", layer, d->owner[i] - 1);
    return TRF_OK;
}

static trf_status release(fake_device *d, uint32_t layer) {
    d->uses[layer]--;
    d->used_since[layer] = 1;
    d->waited_since[layer] = 0;
    d->usage[layer].released = !d->places[layer].is_resident; /* trf_stack.c's part */
    return trf_stack_order_release(&d->order, layer, &err);
}

static fake_device *random_device(test_rng *rng) {
    uint64_t sizes[MOST], all = 3;
    const uint32_t count = 1 + test_below(rng, MOST);
    trf_stack_place places[MOST];
    for (uint32_t i = 0; i < count; i++) {
        sizes[i] = 1 + test_below(rng, test_below(rng, 3) ? 10 : 60);
        places[i] = (trf_stack_place){.bytes = sizes[i]};
        all += sizes[i];
    }
    const uint64_t least = trf_stack_least_bytes(places, count, 3);
    return make_device(sizes, count, least + (all - least) * test_below(rng, 11) / 10);
}

/* Each layer has arrived, or is on its way, before it is acquired, and none is copied twice in a pass. */
START_TEST(in_order) {
    test_rng rng = {(uint64_t)_i + 100};
    fake_device *d = random_device(&rng);
    for (int pass = 0; pass < 5; pass++) {
        const uint32_t copies = d->copies;
        for (uint32_t i = 0; i < d->count; i++) {
            const uint32_t before = d->copy_number[i];
            EXPECT(d->places[i].is_resident || d->usage[i].present);
            EXPECT(acquire(d, i) == TRF_OK);
            EXPECT(d->copy_number[i] == before);
            EXPECT(release(d, i) == TRF_OK);
        }
        EXPECT(d->copies - copies <= d->count - d->placement.num_resident);
    }
    free(d);
}
END_TEST

/* Copies are as far ahead as the buffers have room for: while a buffer is in use, the other one is filled. */
START_TEST(ahead) {
    static const uint64_t sizes[] = {10, 10, 10, 4, 3, 3, 10, 10};
    fake_device *d = make_device(sizes, 8, 3 + 20);
    ck_assert_uint_eq(d->copies, 2);
    ck_assert_int_eq(acquire(d, 0), TRF_OK);
    ck_assert_uint_eq(d->copies, 2);
    ck_assert_int_eq(release(d, 0), TRF_OK);
    ck_assert_uint_eq(d->copies, 3);
    ck_assert_int_eq(acquire(d, 1), TRF_OK);
    ck_assert_int_eq(release(d, 1), TRF_OK);
    ck_assert_uint_eq(d->copies, 6);         /* three of them share a buffer */
    ck_assert_int_eq(acquire(d, 4), TRF_OK); /* 2 and 3 are skipped, so that 6 has room; 7 waits for 4 */
    ck_assert_uint_eq(d->copies, 7);
    ck_assert_int_eq(release(d, 4), TRF_OK);
    ck_assert_uint_eq(d->copies, 7); /* 5 is still to come */
    free(d);
}
END_TEST

/* Any order, with layers held while others come: what is acquired is there, and nothing in use is touched. */
START_TEST(any_order) {
    test_rng rng = {(uint64_t)_i + 1000};
    fake_device *d = random_device(&rng);
    uint32_t held[3], num_held = 0;
    for (int step = 0; step < 400; step++) {
        if (num_held == 3 || (num_held && test_below(&rng, 2))) {
            const uint32_t k = test_below(&rng, num_held);
            EXPECT(release(d, held[k]) == TRF_OK);
            held[k] = held[--num_held];
            continue;
        }
        const uint32_t layer = test_below(&rng, d->count);
        trf_status status = acquire(d, layer);
        if (status == TRF_OK) {
            held[num_held++] = layer;
            continue;
        }
        EXPECT(status == TRF_ERR_ARGUMENT); /* only for a layer that is held in its place */
        int in_the_way = 0;
        for (uint32_t k = 0; k < num_held; k++) {
            const trf_stack_place *p = &d->places[held[k]], *q = &d->places[layer];
            in_the_way |= held[k] != layer && p->offset < q->offset + q->bytes && q->offset < p->offset + p->bytes;
        }
        EXPECT(in_the_way);
    }
    while (num_held)
        EXPECT(release(d, held[--num_held]) == TRF_OK);
    for (int pass = 0; pass < 2; pass++) /* and it finds its way back */
        for (uint32_t i = 0; i < d->count; i++) {
            const uint32_t before = d->copy_number[i];
            EXPECT(acquire(d, i) == TRF_OK);
            EXPECT(pass == 0 || d->copy_number[i] == before);
            EXPECT(release(d, i) == TRF_OK);
        }
    free(d);
}
END_TEST

/* An action that fails is reported, and the next call goes on. */
START_TEST(failures) {
    test_rng rng = {(uint64_t)_i + 5000};
    fake_device *d = random_device(&rng);
    uint32_t failed = 0;
    for (int pass = 0; pass < 30; pass++)
        for (uint32_t i = 0; i < d->count; i++) {
            d->fails_in = test_below(&rng, 4) ? -1 : (long)test_below(&rng, 3);
            trf_status status = acquire(d, i);
            if (status != TRF_OK) {
                EXPECT(status == TRF_ERR_CUDA);
                failed++;
                d->fails_in = -1;
                EXPECT(acquire(d, i) == TRF_OK);
            }
            status = release(d, i);
            EXPECT(status == TRF_OK || status == TRF_ERR_CUDA);
            failed += status != TRF_OK;
        }
    EXPECT(failed > 0 || d->placement.num_resident == d->count);
    free(d);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("stack_order");
    TCase *tests = tcase_create("stack_order");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, plans_keep_their_promises, 0, 200);
    tcase_add_test(tests, layers_that_stay_are_spread);
    tcase_add_test(tests, small_buffers_leave_more_room);
    tcase_add_loop_test(tests, in_order, 0, 200);
    tcase_add_test(tests, ahead);
    tcase_add_loop_test(tests, any_order, 0, 200);
    tcase_add_loop_test(tests, failures, 0, 50);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A choice is found in three steps. (1) Lagrange: a price for a byte makes items independent of each other; the lowest
 * price at which the choice fits gives a choice, and a bound below which no choice can be. (2) Greedy: what bytes are
 * left are spent where they save the most. With the hundreds of layers of a model this is nearly always within the
 * tolerance. (3) Otherwise dynamic programming: partial choices, item by item, without those that another one dominates
 * in bytes and cost, or that the bound rules out. Items that the price decides clearly come first, so that few partial
 * choices are alive until the undecided ones. (Kellerer, Pferschy, Pisinger: Knapsack Problems, 2004, chapter 11.) */
#include "trf_choice_search.h"

#include "trf_error.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

static const double kTolerance = 0.0005;
enum {
    TRF_MAX_STATES = 1 << 14 /* partial choices that are kept; beyond them those with the lowest bounds */
};

static int may_have(const trf_choice_item *item, int layout) { return item->layouts >> layout & 1; }

uint64_t trf_choice_item_least_bytes(const trf_choice_item *item) {
    uint64_t least = UINT64_MAX;
    for (int l = 0; l < TRF_LAYOUTS; l++)
        if (may_have(item, l) && item->bytes[l] < least)
            least = item->bytes[l];
    return least;
}

uint64_t trf_choice_least_bytes(const trf_choice_item *items, uint32_t num_items) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < num_items; i++)
        sum += trf_choice_item_least_bytes(&items[i]);
    return sum;
}

/* @return the layout with the least cost + price * bytes; of equal ones that with the fewest bytes. */
static int find_cheapest(const trf_choice_item *item, double price, double *least) {
    int best = -1;
    for (int l = 0; l < TRF_LAYOUTS; l++) {
        const double priced = item->cost[l] + price * (double)item->bytes[l];
        if (!may_have(item, l) ||
            (best >= 0 && (priced > *least || (priced == *least && item->bytes[l] >= item->bytes[best]))))
            continue;
        best = l;
        *least = priced;
    }
    assert(best >= 0);
    return best;
}

/* A search under way, and the best choice so far. */
typedef struct search {
    const trf_choice_item *items;
    uint32_t num_items;
    uint64_t budget;
    double price, bound;
    trf_layout *chosen;
    double cost;
    uint64_t bytes;
} search;

/* @return the bytes of the choice at a price, which becomes search->chosen if `take`. Raises the bound. */
static uint64_t choose_at(search *at, double price, int take) {
    uint64_t bytes = 0;
    double cost = 0, priced = 0;
    for (uint32_t i = 0; i < at->num_items; i++) {
        double least = 0;
        const int l = find_cheapest(&at->items[i], price, &least);
        bytes += at->items[i].bytes[l];
        cost += at->items[i].cost[l];
        priced += least;
        if (take)
            at->chosen[i] = (trf_layout)l;
    }
    at->bound = fmax(at->bound, priced - price * (double)at->budget);
    if (take)
        at->price = price, at->cost = cost, at->bytes = bytes;
    return bytes;
}

/* Finds the lowest price at which the choice fits, as nearly as doubles tell. */
static void find_price(search *at) {
    if (choose_at(at, 0, 0) <= at->budget) {
        choose_at(at, 0, 1);
        return;
    }
    double low = 0, high = 1e-15;
    while (choose_at(at, high, 0) > at->budget)
        low = high, high *= 2;
    for (int i = 0; i < 60 && high - low > 1e-12 * high; i++) {
        const double middle = low + (high - low) / 2;
        if (choose_at(at, middle, 0) <= at->budget)
            high = middle;
        else
            low = middle;
    }
    choose_at(at, high, 1);
}

/* Spends what bytes are left, each time where they save the most for each byte. */
static void spend_rest(search *at) {
    for (;;) {
        double best_rate = 0;
        uint32_t best = at->num_items;
        int best_layout = 0;
        for (uint32_t i = 0; i < at->num_items; i++) {
            const trf_choice_item *item = &at->items[i];
            const int now = at->chosen[i];
            for (int l = 0; l < TRF_LAYOUTS; l++) {
                const double saved = item->cost[now] - item->cost[l];
                const uint64_t without = at->bytes - item->bytes[now];
                if (!may_have(item, l) || !(saved > 0) || without + item->bytes[l] > at->budget)
                    continue;
                const double more = item->bytes[l] > item->bytes[now] ? (double)(item->bytes[l] - item->bytes[now]) : 1;
                if (saved / more > best_rate)
                    best_rate = saved / more, best = i, best_layout = l;
            }
        }
        if (best == at->num_items)
            return;
        const trf_choice_item *item = &at->items[best];
        at->bytes = at->bytes - item->bytes[at->chosen[best]] + item->bytes[best_layout];
        at->cost += item->cost[best_layout] - item->cost[at->chosen[best]];
        at->chosen[best] = (trf_layout)best_layout;
    }
}

/* ---- dynamic programming ---- */

/* The last decision of a partial choice, and where the one before it is. */
typedef struct step {
    uint32_t before;
    uint8_t layout;
} step;

/* A partial choice. */
typedef struct state {
    uint64_t bytes;
    double cost, bound;
    uint32_t before; /* step of the state that it was made of */
    uint8_t layout;
} state;

/* An item's place in the order, and what is least from there on. */
typedef struct place {
    uint32_t item;
    double gap; /* between its cheapest layout and the next one at the price */
    double least_priced;
    double priced_after; /* of all items behind it, at the price */
    uint64_t least_bytes_after;
} place;

static int compare_gaps(const void *a, const void *b) {
    const place *left = a, *right = b;
    if (left->gap != right->gap)
        return left->gap > right->gap ? -1 : 1;
    return left->item < right->item ? -1 : left->item > right->item;
}

static int compare_bytes(const void *a, const void *b) {
    const state *left = a, *right = b;
    if (left->bytes != right->bytes)
        return left->bytes < right->bytes ? -1 : 1;
    if (left->cost != right->cost)
        return left->cost < right->cost ? -1 : 1;
    return left->before < right->before ? -1 : left->before > right->before;
}

static int compare_bounds(const void *a, const void *b) {
    const state *left = a, *right = b;
    return left->bound != right->bound ? (left->bound < right->bound ? -1 : 1) : compare_bytes(a, b);
}

/* Puts the items in order. */
static void make_places(const search *at, place *places) {
    for (uint32_t i = 0; i < at->num_items; i++) {
        const trf_choice_item *item = &at->items[i];
        places[i] = (place){.item = i, .gap = HUGE_VAL};
        const int cheapest = find_cheapest(item, at->price, &places[i].least_priced);
        for (int l = 0; l < TRF_LAYOUTS; l++)
            if (may_have(item, l) && l != cheapest)
                places[i].gap =
                    fmin(places[i].gap, item->cost[l] + at->price * (double)item->bytes[l] - places[i].least_priced);
    }
    qsort(places, at->num_items, sizeof *places, compare_gaps);
    for (uint32_t i = at->num_items; i-- > 1;) {
        places[i - 1].priced_after = places[i].priced_after + places[i].least_priced;
        places[i - 1].least_bytes_after =
            places[i].least_bytes_after + trf_choice_item_least_bytes(&at->items[places[i].item]);
    }
}

/* Extends states by an item, and drops those that cannot become better than the best choice. @return their number. */
static uint32_t extend_states(const search *at, const place *place, const state *states, uint32_t num_states,
                              uint32_t first_step, state *extended) {
    const trf_choice_item *item = &at->items[place->item];
    uint32_t count = 0;
    for (uint32_t s = 0; s < num_states; s++)
        for (int l = 0; l < TRF_LAYOUTS; l++) {
            state made = {.bytes = states[s].bytes + item->bytes[l],
                          .cost = states[s].cost + item->cost[l],
                          .before = first_step + s,
                          .layout = (uint8_t)l};
            made.bound = made.cost + place->priced_after + at->price * ((double)made.bytes - (double)at->budget);
            if (may_have(item, l) && made.bytes + place->least_bytes_after <= at->budget &&
                made.bound < at->cost * (1 - kTolerance))
                extended[count++] = made;
        }
    return count;
}

/* Leaves those states that no other one dominates, at most TRF_MAX_STATES. *is_cut: set if there were more. @return
 * their number. */
static uint32_t thin_states(state *states, uint32_t count, int *is_cut) {
    uint32_t kept = 0;
    double least = HUGE_VAL;
    qsort(states, count, sizeof *states, compare_bytes);
    for (uint32_t s = 0; s < count; s++)
        if (states[s].cost < least) {
            least = states[s].cost;
            states[kept++] = states[s];
        }
    if (kept > TRF_MAX_STATES) {
        *is_cut = 1;
        qsort(states, kept, sizeof *states, compare_bounds);
        kept = TRF_MAX_STATES;
    }
    return kept;
}

/* Takes over the cheapest of the last states, if there is any: it is cheaper than the choice so far. */
static void take_best(search *at, const place *places, const state *states, uint32_t num_states, const step *steps) {
    const state *best = NULL;
    for (uint32_t s = 0; s < num_states; s++)
        if (!best || states[s].cost < best->cost)
            best = &states[s];
    if (!best || best->cost >= at->cost)
        return;
    at->cost = best->cost;
    at->bytes = best->bytes;
    step last = {best->before, best->layout};
    for (uint32_t i = at->num_items; i-- > 0;) {
        at->chosen[places[i].item] = (trf_layout)last.layout;
        last = steps[last.before];
    }
}

/* Appends the states' steps. @return 0 without memory. */
static int append_steps(step **steps, uint32_t *num_steps, const state *states, uint32_t count) {
    step *grown = realloc(*steps, ((size_t)*num_steps + count + 1) * sizeof *grown);
    if (!grown)
        return 0;
    *steps = grown;
    for (uint32_t s = 0; s < count; s++)
        grown[(*num_steps)++] = (step){states[s].before, states[s].layout};
    return 1;
}

static trf_status search_all(search *at, trf_error *err) {
    place *places = calloc(at->num_items, sizeof *places);
    state *states = calloc(TRF_MAX_STATES, sizeof *states),
          *extended = calloc((size_t)TRF_MAX_STATES * TRF_LAYOUTS, sizeof *extended);
    step *steps = NULL;
    uint32_t num_steps = 0, num_states = 1;
    int is_cut = 0, has_memory = places && states && extended;
    if (has_memory)
        make_places(at, places);
    for (uint32_t i = 0; has_memory && i < at->num_items && num_states; i++) {
        const uint32_t first_step = num_steps;
        if (!append_steps(&steps, &num_steps, states, num_states) || num_steps > UINT32_MAX / 2) {
            has_memory = 0;
            break;
        }
        num_states = extend_states(at, &places[i], states, num_states, first_step, extended);
        num_states = thin_states(extended, num_states, &is_cut);
        for (uint32_t s = 0; s < num_states; s++)
            states[s] = extended[s];
    }
    if (has_memory) {
        if (!is_cut) /* whatever was dropped costs at least this */
            at->bound = fmax(at->bound, at->cost * (1 - kTolerance));
        take_best(at, places, states, num_states, steps);
        at->bound = fmin(at->bound, at->cost);
    }
    free(places);
    free(states);
    free(extended);
    free(steps);
    return has_memory ? TRF_OK : trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "no memory to choose layouts");
}

trf_status trf_choice_search(const trf_choice_item *items, uint32_t num_items, uint64_t budget_bytes,
                             trf_layout *chosen, double *cost, uint64_t *bytes, double *bound, trf_error *err) {
    search at = {.items = items, .num_items = num_items, .budget = budget_bytes, .chosen = chosen};
    assert(trf_choice_least_bytes(items, num_items) <= budget_bytes);
    find_price(&at);
    spend_rest(&at);
    trf_status status = TRF_OK;
    if (num_items && at.bound < at.cost * (1 - kTolerance))
        status = search_all(&at, err);
    *cost = at.cost;
    *bytes = at.bytes;
    *bound = fmin(at.bound, at.cost);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers, their meetings, and shared memory with notes of who wrote and read each word. */
#include "warp_emulation.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <map>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define WARP_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WARP_ASAN 1
#endif
#endif
#ifdef WARP_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

warp_index threadIdx, blockDim, blockIdx = {0, 0}, gridDim = {1, 1};

namespace {

constexpr uint32_t kLanes = 32, kMostWarps = 48, kMostThreads = kMostWarps * kLanes, kMostBlocks = 4;
constexpr size_t kStackBytes = 256 << 10;
/* Where shared memory begins: the static part, a gap, the dynamic part. An address of 0 is a mistake. */
constexpr uint32_t kStaticAt = 0x100, kStaticBytes = 32, kDynamicAt = 0x400;
constexpr uint8_t kGarbage = 0xDB;
constexpr uint32_t kReadBytes = 128; /* a row of an operand of products */
/* The writer of what copies that count at a barrier have brought. Its readers and writers are not tracked: if a stage
 * is overwritten while it is read, or read before it has arrived, the results show it. */
constexpr uint32_t kEngine = 0xFFFFFFFF;

/* ---- state ---- */

enum meeting {
    RUNS,
    AT_WARP,
    AT_ALL,
    AT_BALLOT,
    AT_SUM,
    AT_EXCHANGE,
    AT_GATHER,
    AT_SHUFFLE,
    AT_BLOCK,   /* at this one and the next ones a warp stops, and others run */
    AT_BARRIER, /* for some warps of the block; argument: which barrier; value: how many warps */
    AT_CLUSTER,
    AT_PRODUCTS, /* of a warpgroup; argument: which one; value: the products' hash, the same for all */
    AT_WAIT,     /* for something that other warps or copies do; asks again in its next turn */
    LEFT
};

struct copy {
    uint32_t to, bytes;
    uint8_t data[16];
};

/* What runs on a stack of its own: a thread of the device, or the scheduler. */
struct fiber {
    ucontext_t beginning;
    void *here[5]; /* where it goes on, as __builtin_setjmp has it */
    bool has_begun;
    const void *stack; /* for the address sanitizer, as all that follows */
    size_t stack_bytes;
    void *fake_stack;
};

struct thread {
    fiber own;
    meeting at;
    uint32_t value, argument, got; /* of the meeting */
    warp_exchanged given;          /* to an exchange */
    std::vector<copy> open;        /* not committed */
    std::vector<std::vector<copy>> groups;
    std::vector<copy> landed; /* since the last fence: what the engine may not read yet */
};

/* What is known of four bytes of shared memory. Times are those of the block's clock, which each meeting advances; 0
 * means never. */
struct note {
    uint32_t writer, written; /* by a lane's own store, or when it had waited for its copy */
    uint32_t pending;         /* copies on their way */
    uint32_t reader, read;    /* the last one */
    uint32_t read_before;     /* by a thread that is not `reader` */
};

/* An mbarrier: what is still to come in its phase. */
struct engine_barrier {
    uint32_t arrivals, pending, phase;
    int64_t bytes;
};

struct block {
    warp_block_shape shape;
    void (*kernel)(void *);
    void *args;
    uint32_t first_block; /* of the cluster; threads and warps are counted through all of its blocks */
    uint8_t *dynamic[kMostBlocks], *fixed[kMostBlocks];
    std::vector<note> notes[kMostBlocks];
    thread threads[kMostThreads];
    warp_exchanged exchanged[kMostThreads];
    std::map<uint32_t, engine_barrier> engine_barriers[kMostBlocks]; /* by address */
    std::vector<uint32_t> reading[kMostBlocks];                      /* by products under way, in units of kReadBytes */
    uint32_t clock;
    /* When the lanes of each warp, the threads of each block, and all threads met last. */
    uint32_t met[kMostWarps], block_met[kMostBlocks], all_met;
    uint32_t current;
    fiber scheduler;
};

block b;
uint8_t *stacks;

/* @return the block of a warp, or that of the running thread. */
uint32_t block_of(uint32_t warp) { return warp / b.shape.warps; }
uint32_t block_at_work() { return block_of(b.current / kLanes); }
uint32_t all_warps() { return b.shape.warps * b.shape.blocks; }

uint8_t *stack_of(uint32_t t) { return stacks + t * kStackBytes; }

/* ---- fibers ---- */

/* Jumps to where a fiber left off, or begins it. The address sanitizer would take the jump for the end of all frames of
 * this stack, so it does not see it. */
[[noreturn]] __attribute__((noinline, no_sanitize("address"))) void go_on_with(fiber &to) {
    if (to.has_begun)
        __builtin_longjmp(to.here, 1);
    setcontext(&to.beginning);
    abort();
}

/* What `self` calls when it goes on after it had switched to `other`; or, with nullptr, what a fiber calls that begins,
 * which `other` has switched to. */
void end_switch(const fiber *self, fiber &other) {
#ifdef WARP_ASAN
    __sanitizer_finish_switch_fiber(self ? self->fake_stack : nullptr, &other.stack, &other.stack_bytes);
#else
    (void)self, (void)other;
#endif
}

/* Goes on with fiber `to`, and returns when that one switches back, or never if `from` ends here. swapcontext would ask
 * the kernel for the mask of signals each time, which is most of what a switch takes. */
__attribute__((noinline, no_sanitize("address"))) void switch_fiber(fiber &from, fiber &to, bool from_ends) {
#ifdef WARP_ASAN
    __sanitizer_start_switch_fiber(from_ends ? nullptr : &from.fake_stack, to.stack, to.stack_bytes);
#else
    (void)from_ends;
#endif
    from.has_begun = true;
    if (__builtin_setjmp(from.here)) {
        end_switch(&from, to);
        return;
    }
    go_on_with(to);
}

void enter_fiber() {
    end_switch(nullptr, b.scheduler);
    b.kernel(b.args);
    thread &t = b.threads[b.current];
    t.at = LEFT;
    switch_fiber(t.own, b.scheduler, true);
}

/* Switches from the scheduler to a thread, until that meets others. */
void resume(uint32_t i) {
    thread &t = b.threads[i];
    b.current = i;
    threadIdx.x = i % (b.shape.warps * kLanes);
    blockIdx.x = b.first_block + block_of(i / kLanes);
    t.at = RUNS;
    switch_fiber(b.scheduler, t.own, false);
}

/* Switches from a thread to the scheduler. @return the result of the meeting. */
uint32_t wait_for_others(meeting at, uint32_t value, uint32_t argument) {
    thread &t = b.threads[b.current];
    t.at = at;
    t.value = value;
    t.argument = argument;
    switch_fiber(t.own, b.scheduler, false);
    return t.got;
}

void make_fiber(uint32_t i) {
    thread &t = b.threads[i];
    getcontext(&t.own.beginning);
    t.own.beginning.uc_stack.ss_sp = stack_of(i);
    t.own.beginning.uc_stack.ss_size = kStackBytes;
    t.own.beginning.uc_link = nullptr;
    makecontext(&t.own.beginning, enter_fiber, 0);
    t.own.stack = stack_of(i);
    t.own.stack_bytes = kStackBytes;
    t.own.fake_stack = nullptr;
    t.own.has_begun = false;
    t.at = RUNS;
    t.open.clear();
    t.groups.clear();
}

/* @return the lane that is the i-th to run. */
uint32_t lane_of_turn(uint32_t i) {
    const uint32_t order = b.shape.order;
    return (order & 1 ? kLanes - 1 - i : i) ^ (order >> 1 & (kLanes - 1));
}

/* Ends a meeting up to which all lanes of a warp have run. @return whether they met there, or all have left. */
bool end_meeting(uint32_t warp) {
    thread *const lanes = b.threads + warp * kLanes;
    const meeting at = lanes[0].at;
    uint32_t ballot = 0, sum = 0;
    for (uint32_t i = 0; i < kLanes; i++) {
        b.current = warp * kLanes + i;
        if (lanes[i].at != at || (at != AT_SHUFFLE && lanes[i].argument != lanes[0].argument))
            warp_fail("waits at another meeting (%d) than lane 0 does (%d)", lanes[i].at, at);
        ballot |= (uint32_t)(lanes[i].value != 0) << i;
        sum += lanes[i].value;
    }
    if (at == AT_WARP)
        b.met[warp] = ++b.clock;
    for (uint32_t i = 0; at == AT_GATHER && i < kLanes; i++)
        memcpy(b.exchanged[warp * kLanes + i], lanes[i].given, sizeof lanes[i].given);
    for (uint32_t i = 0; i < kLanes; i++)
        lanes[i].got = at == AT_EXCHANGE  ? lanes[i ^ lanes[i].argument].value
                       : at == AT_SHUFFLE ? lanes[lanes[i].argument].value
                       : at == AT_BALLOT  ? ballot
                       : at == AT_SUM     ? sum
                                          : ballot == 0xFFFFFFFF;
    return at < AT_BLOCK;
}

/* Runs a warp until it stops. */
void run_warp(uint32_t warp) {
    do
        for (uint32_t i = 0; i < kLanes; i++)
            resume(warp * kLanes + lane_of_turn(i));
    while (end_meeting(warp));
}

/* @return what stops a warp. */
meeting stop_of(uint32_t warp) { return b.threads[warp * kLanes].at; }

/* Whether a warp stands at a meeting to which all have come. */
bool may_go_on(uint32_t warp) {
    const thread &lane = b.threads[warp * kLanes];
    uint32_t here = 0, left = 0;
    const bool of_all = lane.at == AT_CLUSTER;
    for (uint32_t w = 0; w < all_warps(); w++) {
        const thread &other = b.threads[w * kLanes];
        if (!of_all && block_of(w) != block_of(warp))
            continue;
        const bool is_here = other.at == lane.at && (lane.at < AT_BARRIER || other.argument == lane.argument);
        if (is_here && lane.at == AT_PRODUCTS && other.value != lane.value)
            b.current = w * kLanes, warp_fail("has started other products than another warp of its warpgroup");
        here += is_here;
        left += other.at == LEFT;
    }
    return of_all                   ? here == all_warps()
           : lane.at == AT_BLOCK    ? here + left == b.shape.warps
           : lane.at == AT_BARRIER  ? here == lane.value
           : lane.at == AT_PRODUCTS ? here == 4
                                    : false;
}

/* Lets the warps go on that wait at a barrier to which all have come. @return whether there were some. */
bool open_barriers() {
    bool opens[kMostWarps], opened = false;
    for (uint32_t w = 0; w < all_warps(); w++)
        opens[w] = may_go_on(w);
    for (uint32_t w = 0; w < all_warps(); w++) {
        if (!opens[w])
            continue;
        /* If not all threads have met, others may have written meanwhile, and a race between them is not seen. Products
         * order no memory. */
        if (stop_of(w) != AT_PRODUCTS)
            (stop_of(w) == AT_CLUSTER ? b.all_met : b.block_met[block_of(w)]) = b.clock + 1;
        for (uint32_t i = 0; i < kLanes; i++)
            b.threads[w * kLanes + i].at = RUNS;
        opened = true;
    }
    b.clock += opened;
    return opened;
}

/* Runs all warps until they have left. */
void run_warps() {
    uint32_t idle = 0;
    for (uint32_t left = 0; left < all_warps();) {
        left = 0;
        bool moved = false;
        for (uint32_t i = 0; i < all_warps(); i++) {
            const uint32_t w = b.shape.order & 1 ? all_warps() - 1 - i : i;
            if (stop_of(w) == RUNS || stop_of(w) == AT_WAIT) {
                moved |= stop_of(w) == RUNS;
                run_warp(w);
                moved |= stop_of(w) != AT_WAIT;
            }
            left += stop_of(w) == LEFT;
        }
        moved |= open_barriers();
        idle = moved ? 0 : idle + 1;
        if (left < all_warps() && idle > 1000)
            b.current = 0, warp_fail("and all others wait for ever");
    }
}

/* ---- shared memory ---- */

uint8_t *place(uint32_t at, uint32_t bytes, const char *what) {
    if (at % bytes != 0)
        warp_fail("%s of %u bytes at shared address %u", what, bytes, at);
    if (at >= kDynamicAt && at - kDynamicAt <= b.shape.shared_bytes - bytes)
        return b.dynamic[block_at_work()] + (at - kDynamicAt);
    if (at >= kStaticAt && at - kStaticAt <= kStaticBytes - bytes)
        return b.fixed[block_at_work()] + (at - kStaticAt);
    warp_fail("%s of %u bytes at shared address %u, outside of %u to %u", what, bytes, at, kDynamicAt,
              kDynamicAt + b.shape.shared_bytes);
}

/* @return when the running thread and another one met last. */
uint32_t met_with(uint32_t other) {
    const uint32_t warp = b.current / kLanes, other_warp = other / kLanes;
    uint32_t last = b.all_met;
    if (block_of(other_warp) == block_of(warp) && b.block_met[block_of(warp)] > last)
        last = b.block_met[block_of(warp)];
    return other_warp == warp && b.met[warp] > last ? b.met[warp] : last;
}

/* @return why the running thread may not see what lies there, or NULL. The static part is written through a pointer, so
 * it is not tracked. */
const char *unreadable(const note &n) {
    if (n.writer == kEngine)
        return nullptr;
    if (n.pending)
        return "while its copy is under way";
    if (n.written == 0)
        return "that nobody has written";
    if (n.writer != b.current && n.written >= met_with(n.writer))
        return "that another lane has written since they met";
    return nullptr;
}

void expect_nobody_reads(const note &n, uint32_t at) {
    if (n.writer == kEngine)
        return;
    const bool own = n.reader == b.current;
    const uint32_t last = own ? n.read_before : n.read;
    /* if the last reader is the thread itself, the one before may have been in any warp */
    if (last && last >= met_with(own ? b.current : n.reader))
        warp_fail("writes to shared address %u, which another lane has read since they met", at);
}

/* How many products under way read a unit of shared memory. */
uint32_t &reads_at(uint32_t unit) {
    std::vector<uint32_t> &reading = b.reading[block_at_work()];
    if (unit >= reading.size())
        warp_fail("has a product read what is at shared address %u, outside of its block's", unit * kReadBytes);
    return reading[unit];
}

note *notes_at(uint32_t at) { return at < kDynamicAt ? nullptr : &b.notes[block_at_work()][(at - kDynamicAt) / 4]; }

void land(uint32_t to, const uint8_t *data, uint32_t bytes) {
    memcpy(place(to, bytes, "a store"), data, bytes);
    note *n = notes_at(to);
    for (uint32_t i = 0; n && i < bytes / 4; i++) {
        n[i].writer = b.current;
        n[i].written = b.clock;
    }
}

} // namespace

/* ---- what kernels call ---- */

void warp_fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "block %u warp %u lane %u: ", blockIdx.x, threadIdx.x / kLanes, b.current % kLanes);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

uint8_t *warp_shared_memory() { return b.dynamic[block_at_work()]; }
void *warp_static_shared_memory() { return b.fixed[block_at_work()]; }

uint32_t warp_shared_address(const void *p) {
    const uintptr_t at = (uintptr_t)p, fixed = (uintptr_t)warp_static_shared_memory(),
                    dynamic = (uintptr_t)warp_shared_memory();
    if (at - fixed < kStaticBytes)
        return kStaticAt + (uint32_t)(at - fixed);
    if (at - dynamic < b.shape.shared_bytes)
        return kDynamicAt + (uint32_t)(at - dynamic);
    warp_fail("%p is not in shared memory", p);
}

void warp_read(uint32_t at, void *to, uint32_t bytes) {
    memcpy(to, place(at, bytes, "a load"), bytes);
    note *n = notes_at(at);
    for (uint32_t i = 0; n && i < bytes / 4; i++) {
        const char *why = unreadable(n[i]);
        if (why)
            warp_fail("reads what is at shared address %u, %s", at + 4 * i, why);
        if (n[i].reader != b.current) {
            n[i].read_before = n[i].read;
            n[i].reader = b.current;
        }
        n[i].read = b.clock;
    }
}

uint16_t warp_read_word(uint32_t at) {
    uint16_t word;
    memcpy(&word, place(at, sizeof word, "a load"), sizeof word);
    const note *n = notes_at(at);
    return n && unreadable(*n) ? (uint16_t)(kGarbage << 8 | kGarbage) : word;
}

void warp_write(uint32_t at, const void *from, uint32_t bytes) {
    place(at, bytes, "a store");
    note *n = notes_at(at);
    for (uint32_t i = 0; n && i < bytes / 4; i++) {
        expect_nobody_reads(n[i], at + 4 * i);
        if (n[i].pending || (n[i].writer != b.current && n[i].written >= met_with(n[i].writer)))
            warp_fail("writes to shared address %u beside another lane", at + 4 * i);
    }
    land(at, (const uint8_t *)from, bytes);
}

void warp_cp_async(uint32_t to, const void *from, uint32_t bytes) {
    copy c = {to, bytes, {}};
    if ((uintptr_t)from % bytes != 0)
        warp_fail("a copy of %u bytes from %p", bytes, from);
    memcpy(c.data, from, bytes);
    memset(place(to, bytes, "a copy"), kGarbage, bytes);
    note *n = notes_at(to);
    for (uint32_t i = 0; n && i < bytes / 4; i++) {
        expect_nobody_reads(n[i], to + 4 * i);
        if (reads_at((to + 4 * i) / kReadBytes))
            warp_fail("copies to shared address %u, which a product under way reads", to + 4 * i);
        if (n[i].pending ||
            (n[i].writer != b.current && n[i].writer != kEngine && n[i].written >= met_with(n[i].writer)))
            warp_fail("copies to shared address %u beside another copy", to + 4 * i);
        n[i].pending++;
    }
    b.threads[b.current].open.push_back(c);
}

void warp_cp_async_commit() {
    thread &t = b.threads[b.current];
    t.groups.push_back(t.open);
    t.open.clear();
}

void warp_cp_async_wait(uint32_t pending) {
    thread &t = b.threads[b.current];
    size_t done = 0;
    for (; t.groups.size() - done > pending; done++)
        for (const copy &c : t.groups[done]) {
            note *n = notes_at(c.to);
            for (uint32_t i = 0; n && i < c.bytes / 4; i++)
                n[i].pending--;
            land(c.to, c.data, c.bytes);
            t.landed.push_back(c);
        }
    t.groups.erase(t.groups.begin(), t.groups.begin() + (long)done);
}

void warp_fence_for_engine() {
    thread &t = b.threads[b.current];
    for (const copy &c : t.landed)
        for (uint32_t i = 0; i < c.bytes / 4; i++)
            if (note *n = notes_at(c.to + 4 * i))
                *n = {kEngine, 0, 0, 0, 0, 0};
    t.landed.clear();
}

/* ---- barriers and copies of the engine ---- */

static engine_barrier &barrier_at(uint32_t at) {
    std::map<uint32_t, engine_barrier> &barriers = b.engine_barriers[block_at_work()];
    const auto found = barriers.find(at);
    if (found == barriers.end())
        warp_fail("uses a barrier at shared address %u that nobody has set up", at);
    return found->second;
}

static void end_phase(engine_barrier &barrier) {
    if (barrier.pending || barrier.bytes)
        return;
    barrier.phase ^= 1;
    barrier.pending = barrier.arrivals;
}

void warp_barrier_init(uint32_t at, uint32_t arrivals) {
    place(at, 8, "a barrier");
    b.engine_barriers[block_at_work()][at] = {arrivals, arrivals, 0, 0};
}

void warp_barrier_arrive(uint32_t at, uint32_t bytes) {
    engine_barrier &barrier = barrier_at(at);
    if (barrier.pending == 0)
        warp_fail("arrives at shared address %u once too often", at);
    barrier.pending--;
    barrier.bytes += bytes;
    end_phase(barrier);
}

void warp_barrier_wait(uint32_t at, uint32_t parity) {
    while (barrier_at(at).phase == parity)
        wait_for_others(AT_WAIT, 0, 0);
}

void warp_async_put(uint32_t to, const void *from, uint32_t bytes) {
    if (bytes == 0 || to % 16 || (uintptr_t)from % 16 || bytes % 16)
        warp_fail("has %u bytes copied from %p to shared address %u", bytes, from, to);
    for (uint32_t i = 0; i < bytes; i += 16) {
        if (reads_at((to + i) / kReadBytes))
            warp_fail("has shared address %u overwritten, which a product under way reads", to + i);
        memcpy(place(to + i, 16, "a copy"), (const uint8_t *)from + i, 16);
        for (uint32_t k = 0; k < 4; k++)
            notes_at(to + i)[k] = {kEngine, 0, 0, 0, 0, 0};
    }
}

void warp_async_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
    warp_async_put(to, from, bytes);
    engine_barrier &counts = barrier_at(barrier);
    counts.bytes -= bytes;
    end_phase(counts);
}

void warp_async_store(uint32_t rank, uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
    if (rank >= b.shape.blocks)
        warp_fail("stores in block %u of a cluster that has %u", rank, b.shape.blocks);
    const uint32_t writer = b.current;
    b.current = rank * b.shape.warps * kLanes;
    warp_async_load(to, from, bytes, barrier);
    b.current = writer;
}

void warp_async_read(uint32_t at, void *to, uint32_t bytes) {
    memcpy(to, place(at, bytes, "a product's load"), bytes);
    const note *n = notes_at(at);
    for (uint32_t i = 0; n && i < bytes / 4; i++)
        if (n[i].writer != kEngine)
            warp_fail("has a product read what is at shared address %u, where no copy went", at + 4 * i);
}

void warp_async_keep(uint32_t at, uint32_t bytes, int change) {
    for (uint32_t i = at / kReadBytes; i < (at + bytes + kReadBytes - 1) / kReadBytes; i++)
        reads_at(i) += (uint32_t)change;
}

uint32_t warp_thread() { return b.current; }

void warp_meet() { wait_for_others(AT_WARP, 0, 0); }
void warp_meet_block() { wait_for_others(AT_BLOCK, 0, 0); }
void warp_meet_warpgroup(uint32_t products_hash) {
    wait_for_others(AT_PRODUCTS, products_hash, threadIdx.x / (4 * kLanes));
}
void warp_meet_cluster() { wait_for_others(AT_CLUSTER, 0, 0); }
void warp_meet_warps(uint32_t barrier, uint32_t warps) {
    if (barrier > 15)
        warp_fail("has no barrier %u", barrier);
    wait_for_others(AT_BARRIER, warps, barrier);
}
uint32_t warp_shuffle_xor(uint32_t value, uint32_t lane_mask) { return wait_for_others(AT_EXCHANGE, value, lane_mask); }
uint32_t warp_shuffle(uint32_t value, uint32_t lane) { return wait_for_others(AT_SHUFFLE, value, lane); }
uint32_t warp_ballot(bool value) { return wait_for_others(AT_BALLOT, value, 0); }
uint32_t warp_sum(uint32_t value) { return wait_for_others(AT_SUM, value, 0); }
bool warp_all(bool value) { return wait_for_others(AT_ALL, value, 0) != 0; }

const warp_exchanged *warp_exchange(const uint32_t *words, uint32_t count) {
    if (count > WARP_EXCHANGED_WORDS)
        warp_fail("gives %u words to an exchange", count);
    memcpy(b.threads[b.current].given, words, count * sizeof *words);
    const uint32_t warp = b.current / kLanes;
    wait_for_others(AT_GATHER, 0, count);
    return b.exchanged + warp * kLanes;
}

static void begin_block(uint32_t rank) {
    void *dynamic, *fixed;
    if (posix_memalign(&dynamic, 1024, b.shape.shared_bytes) || posix_memalign(&fixed, 16, kStaticBytes))
        abort();
    b.dynamic[rank] = (uint8_t *)memset(dynamic, kGarbage, b.shape.shared_bytes);
    b.fixed[rank] = (uint8_t *)memset(fixed, kGarbage, kStaticBytes);
    b.notes[rank].assign(b.shape.shared_bytes / 4, note{});
    b.block_met[rank] = 1;
    b.engine_barriers[rank].clear();
    b.reading[rank].assign((kDynamicAt + b.shape.shared_bytes) / kReadBytes + 1, 0);
}

void warp_run_block(const warp_block_shape &shape, void (*kernel)(void *), void *args) {
    if (!stacks) {
        stacks = (uint8_t *)mmap(nullptr, kMostThreads * kStackBytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stacks == MAP_FAILED)
            abort();
    }
    b.shape = shape;
    if (shape.warps == 0 || shape.blocks == 0 || shape.blocks > kMostBlocks || all_warps() > kMostWarps ||
        shape.shared_bytes % 16 != 0)
        abort();
    b.kernel = kernel;
    b.args = args;
    b.first_block = blockIdx.x;
    b.clock = b.all_met = 1;
    for (uint32_t rank = 0; rank < b.shape.blocks; rank++)
        begin_block(rank);
    blockDim.x = shape.warps * kLanes;
    for (uint32_t i = 0; i < all_warps() * kLanes; i++)
        make_fiber(i);
    for (uint32_t w = 0; w < all_warps(); w++)
        b.met[w] = 1;
    run_warps();
    for (uint32_t i = 0; i < all_warps() * kLanes; i++)
        for (const std::vector<copy> &group : b.threads[i].groups)
            if (!group.empty())
                b.current = i, warp_fail("has left with copies on their way");
    for (uint32_t rank = 0; rank < b.shape.blocks; rank++) {
        free(b.dynamic[rank]);
        free(b.fixed[rank]);
    }
    blockIdx.x = b.first_block;
}

void warp_run_grid(const warp_block_shape &shape, uint32_t blocks, void (*kernel)(void *), void *args) {
    gridDim.x = blocks;
    for (uint32_t i = 0; i < blocks; i++) {
        blockIdx.x = shape.order & 1 ? blocks - 1 - i : i;
        warp_run_block(shape, kernel, args);
    }
    gridDim.x = 1;
    blockIdx.x = 0;
}

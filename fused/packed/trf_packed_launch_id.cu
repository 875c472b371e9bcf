/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_packed_launch_id.cuh"

#include <atomic>

uint64_t trf_next_launch_id(void) {
    static std::atomic<uint64_t> launches;
    /* what follows spreads it over all 64 bits, one to one */
    uint64_t id = launches.fetch_add(1, std::memory_order_relaxed) + 1;
    id = (id ^ id >> 30) * 0xBF58476D1CE4E5B9u;
    id = (id ^ id >> 27) * 0x94D049BB133111EBu;
    return id ^ id >> 31;
}

/* Reads memory, so that what it has no room for beside it leaves the L2 cache: clean lines, which cost whoever follows nothing, as those of a memset would. Limited by memory. */
#include "trf_time.h"

static constexpr uint32_t kThreads = 512, kBlocks = 264;

static __global__ void __launch_bounds__(kThreads) trf_evict(uint4 *zeros, uint64_t count) {
    uint32_t seen = 0;
    for (uint64_t i = blockIdx.x * (uint64_t)kThreads + threadIdx.x; i < count; i += (uint64_t)kThreads * gridDim.x) {
        const uint4 v = zeros[i];
        seen |= v.x | v.y | v.z | v.w;
    }
    if (seen) /* never; but then the loads have to be made */
        zeros[threadIdx.x % count].x = 0;
}

int trf_launch_evict(void *zeros, uint64_t bytes, trf_stream stream) {
    trf_evict<<<kBlocks, kThreads, 0, stream>>>(static_cast<uint4 *>(zeros), bytes / sizeof(uint4));
    return (int)cudaGetLastError();
}

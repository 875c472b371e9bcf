/* The table of crossovers that the library brings along: which path a product gets on a GPU that nobody has tuned. Of
 * one GPU of each generation (docs/performance.md). */
#include "trf_tuning.h"

#include <math.h>

static const struct crossover {
    int capability;
    trf_tuning_key key;
    uint32_t fused_to, wide_to; /* batches; what comes behind is two-step's */
} kCrossovers[] = {
#include "trf_crossovers.inc"
};

trf_path trf_crossover_path(int capability, const trf_tuning_key *key, uint32_t m) {
    const struct crossover *nearest = NULL;
    double least = HUGE_VAL;
    for (size_t i = 0; i < sizeof kCrossovers / sizeof kCrossovers[0]; i++) {
        const double distance =
            kCrossovers[i].capability == capability ? trf_tuning_key_distance(key, &kCrossovers[i].key) : HUGE_VAL;
        if (distance < least) {
            nearest = &kCrossovers[i];
            least = distance;
        }
    }
    if (!nearest)
        return TRF_PATH_AUTO;
    return m <= nearest->fused_to ? TRF_PATH_FUSED : m <= nearest->wide_to ? TRF_PATH_WIDE : TRF_PATH_TWO_STEP;
}

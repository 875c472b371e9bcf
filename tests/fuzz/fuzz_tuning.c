/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as a tuning: one that can be read can be asked and written, and reads back the same. */
#include "fuzz_file.h"

#include "trf_tuning.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_again(const trf_tuning *tuning) {
    char folder[] = "/tmp/transfuse_fuzz_XXXXXX", path[64];
    trf_tuning *again;
    if (!mkdtemp(folder))
        abort();
    snprintf(path, sizeof path, "%s/tuning.json", folder);
    if (trf_tuning_write(tuning, path, 0, NULL) != TRF_OK || trf_tuning_read(path, &again, NULL) != TRF_OK ||
        again->num_layers != tuning->num_layers || memcmp(&again->card, &tuning->card, sizeof again->card) != 0)
        abort();
    for (uint32_t i = 0; i < tuning->num_layers; i++) {
        const trf_tuned_layer *layer = &tuning->layers[i], *other = &again->layers[i];
        if (memcmp(&layer->key, &other->key, sizeof layer->key) != 0 || layer->num_points != other->num_points)
            abort();
        for (uint32_t p = 0; p < layer->num_points; p++) {
            const trf_tuned_point *a = &layer->points[p], *b = &other->points[p];
            if (a->m != b->m || a->path != b->path || a->has_packed != b->has_packed ||
                a->packed.shape != b->packed.shape || a->packed.cut != b->packed.cut)
                abort();
        }
    }
    trf_tuning_free(again);
    unlink(path);
    rmdir(folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const fuzz_file file = fuzz_file_of(data, size);
    trf_tuning *tuning;
    trf_error err;
    if (trf_tuning_read(file.path, &tuning, &err) == TRF_OK) {
        const trf_tuning_key key = {TRF_LAYOUT_CODED, TRF_CODEC_BF16, 2, 8, 0, 4096, 4096},
                             packed = {TRF_LAYOUT_PACKED, TRF_CODEC_BF16, 2, 8, 0, 4096, 4096};
        trf_tuned_kernel kernel;
        for (uint32_t m = 1; m; m *= 2) {
            (void)trf_tuned_path(tuning, &key, m);
            (void)trf_tuned_packed(tuning, &packed, m, &kernel);
        }
        check_again(tuning);
        trf_tuning_free(tuning);
    }
    close(file.fd);
    return 0;
}

/* A layer from its source through staging buffers to a device: read, checked and described by several threads while what they have finished is copied. */
#ifndef TRF_STAGE_LAYER_H
#define TRF_STAGE_LAYER_H

#include "trf_layer_source.h"
#include "trf_staging.h"

/* Copies the blob to `to`, device memory of blob_bytes, and describes it: slabs, as trf_count_device_slabs says and zero before, and *facts. staging: open. What has been sent may still be
 * under way when this returns: trf_staging_finish or, after a failure, trf_staging_drain waits for it. Offsets of errors are the source's. Errors: those of the source and of the
 * engine; TRF_ERR_CANCELLED, TRF_ERR_MEMORY. */
trf_status trf_stage_layer(trf_staging *staging, const trf_layer_source *source, uint8_t *to, trf_device_slab *slabs,
                           trf_device_facts *facts, trf_error *err);

#endif

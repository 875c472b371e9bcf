/* SPDX-License-Identifier: Apache-2.0 */
/* Coded layers on the CPU. */
#include "trf_device_cpu.h"
#include "trf_layer_from_feed.h"
#include "trf_slab_directory.h"

#include <pthread.h>
#include <stdlib.h>

/* The first corrupt tile that a call met. */
struct trf_cpu_fault {
    pthread_mutex_t lock;
    trf_error error;
};

trf_status trf_cpu_open_device_blob(const trf_context *context, const void *blob, uint64_t blob_bytes,
                                    const trf_load_options *options, trf_layer_feed *feed, trf_error *err) {
    (void)context;
    return trf_layer_feed_open_memory(blob, blob_bytes, options, feed, err);
}

trf_status trf_cpu_get_layer_size(const trf_blob_view *view, const trf_shard_range *shard, trf_layer_size *size,
                                  trf_error *err) {
    (void)shard, (void)err;
    *size = (trf_layer_size){.buffer_bytes = view->header.blob_bytes};
    return TRF_OK;
}

trf_status trf_cpu_take_layer(trf_device_layer *made, trf_layer *host, trf_error *err) {
    struct trf_cpu_fault *fault = calloc(1, sizeof *fault);
    if (!fault)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a layer");
    pthread_mutex_init(&fault->lock, NULL);
    made->fault = fault;
    made->host = host;
    made->view = trf_device_view_of(&host->view, host->blob);
    made->view.decode_table = host->table.slots;
    made->memory_bytes = host->view.header.blob_bytes + sizeof *host;
    return TRF_OK;
}

trf_status trf_cpu_fill_layer(trf_device_layer *made, trf_layer_feed *feed, const trf_layer_memory *memory,
                              trf_error *err) {
    trf_layer *host;
    trf_status status = trf_layer_from_feed(feed, memory->buffer, &host, err);
    if (status != TRF_OK)
        return status;
    status = trf_cpu_take_layer(made, host, err);
    if (status != TRF_OK)
        trf_layer_free(host);
    return status;
}

void trf_cpu_destroy_layer(trf_device_layer *layer) {
    pthread_mutex_destroy(&layer->fault->lock);
    free(layer->fault);
    trf_layer_free(layer->host);
}

trf_status trf_cpu_check_layer(const trf_device_layer *layer, trf_error *err) {
    pthread_mutex_lock(&layer->fault->lock);
    const trf_error fault = layer->fault->error;
    pthread_mutex_unlock(&layer->fault->lock);
    return fault.status == TRF_OK ? TRF_OK : trf_fail(err, fault.status, fault.offset, "%s", fault.message);
}

/* Remembers the layer's first failure that is due to its data. @return status, with err filled. */
trf_status trf_cpu_note_fault(const trf_device_layer *layer, trf_status status, const trf_error *failure,
                              trf_error *err) {
    if (status == TRF_OK)
        return TRF_OK;
    if (status == TRF_ERR_RANS) {
        pthread_mutex_lock(&layer->fault->lock);
        if (layer->fault->error.status == TRF_OK)
            layer->fault->error = *failure;
        pthread_mutex_unlock(&layer->fault->lock);
    }
    if (err)
        *err = *failure;
    return status;
}

/* Layers on the CPU. */
#include "trf_device_cpu.h"
#include "trf_layer_source.h"
#include "trf_slab_directory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The first corrupt tile that a call met. */
struct trf_cpu_fault {
    pthread_mutex_t lock;
    trf_error error;
};

/* A layer of its own, with the same blob. */
static trf_status copy_layer(const trf_layer *layer, trf_layer **copy, trf_error *err) {
    const uint64_t bytes = layer->view.header.blob_bytes;
    void *memory;
    trf_status status = trf_cpu_allocate(NULL, bytes, &memory, err);
    if (status != TRF_OK)
        return status;
    memcpy(memory, layer->blob, bytes);
    status = trf_layer_from_memory(memory, bytes, copy, err);
    if (status != TRF_OK)
        free(memory);
    else
        (*copy)->memory = memory;
    return status;
}

trf_status trf_cpu_fill_layer(trf_device_layer *made, const trf_layer_source *source, trf_error *err) {
    struct trf_cpu_fault *fault = calloc(1, sizeof *fault);
    if (!fault)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a layer");
    if (source->owned) {
        made->host = *source->layer;
        *source->layer = NULL;
    } else {
        trf_status status = copy_layer(*source->layer, &made->host, err);
        if (status != TRF_OK) {
            free(fault);
            return status;
        }
    }
    pthread_mutex_init(&fault->lock, NULL);
    made->fault = fault;
    made->view = trf_device_view_of(&made->host->view, made->host->blob);
    made->view.slots = made->host->table.slots;
    made->memory_bytes = made->host->view.header.blob_bytes + sizeof *made->host;
    return TRF_OK;
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

/* Keeps the first failure that is the data's. @return status, with err filled. */
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

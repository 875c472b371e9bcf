/* SPDX-License-Identifier: Apache-2.0 */
/* What the CPU does as a device: allocates and copies host memory as if it were a device's, and fills, checks, decodes
 * and multiplies by layers of each layout. trf_context_cpu.c puts the functions into the tables of device ops and
 * layout ops. A function that has no comment here does what the comment at its member in these tables says
 * (trf_context.h, trf_layout.h). */
#ifndef TRF_DEVICE_CPU_H
#define TRF_DEVICE_CPU_H

#include "trf_context.h"
#include "trf_device_layer.h"
#include "trf_error.h"

trf_status trf_cpu_allocate(const trf_context *context, uint64_t bytes, void **memory, trf_error *err);
void trf_cpu_release(const trf_context *context, void *memory);
trf_status trf_cpu_copy(const trf_context *context, void *to, const void *from, uint64_t bytes, trf_error *err);
trf_status trf_cpu_copy_rows(const trf_context *context, const trf_row_copy *copy, trf_stream stream, trf_error *err);
trf_status trf_cpu_add_data_checksum(const trf_context *context, void *buffer, uint64_t buffer_bytes, trf_error *err);

trf_status trf_cpu_open_device_blob(const trf_context *context, const void *blob, uint64_t blob_bytes,
                                    const trf_load_options *options, struct trf_layer_feed *feed, trf_error *err);
trf_status trf_cpu_get_layer_size(const struct trf_blob_view *view, const trf_shard_range *shard, trf_layer_size *size,
                                  trf_error *err);
trf_status trf_cpu_fill_layer(trf_device_layer *made, struct trf_layer_feed *feed, const trf_layer_memory *memory,
                              trf_error *err);
/* Makes *made a device layer of the CPU from a layer in host memory, which is released together with it. Errors:
 * TRF_ERR_MEMORY; the caller still owns the host layer then. */
trf_status trf_cpu_take_layer(trf_device_layer *made, trf_layer *host, trf_error *err);
void trf_cpu_destroy_layer(trf_device_layer *layer);
trf_status trf_cpu_check_layer(const trf_device_layer *layer, trf_error *err);

/* Remembers the layer's first failure that is due to its data. @return status, with err filled. */
trf_status trf_cpu_note_fault(const trf_device_layer *layer, trf_status status, const trf_error *failure,
                              trf_error *err);

trf_status trf_cpu_decode(const trf_device_layer *layer, trf_decode_as as, void *weights, trf_stream stream,
                          trf_error *err);
trf_status trf_cpu_decode_rows(const trf_device_layer *layer, const trf_row_request *request, trf_stream stream,
                               trf_error *err);

trf_status trf_cpu_create_plan(trf_plan *plan, trf_path path, trf_error *err);
trf_status trf_cpu_linear(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                          trf_error *err);
/* Layout ops of plain layers. */
trf_status trf_cpu_fill_plain_layer(trf_device_layer *made, struct trf_layer_feed *feed, const trf_layer_memory *memory,
                                    trf_error *err);
trf_status trf_cpu_convert_to_plain(trf_device_layer *made, const trf_device_layer *from,
                                    const trf_layer_memory *memory, trf_error *err);
void trf_cpu_destroy_plain_layer(trf_device_layer *layer);
trf_status trf_cpu_check_plain_layer(const trf_device_layer *layer, trf_error *err);
trf_status trf_cpu_decode_plain(const trf_device_layer *layer, trf_decode_as as, void *weights, trf_stream stream,
                                trf_error *err);
trf_status trf_cpu_decode_plain_rows(const trf_device_layer *layer, const trf_row_request *request, trf_stream stream,
                                     trf_error *err);
trf_status trf_cpu_create_plain_plan(trf_plan *plan, trf_path path, trf_error *err);
trf_status trf_cpu_linear_plain(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                                trf_error *err);
/* Layout ops of packed layers. Those of packed FP8 layers are the same but for adopting; what filling and converting
 * make depends on the layer's layout and on its weights. */
trf_status trf_cpu_fill_packed_layer(trf_device_layer *made, struct trf_layer_feed *feed,
                                     const trf_layer_memory *memory, trf_error *err);
trf_status trf_cpu_convert_to_packed(trf_device_layer *made, const trf_device_layer *from,
                                     const trf_layer_memory *memory, trf_error *err);
trf_status trf_cpu_pack(trf_device_layer *made, const trf_device_matrix *matrix, const trf_pack_options *options,
                        trf_error *err);
trf_status trf_cpu_adopt_packed_layer(trf_device_layer *made, const void *buffer, uint64_t buffer_bytes,
                                      trf_error *err);
trf_status trf_cpu_adopt_packed8_layer(trf_device_layer *made, const void *buffer, uint64_t buffer_bytes,
                                       trf_error *err);
void trf_cpu_destroy_packed_layer(trf_device_layer *layer);
trf_status trf_cpu_check_packed_layer(const trf_device_layer *layer, trf_error *err);
trf_status trf_cpu_decode_packed(const trf_device_layer *layer, trf_decode_as as, void *weights, trf_stream stream,
                                 trf_error *err);
trf_status trf_cpu_decode_packed_rows(const trf_device_layer *layer, const trf_row_request *request, trf_stream stream,
                                      trf_error *err);
trf_status trf_cpu_create_packed_plan(trf_plan *plan, trf_path path, trf_error *err);
trf_status trf_cpu_linear_packed(const trf_plan *plan, const trf_operands *operands, void *workspace, trf_stream stream,
                                 trf_error *err);

trf_status trf_cpu_round_sums(const trf_context *context, const trf_sums *sums, const trf_epilogue *epilogue,
                              trf_stream stream, trf_error *err);
trf_status trf_cpu_time(const trf_timed_product *product, uint32_t repeats, double *microseconds, trf_error *err);

#endif

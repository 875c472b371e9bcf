/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks: the public functions. They check arguments; trf_stack_order.c decides what is copied when, and the device's
 * operations do it. */
#include "trf_stack.h"

#include "trf_layer_from_feed.h"
#include "trf_plan.h"

#include <stdlib.h>
#include <string.h>

static const trf_stack_ops *stack_ops_of(const trf_stack *stack) { return stack->context->ops->stack; }

/* ---- making one ---- */

trf_status trf_stack_create(trf_context *context, trf_stack **stack, trf_error *err) {
    if (!context || !stack)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a stack needs a context");
    trf_stack *made = calloc(1, sizeof *made);
    if (!made)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a stack");
    made->context = context;
    *stack = made;
    return TRF_OK;
}

void trf_stack_destroy(trf_stack *stack) {
    if (!stack)
        return;
    stack_ops_of(stack)->destroy(stack);
    for (uint32_t i = 0; i < stack->count; i++)
        if (stack->layers[i].owns_host)
            trf_layer_free(stack->layers[i].host);
    free(stack->layers);
    free(stack->places);
    free(stack->order.usage);
    free(stack);
}

static trf_status grow_stack(trf_stack *stack, trf_error *err) {
    if (stack->count < stack->capacity)
        return TRF_OK;
    const uint32_t capacity = stack->capacity ? 2 * stack->capacity : 16;
    trf_stacked_layer *layers = realloc(stack->layers, capacity * sizeof *layers);
    if (layers)
        stack->layers = layers;
    trf_stack_place *places = layers ? realloc(stack->places, capacity * sizeof *places) : NULL;
    if (!places)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate a list of %u layers", capacity);
    stack->places = places;
    stack->capacity = capacity;
    return TRF_OK;
}

/* owns_host: whether host belongs to the stack if this succeeds. */
static trf_status append(trf_stack *stack, trf_layer *host, const trf_shard_range *shard, int owns_host,
                         trf_error *err) {
    uint64_t bytes;
    trf_device_layer *layer;
    const trf_layout_ops *layout;
    trf_status status = trf_find_layout(stack->context, TRF_LAYOUT_CODED, &layout, err);
    if (status == TRF_OK)
        status = stack_ops_of(stack)->get_layer_bytes(host, &bytes, err);
    if (status == TRF_OK)
        status = grow_stack(stack, err);
    if (status == TRF_OK)
        status = trf_begin_device_layer(stack->context, layout, &layer, err);
    if (status != TRF_OK)
        return status;
    trf_set_device_layer_info(&host->view, shard, layer);
    layer->is_of_stack = 1;
    layer->memory_bytes = bytes;
    stack->places[stack->count] = (trf_stack_place){.bytes = bytes};
    stack->layers[stack->count++] = (trf_stacked_layer){layer, host, owns_host};
    return TRF_OK;
}

static trf_status check_open(const trf_stack *stack, trf_error *err) {
    return stack->is_prepared
               ? trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "the stack has been prepared; it takes no more layers")
               : TRF_OK;
}

trf_status trf_stack_add(trf_stack *stack, const trf_layer *layer, trf_error *err) {
    if (!stack || !layer)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "adding a layer needs a stack and a layer");
    const trf_shard_range all = {0, layer->view.header.rows, 0, layer->view.header.cols};
    trf_status status = check_open(stack, err);
    return status == TRF_OK ? append(stack, (trf_layer *)layer, &all, 0, err) : status;
}

trf_status trf_stack_load(trf_stack *stack, trf_checkpoint *checkpoint, const char *tensor,
                          const trf_load_options *options, trf_error *err) {
    if (!stack || !checkpoint || !tensor)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "loading a layer needs a stack, a checkpoint and a name");
    trf_load_options taken;
    trf_layer_feed feed;
    trf_layer *layer = NULL;
    const trf_layout_ops *layout;
    trf_status status = check_open(stack, err);
    if (status == TRF_OK)
        status = trf_take_load_options(options, &taken, err);
    if (status == TRF_OK && trf_has_memory(&taken.memory))
        status = trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                          "%s: tensor '%s': a stack's layers are in memory of its own", checkpoint->root, tensor);
    if (status == TRF_OK)
        status = trf_find_layout(stack->context, taken.layout, &layout, err);
    if (status == TRF_OK && !layout->has_stacks)
        status =
            trf_fail(err, TRF_ERR_UNSUPPORTED, TRF_NO_OFFSET, "%s: tensor '%s': stacks have no layers of layout '%s'",
                     checkpoint->root, tensor, trf_layout_name(taken.layout));
    if (status == TRF_OK)
        status = trf_layer_feed_open_tensor(checkpoint, tensor, &taken, &feed, err);
    if (status != TRF_OK)
        return trf_sanitize_error(status, err);
    status = trf_layer_from_feed(&feed, NULL, &layer, err);
    if (status == TRF_OK)
        status = append(stack, layer, &feed.shard, 1, err);
    if (status != TRF_OK) {
        trf_layer_free(layer);
        trf_layer_feed_fail(&feed, status, err);
    }
    trf_layer_feed_close(&feed);
    return status;
}

static trf_status copy_layer_ahead(void *context, uint32_t index, trf_error *err) {
    trf_stack *stack = context;
    return stack_ops_of(stack)->copy(stack, index, err);
}

static trf_status wait_for_uses(void *context, uint32_t index, trf_error *err) {
    trf_stack *stack = context;
    return stack_ops_of(stack)->wait(stack, index, err);
}

trf_status trf_stack_prepare(trf_stack *stack, uint64_t budget_bytes, trf_error *err) {
    if (!stack || !stack->count)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "a stack without layers cannot be prepared");
    if (stack->is_prepared)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "the stack has been prepared before");
    free(stack->order.usage);
    stack->order = (trf_stack_order){
        .places = stack->places,
        .usage = calloc(stack->count, sizeof *stack->order.usage),
        .count = stack->count,
        .actions = {stack, copy_layer_ahead, wait_for_uses},
    };
    if (!stack->order.usage)
        return trf_fail(err, TRF_ERR_MEMORY, TRF_NO_OFFSET, "cannot allocate the usage of %u layers", stack->count);
    trf_status status = stack_ops_of(stack)->prepare(stack, budget_bytes, err);
    if (status != TRF_OK)
        return status;
    stack->is_prepared = 1;
    return trf_stack_order_begin(&stack->order, err);
}

/* ---- what it holds ---- */

void trf_stack_get_info(const trf_stack *stack, trf_stack_info *info) {
    *info = (trf_stack_info){.layers = stack->count, .resident = stack->placement.num_resident};
    for (uint32_t i = 0; i < stack->count; i++)
        info->layer_bytes += stack->places[i].bytes;
    info->least_bytes =
        trf_stack_least_bytes(stack->places, stack->count, stack_ops_of(stack)->fixed_bytes(stack->count));
    info->device_bytes = stack->placement.device_bytes;
    info->host_bytes = stack->host_bytes;
    info->offloaded_bytes = stack->placement.offloaded_bytes;
}

trf_device_layer *trf_stack_layer(const trf_stack *stack, uint32_t index) {
    return stack && stack->is_prepared && index < stack->count ? stack->layers[index].device_layer : NULL;
}

/* ---- running it ---- */

static trf_status check_index(const trf_stack *stack, uint32_t index, trf_error *err) {
    if (!stack || !stack->is_prepared)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "the stack has not been prepared");
    if (index >= stack->count)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "there is no layer %u among %u", index, stack->count);
    return TRF_OK;
}

trf_status trf_stack_acquire(trf_stack *stack, uint32_t index, trf_stream stream, trf_error *err) {
    trf_status status = check_index(stack, index, err);
    if (status != TRF_OK)
        return status;
    status = trf_stack_order_acquire(&stack->order, index, err);
    if (status != TRF_OK)
        return status;
    if (!stack->places[index].is_resident)
        status = stack_ops_of(stack)->await_copy(stack, index, stream, err);
    if (status != TRF_OK)
        stack->order.usage[index].uses--;
    return status;
}

trf_status trf_stack_release(trf_stack *stack, uint32_t index, trf_stream stream, trf_error *err) {
    trf_status status = check_index(stack, index, err);
    if (status != TRF_OK)
        return status;
    trf_stack_usage *usage = &stack->order.usage[index];
    if (!usage->uses)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "layer %u is released without having been acquired",
                        index);
    if (!stack->places[index].is_resident) {
        status = stack_ops_of(stack)->mark_use(stack, index, usage->released, stream, err);
        if (status != TRF_OK)
            return status;
        usage->released = 1;
    }
    return trf_stack_order_release(&stack->order, index, err);
}

trf_status trf_stack_linear(trf_stack *stack, uint32_t index, const trf_plan *plan, const trf_operands *operands,
                            void *workspace, trf_stream stream, trf_error *err) {
    if (plan && plan->layer != trf_stack_layer(stack, index))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "the plan is not one of layer %u of the stack", index);
    trf_status status = trf_stack_acquire(stack, index, stream, err);
    if (status != TRF_OK)
        return status;
    status = trf_linear(plan, operands, workspace, stream, err);
    trf_status released = trf_stack_release(stack, index, stream, status == TRF_OK ? err : NULL);
    return status == TRF_OK ? released : status;
}

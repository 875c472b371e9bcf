/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as the header of a safetensors file. What can be parsed must keep the rules, and the header that is
 * written from it must parse to the same. The first two bytes say how much data follows the header. */
#include "fuzz_bytes.h"
#include "trf_safetensors.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_tensors(const trf_safetensors *header, uint64_t data_bytes) {
    uint64_t end = 0;
    for (size_t i = 0; i < header->num_tensors; i++) {
        const trf_tensor *tensor = &header->tensors[i], *found = trf_safetensors_find(header, tensor->name);
        if (tensor->begin != end || tensor->end < tensor->begin || found != tensor ||
            (i > 0 && strcmp(header->by_name[i - 1]->name, header->by_name[i]->name) >= 0))
            abort();
        end = tensor->end;
        uint64_t bits = trf_dtype_bits_of_name(tensor->dtype);
        const int is_known = bits != 0;
        for (uint32_t d = 0; d < tensor->num_dims; d++)
            bits *= tensor->shape[d]; /* it does not overflow, or the header had not been accepted */
        if (is_known && bits != 8 * trf_tensor_bytes(tensor))
            abort();
    }
    if (data_bytes != UINT64_MAX && end != data_bytes)
        abort();
}

static void check_same(const trf_safetensors *header, const trf_safetensors *again) {
    if (header->num_tensors != again->num_tensors ||
        (header->metadata && json_object_size(header->metadata) && !json_equal(header->metadata, again->metadata)))
        abort();
    for (size_t i = 0; i < header->num_tensors; i++) {
        const trf_tensor *a = &header->tensors[i], *b = &again->tensors[i];
        if (strcmp(a->name, b->name) != 0 || strcmp(a->dtype, b->dtype) != 0 || a->num_dims != b->num_dims ||
            memcmp(a->shape, b->shape, a->num_dims * sizeof *a->shape) != 0 || a->begin != b->begin || a->end != b->end)
            abort();
    }
}

static void write_again(const trf_safetensors *header, uint64_t data_bytes) {
    trf_text text = {0};
    trf_safetensors again;
    trf_safetensors_begin_header(&text, header->metadata);
    for (size_t i = 0; i < header->num_tensors; i++) {
        const trf_tensor *tensor = &header->tensors[i];
        const size_t before = text.size;
        trf_safetensors_add_tensor(&text, tensor->name, "", tensor->dtype, tensor->shape, tensor->num_dims,
                                   tensor->begin, tensor->end);
        if (text.size - before > trf_safetensors_entry_bound(tensor, "_trf"))
            abort();
    }
    trf_safetensors_end_header(&text, 8);
    if (text.failed || (8 + text.size) % 8 != 0)
        abort();
    if (trf_safetensors_parse(text.bytes, text.size, data_bytes, &again, NULL) != TRF_OK)
        abort();
    check_same(header, &again);
    trf_safetensors_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_bytes bytes = {data, size};
    const uint32_t follows = fuzz_take_two(&bytes);
    const uint64_t data_bytes = follows == UINT16_MAX ? UINT64_MAX : follows;
    char *text = malloc(bytes.left + 1); /* and the NUL, as the reader has it */
    trf_safetensors header;
    trf_error err;
    if (!text)
        return 0;
    if (bytes.left > 0)
        memcpy(text, bytes.at, bytes.left);
    text[bytes.left] = 0;
    if (trf_safetensors_parse(text, bytes.left, data_bytes, &header, &err) == TRF_OK) {
        check_tensors(&header, data_bytes);
        write_again(&header, data_bytes);
        trf_safetensors_free(&header);
    } else if (err.status != TRF_ERR_FORMAT && err.status != TRF_ERR_TRUNCATED && err.status != TRF_ERR_MEMORY) {
        abort();
    }
    return 0;
}

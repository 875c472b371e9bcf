/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the header of a safetensors file. */
#include "trf_safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void trf_text_append(trf_text *text, const char *bytes, size_t size) {
    if (text->failed)
        return;
    if (size >= text->capacity - text->size) { /* one byte stays free for a NUL */
        size_t capacity = (text->capacity + size + 64) * 2;
        char *grown = realloc(text->bytes, capacity);
        if (!grown) {
            text->failed = 1;
            return;
        }
        text->bytes = grown, text->capacity = capacity;
    }
    memcpy(text->bytes + text->size, bytes, size);
    text->size += size;
    text->bytes[text->size] = 0;
}

void trf_text_free(trf_text *text) {
    free(text->bytes);
    *text = (trf_text){0};
}

static int text_take(const char *bytes, size_t size, void *context) {
    trf_text *text = context;
    trf_text_append(text, bytes, size);
    return text->failed ? -1 : 0;
}

void trf_text_append_json(trf_text *text, const json_t *value) {
    if (json_dump_callback(value, text_take, text, JSON_COMPACT | JSON_ENCODE_ANY) != 0)
        text->failed = 1;
}

void trf_text_append_json_string(trf_text *text, const char *string) {
    json_t *value = json_string(string);
    if (value)
        trf_text_append_json(text, value);
    else
        text->failed = 1;
    json_decref(value);
}

static void text_append_number(trf_text *text, const char *before, uint64_t number) {
    char digits[48];
    int size = snprintf(digits, sizeof digits, "%s%" PRIu64, before, number);
    trf_text_append(text, digits, (size_t)size);
}

static void text_append_string(trf_text *text, const char *string) { trf_text_append(text, string, strlen(string)); }

void trf_safetensors_begin_header(trf_text *text, const json_t *metadata) {
    text_append_string(text, "{");
    if (!metadata || json_object_size(metadata) == 0)
        return;
    text_append_string(text, "\"__metadata__\":");
    trf_text_append_json(text, metadata);
}

static void append_name(trf_text *text, const char *name, const char *suffix) {
    size_t length = strlen(name);
    char *whole = malloc(length + strlen(suffix) + 1);
    if (!whole) {
        text->failed = 1;
        return;
    }
    memcpy(whole, name, length);
    strcpy(whole + length, suffix);
    trf_text_append_json_string(text, whole);
    free(whole);
}

void trf_safetensors_add_tensor(trf_text *text, const char *name, const char *suffix, const char *dtype,
                                const uint64_t *shape, uint32_t num_dims, uint64_t begin, uint64_t end) {
    if (text->size > 1)
        text_append_string(text, ",");
    append_name(text, name, suffix);
    text_append_string(text, ":{\"dtype\":");
    trf_text_append_json_string(text, dtype);
    text_append_string(text, ",\"shape\":[");
    for (uint32_t i = 0; i < num_dims; i++)
        text_append_number(text, i ? "," : "", shape[i]);
    text_append_number(text, "],\"data_offsets\":[", begin);
    text_append_number(text, ",", end);
    text_append_string(text, "]}");
}

void trf_safetensors_end_header(trf_text *text, uint32_t alignment) {
    text_append_string(text, "}");
    while ((8 + text->size) % alignment && !text->failed)
        text_append_string(text, " ");
}

size_t trf_safetensors_entry_bound(const trf_tensor *tensor, const char *suffix) {
    trf_text plain = {0}, blob = {0};
    const uint64_t most = UINT64_MAX;
    trf_safetensors_add_tensor(&plain, tensor->name, "", tensor->dtype, tensor->shape, tensor->num_dims, most, most);
    trf_safetensors_add_tensor(&blob, tensor->name, suffix, "U8", &most, 1, most, most);
    size_t bound = 1 + (plain.size > blob.size ? plain.size : blob.size); /* and a comma */
    if (plain.failed || blob.failed)
        bound = 0;
    trf_text_free(&plain);
    trf_text_free(&blob);
    return bound;
}

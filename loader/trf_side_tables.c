/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_side_tables.h"

#include "trf_base64.h"
#include "trf_checksum.h"
#include "trf_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The members of the JSON object: tables by whether they are used. */
static const char *const kMembers[] = {"unused", "used"};

enum {
    CHECKSUM_CHARS = 16
};

/* Writes the checksum of the object's text. */
static void format_checksum(const char *text, char checksum[CHECKSUM_CHARS + 1]) {
    snprintf(checksum, CHECKSUM_CHARS + 1, "%016" PRIx64, trf_checksum_portable(text, strlen(text), 0));
}

/* ---- reading ---- */

static trf_status fail_table(const char *name, const char *why, trf_error *err) {
    return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET,
                    "__metadata__ has a " TRF_METADATA_SIDE_TABLES " that does not fit: '%.300s' %s", name, why);
}

/* Reads one table. slots: [source->num_tensors] tables, those that there are with data. */
static trf_status read_table(const trf_safetensors *own, const trf_safetensors *source, const char *name,
                             const json_t *text, int is_used, trf_side_table *slots, trf_error *err) {
    const trf_tensor *tensor = trf_safetensors_find(source, name);
    if (!tensor)
        return fail_table(name, "is not in the kept source header", err);
    if (trf_safetensors_find(own, name))
        return fail_table(name, "is also a tensor of the file", err);
    trf_side_table *slot = &slots[tensor - source->tensors];
    if (slot->data)
        return fail_table(name, "stands there twice", err);
    const uint64_t bytes = trf_tensor_bytes(tensor);
    /* The size is checked before memory is taken, since the header may say anything. */
    if (!json_is_string(text) || bytes > json_string_length(text))
        return fail_table(name, "has not the size of its tensor", err);
    if (!(slot->data = malloc(bytes + 1)))
        return trf_fail_memory(err, bytes);
    *slot = (trf_side_table){tensor, slot->data, is_used};
    return trf_base64_decode(json_string_value(text), json_string_length(text), slot->data, bytes)
               ? TRF_OK
               : fail_table(name, "is no base64 of its tensor's size", err);
}

static trf_status read_tables(const trf_safetensors *own, const trf_safetensors *source, const json_t *root,
                              trf_side_table *slots, trf_error *err) {
    trf_status status = TRF_OK;
    for (int is_used = 0; is_used < 2; is_used++) {
        json_t *member = json_object_get(root, kMembers[is_used]), *text;
        const char *name;
        if (!json_is_object(member))
            return fail_table(kMembers[is_used], "is no object", err);
        json_object_foreach(member, name, text) {
            if (status == TRF_OK)
                status = read_table(own, source, name, text, is_used, slots, err);
        }
    }
    return status;
}

/* given: the file's checksum of the object's text; NULL: it has none. */
static trf_status check_text(const char *text, const char *given, trf_error *err) {
    char checksum[CHECKSUM_CHARS + 1];
    format_checksum(text, checksum);
    return !given || strcmp(given, checksum) == 0
               ? TRF_OK
               : trf_fail(err, TRF_ERR_CHECKSUM, TRF_NO_OFFSET,
                          "__metadata__ has a " TRF_METADATA_SIDE_TABLES " with the checksum %s, and not %.32s",
                          checksum, given);
}

trf_status trf_side_tables_read(const trf_safetensors *own, const trf_safetensors *source, trf_side_tables *tables,
                                trf_error *err) {
    const char *text = trf_safetensors_metadata(own, TRF_METADATA_SIDE_TABLES),
               *checksum = trf_safetensors_metadata(own, TRF_METADATA_SIDE_TABLES_CHECKSUM);
    *tables = (trf_side_tables){0};
    if (!text)
        return TRF_OK;
    trf_side_table *slots = calloc(source->num_tensors + 1, sizeof *slots);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    trf_status status =
        !slots ? trf_fail_memory(err, source->num_tensors * sizeof *slots) : read_tables(own, source, root, slots, err);
    json_decref(root);
    if (status == TRF_OK)
        status = check_text(text, checksum, err);
    size_t count = 0;
    for (size_t i = 0; slots && i < source->num_tensors; i++)
        if (slots[i].data)
            slots[count++] = slots[i];
    *tables = (trf_side_tables){.tables = slots, .count = count, .has_checksum = checksum != NULL};
    if (status != TRF_OK)
        trf_side_tables_free(tables);
    return status;
}

void trf_side_tables_free(trf_side_tables *tables) {
    for (size_t i = 0; i < tables->count; i++)
        free(tables->tables[i].data);
    free(tables->tables);
    *tables = (trf_side_tables){0};
}

const trf_side_table *trf_side_tables_find(const trf_side_tables *tables, const trf_tensor *tensor) {
    size_t begin = 0, end = tables->count; /* tables are in the order of the header's tensors */
    while (begin < end) {
        const size_t middle = (begin + end) / 2;
        if (tables->tables[middle].source < tensor)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin < tables->count && tables->tables[begin].source == tensor ? &tables->tables[begin] : NULL;
}

/* ---- writing ---- */

trf_status trf_side_tables_add(json_t *added, const trf_tensor *tensor, int is_used, const trf_file *in,
                               uint64_t offset, trf_error *err) {
    const uint64_t bytes = trf_tensor_bytes(tensor);
    const size_t length = trf_base64_length(bytes);
    uint8_t *data = malloc(bytes + 1);
    char *text = malloc(length + 1);
    for (int i = 0; i < 2; i++)
        if (!json_object_get(added, kMembers[i]))
            json_object_set_new(added, kMembers[i], json_object());
    trf_status status = data && text ? TRF_OK : trf_fail_memory(err, bytes + length);
    if (status == TRF_OK)
        status = trf_file_read(in, offset, data, bytes, err);
    if (status == TRF_OK) {
        trf_base64_encode(data, bytes, text);
        if (json_object_set_new(json_object_get(added, kMembers[is_used != 0]), tensor->name,
                                json_stringn(text, length)))
            status = trf_fail_memory(err, length);
    }
    free(data);
    free(text);
    return status;
}

trf_status trf_side_tables_finish(const json_t *added, json_t *metadata, trf_error *err) {
    if (!json_object_size(added))
        return TRF_OK;
    char *text = trf_json_dump(added, JSON_COMPACT, NULL), checksum[CHECKSUM_CHARS + 1];
    if (text)
        format_checksum(text, checksum);
    const int failed = !text || json_object_set_new(metadata, TRF_METADATA_SIDE_TABLES, json_string(text)) ||
                       json_object_set_new(metadata, TRF_METADATA_SIDE_TABLES_CHECKSUM, json_string(checksum));
    free(text);
    return failed ? trf_fail_memory(err, json_object_size(added)) : TRF_OK;
}

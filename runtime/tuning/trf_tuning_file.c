/* SPDX-License-Identifier: Apache-2.0 */
/* Tunings in files: JSON that people can read, and change.
 *
 *   {"format": "transfuse tuning", "version": 2, "device": "NVIDIA H200",
 *    "capability": 90, "multiprocessors": 132, "memory_gb_per_second": 4917,
 *    "layers": [{"layout": "coded", "codec": "bf16", "class_bits": 2, "raw_bits": 8, "scale_groups": false,
 *                "rows": 8192, "cols": 8192,
 *                "batches": [{"to": 1, "path": "fused", "microseconds": {"fused": 24.5, "two-step": 98.1}}, ...]},
 *                ...]}
 *
 * "path" decides; "microseconds" tells why, and may be missing. Batches of packed layers may also have the fastest
 * kernel with its cut: "packed": {"kernel": "wgmma-128", "cut": 2}, or "cut": "stream-k". A kernel that only former
 * versions of the library had counts as missing. A layer without "layout" is coded, as all were before there were other
 * layouts. The three numbers of the device may be missing, too; the library's tables of crossovers
 * (runtime/tuning/crossovers) are made with them. */
#include "transfuse/device_memory.h"
#include "trf_json.h"
#include "trf_output.h"
#include "trf_packed_wgmma_sizes.h"
#include "trf_tuning.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRF_TUNING_FORMAT "transfuse tuning"
static const double kMostTime = 1e12; /* microseconds, eleven days: sums of larger ones could be infinite */
enum {
    TRF_TUNING_VERSION = 2, /* 1 called "scale_groups" "groups" */
    TRF_MAX_TUNING_BYTES = 64 << 20
};

/* ---- writing ---- */

/* All of these return NULL without memory. */
static json_t *packed_to_json(const trf_tuned_kernel *packed) {
    return json_pack("{s:s, s:o}", "kernel", trf_packed_kernel_name(packed->shape), "cut",
                     packed->cut == TRF_PACKED_STREAM_K ? json_string(trf_packed_cut_name(packed->cut))
                                                        : json_integer((json_int_t)packed->cut));
}

static json_t *point_to_json(const trf_tuned_point *point) {
    json_t *times = json_object();
    for (int p = 0; p < TRF_TUNED_PATHS; p++)
        if (point->microseconds[p] > 0 &&
            json_object_set_new(times, trf_path_name((trf_path)(p + 1)), json_real(point->microseconds[p]))) {
            json_decref(times);
            return NULL;
        }
    json_t *object = json_pack("{s:I, s:s}", "to", (json_int_t)point->m, "path", trf_path_name(point->path));
    int failed = point->has_packed && json_object_set_new(object, "packed", packed_to_json(&point->packed));
    failed = json_object_set_new(object, "microseconds", times) || failed;
    if (!failed)
        return object;
    json_decref(object);
    return NULL;
}

static json_t *layer_to_json(const trf_tuned_layer *layer) {
    const trf_tuning_key *key = &layer->key;
    json_t *batches = json_array();
    for (uint32_t i = 0; i < layer->num_points; i++)
        if (json_array_append_new(batches, point_to_json(&layer->points[i]))) {
            json_decref(batches);
            return NULL;
        }
    return json_pack("{s:s, s:s, s:I, s:I, s:b, s:I, s:I, s:o}", "layout", trf_layout_name(key->layout), "codec",
                     trf_codec_name(key->codec), "class_bits", (json_int_t)key->class_bits, "raw_bits",
                     (json_int_t)key->raw_bits, "scale_groups", key->has_scale_groups, "rows", (json_int_t)key->rows,
                     "cols", (json_int_t)key->cols, "batches", batches);
}

static char *tuning_to_text(const trf_tuning *tuning) {
    json_t *layers = json_array();
    for (uint32_t i = 0; i < tuning->num_layers; i++)
        if (json_array_append_new(layers, layer_to_json(&tuning->layers[i]))) {
            json_decref(layers);
            return NULL;
        }
    const trf_card *card = &tuning->card;
    json_t *root = json_pack("{s:s, s:i, s:s, s:I, s:I, s:I, s:o}", "format", TRF_TUNING_FORMAT, "version",
                             TRF_TUNING_VERSION, "device", card->name, "capability", (json_int_t)card->capability,
                             "multiprocessors", (json_int_t)card->multiprocessors, "memory_gb_per_second",
                             (json_int_t)card->memory_gb_per_second, "layers", layers);
    char *text = trf_json_dump(root, JSON_INDENT(1) | JSON_REAL_PRECISION(6), NULL);
    json_decref(root);
    return text;
}

trf_status trf_tuning_write(const trf_tuning *tuning, const char *path, int overwrite, trf_error *err) {
    if (!tuning || !path)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "writing a tuning takes a tuning and a path");
    char *text = tuning_to_text(tuning);
    if (!text)
        return trf_fail_memory(err, tuning->num_layers * sizeof *tuning->layers);
    trf_output output = {.file = {.fd = -1}};
    trf_status status = trf_output_begin_file(&output, path, overwrite, err);
    if (status == TRF_OK)
        status = trf_file_write(&output.file, 0, text, strlen(text), err);
    if (status == TRF_OK)
        status = trf_file_write(&output.file, strlen(text), "\n", 1, err);
    if (status == TRF_OK)
        status = trf_output_publish(&output, err);
    trf_output_end(&output);
    free(text);
    return trf_sanitize_error(status, err);
}

/* ---- reading ---- */

/* A place in the file, for messages. */
typedef struct trf_tuning_place {
    const char *path;
    size_t layer, batch;
} trf_tuning_place;

static trf_status fail_layer(const trf_tuning_place *at, const char *what, trf_error *err) {
    return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET, "%s: layers[%zu]: %s", at->path, at->layer, what);
}

static trf_status fail_batch(const trf_tuning_place *at, const char *what, trf_error *err) {
    return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET, "%s: layers[%zu].batches[%zu]: %s", at->path, at->layer,
                    at->batch, what);
}

/* @return 0, or -1 unless object[key] is a whole number from least to most. */
static int read_number(const json_t *object, const char *key, uint32_t least, uint32_t most, uint32_t *number) {
    const json_t *value = json_object_get(object, key);
    const json_int_t read = json_integer_value(value);
    if (!json_is_integer(value) || read < (json_int_t)least || read > (json_int_t)most)
        return -1;
    *number = (uint32_t)read;
    return 0;
}

static trf_path path_of_text(const char *text) {
    for (int p = TRF_PATH_FUSED; text && p <= TRF_TUNED_PATHS; p++)
        if (strcmp(text, trf_path_name((trf_path)p)) == 0)
            return (trf_path)p;
    return TRF_PATH_AUTO;
}

static trf_status read_packed(const json_t *from, const trf_tuning_place *at, trf_tuned_point *point, trf_error *err) {
    const json_t *packed = json_object_get(from, "packed");
    if (!packed)
        return TRF_OK;
    const char *kernel = json_string_value(json_object_get(packed, "kernel")),
               *cut = json_string_value(json_object_get(packed, "cut"));
    const int is_former = kernel && trf_packed_is_former_kernel(kernel);
    point->has_packed = !is_former;
    /* The general kernel is refused: where it runs there is nothing to choose. */
    point->packed.shape = kernel ? trf_packed_find_kernel(kernel) : TRF_PACKED_GENERAL;
    if (point->packed.shape == TRF_PACKED_GENERAL && !is_former)
        return fail_batch(at,
                          "the 'kernel' of 'packed' is not bulk-256 ... bulk-32, wgmma-64 ... wgmma-256 or "
                          "wgmma-192x96 ... wgmma-192x128",
                          err);
    if (cut && strcmp(cut, trf_packed_cut_name(TRF_PACKED_STREAM_K)) == 0)
        point->packed.cut = TRF_PACKED_STREAM_K;
    else if (read_number(packed, "cut", 1, TRF_MAX_CLUSTER, &point->packed.cut))
        return fail_batch(at, "the 'cut' of 'packed' is neither stream-k nor 1 to 8", err);
    return TRF_OK;
}

static trf_status read_point(const json_t *from, const trf_tuning_place *at, trf_tuned_point *point, trf_error *err) {
    if (read_number(from, "to", 1, UINT32_MAX, &point->m))
        return fail_batch(at, "'to' is no batch", err);
    point->path = path_of_text(json_string_value(json_object_get(from, "path")));
    if (point->path == TRF_PATH_AUTO)
        return fail_batch(at, "'path' is not fused, wide, two-step, dense or packed", err);
    const json_t *times = json_object_get(from, "microseconds");
    if (times && !json_is_object(times))
        return fail_batch(at, "'microseconds' is not an object", err);
    for (int p = 0; p < TRF_TUNED_PATHS; p++) {
        const json_t *time = json_object_get(times, trf_path_name((trf_path)(p + 1)));
        if (time && (!json_is_number(time) || !(json_number_value(time) > 0 && json_number_value(time) <= kMostTime)))
            return fail_batch(at, "a time is not a positive number of at most 1e12", err);
        point->microseconds[p] = json_number_value(time);
    }
    return read_packed(from, at, point, err);
}

static int read_codec(const json_t *from, trf_codec *codec) {
    const char *name = json_string_value(json_object_get(from, "codec"));
    for (int c = TRF_CODEC_BF16; name && c <= TRF_CODEC_INT; c++)
        if (strcmp(name, trf_codec_name((trf_codec)c)) == 0) {
            *codec = (trf_codec)c;
            return 0;
        }
    return -1;
}

/* A layer without a layout is coded. */
static int read_layout(const json_t *from, trf_layout *layout) {
    const json_t *text = json_object_get(from, "layout");
    const char *name = text ? json_string_value(text) : trf_layout_name(TRF_LAYOUT_CODED);
    for (int l = TRF_LAYOUT_CODED; name && l <= TRF_LAYOUT_PACKED8; l++)
        if (strcmp(name, trf_layout_name((trf_layout)l)) == 0) {
            *layout = (trf_layout)l;
            return 0;
        }
    return -1;
}

static trf_status read_layer(const json_t *from, trf_tuning_place *at, trf_tuned_layer *layer, trf_error *err) {
    trf_tuning_key *key = &layer->key;
    const json_t *scale_groups = json_object_get(from, "scale_groups"), *batches = json_object_get(from, "batches");
    if (read_layout(from, &key->layout))
        return fail_layer(at, "'layout' is neither coded, plain, packed nor packed8", err);
    if (read_codec(from, &key->codec))
        return fail_layer(at, "'codec' is none", err);
    if (read_number(from, "class_bits", 1, 8, &key->class_bits) || read_number(from, "raw_bits", 0, 16, &key->raw_bits))
        return fail_layer(at, "'class_bits' or 'raw_bits' is not what a layer has", err);
    if (!json_is_boolean(scale_groups))
        return fail_layer(at, "'scale_groups' is neither true nor false", err);
    key->has_scale_groups = json_is_true(scale_groups);
    if (read_number(from, "rows", 1, UINT32_MAX, &key->rows) || read_number(from, "cols", 1, UINT32_MAX, &key->cols))
        return fail_layer(at, "'rows' or 'cols' is no size", err);
    if (!json_is_array(batches) || json_array_size(batches) > TRF_TUNING_MAX_POINTS)
        return fail_layer(at, "'batches' is no array, or too long a one", err);
    layer->num_points = (uint32_t)json_array_size(batches);
    for (uint32_t i = 0; i < layer->num_points; i++) {
        at->batch = i;
        trf_status status = read_point(json_array_get(batches, i), at, &layer->points[i], err);
        if (status != TRF_OK)
            return status;
        if (i && layer->points[i].m <= layer->points[i - 1].m)
            return fail_batch(at, "batches do not ascend", err);
    }
    return TRF_OK;
}

/* Orders layers by key, and layers of one key by their place. */
static int compare_layers(const void *a, const void *b) {
    const trf_tuned_layer *const left = *(const trf_tuned_layer *const *)a, *const right =
                                                                                *(const trf_tuned_layer *const *)b;
    const int order = memcmp(&left->key, &right->key, sizeof left->key);
    return order ? order : (left > right) - (left < right);
}

/* Checks that no layer is listed twice: only the first one would count. */
static trf_status check_distinct(const trf_tuning *tuning, const char *path, trf_error *err) {
    const uint32_t count = tuning->num_layers;
    const trf_tuned_layer **sorted = malloc((count + 1ull) * sizeof *sorted);
    if (!sorted)
        return trf_fail_memory(err, (count + 1ull) * sizeof *sorted);
    for (uint32_t i = 0; i < count; i++)
        sorted[i] = &tuning->layers[i];
    qsort(sorted, count, sizeof *sorted, compare_layers);
    trf_status status = TRF_OK;
    for (uint32_t i = 1; i < count && status == TRF_OK; i++)
        if (memcmp(&sorted[i - 1]->key, &sorted[i]->key, sizeof sorted[i]->key) == 0) {
            const trf_tuning_place at = {path, (size_t)(sorted[i] - tuning->layers), 0};
            char what[64];
            snprintf(what, sizeof what, "the same as layers[%zu]", (size_t)(sorted[i - 1] - tuning->layers));
            status = fail_layer(&at, what, err);
        }
    free(sorted);
    return status;
}

static trf_status check_version(const json_t *version, const char *path, trf_error *err) {
    const json_int_t found = json_integer_value(version); /* 0 unless it is an integer */
    if (found == TRF_TUNING_VERSION)
        return TRF_OK;
    if (found > 0 && found < TRF_TUNING_VERSION)
        return trf_fail(err, TRF_ERR_VERSION, TRF_NO_OFFSET,
                        "%s: a tuning of version %d, and this version of transfuse reads %d: run 'transfuse tune' "
                        "again",
                        path, (int)found, TRF_TUNING_VERSION);
    return trf_fail(err, TRF_ERR_VERSION, TRF_NO_OFFSET, "%s: 'version' of the tuning is not %d", path,
                    TRF_TUNING_VERSION);
}

/* Numbers that are missing are not known, and become 0. */
static trf_status read_card(const json_t *root, const char *path, trf_card *card, trf_error *err) {
    const char *name = json_string_value(json_object_get(root, "device"));
    const struct {
        const char *key;
        uint32_t *number;
    } fields[] = {{"capability", &card->capability},
                  {"multiprocessors", &card->multiprocessors},
                  {"memory_gb_per_second", &card->memory_gb_per_second}};
    *card = (trf_card){{0}, 0, 0, 0};
    if (!name || strlen(name) >= sizeof card->name)
        return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET, "%s: 'device' is missing, no text, or too long", path);
    memcpy(card->name, name, strlen(name) + 1);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (json_object_get(root, fields[i].key) && read_number(root, fields[i].key, 0, UINT32_MAX, fields[i].number))
            return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET, "%s: '%s' is no number of a device", path,
                            fields[i].key);
    return TRF_OK;
}

static trf_status read_root(const json_t *root, const char *path, trf_tuning **tuning, trf_error *err) {
    const char *format = json_string_value(json_object_get(root, "format"));
    const json_t *layers = json_object_get(root, "layers");
    if (!format || strcmp(format, TRF_TUNING_FORMAT) != 0)
        return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET, "%s: not a tuning: 'format' is not '%s'", path,
                        TRF_TUNING_FORMAT);
    trf_card card;
    trf_status status = check_version(json_object_get(root, "version"), path, err);
    if (status == TRF_OK)
        status = read_card(root, path, &card, err);
    if (status != TRF_OK)
        return status;
    if (!json_is_array(layers) || json_array_size(layers) > TRF_TUNING_MAX_LAYERS)
        return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET, "%s: 'layers' is no array, or too long a one", path);
    status = trf_tuning_create(&card, (uint32_t)json_array_size(layers), tuning, err);
    for (uint32_t i = 0; status == TRF_OK && i < (*tuning)->num_layers; i++) {
        trf_tuning_place at = {path, i, 0};
        status = read_layer(json_array_get(layers, i), &at, &(*tuning)->layers[i], err);
    }
    return status == TRF_OK ? check_distinct(*tuning, path, err) : status;
}

trf_status trf_tuning_read(const char *path, trf_tuning **tuning, trf_error *err) {
    if (!path || !tuning)
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET, "reading a tuning takes a path");
    char *text = NULL;
    size_t bytes;
    json_t *root = NULL;
    trf_tuning *made = NULL;
    trf_status status = trf_file_load(path, TRF_MAX_TUNING_BYTES, &text, &bytes, err);
    if (status == TRF_OK)
        status = trf_json_parse(path, text, bytes, JSON_REJECT_DUPLICATES, &root, err);
    if (status == TRF_OK)
        status = read_root(root, path, &made, err);
    free(text);
    json_decref(root);
    if (status == TRF_OK)
        *tuning = made;
    else
        trf_tuning_free(made);
    return trf_sanitize_error(status, err);
}

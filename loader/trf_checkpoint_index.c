/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_checkpoint_index.h"

#include "trf_json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* An index has the limit of a file's header. A compressed index also holds the source's index. */
#define TRF_MAX_INDEX_BYTES (4ull * TRF_MAX_SAFETENSORS_HEADER_BYTES)

static trf_status index_parse(const char *path, const char *text, size_t bytes, trf_checkpoint_index *index,
                              trf_error *err) {
    char *strict;
    json_t *reals; /* here all numbers are reals, but the index is written again with its integers */
    trf_status status = trf_json_parse_python(path, text, bytes, &reals, &strict, err);
    if (status == TRF_OK)
        status = trf_json_parse(path, strict, bytes, JSON_REJECT_DUPLICATES, &index->root, err);
    json_decref(reals);
    free(strict);
    if (status != TRF_OK)
        return status;
    index->weight_map = json_object_get(index->root, "weight_map");
    if (!json_is_object(index->weight_map))
        return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET, "%s: weight_map is missing or not an object", path);
    const char *name;
    json_t *file_name;
    json_object_foreach(index->weight_map, name, file_name) {
        /* A file elsewhere would be read, and its copy written, outside of the two folders. */
        const char *file = json_string_value(file_name);
        if (!file || !*file || strchr(file, '/'))
            return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET,
                            "%s: weight_map: what stands for tensor '%s' is not the name of a file beside the index",
                            path, name);
    }
    /* Loaders would draw all weights at random. Our own index has an empty map where the source's names side tables
     * alone. */
    size_t kept_bytes;
    if (!json_object_size(index->weight_map) && !trf_checkpoint_index_kept(index, &kept_bytes))
        return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET, "%s: weight_map is empty: it names no tensor", path);
    return TRF_OK;
}

trf_status trf_checkpoint_index_open(const char *path, trf_checkpoint_index *index, trf_error *err) {
    return trf_checkpoint_index_open_counted(path, NULL, index, err);
}

trf_status trf_checkpoint_index_open_counted(const char *path, trf_budget *budget, trf_checkpoint_index *index,
                                             trf_error *err) {
    char *text = NULL;
    size_t bytes;
    *index = (trf_checkpoint_index){.path = strdup(path), .name = strdup(trf_path_basename(path)), .budget = budget};
    trf_status status = trf_path_take_stamp(path, &index->stamp, err);
    if (status == TRF_OK)
        status = trf_file_load_within(budget, path, TRF_MAX_INDEX_BYTES, &text, &bytes, err);
    index->has_mark = status == TRF_OK && bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0;
    if (status == TRF_OK && !index->has_mark) /* it is parsed twice, once as Python does it */
        status = trf_json_check(budget, path, text, bytes, 2, 2, err);
    if (status == TRF_OK && !index->has_mark)
        status = index_parse(path, text, bytes, index, err);
    if (status == TRF_OK && !index->has_mark && budget && budget->max_bytes) {
        const uint64_t held = trf_json_bytes(text, bytes);
        status = trf_budget_take(budget, held, "an index", err);
        index->counted_bytes = status == TRF_OK ? held : 0;
    }
    if (status == TRF_OK && (!index->path || !index->name))
        status = trf_fail_memory(err, strlen(path));
    free(text);
    if (status != TRF_OK)
        trf_checkpoint_index_free(index);
    return status;
}

void trf_checkpoint_index_free(trf_checkpoint_index *index) {
    free(index->path);
    free(index->name);
    json_decref(index->root);
    trf_budget_give(index->budget, index->counted_bytes);
    *index = (trf_checkpoint_index){0};
}

/* Finds a file; files are in the order of their names. An index of a million names, and as many files, must not take
 * hours. @return num_files if there is none of the name. */
static size_t find_file_number(const trf_checkpoint_file *files, size_t num_files, const char *name) {
    size_t begin = 0, end = num_files;
    while (begin < end) {
        const size_t middle = begin + (end - begin) / 2;
        const int order = strcmp(name, files[middle].name);
        if (order == 0)
            return middle;
        if (order < 0)
            end = middle;
        else
            begin = middle + 1;
    }
    return num_files;
}

/* The same, where neighbours in a map tend to share a file. last: the number found before. */
static size_t find_near(const trf_checkpoint_file *files, size_t num_files, const char *name, size_t last) {
    return last < num_files && strcmp(files[last].name, name) == 0 ? last : find_file_number(files, num_files, name);
}

const char *trf_checkpoint_index_why_idle(const trf_checkpoint_index *index, const trf_checkpoint_file *files,
                                          size_t num_files) {
    const char *name, *last = "";
    json_t *file;
    if (index->has_mark)
        return "begins with a byte order mark, with which transformers and diffusers cannot read it";
    json_object_foreach(index->weight_map, name, file) {
        const char *file_name = json_string_value(file);
        if (strcmp(last, file_name) != 0 && find_file_number(files, num_files, file_name) < num_files)
            return NULL;
        last = file_name;
    }
    return json_object_size(index->weight_map) ? "none of the files that it names is there" : NULL;
}

const char *trf_checkpoint_index_kept(const trf_checkpoint_index *index, size_t *bytes) {
    const json_t *kept = json_object_get(json_object_get(index->root, "metadata"), TRF_METADATA_INDEX);
    *bytes = json_string_length(kept);
    return json_string_value(kept);
}

/* Checks the other direction: that a file's tensors are in the map. */
static trf_status index_check_file(const trf_checkpoint_index *index, const trf_checkpoint_file *checkpoint_file,
                                   trf_error *err) {
    for (size_t i = 0; i < checkpoint_file->own_header.num_tensors; i++) {
        const char *name = checkpoint_file->own_header.tensors[i].name;
        const char *mapped = json_string_value(json_object_get(index->weight_map, name));
        if (!mapped)
            return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET, "%s: tensor '%s' of file %s is not in weight_map",
                            index->path, name, checkpoint_file->name);
        if (strcmp(mapped, checkpoint_file->name) != 0)
            return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET, "%s: tensor '%s' is in file %s, but weight_map says %s",
                            index->path, name, checkpoint_file->name, mapped);
    }
    return TRF_OK;
}

/* @return malloc'd marks of the files that the index names; NULL on failure. */
static uint8_t *index_find_files(const trf_checkpoint_index *index, const trf_checkpoint_file *files, size_t num_files,
                                 trf_error *err) {
    uint8_t *named = calloc(num_files + 1, 1);
    if (!named) {
        trf_fail_memory(err, num_files);
        return NULL;
    }
    const char *name;
    json_t *file;
    size_t last = 0;
    json_object_foreach(index->weight_map, name, file) {
        const char *file_name = json_string_value(file);
        last = find_near(files, num_files, file_name, last);
        if (last == num_files) {
            trf_fail(err, TRF_ERR_NOT_FOUND, TRF_NO_OFFSET, "%s: tensor '%s': there is no file %s", index->path, name,
                     file_name);
            free(named);
            return NULL;
        }
        if (!trf_safetensors_find(&files[last].own_header, name)) {
            trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET, "%s: tensor '%s' is not in file %s", index->path, name,
                     file_name);
            free(named);
            return NULL;
        }
        named[last] = 1;
    }
    return named;
}

trf_status trf_checkpoint_index_check(const trf_checkpoint_index *index, const trf_checkpoint_file *files,
                                      size_t num_files, trf_error *err) {
    trf_error local = {0};
    uint8_t *named = index_find_files(index, files, num_files, &local);
    if (!named) {
        if (err)
            *err = local;
        return local.status;
    }
    trf_status status = TRF_OK;
    for (size_t i = 0; i < num_files && status == TRF_OK; i++)
        if (named[i])
            status = index_check_file(index, &files[i], err);
    free(named);
    return status;
}

/* Makes the name under which file `out` stores what file `in` stores as `name`: a tensor of the source's name, or a
 * blob, whose name has the suffix. @return malloc'd; NULL without memory. */
static char *rewritten_name(const trf_checkpoint_file *in, const trf_checkpoint_file *out, const char *name) {
    const size_t suffix = trf_checkpoint_file_find(in, name) ? 0 : strlen(TRF_BLOB_SUFFIX);
    char *source = strndup(name, strlen(name) - suffix);
    const trf_file_tensor *tensor = source ? trf_checkpoint_file_find(out, source) : NULL;
    char *rewritten = tensor ? tensor->blobs ? trf_blob_name(source) : strdup(source) : NULL;
    free(source);
    return rewritten;
}

/* @return whether what file `in` has as `name` is a side table in file `out`, and so no tensor of it. */
static int becomes_side_table(const trf_checkpoint_file *in, const trf_checkpoint_file *out, const char *name) {
    const trf_tensor *source = trf_safetensors_find(trf_checkpoint_file_source_header(out), name);
    return trf_checkpoint_file_find(in, name) && trf_side_tables_find(&out->side_tables, source);
}

/* Adds the side tables that were in the metadata of file `in`, and are tensors of file `out`. @return whether there was
 * memory for it. */
static int map_side_tables(const trf_checkpoint_file *in, const trf_checkpoint_file *out, json_t *map) {
    int done = 1;
    for (size_t i = 0; i < in->side_tables.count && done; i++) {
        const char *name = in->side_tables.tables[i].source->name;
        if (trf_checkpoint_file_find(out, name))
            done = json_object_set_new(map, name, json_string(out->name)) == 0;
    }
    return done;
}

/* @return a new reference to the map for the files of `out`, or NULL; counts the bytes of the files in it. */
static json_t *rewrite_map(const trf_checkpoint_index *index, const trf_checkpoint_file *in,
                           const trf_checkpoint_file *out, size_t num_files, uint64_t *total_bytes) {
    json_t *map = json_object();
    uint8_t *counted = calloc(num_files + 1, 1);
    const char *name;
    json_t *file;
    int failed = !map || !counted;
    size_t last = 0;
    *total_bytes = 0;
    if (!failed)
        json_object_foreach(index->weight_map, name, file) {
            last = find_near(in, num_files, json_string_value(file), last);
            if (!counted[last]++) {
                *total_bytes += out[last].own_header.data_bytes;
                failed |= !map_side_tables(&in[last], &out[last], map);
            }
            if (becomes_side_table(&in[last], &out[last], name))
                continue;
            char *rewritten = rewritten_name(&in[last], &out[last], name);
            failed |= !rewritten || json_object_set(map, rewritten, file) != 0;
            free(rewritten);
        }
    free(counted);
    if (!failed)
        return map;
    json_decref(map);
    return NULL;
}

/* Makes the index with its map rewritten. kept: this index's text, which is kept in it; or NULL. */
static trf_status index_rewrite(const trf_checkpoint_index *index, const trf_checkpoint_file *in,
                                const trf_checkpoint_file *out, size_t num_files, const json_t *kept, char **text,
                                size_t *bytes, trf_error *err) {
    uint64_t total_bytes;
    json_t *map = rewrite_map(index, in, out, num_files, &total_bytes), *root = trf_json_copy(index->root);
    json_t *metadata = json_object_get(index->root, "metadata");
    metadata = json_is_object(metadata) ? trf_json_copy(metadata) : json_object();
    int failed = !map || !root || !metadata;
    failed = failed || json_object_set_new(metadata, "total_size", json_integer((json_int_t)total_bytes));
    failed = failed || (kept && json_object_set(metadata, TRF_METADATA_INDEX, (json_t *)kept));
    failed = failed || json_object_set(root, "metadata", metadata) || json_object_set(root, "weight_map", map);
    *text = failed ? NULL : trf_json_dump(root, JSON_INDENT(2), bytes);
    json_decref(map);
    json_decref(metadata);
    json_decref(root);
    return *text ? TRF_OK : trf_fail_memory(err, 0);
}

/* Checks that the index that the compressor kept fits these files. Only their names and headers are used. */
static trf_status check_kept_text(const trf_checkpoint_index *index, const char *text, size_t bytes,
                                  const trf_checkpoint_file *files, size_t num_files, trf_error *err) {
    trf_checkpoint_index source_index = {.path = index->path};
    trf_status status = trf_json_check(index->budget, index->path, text, bytes, 2, 2, err);
    if (status == TRF_OK)
        status = index_parse(index->path, text, bytes, &source_index, err);
    if (status == TRF_OK)
        status = trf_checkpoint_index_check(&source_index, files, num_files, err);
    json_decref(source_index.root);
    if (status != TRF_OK)
        return trf_prefix_error(err, trf_lacks_memory(status) ? status : TRF_ERR_FORMAT,
                                "the kept source index does not fit");
    return TRF_OK;
}

trf_status trf_checkpoint_index_check_kept(const trf_checkpoint_index *index, const trf_checkpoint_file *files,
                                           size_t num_files, trf_error *err) {
    size_t bytes;
    const char *text = trf_checkpoint_index_kept(index, &bytes);
    if (!text)
        return TRF_OK;
    trf_checkpoint_file *sources = calloc(num_files + 1, sizeof *sources);
    if (!sources)
        return trf_fail_memory(err, num_files * sizeof *sources);
    for (size_t i = 0; i < num_files; i++) /* the files as they will be after decompressing; they own nothing */
        sources[i] = (trf_checkpoint_file){
            .path = files[i].path, .name = files[i].name, .own_header = *trf_checkpoint_file_source_header(&files[i])};
    trf_status status = check_kept_text(index, text, bytes, sources, num_files, err);
    free(sources);
    return status;
}

/* Restores the index that the compressor kept, if it fits the restored files. */
static trf_status index_restore(const trf_checkpoint_index *index, const json_t *kept, const trf_checkpoint_file *out,
                                size_t num_files, char **text, size_t *bytes, trf_error *err) {
    const char *content = json_string_value(kept);
    size_t length = json_string_length(kept);
    trf_status status = check_kept_text(index, content, length, out, num_files, err);
    if (status != TRF_OK)
        return status;
    if (!(*text = malloc(length + 1)))
        return trf_fail_memory(err, length + 1);
    memcpy(*text, content, length + 1);
    *bytes = length;
    return TRF_OK;
}

trf_status trf_checkpoint_index_rewrite(const trf_checkpoint_index *index, const trf_checkpoint_file *in,
                                        const trf_checkpoint_file *out, size_t num_files, char **text, size_t *bytes,
                                        trf_error *err) {
    int in_compressed = 0, out_compressed = 0;
    const char *name;
    json_t *file;
    size_t last = 0;
    json_object_foreach(index->weight_map, name, file) { /* an index of other files stays as it is */
        last = find_near(in, num_files, json_string_value(file), last);
        in_compressed |= in[last].compressed, out_compressed |= out[last].compressed;
    }
    json_t *kept = json_object_get(json_object_get(index->root, "metadata"), TRF_METADATA_INDEX);
    if (json_is_string(kept) && !out_compressed)
        return index_restore(index, kept, out, num_files, text, bytes, err);
    if (in_compressed && !out_compressed)
        return index_rewrite(index, in, out, num_files, NULL, text, bytes, err);

    char *source;
    size_t source_bytes;
    trf_status status =
        trf_file_load_within(index->budget, index->path, TRF_MAX_INDEX_BYTES, &source, &source_bytes, err);
    if (status != TRF_OK)
        return status;
    if (out_compressed) /* a map, and the texts of the old index and of the new one, which keeps the old */
        status = trf_json_check(index->budget, index->path, source, source_bytes, 1, 8, err);
    if (status != TRF_OK) {
        free(source);
        return status;
    }
    if (!out_compressed) {
        *text = source, *bytes = source_bytes;
        return TRF_OK;
    }
    json_t *own = json_stringn(source, source_bytes);
    status = own ? index_rewrite(index, in, out, num_files, own, text, bytes, err) : trf_fail_memory(err, source_bytes);
    json_decref(own);
    free(source);
    return status;
}

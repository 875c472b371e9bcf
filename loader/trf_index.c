#include "trf_index.h"

#include "trf_json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* As for a file's header. A compressed index holds the source's besides itself. */
#define TRF_MAX_INDEX_BYTES (4ull * TRF_MAX_HEADER_BYTES)

static trf_status trf_index_parse(const char *path, const char *text, size_t bytes, trf_index *index, trf_error *err) {
    trf_status status = trf_json_parse(path, text, bytes, JSON_REJECT_DUPLICATES, &index->root, err);
    if (status != TRF_OK)
        return status;
    index->weight_map = json_object_get(index->root, "weight_map");
    if (!json_is_object(index->weight_map))
        return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET, "%s: weight_map is missing or not an object", path);
    const char *name;
    json_t *shard;
    json_object_foreach(index->weight_map, name, shard) {
        /* A shard elsewhere would be read, and its copy written, outside of the two directories. */
        const char *file = json_string_value(shard);
        if (!file || !*file || strchr(file, '/'))
            return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET,
                            "%s: weight_map: what stands for tensor '%s' is not the name of a file beside the index",
                            path, name);
    }
    return TRF_OK;
}

trf_status trf_index_open(const char *path, trf_index *index, trf_error *err) {
    char *text = NULL;
    size_t bytes;
    *index = (trf_index){.path = strdup(path), .name = strdup(trf_path_basename(path))};
    trf_status status = trf_file_load(path, TRF_MAX_INDEX_BYTES, &text, &bytes, err);
    if (status == TRF_OK)
        status = trf_index_parse(path, text, bytes, index, err);
    if (status == TRF_OK && (!index->path || !index->name))
        status = trf_fail_memory(err, strlen(path));
    free(text);
    if (status != TRF_OK)
        trf_index_free(index);
    return status;
}

void trf_index_free(trf_index *index) {
    free(index->path);
    free(index->name);
    json_decref(index->root);
    *index = (trf_index){0};
}

static size_t trf_shard_number(const trf_shard *shards, size_t num_shards, const char *name) {
    size_t i = 0;
    while (i < num_shards && strcmp(shards[i].name, name) != 0)
        i++;
    return i;
}

/* The other direction: a shard's tensors in the map. */
static trf_status trf_index_check_shard(const trf_index *index, const trf_shard *shard, trf_error *err) {
    for (size_t i = 0; i < shard->own.num_tensors; i++) {
        const char *name = shard->own.tensors[i].name;
        const char *mapped = json_string_value(json_object_get(index->weight_map, name));
        if (!mapped)
            return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET, "%s: tensor '%s' of shard %s is not in weight_map",
                            index->path, name, shard->name);
        if (strcmp(mapped, shard->name) != 0)
            return trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET,
                            "%s: tensor '%s' is in shard %s, but weight_map says %s", index->path, name, shard->name,
                            mapped);
    }
    return TRF_OK;
}

/* @return malloc'd marks of the shards that the index names; NULL on failure. */
static uint8_t *trf_index_find_shards(const trf_index *index, const trf_shard *shards, size_t num_shards,
                                      trf_error *err) {
    uint8_t *named = calloc(num_shards + 1, 1);
    if (!named) {
        trf_fail_memory(err, num_shards);
        return NULL;
    }
    const char *name;
    json_t *file;
    size_t last = 0; /* neighbours in the map tend to share a shard */
    json_object_foreach(index->weight_map, name, file) {
        const char *shard = json_string_value(file);
        if (last >= num_shards || strcmp(shards[last].name, shard) != 0)
            last = trf_shard_number(shards, num_shards, shard);
        if (last == num_shards) {
            trf_fail(err, TRF_ERR_NOT_FOUND, TRF_NO_OFFSET, "%s: tensor '%s': there is no shard %s", index->path, name,
                     shard);
            free(named);
            return NULL;
        }
        if (!trf_safetensors_find(&shards[last].own, name)) {
            trf_fail(err, TRF_ERR_FORMAT, TRF_NO_OFFSET, "%s: tensor '%s' is not in shard %s", index->path, name,
                     shard);
            free(named);
            return NULL;
        }
        named[last] = 1;
    }
    return named;
}

trf_status trf_index_check(const trf_index *index, const trf_shard *shards, size_t num_shards, trf_error *err) {
    trf_error local = {0};
    uint8_t *named = trf_index_find_shards(index, shards, num_shards, &local);
    if (!named) {
        if (err)
            *err = local;
        return local.status;
    }
    trf_status status = TRF_OK;
    for (size_t i = 0; i < num_shards && status == TRF_OK; i++)
        if (named[i])
            status = trf_index_check_shard(index, &shards[i], err);
    free(named);
    return status;
}

/* The name under which shard `out` stores what shard `in` stores as `name`. @return malloc'd; NULL without memory or
 * tensor. */
static char *trf_converted_name(const trf_shard *in, const trf_shard *out, const char *name) {
    const trf_shard_tensor *tensor = trf_shard_find(in, name);
    size_t length = strlen(name), suffix = strlen(TRF_BLOB_SUFFIX);
    if (tensor && tensor->blobs)
        tensor = NULL; /* stored as name_trf, so this is another tensor */
    if (!tensor && length >= suffix) {
        char *source = strndup(name, length - suffix);
        tensor = source ? trf_shard_find(in, source) : NULL;
        free(source);
    }
    tensor = tensor ? trf_shard_find(out, tensor->source->name) : NULL;
    if (!tensor)
        return NULL;
    return tensor->blobs ? trf_blob_name(tensor->source->name) : strdup(tensor->source->name);
}

/* @return a new reference to the map for the shards of `out`, or NULL; counts the bytes of the shards in it. */
static json_t *trf_convert_map(const trf_index *index, const trf_shard *in, const trf_shard *out, size_t num_shards,
                               uint64_t *total_bytes) {
    json_t *map = json_object();
    uint8_t *counted = calloc(num_shards + 1, 1);
    const char *name;
    json_t *file;
    int failed = !map || !counted;
    size_t last = 0;
    *total_bytes = 0;
    if (!failed)
        json_object_foreach(index->weight_map, name, file) {
            if (last >= num_shards || strcmp(in[last].name, json_string_value(file)) != 0)
                last = trf_shard_number(in, num_shards, json_string_value(file));
            char *converted = trf_converted_name(&in[last], &out[last], name);
            failed |= !converted || json_object_set(map, converted, file) != 0;
            free(converted);
            if (!counted[last]++)
                *total_bytes += out[last].own.data_bytes;
        }
    free(counted);
    if (!failed)
        return map;
    json_decref(map);
    return NULL;
}

/* The index with its map converted. kept: this index's text, to be kept within; or NULL. */
static trf_status trf_index_rewrite(const trf_index *index, const trf_shard *in, const trf_shard *out,
                                    size_t num_shards, const json_t *kept, char **text, size_t *bytes, trf_error *err) {
    uint64_t total_bytes;
    json_t *map = trf_convert_map(index, in, out, num_shards, &total_bytes), *root = json_copy(index->root);
    json_t *metadata = json_object_get(index->root, "metadata");
    metadata = json_is_object(metadata) ? json_copy(metadata) : json_object();
    int failed = !map || !root || !metadata;
    failed = failed || json_object_set_new(metadata, "total_size", json_integer((json_int_t)total_bytes));
    failed = failed || (kept && json_object_set(metadata, TRF_METADATA_INDEX, (json_t *)kept));
    failed = failed || json_object_set(root, "metadata", metadata) || json_object_set(root, "weight_map", map);
    *text = failed ? NULL : json_dumps(root, JSON_INDENT(2));
    json_decref(map);
    json_decref(metadata);
    json_decref(root);
    if (!*text)
        return trf_fail_memory(err, 0);
    *bytes = strlen(*text);
    return TRF_OK;
}

/* Gives back the index that the compressor kept, if it goes with the restored shards. */
static trf_status trf_index_restore(const trf_index *index, const json_t *kept, const trf_shard *out, size_t num_shards,
                                    char **text, size_t *bytes, trf_error *err) {
    trf_index former = {.path = index->path};
    const char *content = json_string_value(kept);
    size_t length = json_string_length(kept);
    trf_status status = trf_index_parse(index->path, content, length, &former, err);
    if (status == TRF_OK)
        status = trf_index_check(&former, out, num_shards, err);
    json_decref(former.root);
    if (status != TRF_OK)
        return trf_fail_in(err, status == TRF_ERR_MEMORY ? status : TRF_ERR_FORMAT,
                           "the kept source index does not fit");
    if (!(*text = malloc(length + 1)))
        return trf_fail_memory(err, length + 1);
    memcpy(*text, content, length + 1);
    *bytes = length;
    return TRF_OK;
}

trf_status trf_index_convert(const trf_index *index, const trf_shard *in, const trf_shard *out, size_t num_shards,
                             char **text, size_t *bytes, trf_error *err) {
    int in_compressed = 0, out_compressed = 0;
    for (size_t i = 0; i < num_shards; i++)
        in_compressed |= in[i].compressed, out_compressed |= out[i].compressed;
    json_t *kept = json_object_get(json_object_get(index->root, "metadata"), TRF_METADATA_INDEX);
    if (json_is_string(kept) && !out_compressed)
        return trf_index_restore(index, kept, out, num_shards, text, bytes, err);
    if (in_compressed && !out_compressed)
        return trf_index_rewrite(index, in, out, num_shards, NULL, text, bytes, err);

    char *source;
    size_t source_bytes;
    trf_status status = trf_file_load(index->path, TRF_MAX_INDEX_BYTES, &source, &source_bytes, err);
    if (status != TRF_OK)
        return status;
    if (!out_compressed) {
        *text = source, *bytes = source_bytes;
        return TRF_OK;
    }
    json_t *own = json_stringn(source, source_bytes);
    status =
        own ? trf_index_rewrite(index, in, out, num_shards, own, text, bytes, err) : trf_fail_memory(err, source_bytes);
    json_decref(own);
    free(source);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A config.json is edited as text, so that all that is not ours keeps its layout, and numbers keep every digit. */
#include "trf_model_config.h"

#include "trf_blob.h"
#include "trf_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TRF_CONFIG_KEY "quantization_config"
#define TRF_CONFIG_METHOD "transfuse"
#define TRF_CONFIG_SOURCE "source_config"
#define TRF_CONFIG_DTYPE "dtype"
#define TRF_CONFIG_OLD_DTYPE "torch_dtype"
#define TRF_CONFIG_WEIGHTS "transformers_weights"

/* transformers takes this sentence for the name of a file of weights, and quotes it in its message about a wrong
 * name. */
static const char kNeeds[] = "this folder is compressed by transfuse; install transfuse to load it, or run 'transfuse "
                             "decompress' to get the original files back";
static const char kNeedsDecompressing[] =
    "this folder is stored only, compressed by transfuse; run 'transfuse decompress' to get the original files back, "
    "and load those";

/* A compressed config.json contains the source's text, escaped, so it is up to three times as long, and its layout may
 * have been changed. */
enum {
    TRF_MAX_COMPRESSED_CONFIG_BYTES = 8 * TRF_MAX_MODEL_CONFIG_BYTES,
    TRF_MOST_PARTS = 64 /* that get the sentence: a model has a few, and each takes a walk through the text */
};

static void free_file(trf_config_file *file) {
    json_decref(file->root);
    free(file->strict);
    free(file->text);
    free(file->path);
    *file = (trf_config_file){0};
}

/* Reads the config.json in the checkpoint's folder, or beside its file. Release with free_file in every case. Errors:
 * as trf_file_load. */
static trf_status load_file(const trf_checkpoint *checkpoint, uint64_t max_bytes, trf_config_file *file,
                            trf_error *err) {
    struct stat info;
    char *folder = checkpoint->is_folder ? strdup(checkpoint->root) : trf_path_parent(checkpoint->root);
    *file = (trf_config_file){.path = folder ? trf_path_join(folder, TRF_MODEL_CONFIG_NAME) : NULL, .mode = 0666};
    free(folder);
    if (!file->path)
        return trf_fail_memory(err, strlen(checkpoint->root));
    if (stat(file->path, &info) == 0) {
        file->mode = info.st_mode & 0777;
        if (!S_ISREG(info.st_mode))
            return trf_fail(err, TRF_ERR_NOT_FOUND, TRF_NO_OFFSET, "%s: not a regular file", file->path);
    }
    return trf_file_load_within(checkpoint->budget, file->path, max_bytes, &file->text, &file->bytes, err);
}

/* Does the same, and parses it. Errors: also TRF_ERR_FORMAT (no JSON object). */
static trf_status read_file(const trf_checkpoint *checkpoint, uint64_t max_bytes, trf_config_file *file,
                            trf_error *err) {
    trf_status status = load_file(checkpoint, max_bytes, file, err);
    if (status == TRF_OK)
        status = trf_json_check(checkpoint->budget, file->path, file->text, file->bytes, 1, 2, err);
    if (status == TRF_OK)
        status = trf_json_parse_python(file->path, file->text, file->bytes, &file->root, &file->strict, err);
    if (status == TRF_OK && !json_is_object(file->root)) {
        json_decref(file->root);
        file->root = NULL;
        status = trf_fail(err, TRF_ERR_FORMAT, 0, "%s: not a JSON object", file->path);
    }
    return status;
}

/* @return the root's quantization_config if that is ours, or NULL. */
static json_t *find_ours(const json_t *root) {
    json_t *ours = json_object_get(root, TRF_CONFIG_KEY);
    const char *method = json_string_value(json_object_get(ours, "quant_method"));
    return method && strcmp(method, TRF_CONFIG_METHOD) == 0 ? ours : NULL;
}

/* ---- compressing ---- */

static int is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* @return the value of a member, or NULL if there is none, or null. */
static const json_t *get_value(const json_t *root, const char *key) {
    const json_t *value = json_object_get(root, key);
    return json_is_null(value) ? NULL : value;
}

static const json_t *get_dtype(const json_t *root) {
    const json_t *dtype = get_value(root, TRF_CONFIG_DTYPE);
    return dtype ? dtype : get_value(root, TRF_CONFIG_OLD_DTYPE);
}

/* @return malloc'd JSON text of what is added, or NULL without memory. */
static char *describe(const trf_config_file *source, const trf_encode_options *encode, int stored) {
    json_t *added = json_pack("{s:s,s:i,s:s,s:s}", "quant_method", TRF_CONFIG_METHOD, "version", TRF_FORMAT_VERSION,
                              "codec", trf_codec_name(encode->codec), "layout", "coded");
    int failed = !added || (encode->bits > 0 && json_object_set_new(added, "bits", json_real(encode->bits))) ||
                 (stored && json_object_set_new(added, "stored", json_true())) ||
                 json_object_set_new(added, TRF_CONFIG_SOURCE, json_stringn(source->text, source->bytes));
    char *text = failed ? NULL : trf_json_dump(added, JSON_REAL_PRECISION(15), NULL);
    json_decref(added);
    return text;
}

/* A config.json that is being edited: its text, and the same text as strict JSON. Each byte has the same place in
 * both. */
typedef struct trf_config_text {
    char *text, *strict;
    size_t bytes;
} trf_config_text;

static void cut_bytes(trf_config_text *config, size_t begin, size_t end) {
    memmove(config->text + begin, config->text + end, config->bytes - end + 1);
    memmove(config->strict + begin, config->strict + end, config->bytes - end + 1);
    config->bytes -= end - begin;
}

/* Moves bytes [begin, end) to *to, which becomes their end. */
static void move_bytes(trf_config_text *config, size_t *to, size_t begin, size_t end) {
    memmove(config->text + *to, config->text + begin, end - begin);
    memmove(config->strict + *to, config->strict + begin, end - begin);
    *to += end - begin;
}

/* Cuts out all members with a name, each with one comma. It takes one walk through the text, since a stranger may have
 * written the name a million times. */
static trf_status cut_member(trf_config_text *config, const char *key, trf_error *err) {
    trf_json_member member = {0};
    size_t to = 0, from = 0;
    int found;
    while ((found = trf_json_next_member(config->strict, config->bytes, key, &member)) > 0) {
        size_t comma = member.end;
        move_bytes(config, &to, from, member.begin);
        from = member.end;
        while (is_space(config->strict[comma]))
            comma++;
        if (config->strict[comma] == ',') {
            move_bytes(config, &to, from, comma);
            from = comma + 1;
        } else { /* the last member: cuts the comma before it, unless it is the only one */
            size_t before = to;
            while (is_space(config->strict[before - 1]))
                before--;
            if (config->strict[before - 1] == ',') {
                const size_t end = to;
                to = before - 1;
                move_bytes(config, &to, before, end);
            }
        }
    }
    if (found < 0)
        return trf_fail_memory(err, config->bytes);
    move_bytes(config, &to, from, config->bytes + 1);
    config->bytes = to - 1;
    return TRF_OK;
}

/* @return the first byte inside the braces of a member whose value is an object. begin: where the member begins. */
static size_t find_object(const char *strict, size_t begin) {
    size_t at = begin + 1;
    for (; strict[at] != '"'; at++) /* its name */
        at += strict[at] == '\\';
    return at + strcspn(strict + at, "{") + 1;
}

static trf_status insert_text(trf_config_text *config, size_t at, const trf_text *added, trf_error *err) {
    char **const copies[] = {&config->text, &config->strict};
    for (size_t i = 0; i < 2; i++) {
        char *longer = realloc(*copies[i], config->bytes + added->size + 1);
        if (!longer)
            return trf_fail_memory(err, config->bytes + added->size);
        *copies[i] = longer;
        memmove(longer + at + added->size, longer + at, config->bytes - at + 1);
        memcpy(longer + at, added->bytes, added->size);
    }
    config->bytes += added->size;
    return TRF_OK;
}

static int is_part(const char *key, const json_t *value) {
    return strcmp(key, TRF_CONFIG_KEY) != 0 && json_is_string(json_object_get(value, "model_type"));
}

/* Finds the last member of a name, which is the one that counts. @return as trf_json_next_member. */
static int find_last(const trf_config_text *config, const char *key, trf_json_member *member) {
    trf_json_member next = {0};
    int found, any = 0;
    while ((found = trf_json_next_member(config->strict, config->bytes, key, &next)) > 0)
        *member = next, any = 1;
    return found < 0 ? found : any;
}

/* Adds the sentence to the configs of a model's parts, too (text_config, vision_config ...), since a part may be loaded
 * by its own config alone. */
static trf_status add_to_parts(const trf_config_file *source, const char *weights, trf_config_text *config,
                               trf_error *err) {
    const char *key;
    json_t *value;
    unsigned parts = 0;
    trf_text added = {0};
    trf_text_append_json_string(&added, TRF_CONFIG_WEIGHTS);
    trf_text_append(&added, ": ", 2);
    trf_text_append_json_string(&added, weights);
    trf_text_append(&added, ", ", 2);
    trf_status status = added.failed ? trf_fail_memory(err, strlen(weights)) : TRF_OK;
    json_object_foreach(source->root, key, value) {
        trf_json_member member;
        if (status != TRF_OK || parts == TRF_MOST_PARTS)
            break;
        if (!is_part(key, value))
            continue;
        parts++;
        const int found = find_last(config, key, &member);
        if (found < 0)
            status = trf_fail_memory(err, config->bytes);
        else if (found)
            status = insert_text(config, find_object(config->strict, member.begin), &added, err);
    }
    trf_text_free(&added);
    return status;
}

/* Makes an editable copy, without a byte order mark. Release text and strict with free in every case. */
static trf_status begin_edit(const trf_config_file *source, trf_config_text *config, trf_error *err) {
    *config = (trf_config_text){malloc(source->bytes + 1), malloc(source->bytes + 1), source->bytes};
    if (!config->text || !config->strict)
        return trf_fail_memory(err, source->bytes);
    memcpy(config->text, source->text, source->bytes + 1);
    memcpy(config->strict, source->strict, source->bytes + 1);
    if ((uint8_t)config->text[0] == 0xEF) /* nothing else can come before an object */
        cut_bytes(config, 0, 3);
    return TRF_OK;
}

/* Writes the text with members added at its end, each in a line of its own if the closing brace has one. dtype,
 * weights: or NULL; ours: JSON. */
static trf_status add_members(const trf_config_text *source, const char *dtype, const char *weights, const char *ours,
                              trf_model_config *config, trf_error *err) {
    const struct {
        const char *key, *string;
    } members[] = {{TRF_CONFIG_DTYPE, dtype}, {TRF_CONFIG_WEIGHTS, weights}, {TRF_CONFIG_KEY, NULL}};
    size_t brace = source->bytes - 1, end;
    trf_text text = {0};
    while (source->text[brace] != '}') /* there is one: it was parsed */
        brace--;
    for (end = brace; is_space(source->text[end - 1]);)
        end--;
    int is_first = source->text[end - 1] == '{';
    const int has_lines = memchr(source->text + end, '\n', brace - end) != NULL;
    trf_text_append(&text, source->text, end);
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        const int is_ours = i + 1 == sizeof members / sizeof members[0];
        if (!is_ours && !members[i].string)
            continue;
        const char *before = has_lines ? ",\n  " : ", ";
        before += is_first;
        trf_text_append(&text, before, is_first && !has_lines ? 0 : strlen(before));
        trf_text_append_json_string(&text, members[i].key);
        trf_text_append(&text, ": ", 2);
        if (is_ours)
            trf_text_append(&text, ours, strlen(ours));
        else
            trf_text_append_json_string(&text, members[i].string);
        is_first = 0;
    }
    trf_text_append(&text, source->text + end, source->bytes - end);
    if (text.failed) {
        trf_text_free(&text);
        return trf_fail_memory(err, source->bytes);
    }
    config->text = text.bytes, config->bytes = text.size;
    return TRF_OK;
}

trf_status trf_source_config_read(const trf_checkpoint *checkpoint, trf_source_config *source, trf_error *err) {
    *source = (trf_source_config){0};
    trf_status status = read_file(checkpoint, TRF_MAX_MODEL_CONFIG_BYTES, &source->file, &source->failure);
    source->failure.status = status == TRF_ERR_NOT_FOUND ? TRF_OK : status;
    if (!trf_lacks_memory(status))
        return TRF_OK;
    if (err)
        *err = source->failure;
    return status;
}

void trf_source_config_free(trf_source_config *source) { free_file(&source->file); }

int trf_source_config_is_tied(const trf_source_config *source) {
    const json_t *root = source->file.root;
    return json_is_true(json_object_get(root, "tie_word_embeddings")) ||
           json_is_true(json_object_get(json_object_get(root, "text_config"), "tie_word_embeddings"));
}

trf_framework trf_source_config_framework(const trf_source_config *source) {
    const json_t *root = source->file.root;
    if (get_value(root, "_class_name"))
        return TRF_FRAMEWORK_DIFFUSERS;
    return get_value(root, "model_type") || get_value(root, "architectures") ? TRF_FRAMEWORK_TRANSFORMERS
                                                                             : TRF_FRAMEWORK_NONE;
}

const char *trf_source_config_dtype(const trf_source_config *source) {
    return json_string_value(get_dtype(source->file.root));
}

const char *trf_source_config_weights(const trf_source_config *source) {
    return json_string_value(get_value(source->file.root, TRF_CONFIG_WEIGHTS));
}

const json_t *trf_source_config_find_ours(const trf_source_config *source) { return find_ours(source->file.root); }

trf_status trf_model_config_compress(const trf_source_config *source, const trf_encode_options *encode, int stored,
                                     const char *dtype, trf_model_config *config, trf_error *err) {
    const trf_config_file *file = &source->file;
    const int is_transformers = trf_source_config_framework(source) == TRF_FRAMEWORK_TRANSFORMERS;
    const char *weights = !is_transformers ? NULL : stored ? kNeedsDecompressing : kNeeds;
    trf_config_text text;
    *config = (trf_model_config){.for_blobs_only = 1, .mode = file->mode};
    if (find_ours(file->root))
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "%s: its " TRF_CONFIG_KEY " is that of a compressed checkpoint", file->path);
    if (!file->root)
        return TRF_OK;
    if (!is_transformers || get_dtype(file->root))
        dtype = NULL;
    char *ours = describe(file, encode, stored);
    trf_status status = begin_edit(file, &text, err);
    if (status == TRF_OK && !ours)
        status = trf_fail_memory(err, file->bytes);
    if (status == TRF_OK)
        status = cut_member(&text, TRF_CONFIG_KEY, err);
    if (status == TRF_OK && dtype)
        status = cut_member(&text, TRF_CONFIG_DTYPE, err);
    if (status == TRF_OK && weights)
        status = cut_member(&text, TRF_CONFIG_WEIGHTS, err);
    if (status == TRF_OK && weights)
        status = add_to_parts(file, weights, &text, err);
    if (status == TRF_OK)
        status = add_members(&text, dtype, weights, ours, config, err);
    free(text.text);
    free(text.strict);
    free(ours);
    return status;
}

/* ---- decompressing ---- */

/* Removes the sentence, or the value that was in its place, from a config and from those of its parts. */
static void forget_weights(json_t *root) {
    const char *key;
    json_t *value;
    json_object_del(root, TRF_CONFIG_WEIGHTS);
    json_object_foreach(root, key, value) {
        if (is_part(key, value))
            json_object_del(value, TRF_CONFIG_WEIGHTS);
    }
}

/* @return whether a config.json says what the source's did, apart from the members that compressing adds or
 * replaces. */
static int is_unchanged(json_t *root, json_t *source) {
    json_object_del(root, TRF_CONFIG_KEY);
    json_object_del(source, TRF_CONFIG_KEY);
    if (!get_dtype(source)) {
        json_object_del(root, TRF_CONFIG_DTYPE);
        json_object_del(source, TRF_CONFIG_DTYPE);
    }
    /* A program that wrote the config anew may have left the sentence out, as transformers does, or kept it. */
    forget_weights(root);
    forget_weights(source);
    return json_equal(root, source);
}

/* @return whether files are compressed that belong to a config.json with the source's text. */
static int needs_kept_text(const trf_checkpoint *checkpoint) {
    int compressed = 0;
    for (size_t i = 0; i < checkpoint->num_files; i++) {
        if (trf_safetensors_metadata(&checkpoint->files[i].own_header, TRF_METADATA_CONFIG))
            return 0;
        compressed |= checkpoint->files[i].compressed;
    }
    return compressed;
}

/* Notes that the config.json stays as it is, and fails if the source's text is lost with it. why: the message of the
 * cause. */
static void lose_text(const trf_checkpoint *checkpoint, trf_status status, uint64_t offset, const char *why,
                      trf_model_config *config) {
    snprintf(config->note, sizeof config->note, "%.500s; it stays as it is", why);
    if (needs_kept_text(checkpoint))
        trf_fail(&config->failure, status, offset,
                 "%.700s; so the source's text, which it kept, is lost: put the source's " TRF_MODEL_CONFIG_NAME
                 " in its place to decompress the rest",
                 why);
}

/* Restores the text that is kept in `ours`. */
static trf_status take_kept(const trf_checkpoint *checkpoint, const trf_config_file *file, const json_t *ours,
                            trf_model_config *config, trf_error *err) {
    const json_t *kept = json_object_get(ours, TRF_CONFIG_SOURCE);
    json_t *source = NULL;
    const char *text = json_string_value(kept);
    size_t bytes = json_string_length(kept);
    trf_error failure;
    trf_status status = text ? trf_json_check(checkpoint->budget, file->path, text, bytes, 1, 3, err) : TRF_OK;
    if (status != TRF_OK)
        return status;
    if (text && trf_json_parse_python(file->path, text, bytes, &source, NULL, &failure) == TRF_ERR_MEMORY)
        return trf_fail_memory(err, bytes);
    if (!text || !json_is_object(source)) {
        json_decref(source);
        trf_fail(&failure, TRF_ERR_FORMAT, TRF_NO_OFFSET,
                 "%.600s: its " TRF_CONFIG_KEY " has no " TRF_CONFIG_SOURCE " that could be restored", file->path);
        lose_text(checkpoint, TRF_ERR_FORMAT, TRF_NO_OFFSET, failure.message, config);
        return TRF_OK;
    }
    if (!(config->text = malloc(bytes + 1))) {
        json_decref(source);
        return trf_fail_memory(err, bytes);
    }
    memcpy(config->text, text, bytes + 1);
    config->bytes = bytes;
    if (!is_unchanged(file->root, source)) /* is_unchanged removes the member, and `text` with it */
        snprintf(config->note, sizeof config->note,
                 "%.500s: was changed after compressing; the source's text counts, without the changes", file->path);
    json_decref(source);
    return TRF_OK;
}

/* @return whether the sentence is there, whose folder has a quantization_config of ours. */
static int says_compressed(const json_t *root) {
    const char *weights = json_string_value(json_object_get(root, TRF_CONFIG_WEIGHTS));
    return weights && strstr(weights, "compressed by transfuse");
}

/* Restores the source's text. Also gives the file itself, which the caller releases with free_file in every case, and
 * why it cannot be read. */
static trf_status restore_file(const trf_checkpoint *checkpoint, trf_config_file *file, trf_model_config *config,
                               trf_error *failure, trf_error *err) {
    trf_status status = read_file(checkpoint, TRF_MAX_COMPRESSED_CONFIG_BYTES, file, failure);
    *config = (trf_model_config){.mode = file->mode};
    if (trf_lacks_memory(status) && err)
        *err = *failure;
    if (trf_lacks_memory(status))
        return status;
    failure->status = status;
    if (status != TRF_OK && status != TRF_ERR_NOT_FOUND)
        lose_text(checkpoint, status, failure->offset, failure->message, config);
    const json_t *ours = find_ours(file->root);
    if (ours)
        return take_kept(checkpoint, file, ours, config, err);
    if (says_compressed(file->root)) {
        trf_fail(failure, TRF_ERR_FORMAT, TRF_NO_OFFSET,
                 "%.600s: " TRF_CONFIG_WEIGHTS " says that the folder is compressed, and there is no " TRF_CONFIG_KEY
                 " of transfuse",
                 file->path);
        lose_text(checkpoint, TRF_ERR_FORMAT, TRF_NO_OFFSET, failure->message, config);
    }
    return TRF_OK;
}

trf_status trf_model_config_restore(const trf_checkpoint *checkpoint, trf_model_config *config, trf_error *err) {
    trf_config_file file;
    trf_error failure = {0};
    *config = (trf_model_config){0};
    if (!checkpoint->is_folder)
        return TRF_OK;
    trf_status status = restore_file(checkpoint, &file, config, &failure, err);
    free_file(&file);
    return status;
}

trf_status trf_restored_models_read(const trf_checkpoint *checkpoint, void *context, trf_restored_models *models,
                                    trf_error *err) {
    *models = (trf_restored_models){0};
    while (trf_checkpoint_model(checkpoint, models->count))
        models->count++;
    models->configs = calloc(models->count, sizeof *models->configs);
    models->parts = calloc(models->count, sizeof *models->parts);
    if (!models->configs || !models->parts)
        return trf_fail_memory(err, models->count * sizeof *models->configs);
    trf_status status = TRF_OK;
    for (size_t i = 0; i < models->count && status == TRF_OK; i++) {
        models->parts[i] = (trf_rewrite_part){trf_checkpoint_model(checkpoint, i), &models->configs[i], context};
        status = trf_model_config_restore(models->parts[i].checkpoint, &models->configs[i], err);
    }
    return status;
}

void trf_restored_models_free(trf_restored_models *models) {
    for (size_t i = 0; models->configs && i < models->count; i++)
        trf_model_config_free(&models->configs[i]);
    free(models->configs);
    free(models->parts);
    *models = (trf_restored_models){0};
}

void trf_model_config_free(trf_model_config *config) {
    free(config->text);
    config->text = NULL;
}

trf_status trf_model_config_tell(const trf_model_config *config, trf_job *job, trf_error *err) {
    if (config->failure.status != TRF_OK)
        return trf_fail(err, config->failure.status, config->failure.offset, "%s", config->failure.message);
    if (*config->note)
        trf_job_note(job, "%s", config->note);
    return TRF_OK;
}

trf_status trf_model_config_is_lossless(const trf_checkpoint *checkpoint, int *lossless, trf_error *err) {
    trf_config_file file;
    trf_error failure;
    *lossless = 0;
    if (!checkpoint->is_folder)
        return TRF_OK;
    trf_status status = read_file(checkpoint, TRF_MAX_COMPRESSED_CONFIG_BYTES, &file, &failure);
    const char *codec = json_string_value(json_object_get(find_ours(file.root), "codec"));
    *lossless = codec && strcmp(codec, trf_codec_name(TRF_CODEC_AUTO)) == 0;
    free_file(&file);
    return trf_lacks_memory(status) ? trf_fail(err, status, failure.offset, "%s", failure.message) : TRF_OK;
}

/* ---- comparing ---- */

static trf_status compare_texts(const trf_config_file *ours, const trf_model_config *restored,
                                const trf_config_file *source, trf_error *err) {
    const char *text = restored->text ? restored->text : ours->text;
    size_t bytes = restored->text ? restored->bytes : ours->bytes, at = 0;
    while (at < bytes && at < source->bytes && text[at] == source->text[at])
        at++;
    if (at == bytes && at == source->bytes)
        return TRF_OK;
    return trf_fail(err, TRF_ERR_MISMATCH, at, "%s: %s differs from %s at byte %zu", ours->path,
                    restored->text ? "the source's text that it keeps" : "it", source->path, at);
}

trf_status trf_model_config_check(const trf_checkpoint *checkpoint, const trf_checkpoint *against, trf_job *job,
                                  trf_error *err) {
    trf_config_file ours = {0}, source;
    trf_model_config restored = {0};
    trf_error failure = {0};
    if (!checkpoint->is_folder || !against->is_folder)
        return TRF_OK;
    trf_status status = load_file(against, TRF_MAX_COMPRESSED_CONFIG_BYTES, &source, err);
    if (status != TRF_OK) {
        free_file(&source);
        return status == TRF_ERR_NOT_FOUND ? TRF_OK : status;
    }
    status = restore_file(checkpoint, &ours, &restored, &failure, err);
    if (status == TRF_OK && !ours.text)
        status = trf_fail(err, failure.status, failure.offset, "%s", failure.message);
    if (status == TRF_OK)
        status = compare_texts(&ours, &restored, &source, err);
    /* If a text cannot be read but is equal to the source's, that is no failure of ours. */
    if (status == TRF_OK && restored.text)
        status = trf_model_config_tell(&restored, job, err);
    trf_model_config_free(&restored);
    free_file(&ours);
    free_file(&source);
    return status;
}

trf_status trf_model_config_check_kept(const trf_checkpoint *checkpoint, trf_job *job, trf_error *err) {
    trf_model_config restored;
    trf_status status = trf_model_config_restore(checkpoint, &restored, err);
    if (status == TRF_OK && (restored.text || restored.failure.status != TRF_OK))
        status = trf_model_config_tell(&restored, job, err);
    trf_model_config_free(&restored);
    return status;
}

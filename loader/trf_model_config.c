/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a config.json is edited as text: what is not ours keeps its layout, and its numbers every digit. */
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

/* With the source's text in it, escaped, it is up to three times as long, and may have been laid out anew. */
enum {
    TRF_MAX_COMPRESSED_CONFIG_BYTES = 8 * TRF_MAX_MODEL_CONFIG_BYTES
};

/* Numbers all become reals: none is too large to be one of a sound config. */
static trf_status parse_config(const char *path, const char *text, size_t bytes, json_t **root, trf_error *err) {
    return trf_json_parse(path, text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, root,
                          err);
}

static void free_file(trf_config_file *file) {
    json_decref(file->root);
    free(file->text);
    free(file->path);
    *file = (trf_config_file){0};
}

/* That in the checkpoint's folder, or beside its file. Release with free_file in every case. Errors: as
 * trf_file_load. */
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
    return trf_file_load(file->path, max_bytes, &file->text, &file->bytes, err);
}

/* The same, and parses it. Errors: also TRF_ERR_FORMAT (no JSON object). */
static trf_status read_file(const trf_checkpoint *checkpoint, uint64_t max_bytes, trf_config_file *file,
                            trf_error *err) {
    trf_status status = load_file(checkpoint, max_bytes, file, err);
    if (status == TRF_OK)
        status = parse_config(file->path, file->text, file->bytes, &file->root, err);
    if (status == TRF_OK && !json_is_object(file->root))
        status = trf_fail(err, TRF_ERR_FORMAT, 0, "%s: not a JSON object", file->path);
    return status;
}

/* @return its quantization_config if that is ours, or NULL. */
static json_t *find_ours(const json_t *root) {
    json_t *ours = json_object_get(root, TRF_CONFIG_KEY);
    const char *method = json_string_value(json_object_get(ours, "quant_method"));
    return method && strcmp(method, TRF_CONFIG_METHOD) == 0 ? ours : NULL;
}

/* ---- compressing ---- */

static int is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* @return malloc'd JSON text of what is added, or NULL without memory. */
static char *describe(const trf_config_file *source, const trf_encode_options *encode) {
    json_t *added = json_pack("{s:s,s:i,s:s,s:s}", "quant_method", TRF_CONFIG_METHOD, "version", TRF_FORMAT_VERSION,
                              "codec", trf_codec_name(encode->codec), "layout", "coded");
    int failed = !added || (encode->bits > 0 && json_object_set_new(added, "bits", json_real(encode->bits))) ||
                 json_object_set_new(added, TRF_CONFIG_SOURCE, json_stringn(source->text, source->bytes));
    char *text = failed ? NULL : json_dumps(added, JSON_REAL_PRECISION(15));
    json_decref(added);
    return text;
}

/* Writes the source's text, with a member added at its end, in a line of its own if its brace stands in one. */
static trf_status add_member(const trf_config_file *source, const trf_encode_options *encode, trf_model_config *config,
                             trf_error *err) {
    size_t brace = source->bytes - 1, end;
    while (source->text[brace] != '}') /* there is one: it was parsed */
        brace--;
    for (end = brace; is_space(source->text[end - 1]);)
        end--;
    int has_lines = memchr(source->text + end, '\n', brace - end) != NULL;
    const char *before = has_lines ? "\n  " : json_object_size(source->root) ? " " : "";
    char *added = describe(source, encode);
    trf_text text = {0};
    trf_text_append(&text, source->text, end);
    trf_text_append(&text, ",", json_object_size(source->root) != 0);
    trf_text_append(&text, before, strlen(before));
    trf_text_append(&text, "\"" TRF_CONFIG_KEY "\": ", strlen("\"" TRF_CONFIG_KEY "\": "));
    if (added)
        trf_text_append(&text, added, strlen(added));
    trf_text_append(&text, source->text + end, source->bytes - end);
    if (!added || text.failed) {
        free(added);
        trf_text_free(&text);
        return trf_fail_memory(err, source->bytes);
    }
    free(added);
    config->text = text.bytes, config->bytes = text.size;
    return TRF_OK;
}

trf_status trf_source_config_read(const trf_checkpoint *checkpoint, trf_source_config *source, trf_error *err) {
    *source = (trf_source_config){0};
    trf_status status = read_file(checkpoint, TRF_MAX_MODEL_CONFIG_BYTES, &source->file, &source->failure);
    source->failure.status = status == TRF_ERR_NOT_FOUND ? TRF_OK : status;
    if (status != TRF_ERR_MEMORY)
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

trf_status trf_model_config_compress(const trf_source_config *source, const trf_encode_options *encode,
                                     trf_model_config *config, trf_error *err) {
    static const char consequence[] = "Hugging Face transformers will not load the compressed checkpoint";
    const trf_config_file *file = &source->file;
    *config = (trf_model_config){.for_blobs_only = 1, .mode = file->mode};
    if (source->failure.status != TRF_OK) {
        config->failure = source->failure.message;
        snprintf(config->warning, sizeof config->warning, "without a " TRF_CONFIG_KEY " in it, %s", consequence);
    } else if (find_ours(file->root)) {
        return trf_fail(err, TRF_ERR_ARGUMENT, TRF_NO_OFFSET,
                        "%s: its " TRF_CONFIG_KEY " is that of a compressed checkpoint", file->path);
    } else if (json_object_get(file->root, TRF_CONFIG_KEY)) {
        snprintf(config->warning, sizeof config->warning, "%.500s: keeps the " TRF_CONFIG_KEY " that it has; %s",
                 file->path, consequence);
    } else if (file->root) {
        return add_member(file, encode, config, err);
    }
    return TRF_OK;
}

/* ---- decompressing ---- */

/* @return whether a config.json says what the source's did, but for our member. */
static int is_unchanged(json_t *root, const json_t *source) {
    return json_object_del(root, TRF_CONFIG_KEY) == 0 && json_equal(root, source);
}

/* Takes the text that is kept in `ours`. */
static trf_status take_kept(const trf_config_file *file, const json_t *ours, trf_model_config *config, trf_error *err) {
    const json_t *kept = json_object_get(ours, TRF_CONFIG_SOURCE);
    json_t *source = NULL;
    const char *text = json_string_value(kept);
    size_t bytes = json_string_length(kept);
    trf_error failure;
    if (text && parse_config(file->path, text, bytes, &source, &failure) == TRF_ERR_MEMORY)
        return trf_fail_memory(err, bytes);
    if (!text || !json_is_object(source)) {
        json_decref(source);
        snprintf(config->warning, sizeof config->warning,
                 "%.500s: its " TRF_CONFIG_KEY " has no " TRF_CONFIG_SOURCE
                 " that could be restored; it stays as it is",
                 file->path);
        return TRF_OK;
    }
    if (!(config->text = malloc(bytes + 1))) {
        json_decref(source);
        return trf_fail_memory(err, bytes);
    }
    memcpy(config->text, text, bytes + 1);
    config->bytes = bytes;
    if (!is_unchanged(file->root, source)) /* it takes the member away, and with it `text` */
        snprintf(config->warning, sizeof config->warning,
                 "%.500s: was changed after compressing; the source's text counts, without the changes", file->path);
    json_decref(source);
    return TRF_OK;
}

/* Also gives the file itself, to be released with free_file in every case, and why it cannot be read. */
static trf_status restore_file(const trf_checkpoint *checkpoint, trf_config_file *file, trf_model_config *config,
                               trf_error *failure, trf_error *err) {
    trf_status status = read_file(checkpoint, TRF_MAX_COMPRESSED_CONFIG_BYTES, file, failure);
    *config = (trf_model_config){.mode = file->mode};
    if (status == TRF_ERR_MEMORY && err)
        *err = *failure;
    if (status == TRF_ERR_MEMORY)
        return status;
    failure->status = status;
    if (status != TRF_OK && status != TRF_ERR_NOT_FOUND)
        snprintf(config->warning, sizeof config->warning, "%.500s; it stays as it is", failure->message);
    const json_t *ours = find_ours(file->root);
    return ours ? take_kept(file, ours, config, err) : TRF_OK;
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

void trf_model_config_free(trf_model_config *config) {
    free(config->text);
    config->text = NULL;
}

void trf_model_config_warn(const trf_model_config *config, trf_checkpoint_report *report) {
    const size_t used = strlen(report->warning);
    const char *failure = config->failure && !used ? config->failure : ""; /* else it has been told */
    if (*config->warning)
        snprintf(report->warning + used, sizeof report->warning - used, "%.500s%s%s", failure,
                 used || *failure ? "; " : "", config->warning);
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

trf_status trf_model_config_check(const trf_checkpoint *checkpoint, const trf_checkpoint *against,
                                  trf_checkpoint_report *report, trf_error *err) {
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
    /* A text that cannot be read and is the source's is no failure of ours. */
    if (status == TRF_OK && restored.text)
        trf_model_config_warn(&restored, report);
    trf_model_config_free(&restored);
    free_file(&ours);
    free_file(&source);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_fp8_config.h"

#include <fnmatch.h>
#include <regex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define TRF_COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum {
    LEAST_BLOCK = 16,
    MOST_BLOCK = 1 << 20,
    MODELOPT_BLOCK = 128
};

__attribute__((format(printf, 2, 3))) static int refuse(trf_fp8_config *config, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(config->reason, sizeof config->reason, format, arguments);
    va_end(arguments);
    return 0;
}

/* @return the string of a member; `otherwise` if it is missing or null; "?" if it is no string. */
static const char *get_string(const json_t *object, const char *key, const char *otherwise) {
    const json_t *value = json_object_get(object, key);
    if (!value || json_is_null(value))
        return otherwise;
    return json_is_string(value) ? json_string_value(value) : "?";
}

static int is_one_of(const char *const *list, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcasecmp(list[i], name) == 0)
            return 1;
    return 0;
}

/* Takes the sides of blocks. @return whether they are taken. */
static int take_sides(trf_fp8_config *config, double rows, double cols) {
    if (rows != cols)
        return refuse(config, "blocks of %g x %g weights have one scale, and not squares", rows, cols);
    if (!(rows >= LEAST_BLOCK && rows <= MOST_BLOCK) || rows != (uint32_t)rows || (uint32_t)rows % LEAST_BLOCK)
        return refuse(config, "the side of a block is %g, and not a multiple of %d", rows, LEAST_BLOCK);
    if (config->block_size && config->block_size != (uint32_t)rows)
        return refuse(config, "blocks have different sides: %u and %g", (unsigned)config->block_size, rows);
    config->block_size = (uint32_t)rows;
    return 1;
}

/* Takes [rows, cols], whose numbers are reals as trf_json_parse_python reads them; nothing if the value is missing or
 * null. @return whether they are taken. */
static int take_block(trf_fp8_config *config, const json_t *sides) {
    if (!sides || json_is_null(sides))
        return 1;
    const json_t *rows = json_array_get(sides, 0), *cols = json_array_get(sides, 1);
    if (json_array_size(sides) != 2 || !json_is_number(rows) || !json_is_number(cols))
        return refuse(config, "the sides of a block are not two numbers");
    return take_sides(config, json_number_value(rows), json_number_value(cols));
}

/* Takes "128x128", in decimal digits alone, as compressed-tensors does. @return whether it is taken. */
static int take_block_text(trf_fp8_config *config, const char *name, const char *text) {
    static const char digits[] = "0123456789";
    const size_t rows = strspn(text, digits), cols = text[rows] == 'x' ? strspn(text + rows + 1, digits) : 0;
    if (!rows || !cols || text[rows + 1 + cols])
        return refuse(config, "%.40s has the block_structure '%.40s'", name, text);
    return take_sides(config, (double)strtoul(text, NULL, 10), (double)strtoul(text + rows + 1, NULL, 10));
}

static void add_ignored(trf_fp8_config *config, const json_t *list) {
    for (size_t i = 0; i < TRF_FP8_IGNORED_LISTS && json_is_array(list); i++)
        if (!config->ignored[i]) {
            config->ignored[i] = list;
            return;
        }
}

/* ---- methods ---- */

/* DeepSeek, Qwen and others: transformers' FineGrainedFP8, vLLM's and Mistral's fp8. */
static int take_fp8(trf_fp8_config *config, const json_t *told) {
    const char *format = get_string(told, "fmt", "e4m3");
    if (strcmp(format, "e4m3") != 0 && strcmp(format, "float8_e4m3fn") != 0)
        return refuse(config, "its fmt is '%.40s'", format);
    return take_block(config, json_object_get(told, "weight_block_size"));
}

static int take_group(trf_fp8_config *config, const char *name, const json_t *group) {
    static const char *const formats[] = {"float-quantized", "naive-quantized"};
    static const char *const strategies[] = {"tensor", "channel", "block"};
    const json_t *weights = json_object_get(group, "weights"), *block = json_object_get(weights, "block_structure");
    const double bits = json_number_value(json_object_get(weights, "num_bits"));
    const char *type = get_string(weights, "type", "int"), *strategy = get_string(weights, "strategy", "tensor"),
               *format = get_string(group, "format", formats[0]);
    if (bits != 8 || strcmp(type, "float") != 0)
        return refuse(config, "%.40s has weights of %g bits of type %.20s", name, bits, type);
    if (!is_one_of(strategies, TRF_COUNT(strategies), strategy))
        return refuse(config, "%.40s has a scale for each '%.20s' of weights", name, strategy);
    if (!is_one_of(formats, TRF_COUNT(formats), format))
        return refuse(config, "%.40s has the format '%.40s'", name, format);
    if (json_is_false(json_object_get(weights, "symmetric")))
        return refuse(config, "%.40s has weights with zero points", name);
    if (strcmp(strategy, "block") != 0)
        return 1;
    return json_is_string(block) ? take_block_text(config, name, json_string_value(block)) : take_block(config, block);
}

static int take_compressed_tensors(trf_fp8_config *config, const json_t *told) {
    static const char *const formats[] = {"float-quantized", "naive-quantized", "mixed-precision"};
    json_t *groups = json_object_get(told, "config_groups"), *group;
    const char *name, *format = get_string(told, "format", formats[0]),
                      *sparse = get_string(json_object_get(told, "sparsity_config"), "format", "dense");
    add_ignored(config, json_object_get(told, "ignore"));
    if (!is_one_of(formats, TRF_COUNT(formats), format))
        return refuse(config, "its format is '%.40s'", format);
    if (strcmp(sparse, "dense") != 0)
        return refuse(config, "weights are sparse, of the format '%.40s'", sparse);
    if (json_object_size(json_object_get(told, "transform_config")))
        return refuse(config, "it has a transform_config, by which activations are rotated");
    if (!json_object_size(groups))
        return refuse(config, "it has no config_groups");
    json_object_foreach(groups, name, group) {
        if (!take_group(config, name, group))
            return 0;
    }
    return 1;
}

/* told: "quantization_config" of config.json, or "quantization" of hf_quant_config.json. */
static int take_modelopt(trf_fp8_config *config, const json_t *told) {
    static const char *const kinds[] = {"FP8", "FP8_PB_WO", "FP8_PER_CHANNEL_PER_TOKEN"};
    const char *algorithm = get_string(told, "quant_algo", "none");
    if (!is_one_of(kinds, TRF_COUNT(kinds), algorithm))
        return refuse(config, "its quant_algo is '%.40s'", algorithm);
    if (strcasecmp(algorithm, kinds[1]) == 0)
        config->block_size = MODELOPT_BLOCK;
    return 1;
}

static int take_fbgemm(trf_fp8_config *config, const json_t *told) {
    (void)config, (void)told;
    return 1;
}

void trf_fp8_config_read(const json_t *root, const json_t *modelopt, trf_fp8_config *config) {
    static const struct {
        const char *method;
        int (*take)(trf_fp8_config *config, const json_t *told);
    } methods[] = {{"fp8", take_fp8},
                   {"compressed-tensors", take_compressed_tensors},
                   {"modelopt", take_modelopt},
                   {"fbgemm_fp8", take_fbgemm}};
    static const char *const lists[] = {"modules_to_not_convert", "ignored_layers", "exclude_modules", "ignore"};
    const json_t *own = json_object_get(root, TRF_QUANTIZATION_KEY), *file = json_object_get(modelopt, "quantization");
    const json_t *told = json_is_object(own) ? own : file;
    const char *method = json_is_object(own) ? get_string(own, "quant_method", NULL) : file ? "modelopt" : NULL;
    *config = (trf_fp8_config){0};
    for (size_t i = 0; i < TRF_COUNT(methods) && method; i++)
        if (strcmp(methods[i].method, method) == 0) {
            config->method = methods[i].method;
            config->is_taken = methods[i].take(config, told);
        }
    if (told == file && !config->is_taken) /* what the file says then matters to others */
        *config = (trf_fp8_config){0};
    /* modelopt's file beside another method's config, or beside a config of its own, must not say something else. */
    if (config->is_taken && file && told != file)
        config->is_taken = strcmp(config->method, "modelopt") == 0
                               ? take_modelopt(config, file)
                               : refuse(config, "there is also a file " TRF_MODELOPT_FILE);
    for (size_t i = 0; i < TRF_COUNT(lists); i++)
        add_ignored(config, json_object_get(told, lists[i]));
}

/* ---- modules that are not quantized ---- */

/* @return whether a name of a list is that of a tensor's module, or of one that it is in. */
static int names_module(const char *listed, const char *tensor) {
    const size_t length = strlen(listed);
    if (strpbrk(listed, "*?[")) {
        char below[320];
        const int written = snprintf(below, sizeof below, "%s.*", listed);
        return fnmatch(listed, tensor, 0) == 0 || ((size_t)written < sizeof below && fnmatch(below, tensor, 0) == 0);
    }
    for (const char *at = length ? strstr(tensor, listed) : NULL; at; at = strstr(at + 1, listed))
        if ((at == tensor || at[-1] == '.') && (at[length] == '.' || at[length] == 0))
            return 1;
    return 0;
}

enum {
    MOST_PATTERN_BYTES = 1024,
    MOST_COPIES = 64 /* of a part of a pattern: regcomp writes repetitions out, and nested ones take gigabytes */
};

/* @return how often the repetition at text, which begins with a brace, writes out what is before it; at least 1. */
static unsigned long count_copies(const char *text) {
    char *end;
    unsigned long least = strtoul(text + 1, &end, 10), most = *end == ',' ? strtoul(end + 1, &end, 10) : 0;
    most = most > least ? most : least;
    return most ? most : 1;
}

/* Writes a regular expression of Python's as one of POSIX, which begins where the text does. @return 0 if the
 * expression has what POSIX does not, such as looking ahead, lazy repetition, or escapes between brackets, or repeats
 * too much. */
static int translate_pattern(const char *python, char posix[MOST_PATTERN_BYTES]) {
    static const char same_escapes[] = ".^$*+?()[]{}|\\/-wWsSbB";
    size_t used = (size_t)snprintf(posix, MOST_PATTERN_BYTES, "^(");
    unsigned long copies = 1;
    int is_in_brackets = 0;
    for (const char *at = python; *at; at++) {
        char piece[6] = {*at, 0};
        if (*at == '\\' && at[1] == 'd' && !is_in_brackets) {
            snprintf(piece, sizeof piece, "[0-9]");
            at++;
        } else if (*at == '\\') {
            if (is_in_brackets || !at[1] || !strchr(same_escapes, at[1]))
                return 0;
            snprintf(piece, sizeof piece, strchr("/-", at[1]) ? "%.1s" : "\\%.1s", at + 1);
            at++;
        } else if (*at == '(' && at[1] == '?' && !is_in_brackets) {
            if (at[2] != ':')
                return 0;
            at += 2;
        } else if (*at == '{' && !is_in_brackets) {
            const unsigned long more = count_copies(at);
            if (more > MOST_COPIES || (copies *= more) > MOST_COPIES)
                return 0;
        } else if (strchr("*+?}", *at) && (at[1] == '?' || at[1] == '+') && !is_in_brackets) {
            return 0;
        }
        if (*at == '[' && !is_in_brackets && piece[0] == '[' && !piece[1])
            is_in_brackets = 1;
        else if (*at == ']' && piece[0] == ']')
            is_in_brackets = 0;
        if (used + strlen(piece) + 2 > MOST_PATTERN_BYTES)
            return 0;
        used += (size_t)snprintf(posix + used, MOST_PATTERN_BYTES - used, "%s", piece);
    }
    snprintf(posix + used, MOST_PATTERN_BYTES - used, ")");
    return 1;
}

/* @return whether a regular expression fits the beginning of the name of a tensor's module, as Python's re.match has
 * it, by which compressed-tensors goes. One that cannot be translated fits nothing. */
static int pattern_fits_module(const char *pattern, const char *tensor) {
    char posix[MOST_PATTERN_BYTES], module[MOST_PATTERN_BYTES];
    const char *end = strrchr(tensor, '.');
    regex_t compiled;
    const int length = snprintf(module, sizeof module, "%.*s", end ? (int)(end - tensor) : (int)strlen(tensor), tensor);
    if ((size_t)length >= sizeof module || !translate_pattern(pattern, posix) ||
        regcomp(&compiled, posix, REG_EXTENDED | REG_NOSUB) != 0)
        return 0;
    const int fits = regexec(&compiled, module, 0, NULL, 0) == 0;
    regfree(&compiled);
    return fits;
}

int trf_fp8_config_ignores(const trf_fp8_config *config, const char *tensor) {
    for (size_t i = 0; i < TRF_FP8_IGNORED_LISTS && config->ignored[i]; i++) {
        size_t k;
        json_t *listed;
        json_array_foreach(config->ignored[i], k, listed) {
            const char *name = json_string_value(listed);
            if (!name)
                continue;
            if (strncmp(name, "re:", 3) == 0 ? pattern_fits_module(name + 3, tensor) : names_module(name, tensor))
                return 1;
        }
    }
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_json.h"

#include "trf_file.h"

#include <stdlib.h>
#include <string.h>

/* What Jansson takes for each character of a text, its malloc's own bytes included: tables grow by doubling, and the
 * old one is there beside the new one. tests/unit/test_limits.c measures it. */
enum {
    BYTES_OF_CHARACTER = 4, /* a string, and the buffer in which it is read */
    BYTES_OF_COLON = 320,   /* a key, its entry, and the value, which may be a string */
    BYTES_OF_COMMA = 112,   /* a value of an array */
    BYTES_OF_ARRAY = 272,   /* and its first value */
    BYTES_OF_OBJECT = 320,
    BYTES_OF_PARSER = 4096
};

uint64_t trf_json_bytes(const char *text, size_t bytes) {
    uint64_t total = BYTES_OF_PARSER + BYTES_OF_CHARACTER * (uint64_t)bytes;
    for (size_t i = 0; i < bytes; i++) {
        const char c = text[i];
        total += c == ':'   ? BYTES_OF_COLON
                 : c == ',' ? BYTES_OF_COMMA
                 : c == '[' ? BYTES_OF_ARRAY
                 : c == '{' ? BYTES_OF_OBJECT
                            : 0;
    }
    return total;
}

trf_status trf_json_check(const trf_budget *budget, const char *path, const char *text, size_t bytes, unsigned trees,
                          unsigned copies, trf_error *err) {
    if (!budget || !budget->max_bytes)
        return TRF_OK;
    const uint64_t needed = trees * trf_json_bytes(text, bytes) + copies * (uint64_t)bytes;
    trf_status status = trf_budget_check(budget, needed, "its JSON", err);
    return status == TRF_OK ? TRF_OK : trf_prefix_error(err, status, "%s", path);
}

json_t *trf_json_load(const char *text, size_t bytes, size_t flags, json_error_t *json_error) {
    json_t *root = json_loadb(text, bytes, flags, json_error);
    const char *nul = root ? memchr(text, 0, bytes) : NULL;
    if (!nul)
        return root;
    json_decref(root);
    memset(json_error, 0, sizeof *json_error);
    json_error->position = (int)(nul - text);
    strcpy(json_error->text, "NUL byte");
    json_error->text[sizeof json_error->text - 1] = json_error_invalid_syntax; /* where Jansson has its code */
    return NULL;
}

trf_status trf_json_parse(const char *path, const char *text, size_t bytes, size_t flags, json_t **root,
                          trf_error *err) {
    json_error_t json_error;
    *root = trf_json_load(text, bytes, flags, &json_error);
    if (*root)
        return TRF_OK;
    if (trf_json_lacked_memory(&json_error))
        return trf_fail_memory(err, bytes);
    return trf_fail(err, TRF_ERR_FORMAT, (uint64_t)json_error.position, "%s: not valid JSON: %s at byte %d", path,
                    json_error.text, json_error.position);
}

json_t *trf_json_copy(const json_t *object) {
    json_t *copy = json_object();
    if (json_object_update(copy, (json_t *)object) == 0)
        return copy;
    json_decref(copy);
    return NULL;
}

char *trf_json_dump(const json_t *root, size_t flags, size_t *bytes) {
    const size_t size = json_dumpb(root, NULL, 0, flags); /* 0 is a failure; it takes no memory for the text */
    char *text = size ? malloc(size + 1) : NULL;
    if (text && json_dumpb(root, text, size, flags) != size) {
        free(text);
        return NULL;
    }
    if (text)
        text[size] = 0;
    if (text && bytes)
        *bytes = size;
    return text;
}

/* ---- JSON as Python reads it ---- */

/* Replaces a number that strict JSON does not allow, or that no double holds. Spaces fill the rest of its place. */
#define TRF_STAND_IN "1e308"
#define TRF_STAND_IN_NAN "9e9"
enum {
    TRF_LARGEST_EXPONENT = 308, /* of a double, in decimal */
    TRF_EXPONENT_BOUND = 1 << 28
};

static int is_digit(char c) { return c >= '0' && c <= '9'; }
static int is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static void fill(char *place, size_t bytes, const char *text) {
    memset(place, ' ', bytes);
    memcpy(place, text, strlen(text));
}

static size_t count_digits(const char *text, size_t bytes) {
    size_t digits = 0;
    while (digits < bytes && is_digit(text[digits]))
        digits++;
    return digits;
}

/* @return whether an unsigned token is a JSON number of 10^308 or above. */
static int is_too_large(const char *token, size_t bytes) {
    size_t whole = count_digits(token, bytes), at = whole, fraction = 0;
    const size_t fraction_at = whole + 1;
    int64_t exponent = 0;
    if (whole == 0 || (whole > 1 && token[0] == '0'))
        return 0;
    if (at < bytes && token[at] == '.') {
        fraction = count_digits(token + at + 1, bytes - at - 1);
        at += 1 + fraction;
        if (fraction == 0)
            return 0;
    }
    if (at < bytes && (token[at] == 'e' || token[at] == 'E')) {
        int negative = ++at < bytes && token[at] == '-';
        at += at < bytes && (token[at] == '-' || token[at] == '+');
        size_t digits = count_digits(token + at, bytes - at);
        if (digits == 0)
            return 0;
        for (size_t i = 0; i < digits && exponent < TRF_EXPONENT_BOUND; i++)
            exponent = exponent * 10 + (token[at + i] - '0');
        exponent = negative ? -exponent : exponent;
        at += digits;
    }
    size_t zeros = 0;
    while (token[0] == '0' && zeros < fraction && token[fraction_at + zeros] == '0')
        zeros++;
    if (at != bytes || (token[0] == '0' && zeros == fraction))
        return 0;
    return exponent + (token[0] == '0' ? -(int64_t)zeros - 1 : (int64_t)whole - 1) >= TRF_LARGEST_EXPONENT;
}

static int is_word_part(char c) {
    return is_digit(c) || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '+' || c == '-' || c == '.';
}

/* Makes the word or number at text strict JSON. @return its bytes, or 1 for another character. */
static size_t mend_word(char *text, size_t bytes) {
    const size_t sign = text[0] == '-';
    size_t size = 0;
    while (size < bytes && is_word_part(text[size]))
        size++;
    if (size <= sign)
        return 1;
    char *token = text + sign;
    const size_t rest = size - sign;
    if (size == 3 && memcmp(text, "NaN", 3) == 0)
        fill(text, size, TRF_STAND_IN_NAN);
    else if ((rest == 8 && memcmp(token, "Infinity", 8) == 0) || is_too_large(token, rest))
        fill(token, rest, TRF_STAND_IN);
    return size;
}

/* @return the code of an escape \uXXXX at text, or -1. */
static long escaped_code(const char *text, size_t bytes) {
    char digits[5] = {0};
    char *end;
    if (bytes < 6 || text[0] != '\\' || text[1] != 'u')
        return -1;
    memcpy(digits, text + 2, 4);
    if (strspn(digits, "0123456789abcdefABCDEF") != 4)
        return -1;
    return strtol(digits, &end, 16);
}

/* @return the bytes of a string, quotes included; if it does not end, all bytes. */
static size_t string_size(const char *text, size_t bytes) {
    size_t at = 1;
    while (at < bytes && text[at] != '"')
        at += text[at] == '\\' ? 2 : 1;
    return at < bytes ? at + 1 : bytes;
}

/* Makes the string at text strict JSON. @return its bytes. */
static size_t mend_string(char *text, size_t bytes) {
    const size_t size = string_size(text, bytes);
    size_t behind = size;
    while (behind < bytes && is_space(text[behind]))
        behind++;
    const int is_key = behind < bytes && text[behind] == ':';
    for (size_t at = 1; at < size; at++) {
        if (text[at] != '\\')
            continue;
        long code = escaped_code(text + at, size - at), next = -1;
        if (code >= 0xD800 && code < 0xDC00)
            next = escaped_code(text + at + 6, size - at - 6);
        if (next >= 0xDC00 && next < 0xE000)
            at += 11; /* a pair */
        else if ((code >= 0xD800 && code < 0xE000) || (code == 0 && is_key))
            memcpy(text + at + 2, "fffd", 4);
        else
            at++; /* the escaped character may be a backslash */
    }
    return size;
}

trf_status trf_json_parse_python(const char *path, const char *text, size_t bytes, json_t **root, char **strict,
                                 trf_error *err) {
    static const char mark[] = "\xEF\xBB\xBF";
    char *mended = malloc(bytes + 1);
    *root = NULL;
    if (strict)
        *strict = NULL;
    if (!mended)
        return trf_fail_memory(err, bytes);
    memcpy(mended, text, bytes);
    mended[bytes] = 0;
    if (bytes >= 3 && memcmp(text, mark, 3) == 0)
        memset(mended, ' ', 3);
    for (size_t at = 0; at < bytes;)
        at += mended[at] == '"' ? mend_string(mended + at, bytes - at) : mend_word(mended + at, bytes - at);
    trf_status status = trf_json_parse(path, mended, bytes, JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, root, err);
    if (status == TRF_OK && strict)
        *strict = mended;
    else
        free(mended);
    return status;
}

/* ---- members of a text ---- */

static size_t skip_space(const char *text, size_t at) {
    while (is_space(text[at]))
        at++;
    return at;
}

/* @return where the value at `at` ends, in strict JSON: before the comma or bracket that follows it. */
static size_t value_end(const char *text, size_t bytes, size_t at) {
    size_t depth = 0, end = at;
    while (at < bytes) {
        const char c = text[at];
        if (depth == 0 && strchr(",}]", c))
            break;
        depth += c == '{' || c == '[';
        depth -= c == '}' || c == ']';
        at += c == '"' ? string_size(text + at, bytes - at) : 1;
        end = is_space(c) ? end : at;
    }
    return end;
}

/* @return whether a string of the text is this one; -1 without memory. */
static int is_string(const char *text, size_t bytes, const char *value) {
    if (bytes == strlen(value) + 2 && memcmp(text + 1, value, bytes - 2) == 0)
        return 1;
    if (!memchr(text, '\\', bytes))
        return 0;
    json_t *string = json_loadb(text, bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    int same = string ? strcmp(json_string_value(string), value) == 0 : -1;
    json_decref(string);
    return same;
}

int trf_json_next_member(const char *strict, size_t bytes, const char *key, trf_json_member *member) {
    size_t at = member->next ? member->next : skip_space(strict, skip_space(strict, 0) + 1);
    while (at < bytes && strict[at] == '"') {
        const size_t key_at = at, key_bytes = string_size(strict + at, bytes - at);
        at = skip_space(strict, at + key_bytes) + 1; /* after the colon */
        const size_t last = value_end(strict, bytes, skip_space(strict, at));
        const int same = is_string(strict + key_at, key_bytes, key);
        at = skip_space(strict, last);
        at = skip_space(strict, at + (strict[at] == ','));
        if (same) {
            *member = (trf_json_member){key_at, last, at};
            return same;
        }
    }
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_values.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

int cli_parse_uint(const char *text, uint64_t min, uint64_t max, uint64_t *value) {
    if (!isdigit((unsigned char)text[0]))
        return -1;
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno || *end || *value < min || *value > max ? -1 : 0;
}

int cli_parse_real(const char *text, double min, double max, double *value) {
    if (isspace((unsigned char)text[0]))
        return -1;
    char *end;
    *value = strtod(text, &end);
    return end == text || *end || !(*value >= min && *value <= max) ? -1 : 0;
}

int cli_parse_bytes(const char *text, uint64_t *bytes) {
    static const char units[] = "KMGT";
    char digits[24], *unit;
    const size_t length = strlen(text);
    uint64_t factor = 1;
    if (length == 0 || length >= sizeof digits)
        return -1;
    memcpy(digits, text, length + 1);
    unit = strchr(units, digits[length - 1]);
    if (unit) {
        digits[length - 1] = 0;
        for (const char *u = units; u <= unit; u++)
            factor *= 1000;
    }
    if (cli_parse_uint(digits, 1, UINT64_MAX / factor, bytes))
        return -1;
    *bytes *= factor;
    return 0;
}

int cli_parse_name(const char *text, const char *const *names) {
    for (int i = 0; names[i]; i++) {
        if (strcmp(text, names[i]) == 0)
            return i;
    }
    return -1;
}

int cli_parse_granularity(const char *text, trf_granularity *granularity, uint32_t *scale_group_size) {
    uint64_t size = 0;
    if (strcmp(text, "tensor") == 0) {
        *granularity = TRF_GRANULARITY_TENSOR;
    } else if (strcmp(text, "channel") == 0) {
        *granularity = TRF_GRANULARITY_CHANNEL;
    } else if (strncmp(text, "scale-group:", 12) == 0 || strncmp(text, "scale-block:", 12) == 0) {
        *granularity = text[6] == 'g' ? TRF_GRANULARITY_SCALE_GROUP : TRF_GRANULARITY_SCALE_BLOCK;
        if (cli_parse_uint(strchr(text, ':') + 1, 16, 1 << 20, &size) || size % 16)
            return -1;
    } else {
        return -1;
    }
    *scale_group_size = (uint32_t)size;
    return 0;
}

int cli_parse_shape(const char *text, cli_shape *shape) {
    char rows_text[64];
    const char *x = strchr(text, 'x');
    if (!x || (size_t)(x - text) >= sizeof rows_text)
        return -1;
    memcpy(rows_text, text, (size_t)(x - text));
    rows_text[x - text] = 0;

    uint64_t rows, cols;
    if (cli_parse_uint(rows_text, 1, INT32_MAX, &rows) || cli_parse_uint(x + 1, 1, INT32_MAX, &cols))
        return -1;
    shape->rows = (uint32_t)rows;
    shape->cols = (uint32_t)cols;
    return 0;
}

int cli_parse_mixture(const char *text, cli_mixture *mixture) {
    static const char ends[] = "xx/";
    uint32_t *const sizes[] = {&mixture->experts, &mixture->inner, &mixture->hidden, &mixture->routed};
    const uint64_t most[] = {512, 1 << 20, 1 << 20, 32};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char number[64];
        uint64_t value;
        const size_t length = strspn(text, "0123456789");
        if (length == 0 || length >= sizeof number || text[length] != ends[i])
            return -1;
        memcpy(number, text, length);
        number[length] = 0;
        if (cli_parse_uint(number, 1, most[i], &value))
            return -1;
        *sizes[i] = (uint32_t)value;
        text += length + 1;
    }
    return mixture->routed > mixture->experts ? -1 : 0;
}

int cli_parse_list(const char *text, int (*take)(void *context, const char *list_entry), void *context) {
    for (;;) {
        char list_entry[64];
        size_t length = strcspn(text, ",");
        if (length == 0 || length >= sizeof list_entry)
            return -1;
        memcpy(list_entry, text, length);
        list_entry[length] = 0;
        if (take(context, list_entry))
            return -1;
        if (!text[length])
            return 0;
        text += length + 1;
    }
}

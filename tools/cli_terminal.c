/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_terminal.h"

#include "cli_messages.h"
#include "cli_values.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
    kDefaultColumns = 80,
    kLeastColumns = 20,
    kLabelColumns = 18, /* of a summary */
    kLeastIndent = 4
};

int cli_terminal_columns(int descriptor) {
    struct winsize window;
    if (ioctl(descriptor, TIOCGWINSZ, &window) == 0 && window.ws_col >= kLeastColumns)
        return window.ws_col;
    return kDefaultColumns;
}

int cli_table_columns(int *may_cut) {
    const char *text = getenv("COLUMNS");
    uint64_t columns;
    *may_cut = 1;
    if (text && cli_parse_uint(text, kLeastColumns, 10000, &columns) == 0)
        return (int)columns;
    *may_cut = isatty(STDOUT_FILENO);
    return *may_cut ? cli_terminal_columns(STDOUT_FILENO) : kDefaultColumns;
}

static int is_first_byte(char c) { return ((unsigned char)c & 0xC0) != 0x80; }

size_t cli_count_characters(const char *text) {
    size_t count = 0;
    for (; *text; text++)
        count += is_first_byte(*text);
    return count;
}

/* @return where a text's character of this number begins, or the text's end. */
static char *find_character(char *text, size_t number) {
    size_t count = 0;
    for (; *text; text++) {
        if (is_first_byte(*text) && count++ == number)
            break;
    }
    return text;
}

void cli_cut_middle(char *text, size_t characters) {
    const size_t length = cli_count_characters(text);
    if (length <= characters || characters < 5)
        return;
    const size_t behind = (characters - 3) / 2, before = characters - 3 - behind;
    char *const middle = find_character(text, before);
    const char *const end = find_character(text, length - behind);
    memcpy(middle, "...", 3); /* three characters or more lie between */
    memmove(middle + 3, end, strlen(end) + 1);
}

/* @return the space at which a text with more characters than that is broken; or its end. */
static char *find_break(char *text, size_t characters) {
    char *const limit = find_character(text, characters);
    char *at = limit;
    if (!*limit)
        return limit;
    while (at > text && *at != ' ')
        at--;
    while (at > text && at[-1] == ' ')
        at--;
    return at > text ? at : limit + strcspn(limit, " ");
}

/* label_bytes: the beginning of the line, which is not broken and which following lines leave free. */
static void print_folded(char *line, size_t label_bytes) {
    int may_cut;
    const size_t columns = (size_t)cli_table_columns(&may_cut);
    const int has_room = label_bytes && 2 * label_bytes <= columns;
    size_t indent = 0, skipped = has_room ? label_bytes : strspn(line, " ");
    do {
        char *const end = find_break(line + skipped, columns - indent - skipped);
        printf("%*s%.*s\n", (int)indent, "", (int)(end - line), line);
        line = end + strspn(end, " ");
        indent = has_room ? label_bytes : kLeastIndent;
        skipped = 0;
    } while (*line);
}

void cli_report_line(const char *label, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    const int length = vsnprintf(NULL, 0, format, args);
    char *const line = length < 0 ? NULL : malloc(kLabelColumns + (size_t)length + 1);
    if (line) {
        const int label_bytes = label ? sprintf(line, "  %-*.*s ", kLabelColumns - 3, kLabelColumns - 3, label) : 0;
        vsnprintf(line + label_bytes, (size_t)length + 1, format, again);
        cli_printable(line, line, strlen(line) + 1); /* there may be paths in it */
        print_folded(line, (size_t)label_bytes);
    } else { /* a line that is too long is better than none */
        vprintf(format, again);
        putchar('\n');
    }
    free(line);
    va_end(again);
    va_end(args);
}

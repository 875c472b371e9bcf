/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_terminal.h"

#include "cli_values.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
    kDefaultColumns = 80,
    kLeastColumns = 20
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

/* @return the place of a text's character of this number, or its end. */
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

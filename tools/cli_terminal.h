/* SPDX-License-Identifier: Apache-2.0 */
/* How wide lines may be, and cutting of texts to that width. */
#ifndef CLI_TERMINAL_H
#define CLI_TERMINAL_H

#include <stddef.h>

/* @return the columns of the terminal that a descriptor leads to; 80 if it does not say, or if there is no terminal. */
int cli_terminal_columns(int descriptor);

/* @return the columns that a table on standard output may take: what $COLUMNS says, or else the terminal; 80 if there
 * is neither. *may_cut: whether texts may be cut to that. The reader of a pipe looks for whole names, unless $COLUMNS
 * is set. */
int cli_table_columns(int *may_cut);

/* Prints a line of a summary on standard output: a label, which may be NULL, and a text in printf's way. A line that is
 * wider than a table may be is broken at spaces; a single word that is wider, such as a path, stays whole. */
__attribute__((format(printf, 2, 3))) void cli_report_line(const char *label, const char *format, ...);

/* @return the number of characters of a UTF-8 text, which is nearly how many columns it takes on a terminal. */
size_t cli_count_characters(const char *text);

/* Cuts a UTF-8 text to so many characters, at least 5, with "..." in its middle, since the ends of names tell them
 * apart. */
void cli_cut_middle(char *text, size_t characters);

#endif

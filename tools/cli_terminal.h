/* SPDX-License-Identifier: Apache-2.0 */
/* How wide lines may be, and texts that are cut to that. */
#ifndef CLI_TERMINAL_H
#define CLI_TERMINAL_H

#include <stddef.h>

/* @return the columns of the terminal that a descriptor leads to; 80 if it does not say, or is none. */
int cli_terminal_columns(int descriptor);

/* Columns that a table on standard output may take: as $COLUMNS says, or else the terminal; 80 where there is neither.
 * *may_cut: whether texts may be cut to that. Whoever reads a pipe looks for whole names, unless $COLUMNS is set. */
int cli_table_columns(int *may_cut);

/* Prints a line of a summary on standard output: a label, or NULL, and a text as of printf. A line that is wider than a
 * table may be is broken at spaces; a word that is wider, as a path may be, stays whole. */
__attribute__((format(printf, 2, 3))) void cli_report_line(const char *label, const char *format, ...);

/* @return columns that a UTF-8 text takes on a terminal, near enough: its characters. */
size_t cli_count_characters(const char *text);

/* Cuts a UTF-8 text to so many characters, at least 5, by "..." in its middle: the ends of names tell them apart. */
void cli_cut_middle(char *text, size_t characters);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Guesses what was meant by a mistyped word. */
#ifndef CLI_SUGGEST_H
#define CLI_SUGGEST_H

/* words: NULL-terminated. @return the one of words that begins with typed, or that differs from it by few letters; NULL
 * if none is near. */
const char *cli_suggest(const char *typed, const char *const *words);

#endif

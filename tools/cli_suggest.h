/* SPDX-License-Identifier: Apache-2.0 */
/* What was probably meant by a word that is mistyped. */
#ifndef CLI_SUGGEST_H
#define CLI_SUGGEST_H

/* words: NULL-terminated. @return the one of words that begins with typed, or that few changes of letters make of it;
 * NULL if none is near. */
const char *cli_suggest(const char *typed, const char *const *words);

#endif

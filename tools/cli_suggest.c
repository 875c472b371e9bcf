/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_suggest.h"

#include <ctype.h>
#include <string.h>

enum {
    kMaxLength = 31 /* of words that are compared */
};

static int least(int a, int b) { return a < b ? a : b; }

static int are_same_letter(char a, char b) { return tolower((unsigned char)a) == tolower((unsigned char)b); }

/* @return how many letters have to be inserted, deleted, changed, or exchanged with the next one to turn a into b: the
 * optimal string alignment distance. Both have at most kMaxLength letters. */
static int measure_distance(const char *a, const char *b) {
    int cost[kMaxLength + 1][kMaxLength + 1];
    const int a_length = (int)strlen(a), b_length = (int)strlen(b);
    for (int i = 0; i <= a_length; i++) {
        for (int j = 0; j <= b_length; j++) {
            if (i == 0 || j == 0) {
                cost[i][j] = i + j;
                continue;
            }
            const int changed = cost[i - 1][j - 1] + !are_same_letter(a[i - 1], b[j - 1]);
            cost[i][j] = least(changed, 1 + least(cost[i - 1][j], cost[i][j - 1]));
            if (i > 1 && j > 1 && are_same_letter(a[i - 1], b[j - 2]) && are_same_letter(a[i - 2], b[j - 1]))
                cost[i][j] = least(cost[i][j], cost[i - 2][j - 2] + 1);
        }
    }
    return cost[a_length][b_length];
}

const char *cli_suggest(const char *typed, const char *const *words) {
    const size_t length = strlen(typed);
    const char *nearest = NULL;
    int nearest_distance = kMaxLength + 1;
    if (length < 2 || length > kMaxLength)
        return NULL;
    for (; *words; words++) {
        if (strlen(*words) > kMaxLength)
            continue;
        const int is_beginning = strncmp(*words, typed, length) == 0;
        const int distance = is_beginning ? 0 : measure_distance(typed, *words);
        /* A third of the letters may be wrong. */
        const size_t longer = strlen(*words) > length ? strlen(*words) : length;
        if (distance < nearest_distance && distance <= (int)longer / 3) {
            nearest = *words;
            nearest_distance = distance;
        }
    }
    return nearest;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_json.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_int lacked_memory; /* whether an allocation has failed since cli_json_begin */

static void *watched_malloc(size_t bytes) {
    void *memory = malloc(bytes);
    if (!memory)
        atomic_store(&lacked_memory, 1);
    return memory;
}

void cli_json_begin(void) {
    json_set_alloc_funcs(watched_malloc, free);
    atomic_store(&lacked_memory, 0);
}

trf_status cli_json_write(json_t *root, size_t flags, FILE *file) {
    char *text = atomic_load(&lacked_memory) ? NULL : json_dumps(root, flags);
    json_decref(root);
    trf_status status = TRF_OK;
    if (!text || atomic_load(&lacked_memory))
        status = TRF_ERR_MEMORY;
    else if (fputs(text, file) == EOF || fputc('\n', file) == EOF)
        status = TRF_ERR_IO;
    free(text);
    return status;
}

json_t *cli_json_text(const char *text) {
    json_t *string = json_string(text);
    if (string)
        return string;
    const size_t bytes = strlen(text) + 1;
    char *copy = watched_malloc(bytes);
    if (!copy)
        return NULL;
    memcpy(copy, text, bytes);
    for (char *c = copy; *c; c++) {
        if ((unsigned char)*c >= 0x80)
            *c = '?';
    }
    string = json_string(copy);
    free(copy);
    return string;
}

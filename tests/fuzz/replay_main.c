/* SPDX-License-Identifier: Apache-2.0 */
/* Replays stored inputs through a fuzz target, for compilers without libFuzzer and for the test suite.
 * Arguments are files and folders, walked in depth. One that does not exist is skipped: a target's corpus begins with
 * its first finding. The empty input is always tried. */
#define _XOPEN_SOURCE 700
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned long replayed_count;

static int replay_file(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)place;
    if (kind != FTW_F)
        return 0;
    /* Exactly as large as the input, so that the address sanitizer sees a read one byte past it. */
    size_t size = (size_t)info->st_size;
    uint8_t *data = malloc(size ? size : 1);
    FILE *file = fopen(path, "rb");
    int failed = !data || !file || fread(data, 1, size, file) != size;
    if (failed) {
        perror(path);
    } else {
        LLVMFuzzerTestOneInput(data, size);
        replayed_count++;
    }
    if (file)
        fclose(file);
    free(data);
    return failed;
}

int main(int argc, char **argv) {
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    for (int i = 1; i < argc; i++)
        if (access(argv[i], F_OK) == 0 && nftw(argv[i], replay_file, 16, FTW_PHYS) != 0)
            return 1;
    printf("%lu inputs replayed\n", replayed_count);
    return 0;
}

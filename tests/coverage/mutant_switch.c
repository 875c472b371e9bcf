/* SPDX-License-Identifier: Apache-2.0 */
/* Linked into a test by mutate.py: runs the test once for each mutant whose number is in TRF_MUTANTS (such as
 * "3,17,18"), in a process of its own, and writes a line "NUMBER STATUS" to the descriptor TRF_MUTANTS_FD; the status
 * is 0 if all tests passed. TRF_MUTANTS_CPU_S: how many seconds of processor time a run may take. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int trf_mutant; /* what the mutated functions go by; 0: no change */

static void limit(int resource, rlim_t most) {
    const struct rlimit bounds = {most, most};
    setrlimit(resource, &bounds);
}

__attribute__((constructor)) static void run_all(void) {
    const char *next = getenv("TRF_MUTANTS"), *fd = getenv("TRF_MUTANTS_FD"), *cpu = getenv("TRF_MUTANTS_CPU_S");
    if (!next || !fd || !cpu)
        return;
    limit(RLIMIT_CORE, 0);
    while (*next) {
        char *end;
        const int number = (int)strtol(next, &end, 10);
        next = *end == ',' ? end + 1 : end;
        const pid_t child = fork();
        if (child == 0) { /* goes on to main */
            limit(RLIMIT_CPU, (rlim_t)atoi(cpu));
            trf_mutant = number;
            return;
        }
        int status = -1;
        waitpid(child, &status, 0);
        dprintf(atoi(fd), "%d %d\n", number, status);
    }
    _exit(0);
}

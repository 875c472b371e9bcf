/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* sched_getaffinity */
#include "bench_environment.h"

#include "cli_messages.h"

#include <sched.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

static void read_cpu_name(char *name, size_t name_bytes) {
    struct utsname machine;
    snprintf(name, name_bytes, "%s", uname(&machine) == 0 ? machine.machine : "unknown CPU");
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (file && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon) {
            line[strcspn(line, "\n")] = 0;
            cli_printable(colon + 1 + strspn(colon + 1, " "), name, name_bytes);
            break;
        }
    }
    if (file)
        fclose(file);
}

void bench_add_machine(bench_fields *environment) {
    char date[32], cpu[128];
    time_t now = time(NULL);
    struct tm utc;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    read_cpu_name(cpu, sizeof cpu);
    bench_add_bare_text(environment, "date", date);
    bench_add_name(environment, "cpu", cpu);
}

void bench_add_conditions(bench_fields *environment, const cli_options *options) {
    bench_add_integer(environment, "runs", (uint64_t)options->repeats);
    bench_add_bare_text(environment, "distribution", options->student_t ? "student-t" : "normal");
}

int bench_count_cores(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

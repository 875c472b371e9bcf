/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse: the command line tool. Everything that it does, it does through transfuse.h. */
#include "cli_messages.h"
#include "cli_options.h"
#include "cli_signals.h"
#include "cli_suggest.h"

#include <errno.h>
#include <fcntl.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const cli_command *const kCommands[] = {&cmd_compress, &cmd_decompress, &cmd_verify, &cmd_info,   &cmd_extract,
                                               &cmd_matmul,   &cmd_bench,      &cmd_tune,   &cmd_layouts};
enum {
    kNumCommands = sizeof kCommands / sizeof kCommands[0]
};

static const char *const kGeneralOptions[] = {"--help", "--version", NULL};

static void print_usage(FILE *file) {
    fputs("usage: transfuse COMMAND [OPTIONS]\n"
          "Entropy-coded weights of large language models.\n\n",
          file);
    for (int i = 0; i < kNumCommands; i++)
        fprintf(file, "  %-12s%s\n", kCommands[i]->name, kCommands[i]->summary);
    fputs("  help        tell more of a command\n", file);
    fputs("\n"
          "  -h, --help     print this\n"
          "  -V, --version  print the version\n\n"
          "Where the Python package is installed, 'transfuse doctor' says what works on\n"
          "this machine. Exit status: 0 done, 1 failed, 2 wrong usage, 3 no such device,\n"
          "128 and a signal's number: stopped by it (130 by Ctrl-C).\n",
          file);
}

/* Opens standard descriptors that the caller has closed; else a file would get such a descriptor, and messages would be
 * written into it. Reading and writing still fail on them, as they did. */
static void take_closed_descriptors(void) {
    for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; descriptor++) {
        if (fcntl(descriptor, F_GETFD) < 0 && open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
            return;
    }
}

/* Output that could not be written is a failure, whatever the command returned. A failure that the command has reported
 * is not reported again. */
static int flush_stdout(int status) {
    if ((fflush(stdout) == 0 && !ferror(stdout)) || status != CLI_OK)
        return status;
    fprintf(stderr, "transfuse: standard output: %s [TRF_ERR_IO]\n", strerror(errno));
    return CLI_FAILED;
}

static int run_command(const cli_command *command, int argc, char **argv) {
    cli_options options;
    int help;
    int status = cli_options_parse(command, argc, argv, &options, &help);
    if (status == CLI_OK && help)
        fputs(command->help, stdout);
    else if (status == CLI_OK)
        status = command->run(&options);
    cli_options_free(&options);
    return flush_stdout(status);
}

static const cli_command *find_command(const char *name) {
    for (int i = 0; i < kNumCommands; i++) {
        if (strcmp(name, kCommands[i]->name) == 0)
            return kCommands[i];
    }
    return NULL;
}

/* A user whose word is not nearly a command sees which commands there are. */
static int fail_unknown_command(const char *name) {
    const char *words[kNumCommands + 3] = {"doctor", "help"};
    for (int i = 0; i < kNumCommands; i++)
        words[i + 2] = kCommands[i]->name;
    words[kNumCommands + 2] = NULL;
    if (strcmp(name, "doctor") == 0) {
        fputs("transfuse: this is the program alone; 'doctor' comes with the Python package, which 'pip install .'\n"
              "in transfuse's sources installs.\n",
              stderr);
        return CLI_USAGE;
    }
    const char *near = cli_suggest(name, words);
    char option[64], text[256];
    snprintf(option, sizeof option, "--%s", name);
    if (!near && name[0] && name[1]) /* 'version' */
        near = cli_suggest(option, kGeneralOptions);
    fprintf(stderr, "transfuse: unknown command '%s'%s%s%s\n", cli_printable(name, text, sizeof text),
            near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    if (!near) {
        fputs("Commands: ", stderr);
        for (int i = 0; i < kNumCommands; i++)
            fprintf(stderr, "%s, ", kCommands[i]->name);
        fputs("doctor (of the Python package), help\n", stderr);
    }
    fputs("Try 'transfuse --help'.\n", stderr);
    return CLI_USAGE;
}

static int fail_unknown(const char *name) {
    if (name[0] != '-')
        return fail_unknown_command(name);
    const char *near = cli_suggest(name, kGeneralOptions);
    char text[256];
    fprintf(stderr, "transfuse: unknown option '%s'%s%s%s\nTry 'transfuse --help'.\n",
            cli_printable(name, text, sizeof text), near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    return CLI_USAGE;
}

static int fail_unexpected(const char *word, const char *argument) {
    char text[256];
    fprintf(stderr, "transfuse %s: unexpected argument '%s'\nTry 'transfuse --help'.\n", word,
            cli_printable(argument, text, sizeof text));
    return CLI_USAGE;
}

/* help [COMMAND], or --help for it */
static int run_help(int argc, char **argv) {
    if (argc > 2)
        return fail_unexpected(argv[0], argv[2]);
    const int is_general =
        argc < 2 || strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0;
    const cli_command *command = is_general ? NULL : find_command(argv[1]);
    if (!is_general && !command)
        return fail_unknown(argv[1]);
    if (command)
        fputs(command->help, stdout);
    else
        print_usage(stdout);
    return flush_stdout(CLI_OK);
}

/* Work on a tensor takes some megabytes. The C library would give them back to the kernel after each tensor and get
 * them zeroed again for the next one, which takes 5 % of the time of compressing. */
static void keep_freed_memory(void) {
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 32 << 20); /* the largest value allowed; setting it stops it from adapting */
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
#endif
}

int main(int argc, char **argv) {
    take_closed_descriptors();
    keep_freed_memory();
    cli_signals_prepare();
    if (argc < 2) {
        print_usage(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    const cli_command *command = find_command(name);
    if (command)
        return run_command(command, argc - 1, argv + 1);
    if (strcmp(name, "help") == 0)
        return run_help(argc - 1, argv + 1);
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return run_help(argc - 1, argv + 1);
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        if (argc > 2)
            return fail_unexpected(name, argv[2]);
        printf("transfuse %s\n", trf_version());
        return flush_stdout(CLI_OK);
    }
    return fail_unknown(name);
}

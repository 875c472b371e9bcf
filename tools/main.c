/* SPDX-License-Identifier: Apache-2.0 */
/* transfuse: the command line tool. Everything that it does, it does through transfuse.h. */
#include "cli_messages.h"
#include "cli_options.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const cli_command *const kCommands[] = {&cmd_compress, &cmd_decompress, &cmd_verify, &cmd_info,
                                               &cmd_extract,  &cmd_matmul,     &cmd_bench,  &cmd_tune};
enum {
    kNumCommands = sizeof kCommands / sizeof kCommands[0]
};

static void print_usage(FILE *file) {
    fputs("usage: transfuse COMMAND [OPTIONS]\n"
          "Entropy-coded weights of large language models.\n\n",
          file);
    for (int i = 0; i < kNumCommands; i++)
        fprintf(file, "  %-12s%s\n", kCommands[i]->name, kCommands[i]->summary);
    fputs(
        "\n'transfuse COMMAND --help' tells more; 'transfuse --version' prints the version. Where the Python package\n"
        "is installed, 'transfuse doctor' says what works on this machine.\n"
        "Exit status: 0 done, 1 failed, 2 wrong usage, 3 no such device.\n",
        file);
}

/* Output that could not be written is a failure, whatever the command says. */
static int flush_stdout(int status) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    fprintf(stderr, "transfuse: standard output: %s [TRF_ERR_IO]\n", strerror(errno));
    return status == CLI_OK ? CLI_FAILED : status;
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

int main(int argc, char **argv) {
    cli_signals_prepare();
    if (argc < 2) {
        print_usage(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_usage(stdout);
        return flush_stdout(CLI_OK);
    }
    if (strcmp(name, "--version") == 0) {
        printf("transfuse %s\n", trf_version());
        return flush_stdout(CLI_OK);
    }
    for (int i = 0; i < kNumCommands; i++) {
        if (strcmp(name, kCommands[i]->name) == 0)
            return run_command(kCommands[i], argc - 1, argv + 1);
    }
    if (strcmp(name, "doctor") == 0) {
        fputs("transfuse: this is the program alone; 'doctor' comes with the Python package, which 'pip install .'\n"
              "in transfuse's sources installs.\n",
              stderr);
        return CLI_USAGE;
    }
    fprintf(stderr, "transfuse: unknown command '%s'\nTry 'transfuse --help'.\n", name);
    return CLI_USAGE;
}

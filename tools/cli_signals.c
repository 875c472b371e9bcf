/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_signals.h"

#include <signal.h>
#include <unistd.h>

/* The first three also end a command that is not at work yet; for the others the default, which for most is a core
 * dump, is wanted there. */
static const int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXCPU, SIGPIPE};
enum {
    kNumStopSignals = sizeof kStopSignals / sizeof kStopSignals[0],
    kNumEarlySignals = 3
};

static volatile sig_atomic_t caught;

static void end_process(int number) { _exit(CLI_STOPPED + number); }

static void note_signal(int number) { caught = number; }

static void handle(int count, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    for (int i = 0; i < count; i++) {
        struct sigaction old;
        /* nohup, and shells that start background jobs, have some of them ignored; that must stay so. */
        if (sigaction(kStopSignals[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(kStopSignals[i], &action, NULL);
    }
}

void cli_signals_prepare(void) {
    signal(SIGXFSZ, SIG_IGN);
    handle(kNumEarlySignals, end_process);
}

void cli_signals_catch(void) { handle(kNumStopSignals, note_signal); }

int cli_signals_caught(void) { return caught; }

cli_exit cli_signals_failure(void) { return caught ? (cli_exit)(CLI_STOPPED + caught) : CLI_FAILED; }

static void mask_stop_signals(int how) {
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < kNumStopSignals; i++)
        sigaddset(&set, kStopSignals[i]);
    sigprocmask(how, &set, NULL);
}

void cli_signals_hold(void) { mask_stop_signals(SIG_BLOCK); }

void cli_signals_settle(int failed) {
    if (failed)
        mask_stop_signals(SIG_UNBLOCK);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Signals that stop a command. Whenever a signal ends it, the exit status is 128 plus the signal's number. */
#ifndef CLI_SIGNALS_H
#define CLI_SIGNALS_H

#include "cli_options.h"

/* Call this once, at the start. SIGINT, SIGTERM and SIGHUP then end the process with an exit status rather than by the
 * signal, so that the status is the same as after a clean-up. If a file grows beyond the limit on its size (ulimit -f),
 * the write fails. */
void cli_signals_prepare(void);

/* From here on SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXCPU (ulimit -t) and SIGPIPE (nobody reads the messages) are only
 * noted, for a run that asks now and then whether to stop, and then takes its temporaries away. */
void cli_signals_catch(void);

/* @return the number of the last signal that was noted; 0 if there was none. */
int cli_signals_caught(void);

/* @return the exit status of a command that failed: 128 plus the number of a signal that was noted, or CLI_FAILED. */
cli_exit cli_signals_failure(void);

/* ---- short writes that cannot be stopped half way: signals wait until it is settled what became of them ---- */

void cli_signals_hold(void);

/* After a failure, signals that have waited are obeyed now. After a success they wait until the process ends: the
 * output has its name, and the exit status must say so. */
void cli_signals_settle(int failed);

#endif

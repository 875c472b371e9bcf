/* SPDX-License-Identifier: Apache-2.0 */
/* Signals that stop a command. Whenever one of them ends it, the exit status is 128 and the signal's number. */
#ifndef CLI_SIGNALS_H
#define CLI_SIGNALS_H

#include "cli_options.h"

/* Once, at the start. SIGINT, SIGTERM and SIGHUP end the process, by an exit status rather than by the signal, so that
 * it is the same as after a clean-up. A file that grows beyond the limit on its size (ulimit -f) is a write that fails.
 */
void cli_signals_prepare(void);

/* From here on SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGXCPU (ulimit -t) are only noted, for a run that asks now and
 * then whether to stop, and then takes its temporaries away. */
void cli_signals_catch(void);

/* @return the number of the last signal that was noted; 0 if there was none. */
int cli_signals_caught(void);

/* @return the exit status of a command that failed: 128 and the number of a signal that was noted, or CLI_FAILED. */
cli_exit cli_signals_failure(void);

/* ---- short writes that cannot be stopped half way: signals wait until it is settled what became of them ---- */

void cli_signals_hold(void);

/* After a failure waiting signals are obeyed now. After a success they wait on, until the process ends: the output has
 * its name, and the exit status is to say so. */
void cli_signals_settle(int failed);

#endif

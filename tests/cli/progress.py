# SPDX-License-Identifier: Apache-2.0
"""Looks at the progress that transfuse shows. Usage: progress.py TRANSFUSE, in a folder with mixed.safetensors and
large.safetensors
"""

import os
import pty
import re
import signal
import subprocess
import sys
import time

binary = sys.argv[1]
LARGE = ["compress", "large.safetensors", "-o", "result.safetensors", "-f", "-T", "1"]


def run_on_terminal(*arguments, pause=0.0):
    """@return what the terminal shows; pause: seconds for which the command is stopped when it has shown something."""
    master, terminal = pty.openpty()
    process = subprocess.Popen([binary, *arguments], stdout=subprocess.PIPE, stderr=terminal)
    os.close(terminal)
    shown = b""
    try:
        while output := os.read(master, 4096):
            if pause and not shown:
                process.send_signal(signal.SIGSTOP)
                time.sleep(pause)
                process.send_signal(signal.SIGCONT)
            shown += output
    except OSError:  # the other end is closed
        pass
    os.close(master)
    process.communicate()
    assert process.returncode == 0, shown
    return shown.decode()


def run_to_pipe(*arguments):
    return subprocess.run([binary, *arguments], check=True, capture_output=True, text=True).stderr


def check_terminal():
    for verb, *arguments in (
        ("compressing", "compress", "mixed.safetensors", "-o", "compressed.safetensors"),
        ("verifying", "verify", "compressed.safetensors"),
        ("decompressing", "decompress", "compressed.safetensors", "-o", "decompressed.safetensors"),
    ):
        shown = run_on_terminal(*arguments)
        assert shown.startswith(f"\r\x1b[K{verb}") and " % of " not in shown and "%" in shown, repr(shown)
        assert shown.endswith("\r\x1b[K") and "\n" not in shown, repr(shown)
    verify = "verify", "compressed.safetensors"
    assert run_on_terminal(*verify, "--progress", "never") == ""
    assert run_on_terminal(*verify, "--quiet") == ""
    # With the names of tensors, each name has a line of its own, and the changing line is wiped before it.
    shown = run_on_terminal(*verify, "--verbose")
    assert re.search("(^|\n|\x1b\\[K)transfuse: verifying layers.0.q_proj.weight\r\n", shown), repr(shown)


def check_rate():
    shown = run_on_terminal(*LARGE, pause=1.0)
    assert re.search(r"compressing +\d+ %, [^\r]* of [^\r]*, [0-9.]+ [kMG]?B/s, \d+:\d\d left  ", shown), repr(shown)


def check_pipe():
    for when in ([], ["--progress", "auto"], ["--progress", "never"]):
        assert run_to_pipe("verify", "compressed.safetensors", *when) == "", when
    for more in ([], ["--quiet"]):
        shown = run_to_pipe("verify", "compressed.safetensors", "--progress", "always", *more)
        assert re.fullmatch(r"(transfuse: verifying +\d+ %, .*\n)+", shown), repr(shown)


def check_seldom_line():
    """Half a minute without a terminal: a line. The command is stopped for that long, so that nothing is computed."""
    for delay in 0.05, 0.02, 0.1, 0.01:
        process = subprocess.Popen([binary, *LARGE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(delay)
        if process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            time.sleep(30.5)
            process.send_signal(signal.SIGCONT)
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors
        if errors:
            assert re.fullmatch(r"transfuse: compressing +\d+ %, .*\n", errors), errors
            return
    raise AssertionError("no line after half a minute")


check_terminal()
check_rate()
check_pipe()
if "TRF_TEST_QUICK" not in os.environ:
    check_seldom_line()

"""Stops transfuse in the middle of its work. Usage: interrupt.py TRANSFUSE

A shell cannot do this: what it starts in the background ignores SIGINT.
"""

import os
import signal
import subprocess
import sys
import time

TRIES = 8


def busy(process):
    """Waits until the command shows that it is at work: by a file that was not there, or by time spent."""
    before = set(os.listdir("."))
    start = time.monotonic()
    while process.poll() is None and time.monotonic() - start < 0.05:
        if set(os.listdir(".")) - before:
            return


def interrupt(command, number):
    """@return whether the command was stopped rather than done before the signal came."""
    before = set(os.listdir("."))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    busy(process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=200)
    left = set(os.listdir(".")) - before
    if process.returncode == 0:
        for name in left:
            os.unlink(name)
        return False
    # Before the command has its handlers the signal ends it, and there is nothing to leave behind.
    assert process.returncode in (1, -number), (command, process.returncode, errors)
    assert not left, (command, left)
    if process.returncode == 1:
        assert "interrupted [TRF_ERR_CANCELLED]" in errors, errors
    return process.returncode == 1


def main():
    binary = sys.argv[1]
    for arguments in (
        ["compress", "large.safetensors", "-o", "result"],
        ["compress", "large.safetensors", "-o", "result", "--bits", "4.25"],
        ["decompress", "packed.safetensors", "-o", "result"],
        ["verify", "packed.safetensors"],
    ):
        for number in (signal.SIGINT, signal.SIGTERM):
            stopped = any(interrupt([binary, *arguments, "-T", "1"], number) for _ in range(TRIES))
            assert stopped, f"{arguments}: never caught at work in {TRIES} tries"


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Stops transfuse in the middle of its work. Usage: interrupt.py TRANSFUSE

A shell cannot do this: what it starts in the background ignores SIGINT.
"""

import os
import resource
import signal
import subprocess
import sys
import time

# Seconds until the signal, try by try: some for fast machines, some for slow ones.
DELAYS = 0.05, 0.02, 0.1, 0.01, 0.2, 0.005, 0.5, 0.002


def wait_until_busy(process, delay):
    """Waits until the command shows that it is at work: by a file that was not there, or by time spent."""
    before = set(os.listdir("."))
    start = time.monotonic()
    while process.poll() is None and time.monotonic() - start < delay:
        if set(os.listdir(".")) - before:
            return


def interrupt(command, number, delay):
    """@return whether the command was stopped rather than done before the signal came."""
    before = set(os.listdir("."))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until_busy(process, delay)
    process.send_signal(number)
    _, errors = process.communicate(timeout=200)
    left = set(os.listdir(".")) - before
    if process.returncode == 0:
        for name in left:
            os.unlink(name)
        return False
    # Before the command has its handlers, the signal ends it, and it has nothing to leave behind.
    assert process.returncode in (128 + number, -number), (command, process.returncode, errors)
    assert not left, (command, left)
    # A signal that comes before the library works ends the command with the same status, but without a message.
    if errors:
        assert "interrupted [TRF_ERR_CANCELLED]" in errors and process.returncode == 128 + number, errors
    return bool(errors)


def check_status_without_library(binary):
    """If no run of the library asks whether to stop, the exit status is the same."""
    for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
        process = subprocess.Popen([binary, "bench", "--layers", "4096x4096"], stdout=subprocess.PIPE)
        os.read(process.stdout.fileno(), 1)  # it is at work
        process.send_signal(number)
        process.communicate(timeout=200)
        assert process.returncode == 128 + number, (number, process.returncode)


def check_reader_that_ends(binary):
    """If the reader of the messages ends, as head does, so does the command, and takes its temporary away."""
    arguments = [binary, "compress", "small.safetensors", "-o", "result", "-v"]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    os.read(process.stderr.fileno(), 1)
    process.stderr.close()
    status = process.wait(timeout=200)
    if status == 0:  # it had said all that it had to say
        os.unlink("result")
    else:
        assert status == 128 + signal.SIGPIPE, status


def wait_on_signal():
    """Runs in the new process: SIGTERM waits until it is unblocked, so that nothing else decides when it comes."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.kill(os.getpid(), signal.SIGTERM)


def check_status_tells_output(binary, arguments, output):
    """If a signal comes while the output is written, the exit status says whether the output exists."""
    process = subprocess.run([binary, *arguments], preexec_fn=wait_on_signal, capture_output=True, text=True)
    assert (process.returncode == 0) == os.path.exists(output), (arguments, process.returncode, process.stderr)
    if process.returncode == 0:
        os.unlink(output)
    else:
        assert process.returncode in (1, 128 + signal.SIGTERM), (arguments, process.returncode)
    return process.returncode == 0


def main():
    binary = sys.argv[1]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    both = signal.SIGINT, signal.SIGTERM
    for arguments, numbers in (
        (["compress", "large.safetensors", "-o", "result"], (*both, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU)),
        (["compress", "large.safetensors", "-o", "result", "--bits", "4.25"], both),
        (["decompress", "compressed.safetensors", "-o", "result"], both),
        (["verify", "compressed.safetensors"], both),
    ):
        for number in numbers:
            stopped = any(interrupt([binary, *arguments, "-T", "1"], number, delay) for delay in DELAYS)
            assert stopped, f"{arguments}: never caught at work in {len(DELAYS)} tries"
    check_status_without_library(binary)
    check_reader_that_ends(binary)
    for arguments in (
        ["extract", "compressed.safetensors", "big.weight", "-o", "result"],
        ["matmul", "layer.trf", "x.npy", "-o", "result"],
        ["bench", "--layers", "16x16", "--codec", "bf16", "--runs", "1", "--json", "result"],
        ["tune", "layer.trf", "--max-batch", "1", "-o", "result"],
        ["compress", "small.safetensors", "-o", "result"],
        ["decompress", "layer.trf", "-o", "result"],
    ):
        assert check_status_tells_output(binary, arguments, "result"), arguments
    assert not check_status_tells_output(binary, ["extract", "compressed.safetensors", "no", "-o", "result"], "result")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Stops `compress --resume` once it has encoded something. Usage: resume.py TRANSFUSE SIGNAL ARGUMENT...

The signal is sent when the journal beside the output has two records; KILL leaves what is there as it is.
"""

import glob
import os
import signal
import subprocess
import sys
import time

RECORDS = 24 + 2 * 64  # bytes of a journal with two records


def main():
    binary, name, *arguments = sys.argv[1:]
    process = subprocess.Popen([binary, *arguments])
    until = time.monotonic() + 100
    while process.poll() is None and time.monotonic() < until:
        if any(os.path.getsize(path) >= RECORDS for path in glob.glob("*.transfuse-resume-*")):
            process.send_signal(getattr(signal, "SIG" + name))
            break
        time.sleep(0.001)
    status = process.wait(timeout=200)
    number = getattr(signal, "SIG" + name)
    assert status in (-number, 128 + number), f"ended with {status} before it could be stopped"


if __name__ == "__main__":
    main()

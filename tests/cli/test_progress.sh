#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Progress is shown on standard error if that is a terminal, and wiped at the end.
. "$(dirname "$0")/common.sh"
need_numpy

"$TRF_PYTHON" "$here/make_checkpoint.py" mixed mixed.safetensors || exit 1
"$TRF_PYTHON" - "$TRANSFUSE" <<'PYTHON' || fail "progress on a terminal"
import os, pty, subprocess, sys

def run(*arguments):
    master, terminal = pty.openpty()
    process = subprocess.Popen([sys.argv[1], *arguments], stdout=subprocess.PIPE, stderr=terminal)
    os.close(terminal)
    shown = b""
    try:
        while output := os.read(master, 4096):
            shown += output
    except OSError:  # the other end is closed
        pass
    os.close(master)
    assert process.wait() == 0, shown
    return shown.decode()

for verb, *arguments in (
    ("compressing", "compress", "mixed.safetensors", "-o", "compressed.safetensors"),
    ("verifying", "verify", "compressed.safetensors"),
    ("decompressing", "decompress", "compressed.safetensors", "-o", "decompressed.safetensors"),
):
    shown = run(*arguments)
    assert shown.startswith(f"\r\x1b[K{verb}") and " % of " not in shown and "%" in shown, repr(shown)
    assert shown.endswith("\r\x1b[K") and "\n" not in shown, repr(shown)
PYTHON

# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Sourced by test_*.sh of this folder. TRANSFUSE: the binary under test; TRF_PYTHON: a Python that has numpy.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

[ -x "${TRANSFUSE-}" ] || {
    echo "TRANSFUSE does not name the transfuse binary"
    exit 1
}

fail() {
    echo "FAILED: $*"
    exit 1
}

need_numpy() {
    "${TRF_PYTHON:=python3}" -c 'import numpy' 2>/dev/null || {
        echo "skipped: $TRF_PYTHON has no numpy"
        exit 77
    }
    PYTHONPATH=$here PYTHONDONTWRITEBYTECODE=1
    export PYTHONPATH PYTHONDONTWRITEBYTECODE
}

# Usage: expect STATUS ARGUMENT...   Runs transfuse; its output goes to ./out and ./err.
expect() {
    wanted=$1
    shift
    "$TRANSFUSE" "$@" >out 2>err
    status=$?
    [ $status -eq "$wanted" ] || {
        cat out err
        fail "transfuse $*: exit status $status, not $wanted"
    }
}

# Usage: expect_error WORD...   The last command's message, but for notes that came before, must be one line from
# transfuse with each of these in it.
expect_error() {
    grep -q '^transfuse: .*\[TRF_ERR_[A-Z_]*\]$' err || {
        cat err
        fail "no error message with a status"
    }
    [ "$(grep -vc '^transfuse: note: ' err)" -eq 1 ] || {
        cat err
        fail "the message has more than one line"
    }
    for word in "$@"; do
        grep -qF -- "$word" err || {
            cat err
            fail "the message lacks '$word'"
        }
    done
}

# Usage: expect_only NAME...   The working folder holds these (sorted), and ./out and ./err.
expect_only() {
    found=$(find . -mindepth 1 -maxdepth 1 ! -name out ! -name err | sed 's|^\./||' | LC_ALL=C sort | tr '\n' ' ')
    [ "$found" = "$* " ] || fail "the folder holds '$found', not '$* '"
}

same() { cmp "$1" "$2" || fail "$1 and $2 differ"; }

# Usage: are_close A.npy B.npy   Whether two arrays differ by rounding alone, and are not all zero.
are_close() {
    "$TRF_PYTHON" -c '
import sys
import numpy as np
a, b = (np.load(path) for path in sys.argv[1:])
assert np.allclose(a, b, 1e-4, 1e-4 * np.abs(b).max()) and b.any()' "$@"
}

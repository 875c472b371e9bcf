#!/bin/sh
# A signal in the middle of a command: exit status 1, and nothing is left behind.
. "$(dirname "$0")/common.sh"
need_numpy

"$TRF_PYTHON" "$here/make_checkpoint.py" large large.safetensors || exit 1
expect 0 compress large.safetensors -o packed.safetensors
"$TRF_PYTHON" "$here/interrupt.py" "$TRANSFUSE" || fail "interrupted commands"
expect_only large.safetensors packed.safetensors

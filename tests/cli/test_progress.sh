#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Progress is shown on standard error, as --progress says: a line that changes on a terminal, and is wiped at the end;
# a line now and then elsewhere.
. "$(dirname "$0")/common.sh"
need_numpy

"$TRF_PYTHON" "$here/make_checkpoint.py" mixed mixed.safetensors || exit 1
"$TRF_PYTHON" "$here/make_checkpoint.py" large large.safetensors || exit 1
"$TRF_PYTHON" "$here/progress.py" "$TRANSFUSE" || fail "progress"

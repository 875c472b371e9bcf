#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A signal in the middle of a command: exit status 128 and its number, and nothing is left
# behind; once the output has its name, 0.
. "$(dirname "$0")/common.sh"
need_numpy

"$TRF_PYTHON" "$here/make_checkpoint.py" large large.safetensors || exit 1
expect 0 compress large.safetensors -o compressed.safetensors
"$TRF_PYTHON" "$here/make_checkpoint.py" mixed small.safetensors || exit 1
expect 0 compress small.safetensors -o small-compressed.safetensors
expect 0 extract small-compressed.safetensors layers.0.k_proj.weight -o layer.trf
"$TRF_PYTHON" -c 'import numpy as np; np.save("x.npy", np.ones((1, 96), np.float32))'
"$TRF_PYTHON" "$here/interrupt.py" "$TRANSFUSE" || fail "interrupted commands"
expect_only compressed.safetensors large.safetensors layer.trf small-compressed.safetensors small.safetensors x.npy

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The MLP block of examples/: against numpy, on the CPU; and what it says where something is missing.
. "$(dirname "$0")/common.sh"
need_numpy
[ -x "${TRF_EXAMPLE_MLP_BLOCK-}" ] || {
    echo "skipped: the examples are not built"
    exit 77
}

"$TRF_PYTHON" - <<'PYTHON' || exit 1
import json, struct
import numpy as np
from read_checkpoint import read
rng = np.random.default_rng(11)
def bf16(a):
    bits = a.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
header, data = {}, b""
for name, rows, cols in ("gate_proj", 704, 288), ("up_proj", 704, 288), ("down_proj", 288, 704):
    bits = bf16(0.05 * rng.standard_normal((rows, cols)))
    header[f"model.layers.0.mlp.{name}.weight"] = {
        "dtype": "BF16", "shape": [rows, cols], "data_offsets": [len(data), len(data) + bits.nbytes]}
    data += bits.tobytes()
text = json.dumps(header).encode()
open("model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
rng.standard_normal((5, 288)).astype(np.float32).tofile("x.f32")
PYTHON

cat >check.py <<'PYTHON'
import numpy as np
from read_checkpoint import as_float, read
def round_bf16(a):
    bits = a.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).view(np.float32)
gate, up, down = (as_float(read("model.safetensors")[f"model.layers.0.mlp.{n}.weight"])
                  for n in ("gate_proj", "up_proj", "down_proj"))
x = round_bf16(np.fromfile("x.f32", np.float32).reshape(5, 288)).astype(np.float64)
y = np.fromfile("y.f32", np.float32).reshape(5, 288)
g, u = x @ gate.T, round_bf16(x @ up.T).astype(np.float64)
h = round_bf16(g / (1 + np.exp(-g)) * u).astype(np.float64)
due = h @ down.T
# What is near a tie may be rounded the other way, by a step of at most 2^-7 of its size: an activation, seldom the
# output of up besides.
limit = 2.0**-7 * np.abs(h) @ np.abs(down).T
assert y.dtype == np.float32 and y.shape == due.shape
assert np.all(np.abs(y - due) <= limit), np.max(np.abs(y - due) / limit)
assert np.abs(due).max() > 5 * limit.max()
PYTHON

for favor in speed size; do
    expect 0 compress model.safetensors -o compressed.safetensors --favor $favor -f
    "$TRF_EXAMPLE_MLP_BLOCK" compressed.safetensors model.layers.0.mlp x.f32 y.f32 cpu >out 2>err || {
        cat out err
        fail "the example, $favor"
    }
    grep -q '^5 rows on CPU$' out || fail "no word of the device"
    [ "$(grep -c ': fused$' out)" -eq 3 ] || fail "not three fused layers"
    "$TRF_PYTHON" check.py || fail "the example's product, $favor"
done

complains() {
    word=$1
    shift
    "$TRF_EXAMPLE_MLP_BLOCK" "$@" >out 2>err && fail "$* was accepted"
    grep -qF -- "$word" err || {
        cat err
        fail "the message lacks '$word'"
    }
}
complains "there is no tensor 'model.layers.1.mlp.gate_proj.weight'" \
    compressed.safetensors model.layers.1.mlp x.f32 no.f32 cpu
complains "is not compressed" model.safetensors model.layers.0.mlp x.f32 no.f32 cpu
complains usage compressed.safetensors
[ ! -e no.f32 ] || fail "an output was left"

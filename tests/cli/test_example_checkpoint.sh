#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The example of a checkpoint's life, from a source file and back to it.
. "$(dirname "$0")/common.sh"
need_numpy
[ -x "${TRF_EXAMPLE_CHECKPOINT-}" ] || {
    echo "skipped: the examples are not built"
    exit 77
}

"$TRF_PYTHON" - <<'PYTHON' || exit 1
import json, struct
import numpy as np
rng = np.random.default_rng(12)
def bf16(a):
    bits = a.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
header, data = {}, b""
for name, shape in ("norm.weight", (288,)), ("proj.weight", (288, 320)):
    bits = bf16(0.05 * rng.standard_normal(shape))
    header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [len(data), len(data) + bits.nbytes]}
    data += bits.tobytes()
text = json.dumps(header, separators=(",", ":")).encode()
text += b" " * (-len(text) % 8)
open("model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
PYTHON

for round in first second; do
    "$TRF_EXAMPLE_CHECKPOINT" model.safetensors . >out 2>err || {
        cat out err
        fail "the example, $round"
    }
    grep -q '^compressed 1 of 2 tensors: ' out || fail "no word of what is compressed, $round"
    grep -q '^extracted proj.weight: 288 x 320 BF16$' out || fail "no word of the layer, $round"
    grep -q '^verified' out || fail "no word of the verification, $round"
    expect 0 verify layer.trf
    expect 0 verify compressed.safetensors --against model.safetensors
    cmp model.safetensors decompressed.safetensors || fail "decompressed is not the source, $round"
done

"$TRF_EXAMPLE_CHECKPOINT" missing.safetensors . >out 2>err && fail "a missing source was accepted"
grep -qF 'TRF_ERR_NOT_FOUND' err || fail "the message lacks the status"

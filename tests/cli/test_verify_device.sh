#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# verify --device: each layer of a checkpoint is loaded, and compared with its checksums in the device's memory.
. "$(dirname "$0")/common.sh"
need_numpy

"$TRF_PYTHON" - <<'E' || fail "making a checkpoint"
import json
import struct

import numpy as np
from make_checkpoint import bf16, normal

rng = np.random.default_rng(0)
shapes = {"a.weight": ("BF16", (300, 520)), "b.weight": ("BF16", (256, 256)), "e": ("BF16", (2, 128, 64))}
shapes["c.weight"] = ("F16", (200, 256))
header, data = {}, b""
for name, (dtype, shape) in shapes.items():
    values = normal(rng, int(np.prod(shape)), 1)
    size = len(data)
    data += bf16(values).tobytes() if dtype == "BF16" else values.astype(np.float16).tobytes()
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [size, len(data)]}
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open("plain.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + data)
E
expect 0 compress plain.safetensors -o small.safetensors

expect 0 verify small.safetensors --device cpu
grep -q '^  in memory  *CPU: 5 layers sound, .* at [0-9]* GB/s$' out || {
    cat out
    fail "the output does not say what was verified in memory"
}
for layout in plain packed; do
    expect 0 verify small.safetensors --device cpu --layout $layout --json
    "$TRF_PYTHON" - $layout <<'E' || fail "the report of --layout $layout"
import json
import sys

device = json.load(open("out"))["device"]
assert device["name"] == "CPU" and device["layers"] == 5 and device["bytes"] > 400000 and device["seconds"] > 0
assert device["coded"] == (1 if sys.argv[1] == "packed" else 0)  # F16 is not packed
E
done
expect 0 verify small.safetensors --json
grep -q '"device": null' out || fail "without --device nothing is loaded"
expect 0 extract small.safetensors a.weight -o a.trf
expect 0 verify a.trf --device cpu --layout packed
expect 2 verify small.safetensors --layout packed
grep -qF -e '--layout needs --device' err || fail "--layout alone"
"$TRANSFUSE" verify small.safetensors --device cuda >out 2>err
status=$?
case $status in
0) grep -q '^  in memory' out || fail "verify --device cuda does not say what it verified" ;;
3) grep -q -e '--device cuda' err || fail "verify --device cuda does not say what is missing" ;;
*) fail "verify --device cuda: exit status $status" ;;
esac
exit 0

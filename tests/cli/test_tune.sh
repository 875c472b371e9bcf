#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tune on the CPU: what the file holds, what is refused, and that nothing is left behind.
. "$(dirname "$0")/common.sh"
need_numpy

"$TRF_PYTHON" "$here/make_checkpoint.py" mixed mixed.safetensors || fail "make_checkpoint.py"
expect 0 compress mixed.safetensors -o compressed.safetensors
expect 0 tune compressed.safetensors -o tuning.json --max-batch 5 -T 1
[ ! -s err ] || fail "something on standard error, which is no terminal"
grep -q '^  bf16 .*: 1 fused$' out || {
    cat out
    fail "tune does not say what it found"
}
"$TRF_PYTHON" - <<'E' || fail "tuning.json"
import json

tuning = json.load(open("tuning.json"))
assert tuning["format"] == "transfuse tuning" and tuning["version"] == 2 and tuning["device"] == "CPU", tuning
layers = tuning["layers"]
assert {"bf16", "int"} <= {layer["codec"] for layer in layers}, layers
names = ("codec", "class_bits", "raw_bits", "scale_groups", "rows", "cols")
keys = [tuple(layer[name] for name in names) for layer in layers]
assert len(set(keys)) == len(keys), keys
for layer in layers:
    assert [batch["to"] for batch in layer["batches"]] == [1, 2, 3, 4], layer
    for batch in layer["batches"]:
        assert batch["path"] == "fused" and list(batch["microseconds"]) == ["fused"], batch
        assert batch["microseconds"]["fused"] > 0, batch
E

# Packed, and FP8 as packed8, but what cannot be packed: that is coded.
expect 0 tune compressed.safetensors -o packed.json --max-batch 2 -T 1 --layout packed
grep -q '^  bf16 .*, packed: 1 packed$' out || {
    cat out
    fail "tune --layout packed does not say what it found"
}
"$TRF_PYTHON" - <<'E' || fail "packed.json"
import json

layers = json.load(open("packed.json"))["layers"]
found = {(layer["layout"], layer["codec"]) for layer in layers}
assert {("packed", "bf16"), ("packed8", "fp8_e4m3"), ("coded", "int")} <= found, layers
for layer in layers:
    packs = {"bf16": "packed", "fp8_e4m3": "packed8"}.get(layer["codec"])
    assert layer["layout"] in (packs, "coded"), layer
    path = "fused" if layer["layout"] == "coded" else "packed"
    assert [batch["path"] for batch in layer["batches"]] == [path] * 2, layer
    assert not any("packed" in batch for batch in layer["batches"]), layer  # the CPU has one kernel
E
rm packed.json

# What is there is not overwritten unless asked for, and that is known before anything is measured.
expect 1 tune compressed.safetensors -o tuning.json
expect_error tuning.json
expect 0 tune compressed.safetensors -o tuning.json --max-batch 1 -f

expect 1 tune mixed.safetensors -o other.json
expect_error mixed.safetensors compressed
expect 1 tune none.safetensors -o other.json
expect_error none.safetensors
expect 1 tune compressed.safetensors -o none/other.json
expect_error none/other.json
expect_only compressed.safetensors mixed.safetensors tuning.json

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# BF16 that was FP8 E4M3 with scales: compress finds it and says so, info does, and all of the folder comes back.
. "$(dirname "$0")/common.sh"
need_numpy

"$TRF_PYTHON" "$here/make_checkpoint.py" was_fp8 source || fail "make_checkpoint.py was_fp8"
tensors="layers.0.block.weight layers.0.spoilt.weight layers.0.row.weight layers.0.tensor.weight layers.0.true.weight
    layers.0.experts.up_proj layers.0.experts.down_proj layers.0.half.weight"

# Usage: expect_found COUNT   The last command's output says what was FP8 of so many compressed tensors.
expect_found() {
    for line in "BF16 that was .*FP8 E4M3 x one scale, in 1 of $1 tensors" \
        "FP8 E4M3 x a scale a row, in 1 of $1 tensors" "FP8 E4M3 x 128x128, in 3 of $1 tensors"; do
        grep -q "$line" out || {
            cat out
            fail "the output lacks '$line'"
        }
    done
}

for favor in speed size; do
    expect 0 compress source -o compressed --favor $favor -f
    expect_found 8
    grep -q '^  lossless ' out || fail "compress does not call it lossless"
    expect 0 info compressed
    expect_found 8
    grep -q '^layers.0.block.weight .* fp8_e4m3\( \|$\)' out || fail "info's table"
    expect 0 info compressed --json
    # shellcheck disable=SC2086  # a list of words
    "$TRF_PYTHON" "$here/check_info.py" out source $tensors || fail "info --json"
    expect 0 verify compressed --against source
    grep -q 'bit for bit' out || fail "verify --against does not say what it found"
    expect 0 decompress compressed -o decompressed -f
    diff -r source decompressed || fail "the folder does not come back"
done

# ---- what info says of each tensor ----
expect 0 info compressed --json
"$TRF_PYTHON" - <<'PYTHON' || fail "info --json of tensors that were FP8"
import json
tensors = {tensor["name"]: tensor for tensor in json.load(open("out"))["tensors"]}
blocks = ("scale-block", 128)
expected = {"block": blocks, "spoilt": blocks, "row": ("channel", 0), "tensor": ("tensor", 0)}
for name, scales in expected.items():
    tensor = tensors[f"layers.0.{name}.weight"]
    assert (tensor["codec"], tensor["dtype"]) == ("fp8_e4m3", "BF16"), name
    assert (tensor["granularity"], tensor["scale_group_size"]) == scales, name
    assert tensor["bits_per_weight"] < 9, name
# Experts have one codec: not all of the first tensor's were FP8.
for name, codec in {"true.weight": "bf16", "experts.up_proj": "bf16", "experts.down_proj": "fp8_e4m3"}.items():
    assert tensors[f"layers.0.{name}"]["codec"] == codec, name
PYTHON

# ---- the number of threads changes nothing; a dry run finds the same; fp8 looks as auto does, bf16 does not ----
expect 0 compress source -o one -T 1 --favor size
diff -r one compressed || fail "the number of threads changes the files"
expect 0 compress source --dry-run
expect_found 8
expect 0 compress source --dry-run --json
"$TRF_PYTHON" -c '
import json
assert json.load(open("out"))["scaled_fp8_tensors"] == {"tensor": 1, "channel": 1, "scale-block:128": 3}' ||
    fail "the report as JSON"
expect 0 compress source -o fp8 --codec fp8 --favor size
expect_found 7
expect 0 compress source -o bf16 --codec bf16
! grep -q 'FP8' out || fail "--codec bf16 looks for FP8"
expect 0 info bf16
! grep -q 'fp8\|FP8' out || fail "--codec bf16 made FP8"
expect 0 verify bf16 --against source

# ---- a single layer ----
expect 0 extract compressed layers.0.spoilt.weight -o layer.trf
expect 0 verify layer.trf
expect 0 info layer.trf
grep -q 'FP8 E4M3 x 128x128, in 1 of 1 tensors' out || fail "info of a .trf file"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checkpoints of FP8 with scales: compress and info say what they are, and all of the folder comes back.
. "$(dirname "$0")/common.sh"
need_numpy

# Usage: expect_line TEXT   The last command's output has it.
expect_line() {
    grep -q "$1" out || {
        cat out
        fail "the output lacks '$1'"
    }
}

while read -r kind scales tables unused; do
    "$TRF_PYTHON" "$here/make_checkpoint.py" "$kind" "$kind" || fail "make_checkpoint.py $kind"
    expect 0 compress "$kind" -o "compressed.$kind"
    expect_line "FP8 weights .*FP8 E4M3 with $(echo "$scales" | tr _ ' '), in 8 of 9 tensors"
    expect_line 'activations are not quantized'
    expect_line "scales .* $tables tensors, kept for decompressing"
    [ "$unused" -eq 0 ] || expect_line "$unused tensors of activations or of a KV cache: not used"
    expect_line '^  lossless '
    expect 0 info "compressed.$kind"
    expect_line "FP8 weights .*FP8 E4M3 with $(echo "$scales" | tr _ ' '), in 8 of 9 tensors"
    expect_line "scales .* $tables tensors, kept for decompressing"
    expect_line '^model.layers.0.q_proj.weight .*F8_E4M3 .* fp8_e4m3'
    ! grep -q '_scale' out || fail "info lists tensors of scales"
    expect 0 verify "compressed.$kind" --against "$kind"
    grep -q 'bit for bit' out || fail "verify --against does not say what it found"
    expect 0 decompress "compressed.$kind" -o "decompressed.$kind"
    diff -r "$kind" "decompressed.$kind" || fail "the folder $kind does not come back"
done <<'KINDS'
fp8_block scales_of_128x128 8 0
fp8_channel a_scale_a_row 8 0
fp8_tensor one_scale 17 9
fp8_row a_scale_a_row 8 0
KINDS

# ---- the reports as JSON, also of a dry run; a single layer is one of BF16 ----
expect 0 compress fp8_tensor --dry-run --json
"$TRF_PYTHON" -c '
import json
report = json.load(open("out"))
assert report["source_fp8_tensors"] == {"tensor": 8, "channel": 0, "scale-block": 0, "block_size": 0}, report
assert (report["side_tables"], report["unused_side_tables"]) == (17, 9)' || fail "the report as JSON"
expect 0 compress fp8_block -o compressed -q
expect 0 info compressed --json
"$TRF_PYTHON" -c '
import json
info = json.load(open("out"))
tensors = {tensor["name"]: tensor for tensor in info["tensors"]}
weight = tensors["model.layers.0.q_proj.weight"]
assert (weight["dtype"], weight["granularity"], weight["scale_group_size"]) == ("F8_E4M3", "scale-block", 128), weight
assert weight["source_bytes"] == 256 * 384 and info["side_tables"] == 8' || fail "info --json"
expect 0 extract compressed model.layers.0.q_proj.weight -o layer.trf
expect 0 verify layer.trf
expect 0 info layer.trf
expect_line 'BF16 that was .*FP8 E4M3 x 128x128'

# ---- what the first version of this form wrote: every kind of scales, and NaNs and zeros of both signs ----
golden=$here/../golden/checkpoints/fp8
expect 0 verify "$golden/compressed" --against "$golden/source"
expect 0 decompress "$golden/compressed" -o golden
diff -r "$golden/source" golden || fail "the golden folder does not come back"

# ---- what cannot be ----
expect 1 compress fp8_block -o other --exclude '*q_proj.weight'
expect_error 'q_proj.weight' 'cannot be left out'
expect 1 compress fp8_block -o other --codec bf16
expect_error 'F8_E4M3' 'another codec than auto or fp8_e4m3'
sed 's/bfloat16/float16/' fp8_block/config.json >config.json
mv config.json fp8_block/config.json
expect 1 compress fp8_block -o other
expect_error 'fp8_block/config.json' 'float16' '--store-only'
[ ! -e other ] || fail "something was written"

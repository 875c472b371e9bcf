#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Damaged files: the message names the file, the tensor and the byte; nothing is written from them.
. "$(dirname "$0")/common.sh"
need_numpy

"$TRF_PYTHON" "$here/make_checkpoint.py" mixed mixed.safetensors || exit 1
expect 0 compress mixed.safetensors -o compressed.safetensors
expect 0 info compressed.safetensors --json
# Where the tensor's blob lies: "offset bytes".
where=$("$TRF_PYTHON" -c '
import json
for tensor in json.load(open("out"))["tensors"]:
    if tensor["name"] == "layers.0.k_proj.weight":
        print(tensor["file_offset"], tensor["bytes"])')
offset=${where% *} bytes=${where#* }
expect 0 extract compressed.safetensors layers.0.k_proj.weight -o layer.trf
[ "$(wc -c <layer.trf)" -eq "$bytes" ] || fail "info's sizes"
dd if=compressed.safetensors bs=1 skip="$offset" count="$bytes" 2>dd.log | cmp - layer.trf || fail "info's offsets"

corrupt() { "$TRF_PYTHON" "$here/corrupt.py" "$@" || fail "corrupt.py $*"; }

# Usage: bad FILE WORD...   Neither verify nor decompress takes the file.
bad() {
    file=$1
    for command in "verify $file" "decompress $file -o no"; do
        # shellcheck disable=SC2086
        expect 1 $command
        expect_error "$@"
        [ ! -e no ] || fail "$command wrote something"
    done
}

# A byte in the header, the frequency table, tile metadata, the tiles' data, the last one before the padding.
for at in 0 5 20 40 70 200 580 600 700 $((bytes / 2)) $((bytes - 40)); do
    corrupt compressed.safetensors bad.safetensors flip $((offset + at))
    bad bad.safetensors bad.safetensors layers.0.k_proj.weight
    corrupt layer.trf bad.trf flip $at
    bad bad.trf bad.trf
    expect 1 matmul bad.trf bad.trf -o no
    expect_error bad.trf
done
# The message gives the offset of the damage's tile in the file.
at=$((offset + bytes / 2))
corrupt compressed.safetensors bad.safetensors flip $at
expect 1 verify bad.safetensors
expect_error layers.0.k_proj.weight TRF_ERR_CHECKSUM
"$TRF_PYTHON" -c '
import re, sys
begin, end, text = int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2]), open("err").read()
assert any(begin <= int(n) < end for n in re.findall(r"\d+", text)), text' "$offset" "$bytes" ||
    fail "the message gives no offset in the tensor"

# The blob is named once.
for command in verify 'decompress -o no'; do
    # shellcheck disable=SC2086
    expect 1 $command bad.safetensors
    expect_error "tensor 'layers.0.k_proj.weight': blob at byte $offset: tile "
done
expect 1 extract bad.safetensors layers.0.k_proj.weight -o no
expect_error "tensor 'layers.0.k_proj.weight': blob at byte $offset: tile "

# Cut short.
for size in 0 1 7 8 50 $((offset + bytes / 2)) -1; do
    corrupt compressed.safetensors bad.safetensors cut $size
    bad bad.safetensors bad.safetensors
    expect 1 info bad.safetensors
    expect_error bad.safetensors
    expect 1 compress bad.safetensors -o no
    expect_error bad.safetensors
done
for size in 0 1 63 64 575 576 $((bytes / 2)) -1; do
    corrupt layer.trf bad.trf cut $size
    bad bad.trf bad.trf
    expect 1 matmul bad.trf bad.trf -o no
    expect_error bad.trf
done

# A checkpoint whose own header is wrong.
corrupt mixed.safetensors bad.safetensors swap '"shape":[257,96]' '"shape":[257,97]'
expect 1 compress bad.safetensors -o no
expect_error bad.safetensors layers.0.k_proj.weight TRF_ERR_FORMAT
corrupt mixed.safetensors bad.safetensors swap 'layers.0.k_proj' 'layers.0.v_proj'
expect 1 compress bad.safetensors -o no
expect_error bad.safetensors TRF_ERR_FORMAT

# Sound, but not what it is compared with.
data=$(($(wc -c <mixed.safetensors) - 1))
corrupt mixed.safetensors other.safetensors flip $((data - 200000))
expect 1 verify compressed.safetensors --against other.safetensors
expect_error other.safetensors TRF_ERR_MISMATCH
[ ! -e no ] || fail "an output of a failed command"

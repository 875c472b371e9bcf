#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A trained model: all-MiniLM-L6-v2 (22 million F32 weights) with each codec that takes it. TRF_MINILM: its folder.
. "$(dirname "$0")/common.sh"
need_numpy
[ -f "${TRF_MINILM-}/model.safetensors" ] || {
    echo "skipped: TRF_MINILM names no folder with the model.safetensors of all-MiniLM-L6-v2"
    exit 77
}
model=$TRF_MINILM/model.safetensors

# Usage: lossy LABEL BOUND OPTION...   Compresses, verifies, decompresses, compares what the layers compute.
lossy() {
    label=$1 bound=$2
    shift 2
    expect 0 compress "$model" -o compressed.safetensors "$@" -f
    expect 0 verify compressed.safetensors --against "$model"
    expect 0 decompress compressed.safetensors -o decompressed.safetensors -f
    expect 0 info compressed.safetensors --json
    "$TRF_PYTHON" "$here/check_products.py" "$model" decompressed.safetensors out "$label" "$bound" || fail "$label"
}

# Nothing of it has a lossless codec.
expect 0 compress "$model" -o compressed.safetensors
grep -q 'Nothing was compressed' out || fail "F32 was compressed without being asked for"
same "$model" compressed.safetensors

if [ -n "${TRF_TEST_QUICK-}" ]; then # each codec once; without it, with all of its options
    lossy "4.25 bits, scale groups of 128, size" bits:4.25 --bits 4.25 --granularity scale-group:128 --favor size
    lossy "bf16, word embeddings too" bf16 --codec bf16 --include '*.weight'
    exit 0
fi

for favor in speed size; do
    lossy "bf16, $favor" bf16 --codec bf16 --favor $favor
    mv decompressed.safetensors rounded.safetensors
    lossy "int8, $favor" int8 --int8 --favor $favor
    lossy "5.7 bits, $favor" bits:5.7 --bits 5.7 --favor $favor
    lossy "4.25 bits, $favor" bits:4.25 --bits 4.25 --favor $favor
    lossy "4.25 bits, scale groups of 128, $favor" bits:4.25 --bits 4.25 --granularity scale-group:128 --favor $favor
done
lossy "bf16, word embeddings too" bf16 --codec bf16 --include '*.weight'
lossy "4.25 bits, word embeddings too" bits:4.25 --bits 4.25 --include '*.weight' --exclude '*token_type*'

# As a BF16 checkpoint, which is what has a lossless codec: bit for bit.
"$TRF_PYTHON" "$here/to_bf16.py" rounded.safetensors model.safetensors || fail "to_bf16.py"
for favor in speed size; do
    expect 0 compress model.safetensors -o compressed.safetensors --favor $favor -f
    expect 0 verify compressed.safetensors --against model.safetensors
    grep -q 'bit for bit' out || fail "BF16 is not lossless"
    expect 0 decompress compressed.safetensors -o decompressed.safetensors -f
    same model.safetensors decompressed.safetensors
    expect 0 info compressed.safetensors
    echo "from BF16, $favor: $(tail -n 1 out)"
done

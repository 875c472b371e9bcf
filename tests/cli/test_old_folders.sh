#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checkpoints that transfuse 0.2 wrote (commit 168e5ad, tests/golden/checkpoints) verify and decompress as they did
# then. They cannot be made anew: their sources, random weights, lie beside them.
. "$(dirname "$0")/common.sh"
golden=$here/../golden/checkpoints

# Usage: check_sum FILE SHA256
check_sum() {
    [ "$(sha256sum "$1" | cut -d ' ' -f 1)" = "$2" ] || fail "$1: not what 0.2 made of it"
}

# One file with its config, shards with an index, a 3-D tensor, a foreign quantization_config.
for name in llama sharded experts foreign; do
    expect 0 verify "$golden/$name/compressed" --against "$golden/$name/source"
    expect 0 info "$golden/$name/compressed"
    expect 0 decompress "$golden/$name/compressed" -o "$name"
    diff -r "$golden/$name/source" "$name" || fail "$name does not come back"
done
expect 0 verify "$golden/file/compressed.safetensors" --against "$golden/file/source.safetensors"
expect 0 decompress "$golden/file/compressed.safetensors" -o file.safetensors
same "$golden/file/source.safetensors" file.safetensors

# F32 rounded by --codec bf16, and --bits 4.25: not the source's weights, but always the same ones.
for name in rounded quantized; do
    expect 0 verify "$golden/$name/compressed" --against "$golden/$name/source"
    expect 0 decompress "$golden/$name/compressed" -o "$name"
    same "$golden/$name/source/config.json" "$name/config.json"
done
check_sum rounded/model.safetensors 23758264e93c2066f2e4e8e418f5c17fb527e821199bcec9b8827e897afd6d67
check_sum quantized/model.safetensors b3d95f6b5140fd266d6dfe67227e7170ea164e5948f9b938481f14181364fb9b

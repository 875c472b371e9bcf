#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# --max-output and --max-memory: what would be more is refused, and nothing is left. Files that promise more than they
# have, in an address space that does not hold it.
. "$(dirname "$0")/common.sh"
need_numpy

"$TRF_PYTHON" "$here/make_checkpoint.py" mixed mixed.safetensors || exit 1
expect 0 compress mixed.safetensors -o compressed.safetensors --max-output 10M --max-memory 1G
layer=layers.0.k_proj.weight
for command in 'compress mixed.safetensors -o new' 'decompress compressed.safetensors -o new' \
    "extract compressed.safetensors $layer -o new"; do
    # shellcheck disable=SC2086
    expect 1 $command --max-output 1K
    expect_error 'max_output_bytes is 1000' TRF_ERR_LIMIT
    # shellcheck disable=SC2086
    expect 1 $command --max-memory 1K
    expect_error 'max_memory_bytes is 1000' TRF_ERR_LIMIT safetensors
    [ ! -e new ] || fail "$command left an output"
done
for command in 'verify compressed.safetensors' 'info compressed.safetensors' \
    'verify compressed.safetensors --against mixed.safetensors' 'verify compressed.safetensors --device cpu'; do
    # shellcheck disable=SC2086
    expect 1 $command --max-memory 1K
    expect_error 'max_memory_bytes is 1000' TRF_ERR_LIMIT safetensors
    # shellcheck disable=SC2086
    expect 0 $command --max-memory 1G
done
expect 2 compress mixed.safetensors -o new --max-output 0
expect 2 info mixed.safetensors --max-output 1G

# ---- a checkpoint of 64 GB that takes no room on the disk, within 1 GiB ----
"$TRF_PYTHON" - <<'EOF' || exit 1
import json, os, struct
tensors = {f"model.layers.{i}.up_proj.weight": i for i in range(8)}
size = 65536 * 65536 * 2
header = json.dumps({name: {"dtype": "BF16", "shape": [65536, 65536], "data_offsets": [i * size, (i + 1) * size]}
                     for name, i in tensors.items()}).encode()
with open("sparse.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(header)) + header)
    os.truncate(file.fileno(), file.tell() + 8 * size)
EOF
# An address sanitizer's shadow takes more.
if ! nm "$TRANSFUSE" 2>/dev/null | grep -q '__asan_init\|__tsan_init'; then
    # shellcheck disable=SC3045
    ulimit -v 1048576
fi
expect 0 info sparse.safetensors
expect 0 compress sparse.safetensors --dry-run -T 1
expect 0 verify sparse.safetensors -T 1
expect 1 compress sparse.safetensors -o new -T 1 --max-memory 1M
expect_error 'max_memory_bytes is 1000000' "tensor 'model.layers.0.up_proj.weight'" TRF_ERR_LIMIT
expect 1 decompress sparse.safetensors -o new -T 1 --max-output 20G
expect_error 'max_output_bytes is 20000000000' "tensor 'model.layers.2.up_proj.weight'" TRF_ERR_LIMIT
[ ! -e new ] || fail "an output was left"

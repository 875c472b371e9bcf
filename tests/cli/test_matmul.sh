#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# extract and matmul: products against numpy; X in its shapes and types; what does not fit together.
. "$(dirname "$0")/common.sh"
need_numpy

"$TRF_PYTHON" "$here/make_checkpoint.py" mixed mixed.safetensors || exit 1
"$TRF_PYTHON" - <<'PYTHON' || exit 1
import numpy as np
rng = np.random.default_rng(5)
for cols in 96, 160, 272, 320:
    np.save(f"x{cols}.npy", rng.standard_normal((5, cols)).astype(np.float32))
np.save("half.npy", rng.standard_normal((3, 96)).astype(np.float16))
np.save("vector.npy", rng.standard_normal(96).astype(np.float32))
np.save("none.npy", np.empty((0, 96), np.float32))
np.save("double.npy", rng.standard_normal((3, 96)))
np.save("cube.npy", np.zeros((2, 3, 96), np.float32))
np.save("columns.npy", np.asfortranarray(rng.standard_normal((3, 96)).astype(np.float32)))
PYTHON

multiply() { expect 0 matmul "$@" -f; }
check() { "$TRF_PYTHON" "$here/check_product.py" "$@" || fail "product: $*"; }

# The finite tensors of each type that numpy can widen.
for favor in speed size; do
    expect 0 compress mixed.safetensors -o compressed.safetensors --favor $favor -f
    expect 0 extract compressed.safetensors layers.0.k_proj.weight -o layer.trf -f
    for x in x96 half vector; do
        multiply layer.trf $x.npy -o y.npy
        check y.npy $x.npy mixed.safetensors layers.0.k_proj.weight
        multiply layer.trf $x.npy -o y2.npy --path fused --device cpu -T 3
        same y.npy y2.npy
    done
    expect 0 extract compressed.safetensors layers.0.codes.weight_trf -o layer.trf -f
    multiply layer.trf x320.npy -o y.npy
    check y.npy x320.npy mixed.safetensors layers.0.codes.weight
    expect 0 extract compressed.safetensors 'layers.0.experts.up_proj[2]' -o layer.trf -f
    multiply layer.trf x160.npy -o y.npy
    check y.npy x160.npy mixed.safetensors layers.0.experts.up_proj 2
    expect 0 extract compressed.safetensors layers.0.v_proj.weight -o layer.trf -f
    multiply layer.trf x272.npy -o y.npy
    check y.npy x272.npy mixed.safetensors layers.0.v_proj.weight
done

# Quantized weights: against what decompress gives.
"$TRF_PYTHON" "$here/make_checkpoint.py" float float.safetensors || exit 1
"$TRF_PYTHON" -c '
import numpy as np
np.save("x1024.npy", np.random.default_rng(6).standard_normal((4, 1024)).astype(np.float32))'
for options in '--int8' '--bits 4.25' '--bits 3 --granularity scale-group:64' \
    '--int8 --granularity scale-block:128 --favor size' '--bits 5 --granularity tensor'; do
    # shellcheck disable=SC2086
    expect 0 compress float.safetensors -o compressed.safetensors --include 'a.weight' $options -f
    expect 0 decompress compressed.safetensors -o decompressed.safetensors -f
    expect 0 extract compressed.safetensors a.weight -o layer.trf -f
    multiply layer.trf x1024.npy -o y.npy
    check y.npy x1024.npy decompressed.safetensors a.weight
done

# A layer alone is a checkpoint of one tensor.
expect 0 compress mixed.safetensors -o compressed.safetensors -f
expect 0 extract compressed.safetensors layers.0.k_proj.weight -o layer.trf -f
expect 0 verify layer.trf
expect 0 info layer.trf
grep -q '^weight .* 257x96 .* fp16 ' out || fail "info of a .trf file"
for input in compressed.safetensors .; do
    expect 1 matmul $input x.npy -o no.npy
    expect_error "'transfuse extract' writes a layer"
done
expect 0 decompress layer.trf -o layer.safetensors
"$TRF_PYTHON" -c '
import numpy as np
from read_checkpoint import read
a, b = read("mixed.safetensors")["layers.0.k_proj.weight"], read("layer.safetensors")
assert list(b) == ["weight"] and b["weight"][0] == "F16"
assert a[1].tobytes() == b["weight"][1].tobytes() and a[1].shape == b["weight"][1].shape' || fail "the layer alone"

# What does not work.
expect 1 matmul layer.trf x160.npy -o no.npy
expect_error x160.npy 160 96 TRF_ERR_SHAPE
expect 1 matmul layer.trf none.npy -o no.npy
expect_error none.npy
expect 1 matmul layer.trf double.npy -o no.npy
expect_error double.npy
expect 1 matmul layer.trf cube.npy -o no.npy
expect_error cube.npy
expect 1 matmul layer.trf columns.npy -o no.npy
expect_error columns.npy
expect 1 matmul layer.trf layer.trf -o no.npy
expect_error layer.trf TRF_ERR_FORMAT
expect 1 matmul mixed.safetensors half.npy -o no.npy
expect_error mixed.safetensors TRF_ERR_MAGIC
expect 1 matmul absent.trf half.npy -o no.npy
expect_error absent.trf TRF_ERR_NOT_FOUND
expect 1 matmul layer.trf absent.npy -o no.npy
expect_error absent.npy TRF_ERR_NOT_FOUND
for name in absent layers.0.norm.weight 'layers.0.experts.up_proj[3]' 'layers.0.k_proj.weight[1]'; do
    expect 1 extract compressed.safetensors "$name" -o no.trf
    expect_error compressed.safetensors "$name"
done
[ ! -e no.npy ] || fail "an output of a failed command"
[ ! -e no.trf ] || fail "an output of a failed command"

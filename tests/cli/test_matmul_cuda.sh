#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# matmul --device cuda: products against numpy on both paths, batches of more than one chunk, what does not fit F16.
. "$(dirname "$0")/common.sh"
need_numpy
COLUMNS=1000 # reports in whole lines
export COLUMNS

"$TRF_PYTHON" "$here/make_checkpoint.py" mixed mixed.safetensors || exit 1
# Values that F16 and BF16 both hold, so that rounding x changes nothing; and some that F16 cannot.
"$TRF_PYTHON" - <<'PYTHON' || exit 1
import numpy as np
rng = np.random.default_rng(5)
for cols in 96, 160, 272, 320:
    for rows in 5, 150:
        np.save(f"x{cols}_{rows}.npy", (rng.integers(-120, 121, (rows, cols)) / 64).astype(np.float32))
large = np.ones((3, 96), np.float32)
large[2, 17] = -70000
np.save("large.npy", large)
large[2, 17] = np.inf
np.save("infinite.npy", large)
PYTHON
expect 0 compress mixed.safetensors -o compressed.safetensors
expect 0 extract compressed.safetensors layers.0.k_proj.weight -o layer.trf

"$TRANSFUSE" matmul layer.trf x96_5.npy -o y.npy --device cuda >out 2>err
status=$?
if [ $status -eq 3 ]; then
    expect_error TRF_ERR_DEVICE cuda
    echo "skipped: matmul --device cuda: $(cat err)"
    exit 77
fi
[ $status -eq 0 ] || fail "matmul --device cuda: $(cat out err)"
grep -Eq ', (fused on|two-step on .*\(not fused: ).*' out || fail "which path ran is not said: $(cat out)"

# Usage: check X TENSOR [EXPERT]   The layer in layer.trf on both paths.
check() {
    for path in '' '--path two-step'; do
        # shellcheck disable=SC2086
        expect 0 matmul layer.trf "$1.npy" -o y.npy --device cuda $path -f
        [ -z "$path" ] || grep -q ', two-step on ' out || fail "--path two-step ran something else: $(cat out)"
        "$TRF_PYTHON" "$here/check_product.py" y.npy "$1.npy" mixed.safetensors "$2" ${3+"$3"} || fail "product: $*"
    done
}
expect 0 matmul layer.trf x96_5.npy -o y.npy --device cuda --layout plain -f
grep -q ', dense on ' out || fail "--layout plain ran something else: $(cat out)"
"$TRF_PYTHON" "$here/check_product.py" y.npy x96_5.npy mixed.safetensors layers.0.k_proj.weight || fail "--layout plain"
# The wide path takes what it says; a layer of 96 columns, or of bf16, is none of those.
"$TRANSFUSE" matmul layer.trf x96_5.npy -o y.npy --device cuda --path wide -f >out 2>err
case $? in
0) grep -q ', wide on ' out || fail "--path wide ran something else: $(cat out)" ;;
*) expect_error 'the wide path does not take' ;;
esac

for favor in speed size; do
    expect 0 compress mixed.safetensors -o compressed.safetensors --favor $favor -f
    for rows in 5 150; do
        expect 0 extract compressed.safetensors layers.0.k_proj.weight -o layer.trf -f
        check x96_$rows layers.0.k_proj.weight
        expect 0 extract compressed.safetensors layers.0.codes.weight -o layer.trf -f
        check x320_$rows layers.0.codes.weight
        expect 0 extract compressed.safetensors 'layers.0.experts.up_proj[2]' -o layer.trf -f
        check x160_$rows layers.0.experts.up_proj 2
        # numpy has no F8: against the CPU.
        expect 0 extract compressed.safetensors layers.0.v_proj.weight -o layer.trf -f
        expect 0 matmul layer.trf x272_$rows.npy -o y.npy --device cuda -f
        expect 0 matmul layer.trf x272_$rows.npy -o y2.npy -f
        are_close y.npy y2.npy ||
            fail "CPU and GPU differ on F8_E4M3"
    done
done

expect 0 extract compressed.safetensors layers.0.k_proj.weight -o layer.trf -f
expect 1 matmul layer.trf large.npy -o no.npy --device cuda
expect_error large.npy -70000 'row 2' 'column 17' F16 TRF_ERR_ARGUMENT
[ ! -e no.npy ] || fail "an output of a failed command"
# A value that is infinite already is not made so.
expect 0 matmul layer.trf infinite.npy -o y.npy --device cuda -f
"$TRF_PYTHON" -c '
import numpy as np
y = np.load("y.npy")
assert np.isfinite(y[:2]).all() and not np.isfinite(y[2]).any()' ||
    fail "a row with an infinite x"
expect 1 matmul layer.trf x160_5.npy -o no.npy --device cuda
expect_error x160_5.npy 160 96 TRF_ERR_SHAPE

# By a tuning, which is for this device alone.
expect 0 tune compressed.safetensors -o tuning.json --device cuda --max-batch 192
for rows in 5 150; do
    expect 0 matmul layer.trf x96_$rows.npy -o y.npy --device cuda --tuning tuning.json -f
    "$TRF_PYTHON" "$here/check_product.py" y.npy x96_$rows.npy mixed.safetensors layers.0.k_proj.weight ||
        fail "product of $rows rows by a tuning"
done
sed 's/"device": "[^"]*"/"device": "another"/' tuning.json >other.json
expect 1 matmul layer.trf x96_5.npy -o no.npy --device cuda --tuning other.json
expect_error other.json another TRF_ERR_DEVICE

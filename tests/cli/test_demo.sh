#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The demo's own program on a small sample: it checks every step itself and ends in its table. What it does with a GPU
# is tested with a command that has one in part: products on the "GPU" are the CPU's, and the bench's record is made up.
. "$(dirname "$0")/common.sh"
need_numpy
"$TRF_PYTHON" -c 'import ml_dtypes' 2>/dev/null || {
    echo "skipped: $TRF_PYTHON has no ml_dtypes"
    exit 77
}

"$TRF_PYTHON" "$TRF_SOURCE_DIR/examples/make_sample_checkpoint.py" --small sample || fail "make_sample_checkpoint.py"
# Again over a sample of its own, but never over a checkpoint that it did not make.
"$TRF_PYTHON" "$TRF_SOURCE_DIR/examples/make_sample_checkpoint.py" --small sample || fail "the sample, made again"
mkdir own && echo '{}' >own/config.json && echo weights >own/model.safetensors
"$TRF_PYTHON" "$TRF_SOURCE_DIR/examples/make_sample_checkpoint.py" --small own 2>error &&
    fail "a sample over a checkpoint"
grep -q 'own: exists already' error && [ "$(cat own/model.safetensors)" = weights ] || fail "a checkpoint was touched"
"$TRF_PYTHON" "$TRF_SOURCE_DIR/examples/demo.py" "$TRANSFUSE" sample work >out || fail "demo.py"
grep -q '^weights against the source .*bit for bit .*error' out || fail "no table: $(cat out)"
grep -q '^matmul, 8 rows of x .* s .* s$' out || fail "nothing was multiplied: $(cat out)"
grep -q GPU out && fail "a GPU without --gpu: $(cat out)"

# Usage: timed WHAT FAVOR BATCH SECONDS   A measurement of a record.
timed() {
    printf '{"what": "%s", "favor": %s, "batch": %s, "calls": 16, "copies": 2, "bytes_read": 1, "bytes_written": 0, ' \
        "$1" "$2" "$3"
    printf '"median_seconds": %s, "seconds": [%s, %s]},\n' "$4" "$4" "$4"
}

# A file that is cut is named, by the command's own message.
mkdir cut && head -c 100000 sample/model.safetensors >cut/model.safetensors
"$TRF_PYTHON" "$TRF_SOURCE_DIR/examples/demo.py" "$TRANSFUSE" cut cut-work >out 2>err &&
    fail "a cut checkpoint: $(cat out)"
grep -q '^demo failed: .*cut/model.safetensors' err || fail "a cut checkpoint: $(cat err)"

cat >fake_gpu <<'SH'
#!/bin/sh
case "$1 $*" in
bench*)
    while [ "$1" != --json ]; do shift; done
    cp "$FAKE_RECORD" "$2"
    ;;
matmul*" --device cuda")
    [ "${FAKE_FAULT-}" != no-device ] || exec "$TRANSFUSE" "$@"
    "$TRANSFUSE" matmul "$2" "$3" -o "$5" || exit
    [ "${FAKE_FAULT-}" != product ] || "$TRF_PYTHON" -c '
import sys
import numpy as np
np.save(sys.argv[1], 1.01 * np.load(sys.argv[1]))' "$5"
    ;;
*) exec "$TRANSFUSE" "$@" ;;
esac
SH
chmod +x fake_gpu
FAKE_RECORD=$work/record.json
export TRF_PYTHON TRANSFUSE FAKE_RECORD

# Usage: record WRONG_WEIGHTS
record() {
    {
        echo '{"device": "cuda", "gpu": "NVIDIA Made Up", "runs": 20, "results": [{"rows": 8192, "cols": 4096,'
        echo '"codec": "bf16", "blobs": [{"favor": "speed", "wrong_weights": '"$1"'}], "measurements": ['
        timed copy null 0 0.5
        timed decode '"speed"' 0 0.5
        timed cublaslt null 8 0.0000501
        timed fused '"speed"' 8 0.00004
        timed two-step '"speed"' 8 0.00015
        timed cublaslt null 128 0.00009
        timed two-step '"speed"' 128 0.00019
        echo '{"what": "fused", "favor": "speed", "batch": 128, "reason": "more than 64 rows of x"}]}]}'
    } >record.json
}

record 0
"$TRF_PYTHON" "$TRF_SOURCE_DIR/examples/demo.py" --gpu ./fake_gpu sample work >out || fail "demo.py --gpu: $(cat out)"
grep -q '^NVIDIA Made Up, ' out || fail "no GPU's table: $(cat out)"
grep -Eq '^8192x4096 +8 +50\.1 +40\.0 +150\.0 +1\.25$' out || fail "the times at 8 rows: $(cat out)"
grep -Eq '^8192x4096 +128 +90\.0 +- +190\.0 +-$' out || fail "the times at 128 rows: $(cat out)"
grep -q '^y from the GPU against y from the CPU, relative: 0.0e+00, 0.0e+00$' out || fail "no product: $(cat out)"
grep -q '^weights against the source .*bit for bit .*error' out || fail "no first table with a GPU: $(cat out)"

FAKE_FAULT=product "$TRF_PYTHON" "$TRF_SOURCE_DIR/examples/demo.py" --gpu ./fake_gpu sample work >out 2>err &&
    fail "a wrong product of the GPU passed: $(cat out)"
grep -q '^demo failed: the product on the GPU is off by 1.00e-02' err || fail "a wrong product: $(cat out err)"

record 3
"$TRF_PYTHON" "$TRF_SOURCE_DIR/examples/demo.py" --gpu ./fake_gpu sample work >out 2>err &&
    fail "wrong weights of the GPU passed: $(cat out)"
grep -q '^demo failed: the GPU decodes 8192x4096 to other weights' err || fail "wrong weights: $(cat out err)"

# A command without device code, or a machine without a device: the rest of the demo counts.
"$TRANSFUSE" matmul work/lossless-layer.trf work/lossless-X.npy -o y.npy --device cuda >/dev/null 2>&1
[ $? -eq 3 ] || exit 0
FAKE_FAULT=no-device "$TRF_PYTHON" "$TRF_SOURCE_DIR/examples/demo.py" --gpu ./fake_gpu sample work >out ||
    fail "demo.py without a device: $(cat out)"
grep -q '^left out: transfuse: .*TRF_ERR_DEVICE' out || fail "what is left out is not said: $(cat out)"
grep -q '^weights against the source .*bit for bit .*error' out || fail "no table without a device: $(cat out)"

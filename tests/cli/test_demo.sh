#!/bin/sh
# The demo's own program on a small sample: it checks every step itself and ends in its table.
. "$(dirname "$0")/common.sh"
need_numpy
"$TRF_PYTHON" -c 'import ml_dtypes' 2>/dev/null || {
    echo "skipped: $TRF_PYTHON has no ml_dtypes"
    exit 77
}

"$TRF_PYTHON" "$TRF_SOURCE_DIR/examples/make_sample_checkpoint.py" --small sample || fail "make_sample_checkpoint.py"
"$TRF_PYTHON" "$TRF_SOURCE_DIR/examples/demo.py" "$TRANSFUSE" sample work >out || fail "demo.py"
grep -q '^weights against the source .*bit for bit .*error' out || fail "no table: $(cat out)"
grep -q '^matmul, 8 rows of x .* s .* s$' out || fail "nothing was multiplied: $(cat out)"

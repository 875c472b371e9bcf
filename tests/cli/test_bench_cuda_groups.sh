#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# bench --device cuda --mode overlap, moe: small runs, their tables and files.
. "$(dirname "$0")/common.sh"
need_numpy

"$TRANSFUSE" bench --device cuda --mode overlap --layers 96x512,256x512 --batch 1,9 --runs 3 --json overlap.json \
    --csv overlap.csv >out 2>err
status=$?
if [ $status -eq 3 ]; then
    expect_error TRF_ERR_DEVICE cuda
    echo "skipped: bench --mode overlap: $(cat err)"
    exit 77
fi
[ $status -eq 0 ] || fail "bench --mode overlap: $(cat out err)"
for word in "96x512, 256x512" "one after another" grouped "each on a stream"; do
    grep -qF "$word" out || fail "the table lacks $word"
done
"$TRANSFUSE" bench --device cuda --mode moe --layers 96x256 --batch 1,3 --runs 3 --json moe.json --csv moe.csv \
    >out 2>err ||
    fail "bench --mode moe: $(cat out err)"
for word in "64 experts 96x256" cuBLASLt "dense grouped kernel" "layers one by one" " experts "; do
    grep -qF "$word" out || fail "the table lacks $word"
done
# cuBLAS may be missing or refuse: then its case is left out, for a reason.
grep -qF "cuBLAS grouped" out || grep -qF 'goes on without "cuBLAS grouped"' err ||
    fail "the table lacks cuBLAS grouped"
"$TRF_PYTHON" - <<'PYTHON' || fail "the files of bench"
import csv, json
with open("err", encoding="utf-8") as file:
    left_out = "goes on without" in file.read()
for mode, ways in ("overlap", 3), ("moe", 6 if left_out else 7):
    with open(mode + ".json", encoding="utf-8") as file:
        bench = json.load(file)
    assert bench["mode"] == mode and bench["gpu"]
    assert len(bench["figures"]) == 2 * ways
    for f in bench["figures"]:
        assert len(f["seconds"]) == 3 and min(f["seconds"]) > 0 and f["bytes"] > 0, f
        assert f["error"] is not None and f["error"] < 5e-3, f
    assert sum("ratio" in f for f in bench["figures"]) == 2 * (ways - 1)
    with open(mode + ".csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * len(bench["figures"])
    assert all(None not in row and None not in row.values() for row in rows)
PYTHON
! "$TRANSFUSE" bench --device cuda --mode moe --batch 17 >out 2>err || fail "a batch of 17 is taken"
expect_error TRF_ERR_ARGUMENT 16

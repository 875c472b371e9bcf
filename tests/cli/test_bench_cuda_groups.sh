#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# bench --device cuda --mode overlap, moe: small runs of both, and of mixtures, their tables and files.
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
    left_out = "goes on without \"cuBLAS grouped\"" in file.read()
for mode in "overlap", "moe":
    with open(mode + ".json", encoding="utf-8") as file:
        bench = json.load(file)
    assert bench["mode"] == mode and bench["gpu"]
    # Packed experts need compute capability 9.0.
    ways = 3 if mode == "overlap" else 7 - left_out + (bench["compute_capability"] == 9)
    rates = [f for f in bench["figures"] if f["what"] in ("read", "cuBLASLt")]
    figures = [f for f in bench["figures"] if f not in rates]
    assert len(figures) == 2 * ways and len(rates) == (2 if mode == "moe" else 0)
    assert all(len(f["seconds"]) == 3 and min(f["seconds"]) > 0 for f in bench["figures"])
    for f in figures:
        assert f["bytes"] > 0 and f["error"] is not None and f["error"] < 5e-3, f
        assert ("limit_seconds" in f) == (mode == "moe"), f
    assert sum("ratio" in f for f in figures) == 2 * (ways - 1)
    with open(mode + ".csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * len(bench["figures"])
    assert all(None not in row and None not in row.values() for row in rows)
    capability = bench["compute_capability"]
with open("capability", "w") as file:
    file.write(str(int(10 * capability)))
PYTHON
! "$TRANSFUSE" bench --device cuda --mode moe --batch 17 >out 2>err || fail "a batch of 17 is taken"
expect_error TRF_ERR_ARGUMENT 16
! "$TRANSFUSE" bench --device cuda --mode moe --mixture 8x20x64/2 >out 2>err || fail "20 is taken for a multiple of 8"
expect_error TRF_ERR_ARGUMENT 'multiples of 8'

if [ "$(cat capability)" -ne 90 ]; then
    ! "$TRANSFUSE" bench --device cuda --mode moe --mixture 8x64x128/2 >out 2>err || fail "mixtures without 9.0"
    expect_error TRF_ERR_UNSUPPORTED 9.0
    exit 0
fi
"$TRANSFUSE" bench --device cuda --mode moe --mixture 13x104x328/4,8x64x128/2 --routes skewed --batch 1,70,300 \
    --runs 3 --json mixtures.json --csv mixtures.csv >out 2>err ||
    fail "bench --mode moe --mixture: $(cat out err)"
"$TRF_PYTHON" - <<'PYTHON' || fail "the files of mixtures"
import csv, json
with open("err", encoding="utf-8") as file:
    left_out = file.read().count("goes on without \"cuBLAS, products alone\"")
with open("mixtures.json", encoding="utf-8") as file:
    bench = json.load(file)
packed = [f for f in bench["figures"] if f["what"] == "packed mixture"]
dense = [f for f in bench["figures"] if f["what"] == "cuBLAS, products alone"]
assert [(f["subject"], f["batch"]) for f in packed] == [
    (subject, batch)
    for subject in ("13 of 104x328, 4 routed, skewed", "8 of 64x128, 2 routed, skewed")
    for batch in (1, 70, 300)
]
assert len(packed) in (len(dense), len(dense) + left_out) and len(bench["figures"]) == len(packed) + len(dense) + 2
for f in packed + dense:
    assert len(f["seconds"]) == 3 and min(f["seconds"]) > f["limit_seconds"] > 0 and f["bytes"] > 0, f
    # The activation's result, each route's product and y round to BF16, whose error is 2^-9 at most.
    assert f["error"] is not None and 0 < f["error"] < 8e-3, f
assert sum("ratio" in f for f in packed) == len(dense)
with open("mixtures.csv", newline="", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
assert len(rows) == 3 * len(bench["figures"]) and all(None not in row.values() for row in rows)
PYTHON

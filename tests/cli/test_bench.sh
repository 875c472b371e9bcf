#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# bench: a small run of everything, its table, and both of its files.
. "$(dirname "$0")/common.sh"
need_numpy

expect 0 bench --layers 96x160,300x64 --batch 1,3 --runs 2 --sigma 0.02,0.03 --bits 3.5,5 --codec auto \
    --json bench.json --csv bench.csv -T 2
[ ! -s err ] || fail "something on standard error"
for word in bf16 fp16 fp8_e4m3 fp8_e5m2 scaled_fp8 int8 bits:3.5 bits:5 lz4 zstd 96x160 300x64 speed size; do
    grep -qF "$word" out || fail "the table lacks $word"
done
"$TRF_PYTHON" - <<'PYTHON' || fail "the files of bench"
import csv, json
with open("bench.json", encoding="utf-8") as file:
    bench = json.load(file)
assert bench["cpu"] and bench["date"] and bench["version"] and bench["threads"] == 2 and bench["device"] == "cpu"
# 2 layers, 2 sigmas, 8 codecs, 2 favors; baselines: 6 codecs, 2 compressors.
assert len(bench["results"]) == 64 and len(bench["baselines"]) == 48
for r in bench["results"]:
    assert abs(r["bits_per_weight"] - 8 * r["bytes"] / r["weights"]) < 1e-6, r
    assert r["weights"] == r["rows"] * r["cols"]
    lists = [r["encode_seconds"], r["encode_verified_seconds"], r["decode_seconds"]]
    lists += [product["seconds"] for product in r["matmul"]]
    assert [product["batch"] for product in r["matmul"]] == [1, 3]
    assert all(len(times) == 2 and min(times) > 0 for times in lists), r
    assert r["entropy_bits"] > 0
    assert (r["relative_rms_error"] > 0) == r["codec"].startswith(("int", "bits")), r
with open("bench.csv", newline="", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
assert all(None not in row and None not in row.values() for row in rows)
# 4 figures, and 2 runs of encode, checked encode, decode and 2 products; baselines: 1 figure, 2 runs of 2.
assert len(rows) == 64 * (4 + 2 * 5) + 48 * (1 + 2 * 2), len(rows)
measures = {row["measure"] for row in rows if row["compressor"] == "lz4"}
assert measures == {"bits_per_weight", "encode_seconds", "decode_seconds"}
PYTHON

# The same weights every time, whatever the number of threads.
for threads in 1 2; do
    expect 0 bench --layers 96x160 --batch 1 --runs 1 --distribution student-t --codec bf16,bits --favor size \
        --json $threads.json -T $threads
done
"$TRF_PYTHON" - <<'PYTHON' || fail "two runs of bench come to different sizes"
import json
sizes = [[(r["codec"], r["bytes"], r["exceptions"]) for r in json.load(open(f"{n}.json"))["results"]] for n in (1, 2)]
assert sizes[0] == sizes[1] and len(sizes[0]) == 2, sizes
PYTHON

# ---- rows of several lines where $COLUMNS is narrow; else a row is a line ----
for columns in 80 60; do
    COLUMNS=$columns "$TRANSFUSE" bench --layers 64x64 --batch 1,8 --runs 1 --codec bf16 >out || fail "COLUMNS=$columns"
    awk -v columns=$columns 'table && length > columns { exit 1 } /^$/ { table = 1 }' out || fail "too wide: $(cat out)"
    [ "$(grep -c '^64x64 ' out)" -eq 4 ] && [ "$(grep -c '^    ' out)" -ge 6 ] || fail "not in lines: $(cat out)"
done
(
    unset COLUMNS
    expect 0 bench --layers 64x64 --batch 1,8 --runs 1 --codec bf16
) || exit 1
[ "$(sed '1,/^$/d' out | wc -l)" -eq 5 ] || fail "rows of several lines in a pipe: $(cat out)"

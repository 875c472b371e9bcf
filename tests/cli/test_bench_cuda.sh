#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# bench --device cuda: a small run of everything, its table, and both of its files.
. "$(dirname "$0")/common.sh"
need_numpy

TRF_COMMIT=0123abc
export TRF_COMMIT
"$TRANSFUSE" bench --device cuda --layers 96x160,300x64 --batch 1,9,70 --runs 3 --codec auto --bits 4.25 \
    --json bench.json --csv bench.csv >out 2>err
status=$?
if [ $status -eq 3 ]; then
    expect_error TRF_ERR_DEVICE cuda
    echo "skipped: bench --device cuda: $(cat err)"
    exit 77
fi
[ $status -eq 0 ] || fail "bench --device cuda: $(cat out err)"
for word in bf16 fp16 fp8_e4m3 fp8_e5m2 int8 bits:4.25 fused two-step decode cublaslt raw8 copy 96x160 300x64 \
    0123abc; do
    grep -qF "$word" out || fail "the table lacks $word"
done
"$TRF_PYTHON" - <<'PYTHON' || fail "the files of bench"
import csv, json
with open("bench.json", encoding="utf-8") as file:
    bench = json.load(file)
assert bench["device"] == "cuda" and bench["gpu"] and bench["driver"] and bench["cublaslt_version"] > 0
assert bench["commit"] == "0123abc" and bench["runs"] == 3
assert len(bench["results"]) == 2 * 6
times = 0
for r in bench["results"]:
    assert [(b["favor"], b["layout"]) for b in r["blobs"]] == [("speed", "coded"), ("size", "coded")]
    assert all(b["device_bits_per_weight"] >= b["bits_per_weight"] for b in r["blobs"])
    assert all(b["wrong_weights"] == 0 for b in r["blobs"]), r
    found = {(m["what"], m["favor"], m["batch"]) for m in r["measurements"]}
    wanted = {("copy", None, 0)} | {("decode", favor, 0) for favor in ("speed", "size")}
    for batch in 1, 9, 70:
        if batch > 8 and r["codec"] != "bf16":
            wanted |= {("wide", favor, batch) for favor in ("speed", "size")}
        wanted |= {("cublaslt", None, batch)}
        wanted |= {(what, favor, batch) for what in ("fused", "two-step") for favor in ("speed", "size")}
        if r["codec"] in ("fp8_e4m3", "fp8_e5m2", "int8"):
            wanted |= {("raw8", None, batch)}
    assert found == wanted, found ^ wanted
    for m in r["measurements"]:
        if "reason" in m:
            assert m["what"] in ("fused", "wide") or (m["what"], m["batch"]) == ("raw8", 70), m
            continue
        times += 1
        assert len(m["seconds"]) == 3 and min(m["seconds"]) > 0 and m["calls"] >= 1 and m["copies"] >= 1, m
        if m["batch"]:
            # Weights rounded to F16 in the products that need them dense; y of 16 bits.
            assert m["error_f32"] < (5e-4 if r["codec"] in ("int8", "bits:4.25") else 1e-5), (r["codec"], m)
            assert m["error"] is not None and m["error"] < 5e-3, (r["codec"], m)
with open("bench.csv", newline="", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
assert all(None not in row and None not in row.values() for row in rows)
assert sum(row["measure"] == "seconds" for row in rows) == 3 * times
PYTHON
# Why a product is not fused is told.
grep -q ' 70 fused .*(' out || fail "no reason for 70 rows"

# Packed layers: one path, and which kernel it took.
expect 0 bench --device cuda --layers 512x640 --batch 1,70 --runs 2 --layout packed --json packed.json
grep -q 'kernel [a-z].*: the layer is packed$' out || fail "bench --layout packed names no kernel: $(cat out)"
"$TRF_PYTHON" - <<'PYTHON' || fail "bench --layout packed"
import json
(result,) = json.load(open("packed.json", encoding="utf-8"))["results"]
packed = [m for m in result["measurements"] if m["what"] == "packed"]
assert [m["batch"] for m in packed] == [1, 70] and all(m["layout"] == "packed" for m in packed), packed
assert all(m["kernel"] and "cut" in m and m["error_f32"] < 1e-5 for m in packed), packed
PYTHON

# FP8 as packed8, whose products are with x of BF16; elsewhere than on 9.0 there is no kernel, and a reason is given.
expect 0 bench --device cuda --layers 512x640 --batch 1,70 --runs 2 --layout packed8 --json packed8.json
"$TRF_PYTHON" - <<'PYTHON' || fail "bench --layout packed8"
import json
(result,) = json.load(open("packed8.json", encoding="utf-8"))["results"]
packed = [m for m in result["measurements"] if m["what"] == "packed"]
assert result["codec"] == "fp8_e4m3" and [m["batch"] for m in packed] == [1, 70], result
assert all(m["layout"] == "packed8" and m.get("error_f32", 0) < 1e-5 for m in packed), packed
PYTHON

# Plain layers: 16 bits a weight and a head of 256 bytes, and one path, whose y is cuBLASLt's.
expect 0 bench --device cuda --layers 96x160,300x64 --batch 1,70 --runs 2 --layout plain \
    --json plain.json --csv plain.csv
"$TRF_PYTHON" - <<'PYTHON' || fail "bench --layout plain"
import csv, json
results = json.load(open("plain.json", encoding="utf-8"))["results"]
assert sorted(r["codec"] for r in results) == ["bf16", "bf16", "fp16", "fp16"]
for r in results:
    (blob,) = r["blobs"]
    assert blob["layout"] == "plain" and blob["wrong_weights"] == 0, blob
    assert blob["device_bytes"] == 256 + 2 * r["rows"] * r["cols"], blob
    found = {(m["what"], m["layout"], m["batch"]) for m in r["measurements"]}
    assert found == {("copy", None, 0), ("decode", "plain", 0)} | {
        case for batch in (1, 70) for case in (("cublaslt", None, batch), ("dense", "plain", batch))
    }, found
    assert all(m["error_f32"] < 1e-5 for m in r["measurements"] if m["batch"])
assert {row["layout"] for row in csv.DictReader(open("plain.csv", newline="", encoding="utf-8"))} == {"", "plain"}
PYTHON

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# bench --device cuda --mode offload: a small run, its table, and its file.
. "$(dirname "$0")/common.sh"
need_numpy

"$TRANSFUSE" bench --device cuda --mode offload --layers 1024x512,300x64,96x160,1024x512 --batch 1,3 --budget 20M \
    --runs 3 --json bench.json >out 2>err
status=$?
if [ $status -eq 3 ]; then
    expect_error TRF_ERR_DEVICE cuda
    echo "skipped: bench --mode offload: $(cat err)"
    exit 77
fi
[ $status -eq 0 ] || fail "bench --mode offload: $(cat out err)"
[ "$(grep -c 'y of every layer as without copying' out)" -eq 4 ] || fail "y was not compared: $(cat out)"
"$TRF_PYTHON" - <<'PYTHON' || fail "the file of bench"
import json
with open("bench.json", encoding="utf-8") as file:
    bench = json.load(file)
assert bench["mode"] == "offload", bench
assert len(bench["figures"]) == 2 * 2 * 3
for f in bench["figures"]:
    assert len(f["seconds"]) == 3 and min(f["seconds"]) > 0, f
    assert f["what"].startswith("compressed") == ("ratio" in f), f
by_name = {(f["batch"], f["what"]): f for f in bench["figures"]}
for batch in 1, 3:
    none, some = (by_name[batch, f"compressed, {stay}"] for stay in ("none stay", "in 0.02 GB"))
    dense, dense_some = (by_name[batch, f"bf16, {stay}"] for stay in ("none stay", "in 0.02 GB"))
    assert dense["bytes"] > none["bytes"] > some["bytes"] > 0, (none, some)
    # The budget holds that much of each, but for its buffers.
    assert dense["bytes"] - dense_some["bytes"] > 16e6 and none["bytes"] - some["bytes"] > 16e6
PYTHON

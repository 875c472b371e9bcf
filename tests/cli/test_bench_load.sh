#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# bench --device cuda --mode load: a small checkpoint, its table and its file; nothing stays behind, in $TMPDIR either,
# also after an interrupt.
. "$(dirname "$0")/common.sh"
need_numpy

mkdir temporary
TMPDIR=$PWD/temporary
export TMPDIR
"$TRANSFUSE" bench --device cuda --mode load --layers 600x700,96x160 --runs 2 --json load.json >out 2>err
status=$?
if [ $status -eq 3 ]; then
    expect_error TRF_ERR_DEVICE cuda
    [ -z "$(ls -A temporary)" ] || fail "files without a device: $(ls -A temporary)"
    echo "skipped: bench --mode load: $(cat err)"
    exit 77
fi
[ $status -eq 0 ] || fail "bench --mode load: $(cat out err)"
[ -z "$(ls -A temporary)" ] || fail "left behind: $(ls -A temporary)"
for word in page-locked pageable 'load, 1 thread' '8 layers' 'rows of 600x700' 'decode rows' gather; do
    grep -qF "$word" out || fail "the table lacks $word"
done
"$TRF_PYTHON" - <<'PYTHON' || fail "the file of bench"
import json
with open("load.json", encoding="utf-8") as file:
    bench = json.load(file)
figures = bench["figures"]
assert bench["mode"] == "load" and len(figures) == 5 + 2 * 3
assert all(len(f["seconds"]) == 2 and min(f["seconds"]) > 0 and f["bytes"] > 0 for f in figures), figures
assert {f["batch"] for f in figures if f["what"] == "decode rows"} == {1, 64, 4096}
PYTHON

# Packed, and coded beside it.
expect 0 bench --device cuda --mode load --layers 600x700,96x160 --runs 2 --layout packed --json packed.json
for word in '8 layers' 'of bf16, packed' 'load, coded' 'rows of 600x700 bf16, packed'; do
    grep -qF "$word" out || fail "the table of packed layers lacks $word"
done
"$TRF_PYTHON" - <<'PYTHON' || fail "the file of bench --layout packed"
import json
with open("packed.json", encoding="utf-8") as file:
    figures = json.load(file)["figures"]
assert len(figures) == 7 + 2 * 3
assert [f["what"] for f in figures].count("load, coded") == 1
assert [f["what"] for f in figures].count("load, coded, 4 layers at once") == 1
assert all(len(f["seconds"]) == 2 and min(f["seconds"]) > 0 and f["bytes"] > 0 for f in figures), figures
PYTHON

"$TRANSFUSE" bench --device cuda --mode load --layers 2000x2000 --runs 1000 >out 2>err &
pid=$!
i=0
while [ -z "$(ls -A temporary)" ] && kill -0 $pid 2>/dev/null && [ $i -lt 600 ]; do
    sleep 0.1
    i=$((i + 1))
done
kill -TERM $pid
wait $pid
status=$?
[ $status -eq 1 ] || fail "a terminated bench: status $status, $(cat out err)"
[ -z "$(ls -A temporary)" ] || fail "left behind after a signal: $(ls -A temporary)"

# No such folder.
TMPDIR=$PWD/nowhere expect 1 bench --device cuda --mode load --layers 96x160 --runs 1
expect_error TRF_ERR_IO nowhere

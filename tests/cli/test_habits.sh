#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What people expect of a command: quiet and verbose runs, JSON, outputs of the sort of the input, tables that fit.
. "$(dirname "$0")/common.sh"
need_numpy

"$TRF_PYTHON" "$here/make_checkpoint.py" mixed mixed.safetensors || exit 1
"$TRF_PYTHON" "$here/make_checkpoint.py" several_files several || exit 1
expect 0 compress mixed.safetensors -o compressed.safetensors
expect 0 compress several -o several-compressed
expect 0 extract compressed.safetensors layers.0.k_proj.weight -o layer.trf
"$TRF_PYTHON" -c 'import numpy as np; np.save("x.npy", np.ones((1, 96), np.float32))'

# Whether nothing was printed.
silent() { [ ! -s out ] && [ ! -s err ]; }

# ---- quiet: errors alone ----
for command in 'compress mixed.safetensors -o no' 'decompress compressed.safetensors -o no' \
    'verify compressed.safetensors' 'verify mixed.safetensors' 'matmul layer.trf x.npy -o no' \
    'extract compressed.safetensors layers.0.k_proj.weight -o no' 'tune layer.trf --max-batch 1 -o no'; do
    for option in -q --quiet; do
        rm -f no
        # shellcheck disable=SC2086
        expect 0 $command $option
        silent || fail "$command $option printed something: $(cat out err)"
    done
done
rm no
expect 1 compress absent -o no -q
expect_error absent TRF_ERR_NOT_FOUND
# A note is none: a config.json that was changed.
printf '{"model_type": "llama"}' >several/config.json
expect 0 compress several -o noted
sed 's/"llama"/"mistral"/' noted/config.json >changed && mv changed noted/config.json
expect 0 decompress noted -o again
grep -q '^transfuse: note: noted/config.json' err || fail "no note: $(cat err)"
expect 0 decompress noted -o again -f -q
silent || fail "decompress -q printed something: $(cat out err)"
rm -r again several/config.json

# ---- an error is none that -q hides: what decompressing would write is not the source's ----
cp noted/config.json kept
echo '{broken' >noted/config.json
for command in 'verify noted' 'decompress noted -o no'; do
    # shellcheck disable=SC2086
    expect 1 $command -q
    expect_error 'noted/config.json: not valid JSON' TRF_ERR_FORMAT
    [ ! -e no ] || fail "$command wrote it"
done
mv kept noted/config.json

# ---- verbose: each name, on standard error ----
for command in 'compress mixed.safetensors -o no' 'decompress compressed.safetensors -o no' \
    'verify compressed.safetensors'; do
    # shellcheck disable=SC2086
    expect 0 $command -v
    grep -q '^transfuse: [a-z]*ing layers.0.q_proj.weight$' err || fail "$command -v: $(cat err)"
    [ "$(sort err | uniq -d)" = "" ] || fail "$command -v: a name twice: $(cat err)"
    [ -s out ] || fail "$command -v: no summary"
    rm -f no
done

# ---- JSON: one object on standard output, and nothing else there ----
expect 0 decompress noted -o again --json
"$TRF_PYTHON" - out <<'PYTHON' || fail "decompress --json"
import json, sys
report = json.load(open(sys.argv[1]))
assert (report["command"], report["input"], report["output"]) == ("decompress", "noted", "again"), report
assert len(report["notes"]) == 1 and "noted/config.json" in report["notes"][0], report
assert report["notes"][0] in report["warning"], report
PYTHON
grep -q '^transfuse: note: ' err || fail "--json hides notes"
expect 0 compress mixed.safetensors -o no --json
[ ! -s err ] || fail "compress --json: something on standard error"
mv out compress.json
expect 0 verify no --against mixed.safetensors --json
mv out verify.json
"$TRF_PYTHON" - compress.json verify.json <<'PYTHON' || fail "--json"
import json, os, sys
compress, verify = (json.load(open(path)) for path in sys.argv[1:])
for report in compress, verify:
    assert report["tensors"] == 14 and report["compressed_tensors"] == 7, report
    assert 0 < report["output_bytes"] < report["source_bytes"] < os.path.getsize("mixed.safetensors"), report
    assert 0 < report["compressed_bytes"] < report["compressed_source_bytes"], report
    assert report["relative_rms_error"] == 0 and report["seconds"] >= 0 and report["notes"] == [], report
    assert {"compressed_weights", "rounded_tensors", "widened_tensors", "models", "source_file_bytes", "warning",
            "output_file_bytes", "extra_files", "extra_bytes", "skipped_files", "skipped_bytes"} <= report.keys()
assert (verify["command"], verify["input"], verify["against"]) == ("verify", "no", "mixed.safetensors")
assert verify["verdict"] == "ok" and "verdict" not in compress
assert verify["unchecked_tensors"] == verify["unchecked_bytes"] == 0 and "unchecked_bytes" not in compress
assert compress["dry_run"] is False and "left" not in verify
assert compress["left"].keys() == {"no_matrix", "small", "embedding", "tied", "f32", "dtype", "side_table",
                                   "excluded", "not_smaller", "adapter"}
assert all(left.keys() == {"tensors", "bytes", "reason"} and left["reason"] for left in compress["left"].values())
PYTHON
# What has no checksum is told where it was not compared with the source's.
expect 0 verify no --json
grep -q '"unchecked_tensors": 7,' out && ! grep -q '"unchecked_bytes": 0,' out || fail "verify --json: $(cat out)"
expect 0 verify no
grep -q '^  not compressed  7 tensors, .*B: no checksums; --against checks them$' out ||
    fail "verify: not a word of what has no checksum: $(cat out)"
expect 0 verify no --against mixed.safetensors
! grep -q 'no checksums' out || fail "verify --against: $(cat out)"
expect 0 verify mixed.safetensors --json
grep -q '"verdict": "nothing_compressed"' out || fail "verify --json: $(cat out)"
expect 0 extract compressed.safetensors 'layers.0.experts.up_proj[1]' -o extracted --json
mv out extract.json
expect 0 matmul layer.trf x.npy -o product --json -q
mv out matmul.json
expect 0 tune layer.trf -o tuning --max-batch 2 --json
mv out tune.json
"$TRF_PYTHON" - extract.json matmul.json tune.json <<'PYTHON' || fail "--json of extract, matmul or tune"
import json, os, sys
extract, matmul, tune = (json.load(open(path)) for path in sys.argv[1:])
assert extract == {"command": "extract", "input": "compressed.safetensors", "tensor": "layers.0.experts.up_proj[1]",
                   "output": "extracted", "codec": "bf16", "rows": 96, "cols": 160,
                   "bytes": os.path.getsize("extracted")}, extract
assert matmul.pop("seconds") >= 0
assert matmul == {"command": "matmul", "input": "layer.trf", "x": "x.npy", "output": "product", "batch": 1,
                  "codec": "fp16", "rows": 257, "cols": 96, "device": "cpu", "device_name": None, "path": "fused",
                  "not_fused": None}, matmul
assert tune.pop("seconds") >= 0
batches = [{"from": 1, "path": "fused", "kernel": None, "cut": None}]
assert tune == {"command": "tune", "input": "layer.trf", "output": "tuning", "device": "cpu", "max_batch": 2,
                "layers": [{"codec": "fp16", "rows": 257, "cols": 96, "class_bits": 2, "layout": "coded",
                            "batches": batches}]}, tune
PYTHON
expect 0 extract compressed.safetensors layers.0.k_proj.weight -o extracted -f
grep -q '^extracted: layers.0.k_proj.weight, fp16 257x96, [0-9.]* kB$' out || fail "extract: $(cat out)"
rm extracted product tuning
rm -r no compress.json verify.json extract.json matmul.json tune.json again noted
for command in 'compress absent -o no' 'decompress absent -o no' 'verify absent' 'info absent'; do
    # shellcheck disable=SC2086
    expect 1 $command --json
    expect_error absent
    [ ! -s out ] || fail "$command --json: something on standard output"
done
if [ -w /dev/full ]; then
    "$TRANSFUSE" verify compressed.safetensors --json >/dev/full 2>err
    [ $? -eq 1 ] || fail "a report that cannot be written goes unnoticed"
fi

# What the caller has closed does not become a file that messages are written into.
for closed in '2>&-' '<&- >&- 2>&-'; do
    eval '"$TRANSFUSE" compress several -o closed -v' "$closed" >out
    diff -r several/extra closed/extra || fail "$closed: messages in a file that was copied"
    rm -r closed
done
"$TRANSFUSE" verify compressed.safetensors >&- 2>err
[ $? -eq 1 ] || fail "closed standard output goes unnoticed"
expect_error 'standard output' TRF_ERR_IO
if [ -w /dev/full ]; then
    "$TRANSFUSE" info compressed.safetensors --json >/dev/full 2>err
    [ $? -eq 1 ] || fail "a listing that cannot be written goes unnoticed"
    expect_error 'standard output'
fi

# ---- verify --strict ----
expect 0 verify mixed.safetensors
grep -q 'nothing in it is compressed' out || fail "verify does not say that nothing is compressed"
expect 0 verify compressed.safetensors --strict
for option in '' --json -q; do
    # shellcheck disable=SC2086
    expect 1 verify mixed.safetensors --strict $option
    expect_error mixed.safetensors 'nothing in it is compressed' TRF_ERR_NOT_FOUND
    [ ! -s out ] || fail "verify --strict $option: something on standard output"
done

# ---- outputs of the sort of the input ----
mkdir folder
for command in 'compress mixed.safetensors' 'decompress compressed.safetensors' 'decompress layer.trf' \
    'extract compressed.safetensors layers.0.k_proj.weight' 'matmul layer.trf x.npy' \
    'tune layer.trf --max-batch 1'; do
    # shellcheck disable=SC2086
    expect 2 $command -o nowhere/
    grep -q 'names a folder, but a file is written' err || fail "$command -o nowhere/: $(cat err)"
    for force in '' -f; do
        # shellcheck disable=SC2086
        expect 1 $command -o folder $force
        expect_error 'folder: exists and is a directory' TRF_ERR_EXISTS
    done
done
expect 1 compress mixed.safetensors -o folder
expect_error 'such as folder/mixed.safetensors'
# Folders on the way to it are not made.
for command in 'compress mixed.safetensors' 'compress several' 'decompress compressed.safetensors' \
    'extract compressed.safetensors layers.0.k_proj.weight' 'matmul layer.trf x.npy' 'tune layer.trf'; do
    # shellcheck disable=SC2086
    expect 1 $command -o folder/not/there/out
    expect_error 'there is no folder folder/not; make it first' TRF_ERR_IO
    # shellcheck disable=SC2086
    expect 1 $command -o mixed.safetensors/out
    expect_error 'mixed.safetensors is not a folder' TRF_ERR_IO
done
echo precious >keep
for command in 'compress several' 'decompress several-compressed'; do
    for force in '' -f; do
        # shellcheck disable=SC2086
        expect 1 $command -o keep $force
        expect_error 'keep: exists and is a file' TRF_ERR_EXISTS
    done
done
[ "$(cat keep)" = precious ] || fail "a file was replaced by a folder"
# An index stands for its folder, and a slash behind a folder's name is none too many.
expect 0 compress several/model.safetensors.index.json -o other/
expect 0 verify other/ --against several/
rm -r other folder keep
expect_only compressed.safetensors layer.trf mixed.safetensors several several-compressed x.npy

# ---- tables ----
"$TRF_PYTHON" - "$TRANSFUSE" <<'PYTHON' || fail "tables"
import fcntl, os, pty, struct, subprocess, sys, termios

NAME = "layers.0.experts.up_proj"

def in_pipe(*arguments, columns=None):
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    if columns:
        environment["COLUMNS"] = str(columns)
    command = [sys.argv[1], "info", "compressed.safetensors", *arguments]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

def on_terminal(columns):
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    process = subprocess.Popen([sys.argv[1], "info", "compressed.safetensors"], env=environment, stdout=terminal)
    os.close(terminal)
    shown = b""
    try:
        while output := os.read(master, 4096):
            shown += output
    except OSError:
        pass
    os.close(master)
    assert process.wait() == 0
    return shown.decode().replace("\r\n", "\n")

def widest(text):
    return max(map(len, text.splitlines()))

full = in_pipe("-v")
assert all(word in full.splitlines()[0] for word in ("source", "exceptions")) and NAME in full, full
assert in_pipe(columns=500) == full
for text in (in_pipe(), in_pipe(columns=80), on_terminal(80)):
    assert widest(text) <= 80 and NAME in text and "exceptions" not in text, text
for columns in (30, 40, 50, 66, 100):
    for text in (in_pipe(columns=columns), on_terminal(columns)):
        assert widest(text) <= columns and len(text.split("\n\n")[0].splitlines()) == 15, text
        assert columns > 66 or "..." in text, text
        assert columns < 100 or "source" in text, text
# What is cut is the middle: beginnings and ends tell tensors apart.
lines = in_pipe(columns=50).splitlines()
assert any(line.startswith("layers.0.") and ".up_proj  " in line for line in lines), lines
PYTHON

# Summaries are folded; labels stay apart, and no word is cut.
for columns in 40 80; do
    for command in 'compress mixed.safetensors -o narrow -f' 'decompress compressed.safetensors -o narrow -f' \
        'verify compressed.safetensors --against mixed.safetensors' 'verify mixed.safetensors' \
        'tune layer.trf -o narrow.json -f --max-batch 1' 'matmul layer.trf x.npy -o narrow.npy -f' \
        'extract compressed.safetensors layers.0.k_proj.weight -o narrow.trf -f'; do
        COLUMNS=$columns
        export COLUMNS
        # shellcheck disable=SC2086
        expect 0 $command
        awk -v columns=$columns 'length > columns { exit 1 }' out || fail "$command is wider than $columns: $(cat out)"
        tr -s ' \n' '  ' <out >folded
        COLUMNS=1000
        # shellcheck disable=SC2086
        expect 0 $command
        tr -s ' \n' '  ' <out | sed 's/[0-9.]* s\>//' >whole
        sed 's/[0-9.]* s\>//' folded | cmp -s - whole || fail "$command: folded to another text: $(cat folded whole)"
    done
done
expect 0 compress mixed.safetensors -o narrow -f
COLUMNS=40 "$TRANSFUSE" compress mixed.safetensors -o narrow -f >out || fail "compress"
grep -q '^                  rounds it$' out || fail "not folded under the text: $(cat out)"
COLUMNS=40 "$TRANSFUSE" verify "$work/compressed.safetensors" >out || fail "verify"
grep -qF "$work/compressed.safetensors:" out || fail "a path was broken: $(cat out)"
rm narrow narrow.json narrow.npy narrow.trf folded whole

# A pipe has whole names, however long.
"$TRF_PYTHON" - <<'PYTHON' || exit 1
import numpy as np
from make_checkpoint import bf16, write
write("long.safetensors", {"x" * 100 + ".weight": ("BF16", bf16(np.ones((16, 16), np.float32)))})
PYTHON
unset COLUMNS
expect 0 info long.safetensors
grep -q '^x\{100\}\.weight ' out || fail "a name was cut: $(cat out)"

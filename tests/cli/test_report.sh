#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What compress says that it did, or would do: what is left and why, notes, whole files, dry runs, storage only.
. "$(dirname "$0")/common.sh"
need_numpy

"$TRF_PYTHON" "$here/make_checkpoint.py" several_files model || exit 1
"$TRF_PYTHON" "$here/make_checkpoint.py" mixed mixed.safetensors || exit 1
"$TRF_PYTHON" "$here/make_checkpoint.py" float float.safetensors || exit 1

# Usage: has FILE PATTERN...
has() {
    file=$1
    shift
    for pattern in "$@"; do
        grep -q -- "$pattern" "$file" || fail "no '$pattern': $(cat out err)"
    done
}

# ---- what is left, and why; the largest first ----
expect 0 compress mixed.safetensors -o left --exclude '*codes*'
has out ' 1 tensor, 61\.4 kB: excluded' ' 1 tensor, 24\.6 kB: F32 without a lossless codec' \
    ' 1 tensor, 16\.4 kB: embeddings; --embeddings takes them' ': not a matrix'
[ "$(grep -o ': excluded\|: F32\|: embeddings' out | tr -d '\n')" = ': excluded: F32: embeddings' ] ||
    fail "not the largest first: $(cat out)"
has out '^  left as it was  '
[ "$(grep -c 'left as it was' out)" -eq 1 ] || fail "the label more than once"
expect 0 compress mixed.safetensors -o left -f --json
"$TRF_PYTHON" - out <<'PYTHON' || fail "left in JSON"
import json, os, sys
report = json.load(open(sys.argv[1]))
left = report["left"].values()
assert report["compressed_tensors"] + sum(reason["tensors"] for reason in left) == report["tensors"], report
assert report["compressed_source_bytes"] + sum(reason["bytes"] for reason in left) == report["source_bytes"], report
assert report["left"]["f32"]["tensors"] == report["left"]["embedding"]["tensors"] == 1, report
assert report["models"] == 1 and report["left"]["excluded"]["tensors"] == 0, report
for name, path in ("source_file_bytes", "mixed.safetensors"), ("output_file_bytes", "left"):
    assert report[name] == os.path.getsize(path), (name, report)
PYTHON
expect 1 compress mixed.safetensors -o no --exclude '*embed*' --exclude nothing
expect_error "'nothing'" TRF_ERR_NOT_FOUND
rm left

# Texts of the summary are looked for in whole lines.
COLUMNS=1000
export COLUMNS

# ---- where nothing is compressed, the reasons say why ----
expect 0 compress float.safetensors -o float
has out 'Nothing was compressed; float is a copy' 'F32 without a lossless codec; --codec bf16 rounds it'
! grep -q "^  lossless " out || fail "lossless, and nothing was compressed"
same float.safetensors float
rm float

# ---- a dry run writes nothing, and says about what the run itself says ----
touch before after
ls -R . >before
expect 0 compress model --dry-run
has out '^model: nothing was written, and sizes are estimates' ': embeddings; --embeddings'
! grep -q 'every tile was decoded' out || fail "a dry run claims to have decoded tiles"
expect 0 compress model --dry-run -o nowhere --json
ls -R . >after
cmp -s before after || fail "a dry run wrote something"
mv out dry.json
expect 0 compress model -o compressed --json
"$TRF_PYTHON" - dry.json out <<'PYTHON' || fail "a dry run's figures"
import json, sys
dry, done = (json.load(open(path)) for path in sys.argv[1:])
assert dry["dry_run"] is True and done["dry_run"] is False
for name in "tensors", "compressed_tensors", "source_bytes", "compressed_source_bytes", "left":
    assert dry[name] == done[name], (name, dry[name], done[name])
for name in "compressed_bytes", "output_bytes":
    assert 0.9 < dry[name] / done[name] < 1.1, (name, dry[name], done[name])
PYTHON
expect 1 compress model --dry-run -o compressed
expect_error compressed TRF_ERR_EXISTS
expect 0 compress float.safetensors --dry-run
has out 'Nothing would be compressed'
rm before after dry.json

# ---- F32 that is BF16 ----
"$TRF_PYTHON" - <<'PYTHON' || exit 1
import numpy as np
from make_checkpoint import normal, write
values = normal(np.random.default_rng(5), 256, 256)
write("wide.safetensors", {"a.weight": ("F32", (values.view(np.uint32) & 0xFFFF0000).view(np.float32))})
PYTHON
expect 0 compress wide.safetensors -o wide
has out '^  F32 as BF16     1 tensor' 'dtype=bfloat16' '^  lossless '
! grep -q rounded out || fail "rounded, and nothing was"
expect 0 decompress wide -o again
same wide.safetensors again
rm wide again

# ---- the error of a sample is not that of all weights, and is not said to be ----
expect 0 compress wide.safetensors --dry-run --bits 4
has out '^  relative error  0\.[0-9]* (RMS, estimated from a sample of the weights)$'
expect 0 compress wide.safetensors -o lossy --bits 4
has out '^  relative error  0\.[0-9]* (RMS, over the compressed weights)$'
rm lossy

# ---- weights below the folder ----
mkdir model/original
head -c 300000 /dev/urandom >model/original/consolidated.00.pth
expect 0 compress model -o extra
has err '^transfuse: note: .*original'
has out '^  not compressed  1 file with weights' '^  all files '
cmp -s model/original/consolidated.00.pth extra/original/consolidated.00.pth || fail "not carried over"
expect 0 compress model -o extra -f --quiet
[ ! -s out ] && [ ! -s err ] || fail "--quiet prints notes"
expect 0 compress model -o extra -f --skip-extra original
has out '^  left out        1 file'
[ ! -e extra/original ] || fail "--skip-extra carried it over"
expect 1 verify extra --against model
expect 0 verify extra --against model --skip-extra original
expect 1 compress model -o no --skip-extra 'orignal'
expect_error orignal TRF_ERR_NOT_FOUND
rm -r extra
expect 0 compress model -o extra
expect 0 decompress extra -o again --skip-extra 'original/*'
[ ! -e again/original/consolidated.00.pth ] || fail "decompress --skip-extra carried it over"
rm -r extra again model/original

# ---- quantized already: for storage only ----
cp -r model quantized
printf '{"model_type": "llama", "quantization_config": {"quant_method": "gptq", "bits": 4}}\n' >quantized/config.json
for option in '' --dry-run; do
    # shellcheck disable=SC2086
    expect 1 compress quantized -o stored $option
    expect_error quantized TRF_ERR_UNSUPPORTED store
    [ ! -e stored ] || fail "a quantized folder was compressed"
done
expect 0 compress quantized -o stored --store-only
expect 0 verify stored --against quantized
expect 0 decompress stored -o again
diff -r quantized again || fail "what was stored does not come back"
rm -r stored again quantized

# ---- a pipeline ----
mkdir pipeline
printf '{"_class_name": "TestPipeline"}\n' >pipeline/model_index.json
cp -r model pipeline/transformer
cp -r model pipeline/text_encoder
expect 0 compress pipeline -o pipeline-compressed
has out '^  models          2, of a pipeline' '^  tensors         28, of which 14 compressed'
expect 0 info pipeline-compressed
[ "$(cut -d ' ' -f 1 out | grep / | sort | uniq -d)" = "" ] || fail "info: two tensors look the same: $(cat out)"
has out '^text_encoder/layers\.0\.k_proj\.weight ' '^transformer/layers\.0\.k_proj\.weight '
expect 0 info pipeline-compressed --json
has out '^  "command": "info"' '^  "input": "pipeline-compressed"' '^  "file": "pipeline-compressed"'
[ "$(grep -c '"part": "transformer"' out)" -eq 14 ] || fail "info --json has no parts: $(cat out)"
expect 0 info pipeline-compressed/transformer --json
[ "$(grep -c '"part": null' out)" -eq 14 ] || fail "info --json of a part: $(cat out)"
# Nothing but text gets to a terminal, whatever a path has.
cp -r pipeline-compressed/transformer "$(printf 'a\033[31mb')"
expect 0 verify "$(printf 'a\033[31mb')"
has out '^a?\[31mb: sound'
rm -r "$(printf 'a\033[31mb')"
# What info lists, extract takes.
expect 1 extract pipeline-compressed layers.0.k_proj.weight -o layer.trf
expect_error 'text_encoder and transformer' "'text_encoder/layers.0.k_proj.weight'"
expect 0 extract pipeline-compressed transformer/layers.0.k_proj.weight -o layer.trf
expect 0 extract pipeline-compressed 'transformer/layers.0.experts.up_proj[2]' -o layer.trf -f
expect 1 extract pipeline-compressed vae/layers.0.k_proj.weight -o no
expect_error 'there is no tensor'
rm layer.trf
# tune takes each layer from its part, though both have one of the name, and patterns may name the part.
expect 0 tune pipeline-compressed -o tuning.json --max-batch 1 -T 1
expect 0 compress pipeline -o some --include 'transformer/*'
has out '^  tensors         28, of which 8 compressed'
expect 1 compress pipeline -o no --include 'vae/*'
expect_error "no tensor's name matches 'vae/*'" TRF_ERR_NOT_FOUND
rm -r tuning.json some
expect 0 verify pipeline-compressed --against pipeline --strict --device cpu
has out '^  models          2, of a pipeline'
has out '^  in memory       CPU: [0-9]* layers sound'
expect 0 decompress pipeline-compressed -o again
has out '^  models          2, of a pipeline'
diff -r pipeline again || fail "the pipeline does not come back"

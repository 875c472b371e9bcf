#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Folders as people have them: weights below the top, the root of a pipeline, a file that would grow, work of the user's
# in the folder that -f names, permissions, and what a run that was killed left.
. "$(dirname "$0")/common.sh"
need_numpy

make() {
    "$TRF_PYTHON" "$here/make_checkpoint.py" "$@" || fail "make_checkpoint.py $*"
}

# ---- weights below the top: carried over, told, compared ----
make several_files model
mkdir -p model/original model/.git/lfs
head -c 2500000 /dev/zero >model/original/consolidated.00.pth
head -c 2000000 /dev/zero >model/.git/lfs/object
expect 0 compress model -o compressed
grep -q 'carried over uncompressed: 2.50 MB in 1 file under original/' err || fail "not a word of original/: $(cat err)"
grep -q 'not carried over: 2.00 MB in 1 file under .git/' err || fail "not a word of .git/: $(cat err)"
[ ! -e compressed/.git ] || fail ".git was copied"
expect 0 verify compressed --against model
printf '\7' | dd of=compressed/original/consolidated.00.pth bs=1 seek=2499999 conv=notrunc 2>/dev/null
expect 1 verify compressed --against model
expect_error 'compressed: differ' original/consolidated.00.pth TRF_ERR_MISMATCH 'at byte 2499999' 'the tensors passed'
rm compressed/original/consolidated.00.pth
expect 1 verify compressed --against model
expect_error 'missing here: original/consolidated.00.pth' TRF_ERR_NOT_FOUND
expect 0 verify compressed --against model --skip-extra original
grep -q 'not compared, as asked: 2.50 MB in 1 file under original/' err || fail "not a word of original/: $(cat err)"
echo more >compressed/mine.txt
expect 0 verify compressed --against model --skip-extra original
grep -q 'not in the source: mine.txt' err || fail "not a word of mine.txt: $(cat err)"
grep -q '^  added           1 file' out && grep -q '^  other files     . files\? compared' out || fail "$(cat out)"
rm compressed/mine.txt

# ---- work in the folder that -f names ----
mkdir -p compressed/loras
echo work >compressed/loras/mine.txt
expect 1 compress model -o compressed -f
expect_error compressed loras/mine.txt TRF_ERR_EXISTS
[ "$(cat compressed/loras/mine.txt)" = work ] || fail "-f took somebody's work"
rm -r compressed/loras
expect 0 compress model -o compressed -f
expect 0 decompress compressed -o back
echo work >back/mine.txt
expect 1 decompress compressed -o back -f
expect_error back mine.txt TRF_ERR_EXISTS
rm back/mine.txt
expect 0 decompress compressed -o back -f
rm -r model/.git
diff -r model back || fail "the folder does not come back"

# ---- permissions ----
chmod 600 model/model-00001-of-00002.safetensors
chmod 750 model/extra
expect 0 compress model -o compressed -f
for path in model-00001-of-00002.safetensors extra config.json; do
    [ "$(stat -c %a compressed/$path)" = "$(stat -c %a model/$path)" ] || fail "$path: other permissions"
done

# ---- a pipeline's root ----
mkdir root root/scheduler
echo '{"_class_name": "P"}' >root/model_index.json
echo '{}' >root/scheduler/scheduler_config.json
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    mkdir "root/part$i"
    ln model/model-0000* model/*.json "root/part$i" || fail "ln"
    echo "{\"_class_name\": \"X$i\"}" >"root/part$i/own.json"
done
make mixed root/whole.safetensors
expect 0 compress root -o root-compressed
grep -q 'carried over uncompressed: .* in whole.safetensors' err || fail "not a word of whole.safetensors: $(cat err)"
for i in 1 20; do
    grep -q '"quant_method": "transfuse"' "root-compressed/part$i/config.json" || fail "part$i is not compressed"
done
same root/whole.safetensors root-compressed/whole.safetensors
expect 0 verify root-compressed --against root
expect 0 info root-compressed
expect 0 decompress root-compressed -o root-back
diff -r root root-back || fail "the root does not come back"
expect 1 extract root-compressed layers.0.q_proj.weight -o layer.trf
expect_error 'open the folder of one of them' TRF_ERR_ARGUMENT
expect 0 extract root-compressed/part3 layers.0.q_proj.weight -o layer.trf

# ---- a compressed model's state dict, written to a file ----
"$TRF_PYTHON" - <<'PYTHON' || fail "state.safetensors"
import make_checkpoint as made
import numpy as np
made.write("state.safetensors", {"a.weight": ("U8", np.fromfile("layer.trf", np.uint8)),
                                 "b.weight": ("U8", np.arange(64, dtype=np.uint8))})
PYTHON
expect 1 compress state.safetensors -o no.safetensors
expect_error "state.safetensors: tensor 'a.weight'" save_pretrained TRF_ERR_FORMAT
expect 1 verify state.safetensors
expect_error "state.safetensors: tensor 'a.weight'" save_pretrained TRF_ERR_FORMAT
expect 0 info state.safetensors
grep -q '^1 of them begin as compressed tensors' out || fail "info: not a word of the blob: $(cat out)"
expect 0 info state.safetensors --json
"$TRF_PYTHON" -c 'import json, sys
assert [tensor.get("is_bare_blob", False) for tensor in json.load(sys.stdin)["tensors"]] == [True, False]' <out ||
    fail "info --json: not a word of the blob"
expect 0 decompress state.safetensors -o copied.safetensors
grep -q 'save_pretrained instead; it stays as it is' err || fail "decompress: not a word of the blob"
same state.safetensors copied.safetensors

# ---- an adapter, and a file whose config.json lies beside it ----
mkdir lora quantized
"$TRF_PYTHON" - <<'PYTHON' || fail "lora"
import make_checkpoint as made
import numpy as np
rng = np.random.default_rng(1)
made.write("lora/pytorch_lora_weights.safetensors",
           {f"unet.a.lora_{part}.weight": ("BF16", made.bf16(made.normal(rng, 64, 64))) for part in "AB"})
PYTHON
expect 1 compress lora -o lora-compressed
expect_error 'lora: is an adapter' '; --store-only compresses it' TRF_ERR_UNSUPPORTED
expect 0 compress lora -o lora-compressed --store-only
expect 0 decompress lora-compressed -o lora-back
diff -r lora lora-back || fail "the adapter does not come back"
make mixed quantized/model.safetensors
echo '{"quantization_config": {"quant_method": "fp8"}}' >quantized/config.json
expect 1 compress quantized/model.safetensors -o no.safetensors
expect_error quantized/model.safetensors: '(fp8) in the config.json beside it' --store-only TRF_ERR_UNSUPPORTED

# ---- -f does not replace weights that are not compressed, though they have the names of those that it would write ----
mkdir fresh mine
make mixed fresh/model-00001-of-00002.safetensors
make float mine/model-00001-of-00002.safetensors
expect 1 compress fresh -o mine -f
expect_error 'it holds model-00001-of-00002.safetensors' TRF_ERR_EXISTS
expect 0 compress mine -o mine-compressed --bits 4
# What was quantized does not come back, and decompress says so.
expect 0 decompress mine-compressed -o mine -f
grep -q "note: not the source's, bit for bit: [1-9][0-9]* tensors\? that w[a-z]* quantized" err ||
    fail "not a word of lost bits: $(cat err)"
expect 0 compress fresh -o fresh-compressed
expect 0 decompress fresh-compressed -o fresh-back
[ ! -s err ] || fail "a word too much: $(cat err)"
expect 0 compress fresh -o mine-compressed -f

# ---- the same goes for single files ----
shard=fresh/model-00001-of-00002.safetensors
cp mine/model-00001-of-00002.safetensors sibling.safetensors
cp sibling.safetensors kept.safetensors
expect 1 compress $shard -o sibling.safetensors -f
expect_error 'sibling.safetensors: exists, and is not replaced: it holds weights, which would be lost' TRF_ERR_EXISTS
same sibling.safetensors kept.safetensors
mkdir snapshot && cp sibling.safetensors blob && ln -s ../blob snapshot/model.safetensors # as in a cache of downloads
expect 1 compress $shard -o snapshot/model.safetensors -f
expect_error 'blob: exists, and is not replaced: it holds weights' TRF_ERR_EXISTS
same blob kept.safetensors
cp $shard sibling.safetensors # what is the source's is not lost
expect 0 compress $shard -o sibling.safetensors -f
expect 0 compress $shard -o sibling.safetensors -f
# What is decompressed replaces weights that it writes again, under other values or not.
expect 0 decompress sibling.safetensors -o back.safetensors
expect 0 decompress sibling.safetensors -o back.safetensors -f
expect 0 extract sibling.safetensors layers.0.k_proj.weight -o one.trf
expect 1 decompress one.trf -o back.safetensors -f
expect_error 'back.safetensors: exists, and is not replaced: it holds weights' TRF_ERR_EXISTS
same back.safetensors $shard

# ---- a file whose header weighs more than what its tensors save ----
"$TRF_PYTHON" - <<'PYTHON' || fail "grows.safetensors"
import make_checkpoint as made
import numpy as np
rng = np.random.default_rng(1)
made.write("grows.safetensors", {f"{i}.weight": ("BF16", made.bf16(made.normal(rng, 128, 32))) for i in range(9)},
           {"tags": '{"tag": 1}' * 20000})
PYTHON
expect 0 compress grows.safetensors -o grown.safetensors
same grows.safetensors grown.safetensors

# ---- what a run that was killed left ----
make large large.safetensors
"$TRANSFUSE" compress large.safetensors -o killed.safetensors >/dev/null 2>&1 &
child=$!
until ls killed.safetensors.transfuse-tmp-* >/dev/null 2>&1; do
    kill -0 $child 2>/dev/null || fail "too fast to be killed"
done
kill -KILL $child
wait $child 2>/dev/null
expect 0 compress grows.safetensors -o killed.safetensors
grep -q 'killed.safetensors.transfuse-tmp-.*left by a run that was killed' err ||
    fail "not a word of the leftover: $(cat err)"
expect 0 compress grows.safetensors -o killed.safetensors -f
grep -q 'killed.safetensors.transfuse-tmp-.*removed' err || fail "not a word of the leftover: $(cat err)"
[ "$(find . -maxdepth 1 -name 'killed*')" = ./killed.safetensors ] || fail "the leftover is still there"
exit 0

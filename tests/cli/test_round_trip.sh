#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# compress, verify, decompress give the source's bytes back: a file, a folder of several files, every codec, any number
# of threads.
. "$(dirname "$0")/common.sh"
need_numpy

make() { "$TRF_PYTHON" "$here/make_checkpoint.py" "$@" || fail "make_checkpoint.py $*"; }
make mixed mixed.safetensors
make several_files several_files
odd='odd "name" \ é.weight'
default_choice="layers.0.q_proj.weight layers.0.k_proj.weight layers.0.v_proj.weight layers.0.o_proj.weight
    layers.0.codes.weight layers.0.experts.up_proj"

# Usage: check_info SOURCE CHECKPOINT NAME...
check_info() {
    source=$1
    expect 0 info "$2" --json
    shift 2
    [ ! -s err ] || fail "info: something on standard error"
    "$TRF_PYTHON" "$here/check_info.py" out "$source" "$@" || fail "info --json of $source"
}

# ---- a file, lossless ----
for favor in speed size; do
    expect 0 compress mixed.safetensors -o compressed.safetensors --favor $favor -f
    [ ! -s err ] || fail "something on standard error, which is no terminal"
    grep -q 'ratio' out || fail "compress prints no summary"
    expect 0 verify compressed.safetensors
    expect 0 verify compressed.safetensors --against mixed.safetensors
    grep -q 'bit for bit' out || fail "verify --against does not say what it found"
    expect 0 decompress compressed.safetensors -o decompressed.safetensors -f
    same mixed.safetensors decompressed.safetensors
    # shellcheck disable=SC2086  # a list of words
    check_info mixed.safetensors compressed.safetensors $default_choice "$odd"
    expect 0 info compressed.safetensors
    grep -q '^layers.0.q_proj.weight .* bf16\( \|$\)' out || fail "info's table"
    grep -q 'ratio' out || fail "info's totals"
done
check_info mixed.safetensors mixed.safetensors

# ---- the number of threads changes nothing ----
expect 0 compress mixed.safetensors -o one.safetensors -T 1
expect 0 compress mixed.safetensors -o four.safetensors -T 4
same one.safetensors four.safetensors
expect 0 decompress one.safetensors -o decompressed.safetensors -T 3 -f
same mixed.safetensors decompressed.safetensors
expect 0 compress mixed.safetensors -o one.safetensors -T 1 --bits 4.5 --favor size --exclude '*q_proj*' -f
expect 0 compress mixed.safetensors -o four.safetensors -T 4 --bits 4.5 --favor size --exclude '*q_proj*' -f
same one.safetensors four.safetensors

# Weights that no step can quantize.
expect 1 compress mixed.safetensors -o no.safetensors --bits 4.5
expect_error mixed.safetensors layers.0.q_proj.weight

# ---- which tensors ----
expect 0 compress mixed.safetensors -o compressed.safetensors --include '*q_proj*' --include '*embed*' -f
check_info mixed.safetensors compressed.safetensors layers.0.q_proj.weight model.embed_tokens.weight
expect 0 decompress compressed.safetensors -o decompressed.safetensors -f
same mixed.safetensors decompressed.safetensors
expect 0 compress mixed.safetensors -o compressed.safetensors --exclude 'layers.0.[kv]_proj.weight' --exclude 'odd*' -f
check_info mixed.safetensors compressed.safetensors layers.0.q_proj.weight layers.0.o_proj.weight \
    layers.0.codes.weight layers.0.experts.up_proj
expect 0 compress mixed.safetensors -o compressed.safetensors --include layers.0.thin.weight -f
check_info mixed.safetensors compressed.safetensors layers.0.thin.weight
expect 0 decompress compressed.safetensors -o decompressed.safetensors -f
same mixed.safetensors decompressed.safetensors
expect 0 compress mixed.safetensors -o compressed.safetensors --exclude '*' -f
grep -q 'Nothing was compressed' out || fail "compress does not say that it did nothing"
same mixed.safetensors compressed.safetensors
rm compressed.safetensors # a copy of weights is not replaced by those of another file

# ---- a folder: by its name, or by its index ----
for source in several_files several_files/model.safetensors.index.json; do
    expect 0 compress $source -o compressed -f
    same several_files/extra/notes.txt compressed/extra/notes.txt
    # shellcheck disable=SC2086
    check_info several_files compressed $default_choice "$odd"
    expect 0 verify compressed --against several_files
    expect 0 decompress compressed -o decompressed -f
    diff -r several_files decompressed || fail "the folder does not come back"
done

# ---- F32: rounded on request only, and then it is said ----
make float float.safetensors
expect 0 compress float.safetensors -o compressed.safetensors -f
grep -q 'Nothing was compressed' out || fail "F32 was compressed without being asked for"
expect 0 compress float.safetensors -o compressed.safetensors --codec bf16 -f
grep -q 'rounded .*2 F32 tensors' out || fail "compress does not say that it rounded"
check_info float.safetensors compressed.safetensors a.weight b.weight
rm decompressed.safetensors # the same: it has other tensors
expect 0 decompress compressed.safetensors -o decompressed.safetensors
"$TRF_PYTHON" - <<'PYTHON' || fail "F32 is not rounded to the nearest BF16"
import numpy as np
from read_checkpoint import read
source, copy = read("float.safetensors"), read("decompressed.safetensors")
for name, (dtype, array) in source.items():
    assert copy[name][0] == dtype
    if array.ndim == 2:
        bits = array.view(np.uint32).astype(np.uint64)
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
        array = bits.astype(np.uint32).view(np.float32)
    assert np.array_equal(array.view(np.uint32), copy[name][1].view(np.uint32)), name
PYTHON

# ---- a type and a codec that do not fit: an error for a tensor that is named, else it is copied ----
expect 1 compress mixed.safetensors -o no.safetensors --codec fp16 --include layers.0.q_proj.weight
expect_error mixed.safetensors layers.0.q_proj.weight TRF_ERR_ARGUMENT
expect 0 compress mixed.safetensors -o compressed.safetensors --codec fp16 --include '*_proj.weight' -f
check_info mixed.safetensors compressed.safetensors layers.0.k_proj.weight
expect 0 compress mixed.safetensors -o compressed.safetensors --codec fp8 -f
check_info mixed.safetensors compressed.safetensors layers.0.v_proj.weight layers.0.o_proj.weight \
    layers.0.q_proj.weight layers.0.experts.up_proj "$odd"
[ ! -e no.safetensors ] || fail "an output of a failed command"

# ---- what --include does not find ----
for glob in '*q_prj*' 'layers.9.*' layers.0.q_proj; do
    expect 1 compress mixed.safetensors -o no.safetensors --include '*q_proj*' --include "$glob"
    expect_error mixed.safetensors "'$glob'" TRF_ERR_NOT_FOUND
    expect 1 compress several_files -o no.safetensors --include "$glob"
    expect_error several_files "'$glob'" TRF_ERR_NOT_FOUND
done
[ ! -e no.safetensors ] || fail "an output of a failed command"

# ---- nothing that is compressed: nobody calls it sound, and it comes as it went ----
expect 0 compress mixed.safetensors -o plain.safetensors --exclude '*'
grep -q 'Nothing was compressed' out || fail "compress does not say that it did nothing"
same mixed.safetensors plain.safetensors
for plain in plain.safetensors several_files; do
    expect 0 verify $plain
    grep -q "^$plain: nothing in it is compressed" out || fail "verify does not say that there is nothing to check"
    ! grep -q -e sound -e decoded out || fail "verify praises what it has not checked"
    expect 0 decompress $plain -o copied
    grep -q "copied: nothing in $plain is compressed" out || fail "decompress does not say that it only copied"
    diff -r $plain copied || fail "decompress changed $plain"
    rm -r copied
done
expect 0 verify plain.safetensors --against mixed.safetensors
grep -q 'nothing in it is compressed' out && grep -q 'bit for bit' out || fail "verify --against of a plain checkpoint"

# ---- a config.json that nobody can parse: of a folder an error, beside a file a warning; with --include the tied
# output is no part of it ----
make several_files broken
one=broken/model-00001-of-00002.safetensors
printf '{"tie_word_embeddings": true,' >broken/config.json
expect 1 compress broken -o broken-compressed
expect_error broken/config.json 'at byte' --store-only TRF_ERR_FORMAT
[ ! -e broken-compressed ] || fail "an output of a failed command"
expect 0 compress $one -o one.safetensors -f
grep -q '^transfuse: [a-z]*: broken/config.json: not valid JSON: .* at byte .* tied output' err ||
    fail "no warning: $(cat err)"
[ "$(wc -l <err)" -eq 1 ] || fail "the warning has more than one line"
for option in --embeddings '--include=*_proj.weight'; do
    expect 0 compress $one -o one.safetensors -f "$option"
    [ ! -s err ] || fail "a warning about a tied output that does not count: $(cat err)"
done
rm broken/config.json
expect 0 compress broken -o broken-compressed
grep -q '^transfuse: [a-z]*: broken: has no config.json: nothing will load' err || fail "no warning: $(cat err)"

# ---- nothing of a name reaches the terminal as a control character ----
make hostile hostile.safetensors
expect 0 compress hostile.safetensors -o compressed.safetensors -f
for command in 'info' 'verify' 'info --json'; do
    # shellcheck disable=SC2086
    expect 0 ${command%% *} compressed.safetensors ${command#"${command%% *}"}
    LC_ALL=C grep -q '[[:cntrl:]]' out && fail "$command prints control characters"
done
expect 1 extract compressed.safetensors "$(printf 'a\033b')" -o no.trf
LC_ALL=C grep -q '[[:cntrl:]]' err && fail "an error message has control characters in it"
exit 0

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Outputs: never over something that exists without -f, never half made, nowhere that cannot be written.
. "$(dirname "$0")/common.sh"
need_numpy

"$TRF_PYTHON" "$here/make_checkpoint.py" mixed mixed.safetensors || exit 1
"$TRF_PYTHON" "$here/make_checkpoint.py" several_files several_files || exit 1
"$TRF_PYTHON" -c 'import numpy as np; np.save("x.npy", np.ones((1, 96), np.float32))'
expect 0 compress mixed.safetensors -o compressed.safetensors
expect 0 extract compressed.safetensors layers.0.k_proj.weight -o layer.trf
inputs="compressed.safetensors layer.trf mixed.safetensors several_files x.npy"

# ---- what exists stays ----
echo precious >keep
for command in 'compress mixed.safetensors -o keep' 'decompress compressed.safetensors -o keep' \
    'extract compressed.safetensors layers.0.k_proj.weight -o keep' 'matmul layer.trf x.npy -o keep' \
    'bench --layers 16x16 --runs 1 --json keep' 'bench --layers 16x16 --runs 1 --csv keep'; do
    # shellcheck disable=SC2086
    expect 1 $command
    expect_error keep TRF_ERR_EXISTS 'exists already; -f replaces it'
    [ "$(cat keep)" = precious ] || fail "$command overwrote a file"
done
mkdir folder && echo precious >folder/keep
expect 1 compress several_files -o folder
expect_error folder TRF_ERR_EXISTS '-f replaces it if nothing else is in it'
# Not even -f replaces a folder that holds no checkpoint.
expect 1 compress several_files -o folder -f
[ "$(cat folder/keep)" = precious ] || fail "a folder was replaced"
# shellcheck disable=SC2086
expect_only compressed.safetensors folder keep ${inputs#* }
rm -r folder

# ---- -f replaces ----
for command in 'compress mixed.safetensors -o keep' 'decompress compressed.safetensors -o keep' \
    'extract compressed.safetensors layers.0.k_proj.weight -o keep' 'matmul layer.trf x.npy -o keep' \
    'bench --layers 16x16 --batch 1 --codec bf16 --runs 1 --json keep' \
    'bench --layers 16x16 --batch 1 --codec bf16 --runs 1 --csv keep'; do
    echo precious >keep
    # shellcheck disable=SC2086
    expect 0 $command -f
    [ "$(tr -d '\0' <keep)" != precious ] || fail "$command -f did not replace the file"
done
rm keep

# ---- -f replaces files only ----
mkdir folder && ln -s folder link && mkfifo pipe
for place in folder link pipe; do
    for command in 'compress mixed.safetensors -o' 'decompress compressed.safetensors -o' \
        'extract compressed.safetensors layers.0.k_proj.weight -o' 'matmul layer.trf x.npy -o' \
        'tune compressed.safetensors --max-batch 1 -o' 'bench --layers 16x16 --runs 1 --json' \
        'bench --layers 16x16 --runs 1 --csv'; do
        # shellcheck disable=SC2086
        expect 1 $command $place -f
        expect_error $place TRF_ERR_EXISTS 'not replaced'
    done
done
for place in folder link; do
    expect 1 matmul layer.trf x.npy -o $place -f
    expect_error $place 'is a directory' TRF_ERR_EXISTS
done
[ -L link ] && [ -p pipe ] && rmdir folder || fail "something was replaced, or written into a folder"
rm link pipe

# ---- -f does not replace an input, by whatever name, nor what is in a folder that is one, nor weights ----
expect 0 compress several_files -o model
tensor=$("$TRANSFUSE" info model --json | sed -n 's/^ *"name": "\(.*_proj.weight\)",$/\1/p' | head -n 1)
mkdir blobs
mv model/config.json blobs/config && ln -s ../blobs/config model/config.json # as in a cache of downloads
cp layer.trf in.trf && ln in.trf hard.trf && ln -s in.trf soft.trf && ln -s model/*.index.json soft.json
cp x.npy in.npy && cp mixed.safetensors other.safetensors
cp -R model model-before
for output in model/config.json soft.json model/*.safetensors "$PWD/model/../model/config.json"; do
    for command in "extract model $tensor" 'tune model --max-batch 1' \
        "tune $(ls model/*.index.json) --max-batch 1"; do
        # shellcheck disable=SC2086
        expect 1 $command -o "$output" -f
        expect_error "$output" TRF_ERR_ARGUMENT
    done
done
for output in in.trf ./in.trf hard.trf soft.trf in.npy; do
    expect 1 matmul in.trf in.npy -o $output -f
    expect_error "$output: the output is the input" TRF_ERR_ARGUMENT
done
for command in "extract model $tensor" 'tune model --max-batch 1' 'matmul in.trf in.npy'; do
    # shellcheck disable=SC2086
    expect 1 $command -o other.safetensors -f
    expect_error 'other.safetensors: exists, and is not replaced: it holds weights' TRF_ERR_EXISTS
done
diff -r model model-before && same in.trf layer.trf && same in.npy x.npy && same other.safetensors mixed.safetensors ||
    fail "an input was replaced"
[ -L model/config.json ] && [ -L soft.trf ] || fail "a link was replaced"
# What is new may lie in the folder.
expect 0 tune model --max-batch 1 -o model/tuning.json
rm -r model model-before blobs hard.trf soft.trf soft.json in.trf in.npy other.safetensors

# ---- a link stays, and what it leads to is replaced ----
mkdir elsewhere && ln -s elsewhere/result link
for command in 'compress mixed.safetensors -o' 'extract compressed.safetensors layers.0.k_proj.weight -o' \
    'matmul layer.trf x.npy -o' 'bench --layers 16x16 --batch 1 --codec bf16 --runs 1 --json'; do
    for force in '' -f; do
        # shellcheck disable=SC2086
        expect 1 $command link $force
        expect_error 'link: is a symbolic link that cannot be followed' TRF_ERR_NOT_FOUND
    done
    echo precious >elsewhere/result
    # shellcheck disable=SC2086
    expect 1 $command link
    expect_error 'exists already; -f replaces it' TRF_ERR_EXISTS
    # shellcheck disable=SC2086
    expect 0 $command link -f
    [ -L link ] && [ "$(tr -d '\0' <elsewhere/result)" != precious ] || fail "$command: the link, or not its target"
    [ "$(ls elsewhere)" = result ] || fail "$command: $(ls elsewhere)"
    rm elsewhere/result
done
mkdir elsewhere/result
expect 1 compress several_files -o link
expect_error 'exists already; -f replaces it if nothing else is in it' TRF_ERR_EXISTS
expect 0 compress several_files -o link -f
[ -L link ] && [ -f elsewhere/result/config.json ] || fail "a link to a folder: the link, or not its target"
echo precious >elsewhere/result/keep
expect 1 compress several_files -o link -f
expect_error 'it holds keep' TRF_ERR_EXISTS
rm -r link elsewhere

# ---- what -f would not replace either is not said to be replaced by it ----
mkfifo pipe
for command in 'compress mixed.safetensors' 'extract compressed.safetensors layers.0.k_proj.weight' \
    'matmul layer.trf x.npy'; do
    # shellcheck disable=SC2086
    expect 1 $command -o pipe
    expect_error 'pipe: exists and is not a regular file; it is not replaced' TRF_ERR_EXISTS
    ! grep -q -- '-f replaces' err || fail "contradictory: $(cat err)"
done
rm pipe

# ---- places that cannot be written ----
for place in nowhere/out mixed.safetensors/out; do
    for command in 'compress mixed.safetensors' 'decompress compressed.safetensors' \
        'extract compressed.safetensors layers.0.k_proj.weight' 'matmul layer.trf x.npy'; do
        # shellcheck disable=SC2086
        expect 1 $command -o $place
        expect_error $place
    done
    expect 1 bench --layers 16x16 --runs 1 --json $place
    expect_error $place TRF_ERR_IO
    [ ! -s out ] || fail "bench measured before it looked at where its results go"
done
if [ "$(id -u)" -ne 0 ]; then
    mkdir sealed && chmod a-w sealed
    expect 1 compress mixed.safetensors -o sealed/out
    expect_error sealed/out TRF_ERR_IO
    rmdir sealed
fi

# ---- a file that may not grow so large ----
"$TRF_PYTHON" -c 'import numpy as np; np.save("many.npy", np.ones((300, 96), np.float32))'
for command in 'compress mixed.safetensors' 'decompress compressed.safetensors' 'matmul layer.trf many.npy' \
    'extract compressed.safetensors layers.0.k_proj.weight'; do
    (
        ulimit -f 8 # blocks of 512 bytes, or of 1024
        # shellcheck disable=SC2086
        expect 1 $command -o big
    ) || exit 1
    expect_error big TRF_ERR_IO 'cannot write' 'File too large'
    expect_only compressed.safetensors layer.trf many.npy mixed.safetensors several_files x.npy
done
rm many.npy

# ---- inputs that are not there, or are something else ----
echo 'not a checkpoint' >text
mkdir hollow
for input in absent text hollow; do
    for command in "compress $input -o no" "decompress $input -o no" "verify $input" "info $input" \
        "extract $input t -o no"; do
        # shellcheck disable=SC2086
        expect 1 $command
        expect_error $input
    done
done
mkfifo pipe
for command in 'compress pipe -o no' 'decompress pipe -o no' 'verify pipe' 'info pipe' 'extract pipe t -o no' \
    'matmul pipe x.npy -o no' 'matmul layer.trf pipe -o no'; do
    # shellcheck disable=SC2086
    timeout 60 "$TRANSFUSE" $command >out 2>err
    status=$?
    [ $status -eq 1 ] || fail "$command: exit status $status, not 1"
    expect_error pipe 'not a regular file' TRF_ERR_IO
done
expect 1 verify compressed.safetensors --against absent
expect_error absent TRF_ERR_NOT_FOUND
# The input itself is no place for the output.
expect 1 compress mixed.safetensors -o mixed.safetensors -f
expect 1 compress several_files -o several_files/inside
rm -r text hollow pipe
# shellcheck disable=SC2086
expect_only $inputs

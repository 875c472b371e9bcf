#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Sets up the machine, builds transfuse, and takes a checkpoint through it: compress, verify, decompress, multiply,
# and a table of what came out. What is built is what the machine can use: with a GPU, code for it alone, and a second
# table compares the products on it; without one, no device code.
# Usage: sh demo.sh [CHECKPOINT]   a .safetensors file or a folder of them; without one the demo makes a sample (65 MB)
# The results stay in build/demo-results, which needs about three times the checkpoint's size.
set -eu
case ${1-} in
-*)
    echo "usage: sh demo.sh [CHECKPOINT]" >&2
    exit 2
    ;;
esac
checkpoint=${1:+$(realpath -e -- "$1")} || exit 1
cd "$(dirname "$0")"
. cmake/setup.sh

set_up
architectures=$(gpu_architectures)
if [ -n "$architectures" ]; then
    say "there is a GPU: building device code for $architectures, which takes minutes"
    build_preset demo -DTRF_CUDA=AUTO "-DCMAKE_CUDA_ARCHITECTURES=$architectures"
else
    say "no GPU of compute capability 8.0 or newer: building without device code"
    build_preset demo -DTRF_CUDA=OFF
fi

if [ -z "$checkpoint" ]; then
    checkpoint=build/demo-model
    say "making a sample checkpoint in $checkpoint"
    .venv/bin/python examples/make_sample_checkpoint.py $checkpoint
fi

say "taking $checkpoint through transfuse"
exec .venv/bin/python examples/demo.py ${architectures:+--gpu} build/demo/transfuse "$checkpoint" build/demo-results

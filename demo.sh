#!/bin/sh
# Sets up the machine, builds transfuse, and takes a checkpoint through it: compress, verify, decompress, multiply,
# and a table of what came out.
# Usage: sh demo.sh [CHECKPOINT]   a .safetensors file or a folder of them; without one the demo makes a sample (65 MB)
# The results stay in build/demo, which needs about three times the checkpoint's size.
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
build_preset release

if [ -z "$checkpoint" ]; then
    checkpoint=build/demo-sample
    say "making a sample checkpoint in $checkpoint"
    .venv/bin/python examples/make_sample_checkpoint.py $checkpoint
fi

exec .venv/bin/python examples/demo.py build/release/transfuse "$checkpoint" build/demo

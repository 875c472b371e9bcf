#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The standard run on a machine with a GPU: builds device code for that GPU, runs the GPU suites and the command's
# tests with --device cuda, and, where it is asked to, compute-sanitizer and the bench. The last lines say what ran,
# what was skipped and what failed; all output stays in DIR.
#
# Usage: sh tests/gpu/run_on_gpu.sh [--build BUILD] [--out DIR] [--quick] [--sanitize TOOLS] [--bench]
#   --build BUILD     build folder, made or brought up to date (default build/gpu)
#   --out DIR         where output goes (default BUILD/gpu-run)
#   --quick           less of each suite (TRF_TEST_QUICK=1)
#   --sanitize TOOLS  afterwards, the suites' quick sets under compute-sanitizer: memcheck,synccheck,initcheck,racecheck
#                     or some of them. racecheck takes hours
#   --bench           afterwards, the bench: six layers of lossless bf16, and a sweep of batches over two of them
# Exit status: 0 all passed (or was skipped: see the last lines), 1 something failed, 2 wrong usage, 3 no GPU.
#
# No other program may allocate on the GPU meanwhile: tests look whether its free memory is what it was.
set -u
cd "$(dirname "$0")/../.." || exit 1

build=build/gpu out='' quick='' tools='' bench=''
usage() {
    echo "usage: sh tests/gpu/run_on_gpu.sh [--build BUILD] [--out DIR] [--quick] [--sanitize TOOLS] [--bench]" >&2
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
    --build | --out | --sanitize)
        if [ $# -lt 2 ] || [ -z "$2" ]; then usage; fi
        case $1 in
        --build) build=$2 ;;
        --out) out=$2 ;;
        --sanitize) tools=$(printf '%s' "$2" | tr ',' ' ') ;;
        esac
        shift
        ;;
    --quick) quick=1 ;;
    --bench) bench=1 ;;
    *) usage ;;
    esac
    shift
done
for tool in $tools; do
    case $tool in
    memcheck | synccheck | initcheck | racecheck) ;;
    *) usage ;;
    esac
done
out=${out:-$build/gpu-run}
mkdir -p "$out" || exit 1
rm -f "$out/passed" "$out/skipped" "$out/failed"
touch "$out/passed" "$out/skipped" "$out/failed"

say() { printf '== %s\n' "$*"; }
passed() { printf '%s\n' "$*" >>"$out/passed"; }
skipped() { printf '%s\n' "$*" >>"$out/skipped"; }
failed() {
    printf '%s\n' "$*" >>"$out/failed"
    echo "FAILED: $*"
}

# ---- the machine ----

capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1)
case $capability in
[0-9]*.[0-9]*) ;;
*)
    echo "nvidia-smi shows no GPU" >&2
    exit 3
    ;;
esac
nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.total --format=csv,noheader | tee "$out/gpu.txt"
# The kernels of 9.0 use what only 9.0a has.
architecture=$(printf '%s' "$capability" | tr -d .)
[ "$architecture" != 90 ] || architecture=90a

# ---- the build ----

# Usage: build_in FOLDER OPTION_OF_CMAKE...
build_in() {
    folder=$1
    shift
    say "building for $architecture in $folder"
    if ! cmake --preset release -B "$folder" -DTRF_CUDA=ON "-DCMAKE_CUDA_ARCHITECTURES=$architecture" "$@" \
        >"$out/build.log" 2>&1 || ! cmake --build "$folder" -j "${TRF_JOBS:-$(nproc)}" >>"$out/build.log" 2>&1; then
        tail -n 40 "$out/build.log"
        echo "the build failed; all of its output: $out/build.log"
        exit 1
    fi
}
build_in "$build"

# ---- the suites ----

# Usage: run_ctest NAME ARGUMENT_OF_CTEST...   A test that skips counts as passed for ctest, so its log is read.
run_ctest() {
    name=$1
    shift
    say "$name"
    env ${quick:+TRF_TEST_QUICK=1} ctest --test-dir "$build" --output-on-failure "$@" >"$out/$name.log" 2>&1 </dev/null
    sed -n 's/^ *[0-9]*\/[0-9]* Test *#[0-9]*: //p' "$out/$name.log" >"$out/$name.results"
    [ -s "$out/$name.results" ] || failed "$name: no test ran ($out/$name.log)"
    while read -r test rest; do
        case $rest in
        *Passed*) passed "$test" ;;
        *Skipped*) skipped "$test: all of it ($out/$name.tests)" ;;
        *) failed "$test ($out/$name.log)" ;;
        esac
    done <"$out/$name.results"
    cp "$build/Testing/Temporary/LastTest.log" "$out/$name.tests"
    # Parts of a suite that skip say so in its output.
    sed -n 's/^skipped //p' "$out/$name.tests" | sort -u >>"$out/skipped"
}

run_ctest suites -L gpu
run_ctest command -R '^cli\..*_cuda'
[ -z "$quick" ] || skipped "all suites: their full sets, since --quick was given"

# ---- compute-sanitizer ----

# Suites without kernels of their own, or that look for accesses out of bounds alone: memcheck. nvtx hooks NVTX, and so
# does the tool.
runs_only_memcheck() {
    case $1 in
    mutants | packed_mutants | load | stack | layer_chain | failures | tuning | soak) return 0 ;;
    esac
    return 1
}

# Usage: sanitize TOOL SUITE BINARY
sanitize() {
    log=$out/$1.$2.log
    # cuBLASLt's kernels are not ours, and left out by name. But initcheck then misses what they store, and `memory`
    # reads it.
    filter="--kernel-name kns=trf_"
    [ "$1.$2" != initcheck.memory ] || filter=
    # A packed layer is moved whole to a larger buffer while some of it is still to be written.
    [ "$1.$2" != initcheck.packed_layer ] || filter="$filter --check-api-memory-access no"
    # shellcheck disable=SC2086  # words, or none
    TRF_TEST_QUICK=1 TRF_SOURCE_DIR=$PWD "$sanitizer" --tool "$1" $filter --error-exitcode 99 "$3" \
        >"$log" 2>&1 </dev/null
    status=$?
    if [ $status -eq 77 ]; then
        skipped "$1 of gpu.$2: the suite skips ($log)"
    elif [ $status -ne 0 ]; then
        failed "$1 of gpu.$2: status $status ($log)"
    elif ! grep -q 'SUMMARY: 0 ' "$log"; then
        failed "$1 of gpu.$2: no verdict of the tool ($log)"
    else
        passed "$1 of gpu.$2"
    fi
    sed -n "s/^skipped /$1: /p" "$log" | sort -u >>"$out/skipped"
}

sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if [ -n "$tools" ] && [ ! -x "$sanitizer" ]; then
    failed "compute-sanitizer: there is none"
    tools=
fi
for tool in $tools; do
    version=$("$sanitizer" --version | sed -n 's/.*[Vv]ersion \([0-9][0-9.]*\).*/\1/p' | head -n 1)
    if [ "$tool" = racecheck ] && [ "${version%%.*}" -lt 2026 ]; then
        skipped "racecheck: version $version ends with an error of its own beside kernels that it leaves out;" \
            "2026.4 does not (pip install nvidia-cuda-sanitizer-api==13.5.25)"
        continue
    fi
    suites=$build
    if [ "$tool" = racecheck ]; then # it does not see all that orders accesses (trf_packed_ring.cuh)
        suites=$build-racecheck
        build_in "$suites" -DTRF_FOR_RACECHECK=ON
    fi
    for binary in "$suites"/tests/gpu/test_gpu_*; do
        [ -x "$binary" ] || continue
        suite=${binary##*/test_gpu_}
        if [ "$suite" = nvtx ]; then
            skipped "$tool of gpu.nvtx: the tool hooks NVTX, as the suite does"
        elif [ "$tool" != memcheck ] && runs_only_memcheck "$suite"; then
            skipped "$tool of gpu.$suite: memcheck alone is for it"
        else
            say "$tool $version: gpu.$suite"
            sanitize "$tool" "$suite" "$binary"
        fi
    done
done
[ -n "$tools" ] || skipped "compute-sanitizer: not asked for (--sanitize)"

# ---- the bench ----

# Usage: run_bench NAME OPTION...
run_bench() {
    name=$1
    shift
    say "$name"
    if "$build/transfuse" bench --device cuda --codec bf16 --favor speed "$@" --json "$out/$name.json" -f \
        >"$out/$name.txt" 2>&1 </dev/null; then
        passed "$name: $out/$name.json"
    else
        failed "$name ($out/$name.txt)"
    fi
}

if [ -n "$bench" ]; then
    TRF_COMMIT=${TRF_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null)}
    export TRF_COMMIT
    run_bench bench --batch 1,8,16,32,64 --layers 28672x8192,8192x8192,14336x4096,4096x14336,4096x4096,2048x5632
    run_bench batch-sweep --mode batch-sweep --layers 8192x8192,4096x4096
else
    skipped "bench: not asked for (--bench)"
fi

# ---- what came out ----

say "passed: $(wc -l <"$out/passed")"
sed 's/^/   /' "$out/passed"
say "skipped: $(wc -l <"$out/skipped")"
sed 's/^/   /' "$out/skipped"
say "failed: $(wc -l <"$out/failed")"
sed 's/^/   /' "$out/failed"
[ ! -s "$out/failed" ]

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# This build gives the bytes that stand in same_bytes.csv, whatever the number of threads and the instruction set.
# Usage: test_same_bytes.sh PROGRAM
set -eu
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Runs the program with an instruction set and a number of threads. Sets `used` to the instruction set that it took,
# which is a lower one where the CPU or the build lacks it.
run() {
    mkdir "$scratch/files"
    TRF_SIMD=$1 "$program" "$2" "$here/../golden" "$scratch/files" > "$scratch/hashes" 2> "$scratch/used" || {
        cat "$scratch/used"
        exit 1
    }
    used=$(cat "$scratch/used")
    rm -rf "$scratch/files"
    diff "$here/same_bytes.csv" "$scratch/hashes" > "$scratch/differences" || {
        echo "with $2 threads and TRF_SIMD=$1 ($used) these hashes are not those of same_bytes.csv (<):"
        head -40 "$scratch/differences"
        exit 1
    }
    echo "$used, $2 threads: the same"
}

program=$1
run avx512 7
best=$used
run avx512 1
run avx512 16
for set in avx2 scalar; do
    [ "$set" = "$best" ] && continue
    run $set 2
    [ "$used" = "$set" ] || [ "$best" = scalar ] || {
        echo "TRF_SIMD=$set took $used"
        exit 1
    }
done

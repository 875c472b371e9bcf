#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Big-endian and 32-bit hosts are refused: by CMake before anything is compiled, and by the headers for other builds.
# Usage: test_hosts.sh CMAKE COMPILER
set -u
cmake=$1
compiler=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
    echo "$*"
    cat "$scratch/output"
    exit 1
}

# Runs a command, which has to fail with a message that has these words.
refused() {
    words=$1
    shift
    if "$@" > "$scratch/output" 2>&1; then
        fail "not refused ($words): $*"
    fi
    tr '\n' ' ' < "$scratch/output" | tr -s ' ' | grep -q -e "$words" || fail "refused without the words '$words': $*"
}

accepted() {
    "$@" > "$scratch/output" 2>&1 || fail "refused: $*"
}

# ---- headers: the macros of another host, and other hosts themselves, for which no compiler needs a library here ----

big='-U__BYTE_ORDER__ -D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__'
narrow='-U__SIZEOF_POINTER__ -D__SIZEOF_POINTER__=4'
header="$root/base/trf_host.h"
accepted "$compiler" -x c -fsyntax-only "$header"
refused 'this host is big-endian' "$compiler" $big -x c -fsyntax-only "$header"
refused 'needs a 64-bit build' "$compiler" $narrow -x c -fsyntax-only "$header"
refused 'without -ffast-math' "$compiler" -ffast-math -x c -fsyntax-only "$header"
for source in base/trf_error.c format/trf_head.c decoder_cpu/trf_decode.c encoder/trf_encode.c loader/trf_file.c; do
    refused 'this host is big-endian' "$compiler" $big -fsyntax-only -I"$root/include" -I"$root/base" \
        -I"$root/format" -I"$root/decoder_cpu" -I"$root/encoder" -I"$root/loader" "$root/$source"
done
if [ "$(uname -m)" = x86_64 ]; then
    refused 'needs a 64-bit build' "$compiler" -m32 -x c -fsyntax-only "$header"
fi
clang=$(command -v clang) || clang=
for target in ${clang:+s390x-linux-gnu powerpc64-linux-gnu aarch64_be-linux-gnu}; do
    refused 'this host is big-endian' clang --target=$target -x c -fsyntax-only "$header"
done
for target in ${clang:+arm-linux-gnueabihf i686-linux-gnu x86_64-linux-gnux32}; do
    refused 'needs a 64-bit build' clang --target=$target -x c -fsyntax-only "$header"
done

# ---- CMake ----

# What CMake finds out of a compiler is given here, ...
checks="$root/cmake/TransfuseHost.cmake"
accepted "$cmake" -DCMAKE_C_BYTE_ORDER=LITTLE_ENDIAN -DCMAKE_SIZEOF_VOID_P=8 -P "$checks"
refused 'is big-endian' "$cmake" -DCMAKE_C_BYTE_ORDER=BIG_ENDIAN -DCMAKE_SIZEOF_VOID_P=8 -P "$checks"
refused 'needs a 64-bit build' "$cmake" -DCMAKE_C_BYTE_ORDER=LITTLE_ENDIAN -DCMAKE_SIZEOF_VOID_P=4 -P "$checks"

# ... and here it is told of another host, for which nothing can be linked.
configure() {
    words=$1
    shift
    rm -rf "$scratch/build"
    refused "$words" "$cmake" -G Ninja -S "$root" -B "$scratch/build" -DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY \
        -DTRF_CUDA=OFF "$@"
}
if [ "$(uname -m)" = x86_64 ]; then
    configure 'pointers of 4 bytes' -DCMAKE_C_COMPILER="$compiler" -DCMAKE_C_FLAGS=-m32
fi
if [ -n "$clang" ]; then
    configure 'is big-endian as' -DCMAKE_C_COMPILER=clang -DCMAKE_C_COMPILER_TARGET=s390x-linux-gnu \
        -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=s390x
fi
echo "all of them are refused"

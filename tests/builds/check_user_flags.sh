#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The user's own flags come behind those of cmake/TransfuseHardening.cmake, and TRF_HARDEN=OFF leaves these out.
# check_hardening.py looks whether they are there unasked. It configures, and builds nothing.
# Usage: check_user_flags.sh CMAKE SOURCE_DIR CC
set -eu
cmake=$1 source_dir=$2 cc=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Usage: configure ARGUMENT...   Sets compile and link: the command lines of main.c, and what links the command.
configure() {
    rm -rf "$work/build"
    "$cmake" -S "$source_dir" -B "$work/build" -G Ninja -DCMAKE_C_COMPILER="$cc" -DTRF_CUDA=OFF -DTRF_BUILD_TESTS=OFF \
        -DTRF_BUILD_EXAMPLES=OFF -DCMAKE_EXPORT_COMPILE_COMMANDS=ON "$@" >"$work/log" 2>&1 || {
        cat "$work/log"
        exit 1
    }
    compile=$(grep '"command".*tools/main\.c' "$work/build/compile_commands.json")
    link=$(sed -n '/^build transfuse: /,/^$/p' "$work/build/build.ninja" | grep LINK_FLAGS) || link=
}

# Usage: want yes|no TEXT PATTERN
want() {
    has=no
    case $2 in
    *$3*) has=yes ;;
    esac
    [ $has = "$1" ] || {
        echo "wanted $1, is $has: $3 in $2"
        exit 1
    }
}

echo "== the user's own flags, and no optimization"
configure -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS=-fno-stack-protector -DCMAKE_C_FLAGS_RELEASE=-O0 \
    -DCMAKE_EXE_LINKER_FLAGS=-Wl,-z,lazy
want yes "$compile" '-fstack-protector-strong*-fno-stack-protector'
want no "$compile" _FORTIFY_SOURCE
want yes "$link" 'now*-z,lazy'

echo "== the user's own _FORTIFY_SOURCE"
configure -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS=-D_FORTIFY_SOURCE=1
want yes "$compile" -D_FORTIFY_SOURCE=1
want no "$compile" -U_FORTIFY_SOURCE

echo "== off"
configure -DCMAKE_BUILD_TYPE=Release -DTRF_HARDEN=OFF
for flag in _FORTIFY_SOURCE -fstack-protector -fcf-protection; do
    want no "$compile" $flag
done
want no "$link" relro

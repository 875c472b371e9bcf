#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the library alone as a shared one, in a folder that stays, looks at its soname, at what it exports and for
# paths of this machine, and uses it through Python's ctypes.
# Usage: check_shared.sh CMAKE SOURCE_DIR BUILD_DIR CC
set -eu
cmake=$1 source_dir=$2 build_dir=$3 cc=$4
here=$(cd "$(dirname "$0")" && pwd)

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# No device code: what its objects need is the same in either kind of library.
"$cmake" -S "$source_dir" -B "$build_dir" -G Ninja -DCMAKE_C_COMPILER="$cc" -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_SHARED_LIBS=ON -DTRF_CUDA=OFF -DTRF_BUILD_TOOLS=OFF -DTRF_BUILD_EXAMPLES=OFF -DTRF_BUILD_TESTS=OFF \
    >"$log" 2>&1 &&
    "$cmake" --build "$build_dir" >>"$log" 2>&1 || { cat "$log"; exit 1; }

# While the major version is 0, the minor one tells what is compatible.
soname=libtransfuse.so.0.2
readelf -d "$build_dir/libtransfuse.so" | grep SONAME | tee "$log"
grep -qF "[$soname]" "$log" || { echo "the soname is not $soname"; exit 1; }
[ -e "$build_dir/$soname" ] || { echo "there is no $soname beside the library"; exit 1; }
if grep -qaF -e "$source_dir" -e "$build_dir" "$build_dir/libtransfuse.so"; then
    echo "the library has a path of the build in it"
    exit 1
fi

if ! command -v python3 >/dev/null; then
    echo "skipped: the shared library was built, but there is no python3 to look at it"
    exit 77
fi
python3 -B "$here/../structure/test_exported_symbols.py" --library "$build_dir/libtransfuse.so"
python3 -B "$here/check_ffi.py" "$build_dir/libtransfuse.so" "$source_dir"

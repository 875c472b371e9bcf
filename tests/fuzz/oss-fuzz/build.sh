#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds all fuzz targets with the compilers, flags and engine that OSS-Fuzz sets: CC, CXX, CFLAGS, CXXFLAGS,
# LIB_FUZZING_ENGINE and SANITIZER. Sources are in SRC, what is built on the way in WORK, and the targets, their seeds,
# dictionaries and options go to OUT.

set -eu
libraries=$WORK/libraries
out=${OUT:?}
export PKG_CONFIG_PATH=$libraries/lib/pkgconfig:${PKG_CONFIG_PATH-}

# Usage: install_library SOURCE NAME [CMAKE'S ARGUMENTS...]
install_library() {
    cmake -G Ninja -S "$1" -B "$WORK/$2" -DCMAKE_INSTALL_PREFIX="$libraries" -DCMAKE_INSTALL_LIBDIR=lib \
        -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON "${@:3}"
    cmake --build "$WORK/$2" --target install
}

install_library "$SRC/jansson" jansson \
    -DJANSSON_BUILD_DOCS=OFF -DJANSSON_EXAMPLES=OFF -DJANSSON_WITHOUT_TESTS=ON
xxhash=$SRC/xxHash/build/cmake
[ -d "$xxhash" ] || xxhash=$SRC/xxHash/cmake_unofficial # where it was until 0.8.3
install_library "$xxhash" xxhash -DXXHASH_BUILD_XXHSUM=OFF

# Kernels run in fibers here, whose stacks MemorySanitizer does not follow.
emulated=ON
[ "${SANITIZER-}" != memory ] || emulated=OFF
# No build type: its flags would come after those of OSS-Fuzz, and turn assertions off.
cmake -G Ninja -S "$SRC/transfuse" -B "$WORK/transfuse" -DCMAKE_BUILD_TYPE=None \
    -DTRF_FUZZ=ON -DTRF_FUZZ_ENGINE="$LIB_FUZZING_ENGINE" -DTRF_EMULATE_KERNELS=$emulated \
    -DTRF_CUDA=OFF -DTRF_BUILD_TOOLS=OFF -DTRF_BUILD_EXAMPLES=OFF -DTRF_STATIC_DEPS=ON \
    -DCMAKE_COMPILE_WARNING_AS_ERROR=OFF
cmake --build "$WORK/transfuse" --target fuzz_targets

tests=$SRC/transfuse/tests
for target in "$WORK"/transfuse/tests/fuzz/fuzz_*; do
    [ -x "$target" ] && [ -f "$target" ] || continue
    name=$(basename "$target")
    cp "$target" "$out/"
    [ ! -f "$tests/fuzz/$name.options" ] || cp "$tests/fuzz/$name.options" "$out/"
    seeds=$WORK/seeds/$name
    rm -rf "$seeds"
    mkdir -p "$seeds"
    [ ! -d "$tests/fuzz/corpus/${name#fuzz_}" ] || cp "$tests/fuzz/corpus/${name#fuzz_}"/* "$seeds/"
    case $name in
    fuzz_blob | fuzz_edges | fuzz_pack_coded | fuzz_walk)
        cp "$tests"/golden/*.trf "$seeds/"
        "$WORK/transfuse/tests/fuzz/make_fuzz_seeds" "$seeds"
        ;;
    esac
    (cd "$seeds" && zip -q -r "$out/${name}_seed_corpus.zip" .)
done
cp "$tests"/fuzz/*.dict "$out/"

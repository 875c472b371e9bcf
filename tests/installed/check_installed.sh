#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the build into a folder of its own and uses it as a stranger would: each public header alone under strict C11
# and C++17, without CUDA's headers; through find_package from C and C++, examples too; through pkg-config from C. The
# program that README.md names runs, and the C that docs/guide.md shows compiles.
# Usage: check_installed.sh CMAKE BUILD_DIR LIBDIR CC
set -eu
cmake=$1 build_dir=$2 libdir=$3 cc=$4
here=$(cd "$(dirname "$0")" && pwd)
source_dir=$here/../..

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

"$cmake" --install "$build_dir" --prefix "$prefix" >"$work/log" || { cat "$work/log"; exit 1; }

if [ -e "$prefix/bin/transfuse" ] &&
    readelf -d "$prefix/bin/transfuse" | sed -n 's/.*R\(UN\)\{0,1\}PATH.*\[\(.*\)\]/\2/p' | tr ':' '\n' |
    grep -v '^\$ORIGIN/'; then
    echo "the installed command looks for libraries in a folder of this machine"
    exit 1
fi

echo "== each header alone"
(cd "$source_dir/include" && find . -name '*.h' | sort) >"$work/public"
(cd "$prefix/include" && find . -type f | sort) >"$work/installed"
diff "$work/public" "$work/installed" || { echo "other headers are installed than include/ has"; exit 1; }
strict="-Wall -Wextra -Werror -pedantic -I$prefix/include"
while read -r header; do
    echo "#include <${header#./}>" >"$work/alone.c"
    cp "$work/alone.c" "$work/alone.cpp"
    "$cc" -std=c11 $strict -fsyntax-only "$work/alone.c"
    c++ -std=c++17 $strict -fsyntax-only "$work/alone.cpp"
    # Of what a header reads, nothing is CUDA's.
    "$cc" -std=c11 $strict -M "$work/alone.c" >"$work/read"
    if tr ' ' '\n' <"$work/read" | grep -E '/(cu[a-z0-9_]*|cuda|driver_types|vector_types)\.h$'; then
        echo "$header reads a header of CUDA's"
        exit 1
    fi
done <"$work/public"

echo "== find_package"
"$cmake" -S "$here" -B "$work/build" -G Ninja -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$prefix" >"$work/log" &&
    "$cmake" --build "$work/build" >>"$work/log" || { cat "$work/log"; exit 1; }
"$work/build/consumer_c"
"$work/build/consumer_cpp"

echo "== pkg-config"
PKG_CONFIG_PATH=$prefix/$libdir/pkgconfig
export PKG_CONFIG_PATH
"$cc" -std=c11 "$here/consumer.c" -o "$work/consumer_pc" $(pkg-config --cflags --libs transfuse)
LD_LIBRARY_PATH=$prefix/$libdir "$work/consumer_pc"

echo "== the program of the README"
"$cc" -std=c11 -Wall -Wextra -Werror "$source_dir/examples/product.c" -o "$work/product" \
    $(pkg-config --cflags --libs transfuse)
LD_LIBRARY_PATH=$prefix/$libdir "$work/product" "$source_dir/tests/golden/bf16_16x16.trf" weight

echo "== C in the guide"
mkdir "$work/pages"
awk -v name="$work/pages/guide" '
    /^```/ { inside = /^```c$/; if (inside) file = name "_" NR ".c"; next }
    inside { print >file }' "$source_dir/docs/guide.md"
snippets=0
for source in "$work"/pages/*.c; do
    {
        cat "$here/guide_snippets.h"
        echo "int snippet(void) {"
        cat "$source"
        echo "return 0; }"
    } >"$work/snippet.c"
    "$cc" -std=c11 -Wall -Wextra -Werror -Wno-unused-variable "-I$prefix/include" \
        -fsyntax-only "$work/snippet.c" || {
        echo "${source##*/}: the snippet of C that begins in that line of the page does not compile"
        exit 1
    }
    snippets=$((snippets + 1))
done
echo "$snippets snippets"
[ $snippets -ge 10 ] || { echo "that is less C than the guide has"; exit 1; }

if [ -x "$prefix/bin/transfuse" ]; then
    echo "== the installed command"
    "$prefix/bin/transfuse" --help >/dev/null
fi

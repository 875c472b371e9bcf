#!/bin/sh
# Installs the build into a folder of its own and uses it as a stranger would: through find_package from C and C++,
# through pkg-config from C, and the public header alone under strict C11 and C++17.
# Usage: check_package.sh CMAKE BUILD_DIR LIBDIR CC
set -eu
cmake=$1 build_dir=$2 libdir=$3 cc=$4
here=$(cd "$(dirname "$0")" && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix

"$cmake" --install "$build_dir" --prefix "$prefix" >"$work/log" || { cat "$work/log"; exit 1; }

echo "== the header alone"
strict="-Wall -Wextra -Werror -pedantic -fsyntax-only -I$prefix/include"
echo '#include <transfuse.h>' >"$work/alone.c"
cp "$work/alone.c" "$work/alone.cpp"
"$cc" -std=c11 $strict "$work/alone.c"
c++ -std=c++17 $strict "$work/alone.cpp"

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

if [ -x "$prefix/bin/transfuse" ]; then
    echo "== the installed command"
    "$prefix/bin/transfuse" --help >/dev/null
fi

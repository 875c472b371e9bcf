#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the wheel twice, of two copies of the sources, in folders of other names, with files of other dates, a minute
# apart, and compares the two byte for byte. By hand, as it takes minutes; without arguments there is no device code,
# and torch's ops are in it where there is a torch. It takes .venv (sh test.sh makes it). No ccache, which has paths of
# its own.
# Usage: sh tests/builds/compare_wheels.sh [SETTING OF cmake.define...]      such as TRF_CUDA=ON
set -eu
cd "$(dirname "$0")/../.."
python=$PWD/.venv/bin/python
torch=$("$python" -c 'import importlib.util as i; s = i.find_spec("torch"); print(s.submodule_search_locations[0])' \
    2>/dev/null) || torch=
[ $# -gt 0 ] || set -- TRF_CUDA=OFF ${torch:+TRF_TORCH=ON "TRF_TORCH_DIR=$torch"}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset CMAKE_C_COMPILER_LAUNCHER CMAKE_CXX_COMPILER_LAUNCHER CMAKE_CUDA_COMPILER_LAUNCHER
SOURCE_DATE_EPOCH=1700000000
export SOURCE_DATE_EPOCH

# One state of the sources, whatever is changed meanwhile.
mkdir "$work/sources"
git ls-files -z | xargs -0 cp --parents -t "$work/sources"

# Usage: make FOLDER DATE SETTING...
make() {
    folder=$work/$1 date=$2
    shift 2
    mkdir -p "$folder"
    cp -r "$work/sources" "$folder/source"
    find "$folder/source" -type f -exec touch -d "$date" {} +
    for setting in "$@"; do
        set -- "$@" "--config-settings=cmake.define.$setting"
        shift
    done
    (cd "$folder/source" && "$python" -m pip wheel --disable-pip-version-check --no-input --no-index --no-deps \
        --no-build-isolation "--config-settings=build-dir=$folder/build" "$@" -w "$folder/wheel" . \
        >"$folder/log" 2>&1) || {
        tail -n 40 "$folder/log"
        exit 1
    }
}

make one 2001-02-03 "$@"
sleep 60
make another-of-a-longer-name 2020-10-11 "$@"
first=$(echo "$work"/one/wheel/*.whl) second=$(echo "$work"/another-of-a-longer-name/wheel/*.whl)
if cmp "$first" "$second"; then
    echo "the same $(wc -c <"$first") bytes twice: ${first##*/}"
    exit
fi
for wheel in "$first" "$second"; do
    "$python" -c 'import sys, zipfile
for info in zipfile.ZipFile(sys.argv[1]).infolist():
    print(info.filename, info.CRC, info.date_time, oct(info.external_attr))' "$wheel" >"$wheel.list"
done
diff "$first.list" "$second.list"
exit 1

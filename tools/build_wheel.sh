#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the release wheel, py3-none-manylinux_2_34_x86_64, on Debian 12: library, command and the ops for PyTorch, with
# device code for 8.0, 8.6, 8.9 and 9.0a, and PTX of 9.0. It takes no GPU; nvcc takes about twenty minutes on two cores.
# Usage: sh tools/build_wheel.sh [--no-cuda] [FOLDER]     FOLDER: where the wheel goes, build/wheel/dist by default
# --no-cuda leaves the device code out. CUDACXX=/path/to/nvcc takes that CUDA toolkit in place of NVIDIA's packages from
# PyPI. CMAKE_C_COMPILER_LAUNCHER=ccache and the like are taken from the environment.
set -eu
cd "$(dirname "$0")/.."
. cmake/setup.sh

usage() {
    echo "usage: sh tools/build_wheel.sh [--no-cuda] [FOLDER]" >&2
    exit 2
}

cuda=yes
[ "${1-}" != --no-cuda ] || {
    cuda=
    shift
}
case $#:${1-} in
0: | 1:[!-]*) folder=${1:-build/wheel/dist} ;;
*) usage ;;
esac

work=$PWD/build/wheel
platform=manylinux_2_34_x86_64
limit_bytes=25000000
torch=$(sed -n 's/^torch==\([^ ]*\).*/\1/p' tools/wheel_torch_requirements.txt)
transfuse_packages="gcc g++ cmake ninja-build pkg-config libjansson-dev libxxhash-dev liblz4-dev libzstd-dev python3
    python3-venv ca-certificates"
venv=$work/env
requirements=tools/wheel_requirements.txt

# Headers of torch and the one library that the ops link; all of it would be 3 GB. Sets torch_folder.
find_torch() {
    torch_folder=$work/torch-$torch/torch
    [ ! -f "$torch_folder.stamp" ] || return 0
    say "fetching torch $torch, of which the headers and libtorch_cpu.so are kept"
    rm -rf "$work/download" "$work/torch-$torch"
    quietly "pip download" "$work/download.log" "$venv/bin/python" -m pip download --no-cache-dir \
        --disable-pip-version-check --no-input --no-deps --only-binary :all: --require-hashes \
        -d "$work/download" -r tools/wheel_torch_requirements.txt
    "$venv/bin/python" - "$work"/download/torch-*.whl "$work/torch-$torch" <<'END'
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    kept = [name for name in wheel.namelist() if name.startswith(("torch/include/", "torch/lib/libtorch_cpu.so"))]
    wheel.extractall(sys.argv[2], kept)
END
    rm -rf "$work/download"
    : >"$torch_folder.stamp"
}

# Sets CUDACXX.
find_cuda() {
    [ -z "${CUDACXX-}" ] || return 0
    pip_install_pins cuda tools/wheel_cuda_requirements.txt || die "pip could not install the CUDA toolkit"
    # nvcc looks for libraries in lib64, and CMake for one of this name.
    ln -sfn lib "$site_packages/nvidia/cu13/lib64"
    ln -sfn libcudart.so.13 "$site_packages/nvidia/cu13/lib/libcudart.so"
    export CUDACXX="$site_packages/nvidia/cu13/bin/nvcc"
}

# The licences of what becomes a part of the wheel and is not transfuse's.
collect_notices() {
    rm -rf "$work/notices"
    mkdir "$work/notices"
    for package in libjansson4 liblz4-1 libzstd1 libxxhash-dev; do
        cp "/usr/share/doc/$package/copyright" "$work/notices/$package.txt"
    done
}

# One library that the command and the ops share, and nothing that the wheel should have brought along.
check_wheel() {
    "$system_python" -m venv --clear "$work/try"
    (venv=$work/try && pip_install_pins numpy tools/wheel_try_requirements.txt) || die "pip could not install NumPy"
    quietly "pip install" "$work/try.log" \
        "$work/try/bin/python" -m pip install --disable-pip-version-check --no-input --no-index --no-deps "$1"
    "$work/try/bin/python" -m pip check --disable-pip-version-check ||
        die "$1 asks for more than tools/wheel_try_requirements.in has"
    package=$("$work/try/bin/python" -c 'import transfuse; print(transfuse.__path__[0])')
    [ "$(find "$package" "$package.libs" -name 'libtransfuse.so*' | wc -l)" -eq 1 ] ||
        die "the wheel has another number of libtransfuse.so than one"
    library=$(realpath "$package"/lib/libtransfuse.so.*)
    for file in "$package/bin/transfuse" "$package/lib/libtransfuse_torch.so"; do
        ldd "$file" >"$work/ldd"
        sed -n 's/.*libtransfuse\.so[^ ]* => \([^ ]*\).*/\1/p' "$work/ldd" | xargs realpath | grep -Fqx "$library" ||
            die "$file does not use $library"
        grep 'not found' "$work/ldd" | grep -v libtorch_cpu && die "$file needs more than the wheel and the system have"
    done
    bytes=$(wc -c <"$1")
    [ "$bytes" -le $limit_bytes ] || die "$1 has $bytes bytes, more than $limit_bytes"
    "$work/try/bin/transfuse" doctor || die "transfuse doctor found a fault in the wheel"
    say "$1: $bytes bytes"
}

mkdir -p "$work" "$folder"
install_packages
make_venv
site_packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
find_torch
collect_notices
rm -rf "$work/made" "$work/repaired"
set -- --config-settings=build-dir="$work/cmake${cuda:+-cuda}" --config-settings=cmake.define.TRF_TORCH=ON \
    --config-settings=cmake.define.TRF_TORCH_DIR="$torch_folder" \
    --config-settings=cmake.define.TRF_WHEEL_NOTICES="$work/notices"
if [ -n "$cuda" ]; then
    find_cuda
    set -- "$@" --config-settings=cmake.define.TRF_CUDA=ON \
        --config-settings=cmake.define.CUDAToolkit_ROOT="$(dirname "$(dirname "$CUDACXX")")" \
        "--config-settings=cmake.define.CMAKE_CUDA_ARCHITECTURES=80-real;86-real;89-real;90a-real;90-virtual"
else
    set -- "$@" --config-settings=cmake.define.TRF_CUDA=OFF
fi
# The same sources give the same bytes (tests/builds/compare_wheels.sh): files in the wheel are dated as the last
# commit, or, where git knows none, as early as a zip file can say.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}
export SOURCE_DATE_EPOCH
say "building; the log is $work/wheel.log"
export CMAKE_BUILD_PARALLEL_LEVEL="$jobs"
quietly "pip wheel" "$work/wheel.log" "$venv/bin/python" -m pip wheel --verbose --disable-pip-version-check --no-input \
    --no-index --no-deps --no-build-isolation "$@" -w "$work/made" .
PATH="$venv/bin:$PATH" quietly "auditwheel repair" "$work/repair.log" "$venv/bin/auditwheel" repair \
    --plat "$platform" --only-plat --exclude libtorch_cpu.so -w "$work/repaired" "$work"/made/transfuse-*.whl
for wheel in "$work"/repaired/transfuse-*-py3-none-"$platform".whl; do
    [ -f "$wheel" ] || die "auditwheel did not make a wheel for $platform"
    check_wheel "$wheel"
    mv "$wheel" "$folder"
done

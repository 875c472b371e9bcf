#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Lets every call of CUDA, and then every allocation, fail in the library's host code for a GPU, without a GPU: on a
# made-up runtime, whose kernels do nothing, under the address sanitizer. Streams there do their work as late as CUDA
# allows (made_up_cuda.c), which shows where one is not waited for. A test where CUDA's headers are; by hand:
#
#     sh tests/faults/cuda_without_gpu/run.sh build/quick [CUDA'S FOLDER] [FLAGS]
#
# The build folder is one without device code, after `cmake --build` of the target transfuse. TRF_TEST_QUICK=1 lets
# fewer calls fail. "packing gate and up" is not tried: it takes what kernels find.
set -eu
build=$(realpath "$1")
cuda=${2:-/usr/local/cuda}
flags=${3:--fsanitize=address,undefined}
cd "$(dirname "$0")/../../.."
here=tests/faults/cuda_without_gpu
out=$build/cuda_without_gpu
mkdir -p "$out/calls" "$out/memory"

folders="base format decoder_cpu encoder decoder_gpu packing fused/common fused/coded fused/wide fused/group
    fused/packed fused/moe loader runtime/device runtime/load runtime/layouts runtime/tuning runtime/products
    runtime/stacks runtime/contexts include tests"
includes="-I$cuda/include $(pkg-config --cflags check jansson libxxhash)"
for folder in $folders; do
    includes="$includes -I$folder"
done
host="runtime/*/*_cuda.c decoder_gpu/*.c"
acts="tests/common/device_acts.c tests/common/act_objects.c tests/common/checkpoint_fixture.c
    tests/common/fp8_matrices.c tests/common/test_weights.c"
made_up="$here/made_up_cuda.c $here/made_up_launches.c $here/made_up_plain_launches.c"
of_calls="tests/gpu/gpu_fixture.c tests/gpu/gpu_failing_runtime.c tests/gpu/test_gpu_failing_calls.c"

# compile FOLDER "SOURCES" "FLAGS"
compile() {
    for source in $2; do
        # -w: parameters of what does nothing are not used
        ${CC:-cc} -std=c11 -D_GNU_SOURCE -w -O1 -g $flags $3 $includes -c "$source" \
            -o "$out/$1/$(basename "$source" .c).o"
    done
}

# link FOLDER "OPTIONS"
link() {
    ${CC:-cc} $flags "$out/$1"/*.o "$build/libtransfuse.a" $2 -o "$out/$1/test" \
        $(pkg-config --libs check jansson libxxhash) -lpthread -lm -ldl
}

wraps=$(sed -n 's/^\(FAILS\|MAKES\|FREES\|WAITS\|TELLS\)(\([A-Za-z0-9_]*\),.*/-Wl,--wrap=\2/p' \
    tests/gpu/gpu_failing_runtime.c)
compile calls "$host $acts $made_up $of_calls" -DTRF_ACTS_WITHOUT_KERNELS
link calls "$wraps -Wl,--wrap=dlsym"
compile memory "$host $acts $made_up tests/unit/test_acts_no_memory.c" \
    "-DTRF_ACTS_WITHOUT_KERNELS -DTRF_TEST_DEVICE=0 -DWRAPS_ALLOCATIONS"
link memory "-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc,--wrap=mmap,--wrap=strdup
    -Wl,--wrap=strndup,--wrap=pthread_create"

# The name that the library looks for has the version of CUDA's header.
major=$(sed -n 's/^#define CUBLAS_VER_MAJOR \([0-9]*\).*/\1/p' "$cuda/include/cublas_api.h" "$cuda/include/cublasLt.h" |
    head -n 1)
${CC:-cc} -w -shared -fPIC "$here/made_up_cublaslt.c" -o "$out/libcublasLt.so.$major"
export LD_LIBRARY_PATH="$out"
TRF_ACT_DIGESTS=1 MADE_UP_CUDA_AT_ONCE=1 "$out/calls/test" >"$out/at_once.txt"
TRF_ACT_DIGESTS=1 "$out/calls/test" >"$out/late.txt"
diff "$out/at_once.txt" "$out/late.txt" || {
    echo "$0: other results where streams are late" >&2
    exit 1
}
"$out/calls/test"
"$out/memory/test"

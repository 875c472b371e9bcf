#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# demo.sh, test.sh and .ci/run, with their presets, on a project that stands in for ours and builds at once: what each
# configures, in which folder, what it runs, and that it says how far it is. The machine is made up as well: its
# packages are all there, and its GPUs are what FAKE_GPUS says.
. "$(dirname "$0")/common.sh"
need_numpy
if [ -n "${TRF_TEST_QUICK-}" ]; then
    echo "skipped by TRF_TEST_QUICK: it runs the scripts of the project, in which a sanitizer sees nothing"
    exit 77
fi
for program in bash cmake ctest ninja; do
    command -v $program >/dev/null || {
        echo "skipped: there is no $program"
        exit 77
    }
done
"$TRF_PYTHON" -c 'import ml_dtypes' 2>/dev/null || {
    echo "skipped: $TRF_PYTHON has no ml_dtypes"
    exit 77
}

mkdir -p .venv/bin bin cmake examples tests .ci
for file in demo.sh test.sh .ci/run cmake/setup.sh CMakePresets.json tests/requirements.txt \
    tests/torch_requirements.txt tests/vllm_requirements.txt tests/minilm_requirements.txt examples/demo.py; do
    cp "$TRF_SOURCE_DIR/$file" $file || exit 1
done
cat >CMakeLists.txt <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(stand_in NONE)
option(TRF_BUILD_TESTS "" ON)
set(TRF_CUDA AUTO CACHE STRING "")
add_custom_target(command ALL COMMAND cp "$ENV{TRANSFUSE}" transfuse)
add_custom_target(threads_tests)
add_custom_target(fuzz_targets)
enable_testing()
foreach(name IN ITEMS unit.one cli.one fuzz.new_inputs)
    add_test(NAME ${name} COMMAND sh -c "test \"$FAKE_FAULT\" != ${name}")
endforeach()
set_property(TEST unit.one PROPERTY LABELS threads)
CMAKE
cat >bin/dpkg-query <<'SH'
#!/bin/sh
echo "install ok installed"
SH
cat >bin/nvidia-smi <<'SH'
#!/bin/sh
[ -n "${FAKE_GPUS-}" ] || exit 9
case $* in
*compute_cap*) printf '%s\n' $FAKE_GPUS ;;
*) echo "GPU 0" ;;
esac
SH
cat >bin/nvcc <<'SH'
#!/bin/sh
printf 'sm_%s\n' 75 80 86 87 89 90 100
SH
cat >.venv/bin/python <<'SH'
#!/bin/sh
case $* in
"-m pip "* | *"import pip"*) ;;
*) exec "$TRF_PYTHON" "$@" ;;
esac
SH
echo 'exit 1' >bin/apt-get
chmod +x bin/* .venv/bin/python
PATH=$work/bin:$PATH
export PATH TRF_PYTHON TRANSFUSE
unset FAKE_FAULT FAKE_GPUS TRF_JOBS
"$TRF_PYTHON" "$TRF_SOURCE_DIR/examples/make_sample_checkpoint.py" --small sample || fail "make_sample_checkpoint.py"

# Usage: cached PRESET VARIABLE VALUE   What the cache of build/PRESET has.
cached() {
    found=$(sed -n "s/^$2:[A-Z]*=//p" "build/$1/CMakeCache.txt")
    [ "$found" = "$3" ] || fail "build/$1: $2 is '$found', not '$3'"
}

# Usage: runs COMMAND...   Successfully; its output goes to ./out.
runs() {
    "$@" >out 2>&1 || fail "$*: $(cat out)"
}

# Usage: only_tests COUNT NAME...
only_tests() {
    count=$1
    shift
    for name in "$@"; do
        grep -q ": $name \\.* *Passed" out || fail "$name did not run: $(cat out)"
    done
    [ "$(grep -c ' Passed ' out)" -eq "$count" ] || fail "not $count tests ran: $(cat out)"
}

# ---- what is compiled is what the machine can use; nobody changes another's build folder ----

runs sh demo.sh sample
cached demo TRF_CUDA OFF
cached demo TRF_BUILD_TESTS OFF
grep -q '^weights against the source .*bit for bit' out || fail "the demo has no table: $(cat out)"
runs sh test.sh --quick
cached quick TRF_CUDA OFF
cached quick TRF_BUILD_TESTS ON
only_tests 2 unit.one cli.one
folders=$(find build -mindepth 1 -maxdepth 1 -type d | LC_ALL=C sort | tr '\n' ' ')
[ "$folders" = "build/demo build/demo-results build/quick " ] || fail "built elsewhere: $folders"

FAKE_GPUS=9.0 runs sh demo.sh sample
cached demo TRF_CUDA AUTO
cached demo CMAKE_CUDA_ARCHITECTURES 90a-real
runs sh demo.sh sample
cached demo TRF_CUDA OFF

# After both, the whole suite still compiles the device code.
runs .ci/run
cached no-gpu TRF_CUDA AUTO
cached no-gpu CMAKE_CUDA_ARCHITECTURES 90a-real
cached no-gpu TRF_CUDA_FAST_COMPILE ON
cached asan TRF_SANITIZE address,undefined
cached tsan TRF_SANITIZE thread
cached fuzz TRF_FUZZ ON
cached no-gpu TRF_EMULATE_KERNELS OFF
cached quick TRF_CUDA OFF
only_tests 8 unit.one cli.one fuzz.new_inputs
tail -n 6 out | grep -q '^100% tests passed, 0 tests failed out of 3$' || fail "the last lines: $(tail -n 6 out)"
tail -n 1 out | grep -q '^Total Test time' || fail "the last line: $(tail -n 1 out)"
rm -r build
FAKE_GPUS='8.6' runs sh test.sh
grep -q -e '^CMAKE_CUDA_ARCH' -e '^TRF_CUDA_FAST' build/release/CMakeCache.txt &&
    fail "with a GPU the build is not the default's"

# A failure stops the suite and is passed on.
FAKE_FAULT=fuzz.new_inputs .ci/run >out 2>&1 && fail "a test that fails passed: $(cat out)"
grep -q 'the asan stage failed' out || fail "the stage that failed is not named: $(cat out)"
grep -q 'tsan: ' out && fail "a stage behind the one that failed: $(cat out)"
FAKE_FAULT=cli.one sh test.sh --quick >out 2>&1 && fail "a test that fails passed --quick: $(cat out)"
for arguments in --fast "--quick x"; do
    # shellcheck disable=SC2086  # two words
    sh test.sh $arguments >out 2>&1
    [ $? -eq 2 ] || fail "test.sh $arguments: $(cat out)"
done

# ---- parts of cmake/setup.sh ----

# Usage: architectures_of GPUS WANTED
architectures_of() {
    found=$(FAKE_GPUS=$1 sh -c '. cmake/setup.sh && gpu_architectures') || fail "gpu_architectures: $1"
    [ "$found" = "$2" ] || fail "for GPUs of $1 '$found' is built, not '$2'"
}
architectures_of "" ""
architectures_of 7.5 ""
architectures_of 8.0 80-real
architectures_of "8.9 8.6 8.9" "86-real;89-real"
architectures_of 9.0 90a-real
architectures_of 10.0 100-real
# What the nvcc does not know.
architectures_of "8.8 12.0" "90-virtual;80-real"
architectures_of "[N/A]" ""

sh -c '. cmake/setup.sh
report_interval=1
quietly slowly log sh -c "echo \"[3/9] one\"; sleep 2.5"
reporting silent log if-silent -- sleep 2.5
report_interval=2
reporting talking log if-silent -- to_log_too log sh -c "for i in \$(seq 45); do echo word; sleep 0.1; done"
' >out || fail "steps that take long: $(cat out)"
grep -qx '== slowly: \[3/9\] 1 s' out || fail "a step's counter: $(cat out)"
grep -qx '== silent: .*2 s' out || fail "a silent step: $(cat out)"
grep -q talking out && fail "a step that says something itself: $(cat out)"
sh -c '. cmake/setup.sh
quietly failing log sh -c "echo the reason; exit 3"
echo went on' >out 2>&1 && fail "a step that fails: $(cat out)"
grep -qx 'the reason' out || fail "what a step said that failed: $(cat out)"
grep -q 'went on' out && fail "a step that failed did not end the script"
exit 0

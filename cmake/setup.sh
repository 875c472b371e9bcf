# SPDX-License-Identifier: Apache-2.0
# Sets up a Debian 12 machine and builds presets. Sourced, from the top of the source tree, by demo.sh, test.sh and
# tools/build_wheel.sh; POSIX sh.

# What the build, the tests and the demo need beyond the base system.
transfuse_packages="gcc g++ cmake ninja-build pkg-config libjansson-dev libxxhash-dev check libsubunit-dev liblz4-dev
    libzstd-dev python3 python3-venv ca-certificates clang libclang-rt-14-dev clang-format-14 clang-tidy-14 cppcheck"
# The venv is made from Debian's own Python, whatever python3 comes first in PATH: the pins are for that version.
system_python=/usr/bin/python3
# The Python environment, and what is in it.
venv=.venv
requirements=tests/requirements.txt

say() { printf '%s\n' "== $*"; }

die() {
    printf '%s\n' "$0: $*" >&2
    exit 1
}

# Seconds after which a line says that a step is still under way; where it must be silent first, up to twice as many.
report_interval=4

# Says so until it is ended: for how long, and the last counter in the step's log, as ninja writes it ([12/180]). With
# `if-silent` only while nothing is added to the log, for a step whose output is shown.
# Usage: report STEP LOG [if-silent]
report() {
    seconds=0 size=0
    # The sleep does not hold the output open for whoever reads it to its end.
    while sleep "$report_interval" >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        seconds=$((seconds + report_interval))
        last_size=$size
        size=$(wc -c 2>/dev/null <"$2") || size=0
        [ -n "${3-}" ] && [ "$size" -ne "$last_size" ] && continue
        counter=$(sed -n 's/^\(\[[0-9]*\/[0-9]*\]\).*/\1 /p' "$2" 2>/dev/null | tail -n 1)
        say "$1: $counter$seconds s"
    done
}

# Runs a command and reports that it is under way. Usage: reporting STEP LOG [if-silent] -- COMMAND...
reporting() {
    report_step=$1 report_log=$2 report_when=
    shift 2
    [ "$1" = -- ] || {
        report_when=$1
        shift
    }
    shift
    report "$report_step" "$report_log" "$report_when" &
    reporter=$!
    command_status=0
    "$@" </dev/null || command_status=$?
    kill "$reporter" 2>/dev/null || :
    wait "$reporter" 2>/dev/null || :
    return "$command_status"
}

to_log() {
    to=$1
    shift
    "$@" >"$to" 2>&1
}

# Shows the command's output as well.
to_log_too() {
    to=$1
    shift
    {
        status=0
        "$@" 2>&1 || status=$?
        echo "$status" >"$to.status"
    } | tee "$to"
    return "$(cat "$to.status")"
}

# Runs a command with its output in a log, which is shown only if the command fails. Usage: quietly STEP LOG COMMAND...
quietly() {
    step=$1 log=$2
    shift 2
    : >"$log"
    reporting "$step" "$log" -- to_log "$log" "$@" && return
    tail -n 60 "$log" >&2
    die "failed: $* (all of its output: $log)"
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

install_packages() {
    missing=
    for package in $transfuse_packages; do
        case $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) in
        *" installed") ;;
        *) missing="$missing $package" ;;
        esac
    done
    [ -n "$missing" ] || return 0

    [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null ||
        die "these Debian packages are missing, and installing them takes root or sudo:$missing"
    say "installing Debian packages:$missing"
    # A repository that does not answer must not stop the rest; what is really missing then shows at the install.
    : >build/apt.log
    reporting "apt-get update" build/apt.log -- as_root apt-get update -qq >&2 ||
        say "apt-get update failed; trying with the package lists that are there"
    # shellcheck disable=SC2086  # a list of words
    quietly "apt-get install" build/apt.log \
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing
}

# Installs a file of pins into $venv, unless its stamp shows that it was. A package must have one of the file's hashes
# and be ready to use, since what building one takes is pinned nowhere; a file names all that it needs.
# FILE.txt is made of FILE.in by the command in its first lines (`pip install uv`). Usage: pip_install_pins NAME FILE
pip_install_pins() {
    stamp=$venv/$1.stamp
    wanted=$(sha256sum <"$2")
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && return
    say "installing into $venv: $2"
    reporting "pip install" /dev/null -- "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --no-input --require-hashes --no-deps --only-binary :all: -r "$2" || return
    printf '%s\n' "$wanted" >"$stamp"
}

make_venv() {
    # --clear also mends a venv whose Python was upgraded or whose making was interrupted.
    "$venv/bin/python" -c 'import pip' 2>/dev/null || {
        say "making a Python environment in $venv"
        reporting "python3 -m venv" /dev/null -- "$system_python" -m venv --clear "$venv" ||
            die "$system_python could not make $venv"
    }
    pip_install_pins requirements "$requirements" || die "pip could not install $requirements"
}

set_up() {
    for program in dpkg-query apt-get; do
        command -v $program >/dev/null || die "this is not a Debian system; README.md says how to build by hand"
    done
    mkdir -p build
    install_packages
    make_venv
}

# Prints what device code to build for the GPUs that are here: for each its own architecture alone. Nothing where there
# is none that the code runs on. A GPU that nvcc does not know gets what its driver compiles.
gpu_architectures() {
    nvcc=$(command -v nvcc) || nvcc=/usr/local/cuda/bin/nvcc
    known=$("$nvcc" --list-gpu-code 2>/dev/null | tr '\n' ' ') || :
    nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u | awk -F. -v known=" $known" '
        !/^[0-9]+\.[0-9]+ *$/ { next }
        { number = 10 * $1 + $2; code = "" }
        number >= 80 { code = $1 == 8 ? "80-real" : "90-virtual" }
        number >= 80 && index(known, " sm_" number " ") { code = number "-real" }
        number == 90 { code = "90a-real" }
        code && !seen[code]++ { codes = codes (codes ? ";" : "") code }
        END { if (codes) print codes }'
}

# Usage: build_preset NAME [ARGUMENT OF CMAKE...]
build_preset() {
    preset=$1
    shift
    say "$preset: configuring"
    quietly "$preset: configuring" "build/$preset.log" cmake --preset "$preset" "$@"
    say "$preset: building in build/$preset"
    quietly "$preset: building" "build/$preset.log" cmake --build --preset "$preset" -j "$jobs"
}

# TRF_JOBS: for a machine whose memory is short for its cores.
jobs=${TRF_JOBS:-$(nproc)}

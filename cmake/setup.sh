# Sets up a Debian 12 machine and builds presets. Sourced, from the top of the source tree, by demo.sh and test.sh;
# POSIX sh.

# What the build, the tests and the demo need beyond the base system.
transfuse_packages="gcc g++ cmake ninja-build pkg-config libjansson-dev libxxhash-dev check libsubunit-dev liblz4-dev
    libzstd-dev python3 python3-venv ca-certificates clang-format-14 clang-tidy-14"
# The venv is made from Debian's own Python, whatever python3 comes first in PATH: the pins are for that version.
system_python=/usr/bin/python3

say() { printf '%s\n' "== $*"; }

die() {
    printf '%s\n' "$0: $*" >&2
    exit 1
}

# Runs a command with its output in a log, which is shown only if the command fails. Usage: quietly LOG COMMAND...
quietly() {
    log=$1
    shift
    "$@" >"$log" 2>&1 </dev/null && return
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
    as_root apt-get update -qq >&2 || say "apt-get update failed; trying with the package lists that are there"
    # shellcheck disable=SC2086  # a list of words
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing \
        >build/apt.log 2>&1 </dev/null || {
        tail -n 20 build/apt.log >&2
        die "apt-get could not install:$missing"
    }
}

# Installs into .venv what its stamp file does not show as installed. Usage: pip_install NAME VERSION ARGUMENT...
pip_install() {
    stamp=.venv/$1.stamp
    wanted=$2
    shift 2
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && return
    say "installing into .venv: $*"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input "$@" </dev/null || return
    printf '%s\n' "$wanted" >"$stamp"
}

make_venv() {
    # --clear also mends a venv whose Python was upgraded or whose making was interrupted.
    .venv/bin/python -c 'import pip' 2>/dev/null ||
        "$system_python" -m venv --clear .venv || die "$system_python could not make .venv"
    pip_install requirements "$(sha256sum <tests/requirements.txt)" -r tests/requirements.txt ||
        die "pip could not install tests/requirements.txt"
}

set_up() {
    command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
        die "this is not a Debian system; README.md says how to build by hand"
    mkdir -p build
    install_packages
    make_venv
}

# Usage: build_preset NAME [ARGUMENT OF CMAKE...]
build_preset() {
    preset=$1
    shift
    say "$preset: building"
    quietly "build/$preset.log" cmake --preset "$preset" "$@"
    quietly "build/$preset.log" cmake --build --preset "$preset" -j "$jobs"
}

# TRF_JOBS: for a machine whose memory is short for its cores.
jobs=${TRF_JOBS:-$(nproc)}

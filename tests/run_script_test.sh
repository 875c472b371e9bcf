#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs one .sh or .py test of the suite. ctest calls it with TRF_SOURCE_DIR set. The Python is chosen here rather than
# by CMake so that a .venv made after configuring is used.
set -u
script=$1

TRF_PYTHON=$TRF_SOURCE_DIR/.venv/bin/python
have_venv=yes
if [ ! -x "$TRF_PYTHON" ]; then
    TRF_PYTHON=python3
    have_venv=no
fi
export TRF_PYTHON

case $script in
*.sh)
    exec sh "$script"
    ;;
*)
    if [ $have_venv = no ]; then
        echo "skipped ${script##*/}: there is no .venv with numpy and pytest; 'sh test.sh' makes it"
        exit 77
    fi
    # No caches: the source tree stays as it is.
    export PYTHONDONTWRITEBYTECODE=1
    # Under a sanitizer what it can see, which is the command. pytest's status 5: nothing was to be run.
    why="what it needs is not there"
    if [ -n "${TRF_TEST_QUICK-}" ]; then
        set -- -k command
        why="nothing in it runs the command, and there is nothing else for a sanitizer to see"
    else
        set --
    fi
    "$TRF_PYTHON" -m pytest -q -rs -p no:cacheprovider "$@" "$script"
    status=$?
    if [ $status -eq 5 ]; then
        echo "skipped ${script##*/}: $why"
        exit 77
    fi
    exit $status
    ;;
esac

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Hundreds of files that a stranger may have made, each with its exact status: run_adversarial.py. TRANSFUSE: the
# command; TRF_ADVERSARIAL_DRIVER: adversarial_driver.c.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 1
"${TRF_PYTHON:=python3}" -c 'import numpy, xxhash' 2>/dev/null || {
    echo "skipped: $TRF_PYTHON has no numpy and xxhash"
    exit 77
}
# Under a sanitizer the command takes longer to start.
every=8
[ -z "${TRF_TEST_QUICK-}" ] || every=64
PYTHONDONTWRITEBYTECODE=1 exec "$TRF_PYTHON" "$here/run_adversarial.py" "$TRF_ADVERSARIAL_DRIVER" "$TRANSFUSE" \
    --every $every

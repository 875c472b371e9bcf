#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A sample of the faults of tests/faults/disk_campaign.py: calls that fail, SIGKILL, and power cuts.
. "$(dirname "$0")/common.sh"
need_numpy
[ -f "${TRF_DISK_FAULTS-}" ] || {
    echo "skipped: this build has no library that makes the disk fail"
    exit 77
}
"$TRF_PYTHON" "$here/../faults/disk_campaign.py" "$TRANSFUSE" "$TRF_DISK_FAULTS" --every 23 --cuts 64 >campaign ||
    fail "a fault of the disk"
cat campaign
# What it shows would be little if no run went on from another one.
grep -q 'continued: [1-9]' campaign || fail "no run was continued"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The example of an engine that owns its memory, on the CPU.
. "$(dirname "$0")/common.sh"
[ -x "${TRF_EXAMPLE_ENGINE_MEMORY-}" ] || {
    echo "skipped: the examples are not built"
    exit 77
}

"$TRF_EXAMPLE_ENGINE_MEMORY" cpu >out 2>err || {
    cat out err
    fail "the example"
}
[ ! -s err ] || fail "it complained"
grep -q '^transfuse [0-9.]* on CPU$' out || fail "no word of the version and the device"
[ "$(grep -c ', the same bits$' out)" -eq 2 ] || fail "not two layers that decode to the same bits"
[ "$(grep -c '^layer [01]: [0-9]* bytes of device memory$' out)" -eq 2 ] || fail "not two layers in device memory"
grep -q '^y: 3 x 896, as by dense weights$' out || fail "the products"

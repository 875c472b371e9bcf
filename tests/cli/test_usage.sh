#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Command lines that cannot be run: exit status 2, and a message that says what is wrong; help; missing devices.
. "$(dirname "$0")/common.sh"

# Usage: wrong WORD ARGUMENT...   A usage error whose message has WORD in it.
wrong() {
    word=$1
    shift
    expect 2 "$@"
    [ ! -s out ] || fail "transfuse $*: something on standard output"
    head -n 1 err | grep -qF -- "$word" || {
        cat err
        fail "transfuse $*: the message lacks '$word'"
    }
}

wrong usage
wrong nonsense nonsense
wrong 'Python package' doctor
wrong --nonsense --nonsense
wrong IN compress
wrong IN compress ''
wrong '-o OUT' compress in
wrong value compress in -o
wrong --output compress in -o ''
wrong extra compress in -o out extra
wrong 'is what -o names' compress in out
wrong -x compress in -o out -x
wrong --nonsense compress in -o out --nonsense
wrong 'no value' compress in -o out --int8=8
wrong --codec compress in -o out --codec int4
wrong --codec compress in -o out --codec ''
wrong --favor compress in -o out --favor memory
wrong --include compress in -o out --include ''
wrong exclude compress in -o out --int8 --bits 4
wrong --int8 compress in -o out --int8 --codec bf16
wrong --bits compress in -o out --bits 4 --codec auto
wrong '-o -:' compress in -o -
wrong 'say -o out or --output=out' compress in -o=out
wrong 'say -T 4' compress in -o out -T=4
wrong './-' extract in tensor -o -
wrong '--json -' bench --json -
wrong 'exclude each other' verify in -q -v
wrong 'exclude each other' compress in -o out --include 'a*' --embeddings
wrong '--store-only' compress in -o out --store-only --int8
wrong '--store-only' compress in -o out --store-only --bits 4
wrong '--store-only' compress in -o out --store-only --codec bf16
wrong --skip-extra compress in -o out --skip-extra ''
wrong 'needs --against' verify in --skip-extra '*.bin'
wrong 'needs --device' verify in --layout plain
wrong '--mode offload' bench --budget 1G
wrong 'the same file' bench --json a --csv a
wrong 'the same file' bench --json ./a --csv a
ln -s a link
touch a
wrong 'the same file' bench --json link --csv a --force
rm a link
wrong extra --version extra
wrong extra --help compress extra
wrong "unknown command '?[31mx'" "$(printf '\033[31mx')"
wrong "argument '?[31mx'" verify in "$(printf '\033[31mx')"
for when in '' Always sometimes; do
    wrong --progress compress in -o out --progress "$when"
done

# ---- what was meant by a word that is mistyped ----
for pair in 'compres compress' 'Compress compress' 'decompres decompress' 'comp compress' 'verfiy verify' 'inof info' \
    'docter doctor' 'hlep help' '--verison --version' '--hlep --help'; do
    wrong "did you mean '${pair#* }'?" "${pair% *}"
done
wrong "did you mean 'verify'?" help verfy
wrong "did you mean '--exclude'?" compress in -o out --exlcude x
wrong "did you mean '--threads'?" compress in -o out --threds=4
wrong "did you mean '--store-only'?" compress in -o out --store_only
wrong "did you mean '--against'?" verify in --agianst other
wrong "did you mean '--json'?" info in -json
wrong "did you mean '--max-batch'?" tune in -o out --maxbatch 4
for word in version verison hlep; do
    case $word in hlep) option=help ;; *) option=--version ;; esac
    wrong "did you mean '$option'?" $word
done
for far in ls unpack ''; do
    wrong "unknown command '$far'" "$far"
    grep -q '^Commands: compress, .*, doctor (of the Python package), help$' err ||
        fail "'$far': no list of commands: $(cat err)"
done
for far in xyzzy --unlikely e; do
    wrong unknown $far
    ! grep -q 'did you mean' err || fail "$far: a suggestion: $(cat err)"
done
# An option of another command is none of this one.
wrong "unknown option '--against'" compress in -o out --against other
! grep -q 'did you mean' err || fail "--against: a suggestion: $(cat err)"
# A beginning that only one option has stands for it; one that several have does not.
wrong "'--f' may be '--favor' or '--force'" compress in -o out --f
wrong --threads compress in -o out --thr=two
wrong --granularity compress in -o out --granularity channel
for bits in '' 1.99 8.01 nan inf 4x 4,5 ' 4' -4; do
    wrong --bits compress in -o out --bits "$bits"
done
for granularity in '' row group:64 scale-group scale-group: scale-group:0 scale-group:8 scale-group:24 \
    scale-group:-16 scale-group:1048592 block:32 scale-block scale-block:17 channel:16; do
    wrong --granularity compress in -o out --int8 --granularity "$granularity"
done
for threads in '' -1 1025 1.5 two 99999999999999999999; do
    wrong --threads compress in -o out -T "$threads"
done
wrong IN decompress
wrong '-o OUT' decompress in
wrong --codec decompress in -o out --codec auto
wrong IN verify
wrong --against verify in --against ''
wrong -o verify in -o out
wrong IN info
wrong other info in other
wrong TENSOR extract in -o out
wrong X.npy matmul layer -o out
wrong --device matmul layer x -o out --device tpu
wrong --path matmul layer x -o out --path slow
wrong '--path wide' matmul layer x -o out --path wide
wrong '--path two-step' matmul layer x -o out --path two-step
wrong '--path two-step' matmul layer x -o out --path two-step --device cpu
wrong '--path dense' matmul layer x -o out --path dense
wrong --layout matmul layer x -o out --device cuda --layout woven
wrong '--layout plain' matmul layer x -o out --layout plain
wrong --layout bench --layout woven
wrong '--layout plain' bench --layout plain
wrong '--layout packed' bench --layout packed
wrong '--layout packed' bench --device cuda --codec fp16 --layout packed
wrong '--layout packed' matmul layer x -o out --layout packed
wrong '--layout plain' bench --device cuda --mode moe --layout plain
wrong '--layout plain' bench --device cuda --codec bf16,int8 --layout plain
wrong --tuning matmul layer x -o out --tuning tuning.json
wrong --tuning matmul layer x -o out --device cuda --path fused --tuning tuning.json
wrong --tuning bench --tuning tuning.json
wrong --tuning bench --tuning ''
wrong IN tune -o out
wrong --layout tune in -o out --layout woven
wrong '-o OUT' tune in
for batch in '' 0 1048577 8x 1,8; do
    wrong --max-batch tune in -o out --max-batch "$batch"
done
for layers in '' 4 4x 4x0 x4 4x4x4 '4x4,' ',4x4' 4x-4 4x2147483648; do
    wrong --layers bench --layers "$layers"
done
for batch in '' 0 '1,' -1 '1,,2' a; do
    wrong --batch bench --batch "$batch"
done
for mixture in '' 8 8x16x16 8x16x16/ 8x16/2 8x16x16x16/2 8x0x16/2 8x16x16/9 513x16x16/2 64x16x16/33 8x16x16/2x \
    '8x16x16/2,' 8x-16x16/2; do
    wrong --mixture bench --device cuda --mode moe --mixture "$mixture"
done
wrong --routes bench --device cuda --mode moe --routes even
wrong '--mixture goes with' bench --mixture 8x16x16/2
wrong '--mixture goes with' bench --device cuda --mode overlap --mixture 8x16x16/2
wrong '--routes goes with' bench --device cuda --routes skewed
wrong '--routes goes with' bench --device cuda --mode moe --layers 96x256 --routes skewed
wrong --codec bench --codec bf16,int9
wrong --sigma bench --sigma 0
wrong --bits bench --bits 4,9
wrong --runs bench --runs 0
for budget in '' 0 G 8Q -1 8.5G 99999999999G; do
    wrong --budget bench --budget "$budget"
done
wrong --distribution bench --distribution cauchy
wrong --granularity bench --codec bf16 --granularity channel
wrong operand bench operand

for option in --version -V; do
    expect 0 $option
    grep -q '^transfuse [0-9]*\.[0-9]*\.[0-9]*$' out || fail "$option"
done
wrong unexpected help compress verify
expect 0 --help
awk 'length > 80 { exit 1 }' out || fail "--help has long lines"
mv out general
for arguments in help -h 'help help'; do
    # shellcheck disable=SC2086
    expect 0 $arguments
    cmp -s out general || fail "$arguments is not --help"
done
mv general out
for command in compress decompress verify info extract matmul bench tune; do
    grep -q "^  $command " out || fail "--help does not name $command"
done
for command in compress decompress verify info extract matmul bench tune; do
    expect 0 help $command
    mv out helped
    expect 0 $command --help
    cmp -s out helped || fail "help $command is not $command --help"
    rm helped
    grep -q "^usage: transfuse $command" out || fail "$command --help"
    awk 'length > 80 { exit 1 }' out || fail "$command --help has long lines"
    [ ! -s err ] || fail "$command --help: something on standard error"
done

# The device is looked at before any file; there is no falling back to the CPU. Where there is one, it is hidden.
CUDA_VISIBLE_DEVICES=
export CUDA_VISIBLE_DEVICES
expect 3 matmul layer x -o out.npy --device cuda
expect_error TRF_ERR_DEVICE cuda
expect 3 bench --layers 64x64 --device cuda
expect_error TRF_ERR_DEVICE cuda

if [ -w /dev/full ]; then
    "$TRANSFUSE" --help >/dev/full 2>err && fail "standard output that cannot be written goes unnoticed"
    expect_error 'standard output'
fi
[ -z "$(find . -mindepth 1 ! -name out ! -name err)" ] || fail "files were left"

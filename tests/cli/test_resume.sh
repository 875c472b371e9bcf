#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# compress --resume: what a stopped run has encoded is kept, and the next one goes on from there to the same bytes; but
# not with another input or other options. Without it nothing is kept.
. "$(dirname "$0")/common.sh"
need_numpy

"$TRF_PYTHON" "$here/make_checkpoint.py" many many.safetensors || exit 1
"$TRF_PYTHON" "$here/make_checkpoint.py" fp8_block fp8 || exit 1
mkdir model && cp fp8/*.json model && cp many.safetensors model/a.safetensors && cp fp8/*.safetensors model/
rm -f model/*.index.json
printf '{"model_type": "llama"}' >model/config.json
chmod 0444 model/a.safetensors # a file that nobody may write to is continued, too

stop() {
    signal=$1
    shift
    "$TRF_PYTHON" "$here/resume.py" "$TRANSFUSE" "$signal" "$@" >out 2>err || {
        cat out err
        fail "$* was not stopped"
    }
}
leftovers() { find . -maxdepth 1 -name '*.transfuse-*' | wc -l; }

for input in many.safetensors model; do
    extra=
    [ $input = model ] && extra='--store-only'
    # shellcheck disable=SC2086
    expect 0 compress $input $extra -o whole
    for signal in TERM KILL; do
        # shellcheck disable=SC2086
        stop $signal compress $input $extra -T 1 -o result --resume
        [ "$(leftovers)" -eq 2 ] || fail "a temporary and a journal should be left: $(ls)"
        [ ! -e result ] || fail "there is an output"
        if [ $signal = TERM ]; then
            grep -q 'transfuse: note: .*result.transfuse-tmp-.*: kept; with resume the same run goes on' err ||
                fail "no note about what is kept: $(cat err)"
        fi
        # Other options, or another version of the input, do not go on from there.
        # shellcheck disable=SC2086
        expect 0 compress $input $extra --favor size --resume -o result
        grep -q 'not continued, but begun anew' err || fail "no note: $(cat err)"
        [ "$(leftovers)" -eq 2 ] || fail "another run's temporary was removed without -f"
        rm -r result
        # Without --resume what is there is named, and stays.
        # shellcheck disable=SC2086
        expect 0 compress $input $extra -o result
        grep -q 'left by a run that was stopped; with resume' err || fail "no note: $(cat err)"
        rm -r result
        # shellcheck disable=SC2086
        expect 0 compress $input $extra --resume -o result -T 2
        grep -q 'result.transfuse-tmp-.*: continued' err || fail "not continued: $(cat err)"
        grep -q 'note: [1-9][0-9]* tensors had been encoded by an earlier run' err || fail "nothing taken: $(cat err)"
        diff -r whole result || fail "the output differs"
        [ "$(leftovers)" -eq 0 ] || fail "something is left: $(ls)"
        rm -r result
    done
    rm -r whole
done

# The same name and size, but written to since.
stop KILL compress many.safetensors -T 1 -o result --resume
cp many.safetensors same && mv same many.safetensors
expect 0 compress many.safetensors --resume -o result
grep -q 'not continued, but begun anew' err || fail "another input was continued"
# -f removes what is left.
expect 0 compress many.safetensors -f -o result
grep -q 'removed; a run that was killed had left it' err || fail "no note: $(cat err)"
[ "$(leftovers)" -eq 0 ] || fail "something is left: $(ls)"
mv result whole

# A blob that is not what the journal says is encoded anew; so is one whose journal is damaged.
for damage in blob journal; do
    stop KILL compress many.safetensors -T 1 -o result --resume
    "$TRF_PYTHON" -c '
import glob
import sys
path, at = glob.glob("*.transfuse-tmp-*")[0], 20000
if sys.argv[1] == "journal":
    path, at = glob.glob("*.transfuse-resume-*")[0], 40
with open(path, "r+b") as file:
    file.seek(at)
    byte = file.read(1)[0]
    file.seek(at)
    file.write(bytes([byte ^ 8]))' $damage
    expect 0 compress many.safetensors --resume -o result
    cmp whole result || fail "the output of a damaged temporary differs ($damage)"
    rm result
done

# Without --resume an interrupted run leaves nothing; other commands do not have it.
for command in 'decompress whole -o no' 'verify whole' 'info whole'; do
    # shellcheck disable=SC2086
    expect 2 $command --resume
done
expect 2 compress many.safetensors --resume --dry-run
expect_only fp8 many.safetensors model whole

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What compress, decompress and verify make of a folder's config.json, and --embeddings.
. "$(dirname "$0")/common.sh"
need_numpy

"$TRF_PYTHON" "$here/make_checkpoint.py" several_files model || fail "make_checkpoint.py"
config=model/config.json

# Usage: set_config TEXT   As printf takes it.
set_config() {
    # shellcheck disable=SC2059  # escapes are wanted
    printf "$1" >$config
}

compress() {
    expect 0 compress model -o compressed -f "$@"
    cp err warnings
}

comes_back() {
    expect 0 verify compressed --against model
    expect 0 decompress compressed -o back -f
    diff -r model back || fail "the folder does not come back: $(cat $config)"
}

# Usage: warns FILE WORD...
warns() {
    [ "$(wc -l <"$1")" -eq 1 ] || fail "not one line: $(cat "$1")"
    shift
    for word in '^transfuse: [a-z]*: ' "$@"; do
        grep -q -- "$word" warnings || fail "no '$word': $(cat warnings)"
    done
}

# ---- byte for byte, and everything else as it was, but for what transformers goes by ----
for text in '{}' '{\n}' ' { "a" : 1e-05,"b":1e20, "c":0.1, "d":12345678901234567890123 }\n\n' \
    '{\r\n  "a": "\\u2028\342\200\250\\"}\\/\\\\",\r\n  "b": {"quantization_config": null}\r\n}\r\n' \
    '\357\273\277{"a": NaN, "b": [Infinity, -Infinity]}' '{"a": 1, "quantization_config": null, "a": 2}' \
    '{"_class_name": "A"}' '{"model_type": "a"}' '{\n  "model_type": "a",\n  "dtype": null\n}\n' \
    '{"model_type": "a", "torch_dtype": "float32", "transformers_weights": "b"}'; do
    set_config "$text"
    compress
    case $text in
    *_class_name* | *float32*) [ ! -s warnings ] || fail "a warning: $(cat warnings)" ;;
    *model_type*) warns warnings "model/config.json: the model's dtype is bfloat16" fp16 'pass dtype=torch.float32' ;;
    *) warns warnings 'model/config.json: has neither .* nothing will load' ;;
    esac
    comes_back
    "$TRF_PYTHON" - <<'PYTHON' || fail "quantization_config of $(cat $config)"
import json
source = open("model/config.json", newline="", encoding="utf-8").read()
compressed = json.loads(open("compressed/config.json", newline="", encoding="utf-8").read())
assert list(compressed)[-1] == "quantization_config"
added = compressed.pop("quantization_config")
assert added == {
    "quant_method": "transfuse", "version": 4, "codec": "auto", "layout": "coded", "source_config": source,
}, added
kept = json.loads(source.removeprefix("\ufeff"))
kept.pop("quantization_config", None)
if "model_type" in kept:
    assert "install transfuse" in compressed.pop("transformers_weights")
    kept.pop("transformers_weights", None)
    if not kept.get("dtype") and "torch_dtype" not in kept:
        kept["dtype"] = "bfloat16"
assert repr(sorted(compressed.items())) == repr(sorted(kept.items())), compressed
PYTHON
done

# ---- an index stands for its folder, and the rate is told ----
expect 0 compress model/model.safetensors.index.json -o compressed -f --bits 5 --include '*_proj.weight' \
    --exclude '*q_proj*'
grep -q '"codec": "int", "layout": "coded", "bits": 5.0' compressed/config.json || fail "$(cat compressed/config.json)"

# ---- a file has none, whatever stands beside it ----
cp $config before
expect 0 compress model/model-00001-of-00002.safetensors -o one.safetensors
same before $config

# ---- laid out anew it comes back without a word, changed with a warning ----
set_config '{"_class_name": "A", "b": 1e-05, "a": 0.1}\n'
compress
edit() {
    "$TRF_PYTHON" - "$1" <<'PYTHON' || fail "edit"
import json
import sys
path = "compressed/config.json"
config = json.load(open(path)) | json.loads(sys.argv[1])
json.dump(config, open(path, "w"), indent=7, sort_keys=True)
PYTHON
}
edit '{}'
comes_back
[ ! -s err ] || fail "a warning: $(cat err)"
edit '{"a": 0.2}'
comes_back
cp err warnings
warns err 'compressed/config.json: was changed'

# ---- another source ----
set_config '{"b": 1e-05, "a": 0.10}\n'
expect 1 verify compressed --against model
expect_error compressed/config.json TRF_ERR_MISMATCH
rm compressed/config.json
expect 1 verify compressed --against model
expect_error compressed/config.json TRF_ERR_NOT_FOUND

# ---- those that are refused, since nothing could load the result ----
for text in '[]' '' 'garbage' '{"a": "\377"}' '\377\376{\0}\0'; do
    set_config "$text"
    expect 1 compress model -o compressed -f
    expect_error model/config.json --store-only TRF_ERR_FORMAT
done
for text in '{"quantization_config": {"quant_method": "fp8"}}' '{"a": [{"quantization_config": {}}]}' \
    '{"text_config": {"compression_config": {"quant_method": "x"}}}' '{"quantization": {"bits": 4}}'; do
    set_config "$text"
    expect 1 compress model -o compressed -f
    expect_error model/config.json --store-only TRF_ERR_UNSUPPORTED
done
set_config '{"quantization_config": {"quant_method": "transfuse"}}'
expect 1 compress model -o compressed -f
expect_error model/config.json TRF_ERR_ARGUMENT
rm -r $config compressed back # -f does not let their config.json go
compress
warns warnings 'has no config.json'
comes_back

# ---- --embeddings ----
set_config '{"tie_word_embeddings": true}'
compress
cp out usual
compress --embeddings
comes_back
expect 0 info compressed
grep -q '^model.embed_tokens.weight .* bf16\( \|$\)' out || fail "no embedding"
grep -q '^layers.0.q_proj.weight .* bf16\( \|$\)' out || fail "embeddings alone"
expect 2 compress model -o compressed -f --embeddings --include '*'
exit 0

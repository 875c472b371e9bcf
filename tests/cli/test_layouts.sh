#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# layouts: what it chooses and says, of plain and compressed models, and what it refuses.
. "$(dirname "$0")/common.sh"
need_numpy

"$TRF_PYTHON" - <<'E' || fail "making a model"
import json
import os
import struct

import numpy as np
from make_checkpoint import bf16, normal

rng = np.random.default_rng(0)
shapes = {"model.embed_tokens.weight": (4096, 512), "lm_head.weight": (4096, 512)}
for layer in range(4):
    for name, *shape in ("self_attn.q_proj", 512, 512), ("mlp.up_proj", 2048, 512), ("mlp.down_proj", 512, 2048):
        shapes[f"model.layers.{layer}.{name}.weight"] = tuple(shape)
    shapes[f"model.layers.{layer}.norm.weight"] = (512,)
for expert in range(8):
    shapes[f"model.layers.3.block.experts.{expert}.w1.weight"] = (256, 512)
header, end = {}, 0
for name, shape in shapes.items():
    size = 2 * int(np.prod(shape))
    header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
    end += size
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
os.mkdir("model")
with open("model/model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    for shape in shapes.values():
        file.write(bf16(normal(rng, *shape)).tobytes())
config = {"model_type": "llama", "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2}
config |= {"hidden_size": 512, "num_experts_per_tok": 2}
with open("model/config.json", "w") as file:
    json.dump(config, file)
E

# Plenty of memory: nothing is left out, and what was assumed is said.
expect 0 layouts model --memory 2G --batch 1:0.8,32:0.2 --context 1000
for text in "^  .*experts, 8 experts of 256x512$" "2.05 MB  KV cache" "CUDA and the framework, assumed" \
    "^batches: 1 (80 %), 32 (20 %)$" "^times: NVIDIA H200; --card names another$" "times as fast as plain" \
    "^1 GB more would save 0 us (0.00 %)$" "estimated from samples"; do
    grep -q "$text" out || {
        cat out
        fail "the output lacks '$text'"
    }
done

# Budgets down to the least: never more than the memory, and slower the less there is.
expect 0 compress model -o compressed -q
expect 0 layouts compressed --memory 2G --batch 32 --json
cp out most.json
"$TRF_PYTHON" - "$TRANSFUSE" <<'E' || fail "budgets"
import json
import subprocess
import sys


def ask(memory, *options):
    command = [sys.argv[1], "layouts", "compressed", "--memory", str(memory), "--batch", "32", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout) if done.returncode == 0 else done.stderr


def check(found, memory):
    layers = found["layers"]
    fixed = found["margin_bytes"] + found["other_bytes"] + found["cache_bytes"]
    assert found["margin_bytes"] == 1 << 30 and found["layer_bytes"] + fixed <= memory, found
    assert found["layer_bytes"] == sum(layer["bytes"][layer["layout"]] for layer in layers), found
    assert found["least_microseconds"] <= found["microseconds"] * (1 + 1e-9), found
    assert found["microseconds"] <= 1.001 * found["least_microseconds"], found
    (experts,) = (layer for layer in layers if layer["experts"])
    assert experts["experts"] == 8 and experts["routed"] == 2 and set(experts["bytes"]) == {"coded", "packed"}


most = json.load(open("most.json"))
assert not most["is_estimated"] and most["times_of"] == "NVIDIA H200" and most["is_own_card"], most
assert most["batches"] == [{"batch": 32, "share": 1.0}] and len(most["layers"]) == 14, most
least, before = most["least_memory_bytes"], 0
for step in range(6):
    memory = least + step * 1200000
    status, found = ask(memory)
    assert status == 0, found
    check(found, memory)
    assert step == 0 or found["microseconds"] <= 1.001 * before, (found["microseconds"], before)
    before = found["microseconds"]
status, message = ask(least - 1)
assert status == 1 and "does not fit" in message and "are missing" in message, message
status, half = ask(least, "--gpus", "2")
assert status == 0 and half["gpus"] == 2 and half["other_bytes"] < most["other_bytes"], half
assert half["least_memory_bytes"] - half["margin_bytes"] < 0.6 * (least - most["margin_bytes"]), half
status, other = ask(least, "--card", "A100")
assert status == 0 and other["times_of"] == "NVIDIA H200" and not other["is_own_card"], other
status, h100 = ask(2 * least, "--card", "H100")
assert status == 0 and h100["is_own_card"] and h100["microseconds"] != most["microseconds"], h100
E

# What tune measured here: on the CPU the layout that was measured counts by its own times.
expect 0 tune compressed -o tuning.json --max-batch 2 -T 1
expect 0 layouts compressed --memory 2G --tuning tuning.json
grep -q "^times: the tuning's, and what it lacks NVIDIA H200" out || {
    cat out
    fail "the tuning is not mentioned"
}
expect 0 layouts compressed --memory 2G --tuning tuning.json --card CPU

# The times of one device are not those of another one that is named.
expect 1 layouts compressed --memory 2G --tuning tuning.json --card H200
expect_error "tuning.json: " "one for 'CPU'" "the card is 'H200'" TRF_ERR_DEVICE
[ ! -s out ] || fail "a choice by the times of another device"
sed 's/"device": "CPU"/"device": "NVIDIA H200"/' tuning.json >h200.json
for card in H200 "NVIDIA H200"; do
    expect 0 layouts compressed --memory 2G --tuning h200.json --card "$card"
    grep -q "^times: the tuning's, and what it lacks NVIDIA H200$" out || {
        cat out
        fail "a tuning of $card"
    }
done
expect 1 layouts compressed --memory 2G --tuning h200.json --card H100
expect_error "h200.json: " "one for 'NVIDIA H200'" "the card is 'H100'" TRF_ERR_DEVICE

expect 1 layouts model --memory 1G
expect_error "does not fit" "TRF_ERR_MEMORY" "tensors that stay as they are"
expect 2 layouts model
grep -q -- "--memory is missing" err || fail "no word of --memory"
for batch in 0 1:0 1:x 1: x; do
    expect 2 layouts model --memory 2G --batch $batch
    grep -q "^transfuse layouts: --batch: expected" err || fail "--batch $batch"
done
expect 2 layouts model --memory 2G --gpus 0
rm model/config.json
expect 1 layouts model --memory 2G
expect_error "how many a token has"
expect 1 layouts missing --memory 2G
expect_error "missing"

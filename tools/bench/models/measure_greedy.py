# SPDX-License-Identifier: Apache-2.0
"""Row l: greedy texts of a trained byte-level model, compressed and in BF16.

Usage: measure_greedy.py FOLDER [--device cuda] [--out FILE] [--tokens N]     FOLDER: of tests/gpu/train_byte_model.py

If sums are added in another order, near ties may fall the other way, and the texts then differ. This happens to BF16
itself when the batch size changes; for the compressed model it may happen to as many prompts, plus 2.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transfuse
from measure_same import count_blobs
from model_session import MODELS, exact_mode, judge
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

# The bound is for these two, which were chosen before anything was measured.
BATCHES = (16, 8)


@torch.inference_mode()
def generate_greedily(model: PreTrainedModel, prompts: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    """Returns the `length` most likely tokens after each prompt, the prompts in batches of `batch`."""
    texts = [
        model.generate(
            part,
            attention_mask=torch.ones_like(part),
            max_new_tokens=length,
            min_new_tokens=length,
            do_sample=False,
            pad_token_id=0,
        )
        for part in prompts.split(batch)
    ]
    return torch.cat(texts)[:, prompts.shape[1] :]


def measure(folder: Path, device: str, length: int) -> dict[str, object]:
    """Compresses the model beside it, and counts the prompts whose texts differ."""
    start = time.perf_counter()
    coded_folder = folder.with_name(folder.name + "-trf")
    shutil.rmtree(coded_folder, ignore_errors=True)
    transfuse.compress(folder, coded_folder, embeddings=True)
    models = {
        name: AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, device_map={"": device}).eval()
        for name, path in zip(MODELS, (folder, coded_folder), strict=True)
    }
    prompts = torch.tensor(json.loads((folder / "prompts.json").read_text()), device=device)
    texts = {
        (name, batch): generate_greedily(model, prompts, batch, length)
        for name, model in models.items()
        for batch in BATCHES
    }
    same, other = BATCHES[:2]
    with exact_mode(True):
        texts["exact", same] = generate_greedily(models["compressed"], prompts, same, length)
    differ = {
        f"{name} at {batch}, bf16 at {base}": int((text != texts["bf16", base]).any(1).sum())
        for (name, batch), text in texts.items()
        for base in BATCHES
        if (batch < base if name == "bf16" else batch == base)
    }
    value, own = differ[f"compressed at {same}, bf16 at {same}"], differ[f"bf16 at {other}, bf16 at {same}"]
    expected = texts["bf16", same]
    return {
        "what": f"prompts of {len(prompts)} whose {length} greedy tokens differ from BF16's at batch {same}",
        "value": value,
        "own": own,
        "differ": differ,
        "parameters": sum(parameter.numel() for parameter in models["bf16"].parameters()),
        "blobs": count_blobs(models["compressed"]),
        "distinct_bytes": len(expected.unique()),
        "text": bytes(expected[0].tolist()).decode("utf-8", "replace"),
        "seconds": round(time.perf_counter() - start, 1),
        **judge(value, f"<= {own + 2}"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="a file to which the line is added")
    parser.add_argument("--tokens", type=int, default=256)
    options = parser.parse_args()
    logging.disable_progress_bar()
    line = {"row": "l", "case": options.folder.name, "model": "byte-model", "device": options.device}
    text = json.dumps(line | measure(options.folder, options.device, options.tokens) | {"done": True})
    print(text, flush=True)
    if options.out:
        with options.out.open("a") as file:
            file.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

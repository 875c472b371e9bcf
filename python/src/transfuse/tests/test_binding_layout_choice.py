# SPDX-License-Identifier: Apache-2.0
"""`choose_layouts`: what it finds for a small model, and what it refuses."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import transfuse
from transfuse._layout_choice import read_batches, read_memory

_SHAPES = {"model.embed_tokens.weight": (512, 256), "lm_head.weight": (512, 256)}
_SHAPES |= {f"model.layers.{layer}.up_proj.weight": (1024, 256) for layer in range(4)}
_SHAPES |= {f"model.layers.{layer}.down_proj.weight": (256, 1024) for layer in range(4)}
_SHAPES |= {f"model.layers.4.experts.{expert}.w1.weight": (128, 256) for expert in range(4)}
_MARGIN = 1 << 30


def write_model(folder: Path) -> Path:
    """Makes a folder with a plain model of a few layers, and one of experts."""
    rng = np.random.default_rng(0)
    header: dict[str, Any] = {}
    end = 0
    for name, (rows, cols) in _SHAPES.items():
        header[name] = {"dtype": "BF16", "shape": [rows, cols], "data_offsets": [end, end + 2 * rows * cols]}
        end += 2 * rows * cols
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    weights = 0.02 * rng.standard_normal(end // 2, dtype=np.float32)
    folder.mkdir()
    data = (weights.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    sizes = {"num_hidden_layers": 5, "num_attention_heads": 4, "hidden_size": 256, "num_experts_per_tok": 2}
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **sizes}))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def test_less_memory_costs_time(model: Path, tmp_path: Path) -> None:
    compressed = tmp_path / "compressed"
    transfuse.compress(model, compressed)
    most = transfuse.choose_layouts(compressed, "2GB", 32)
    assert set(most.layouts) == set(_SHAPES) - {"model.embed_tokens.weight"}
    assert not most.is_estimated and most.times_of == "NVIDIA H200" and most.is_own_card
    before = float("inf")
    for extra in (0, 300_000, 900_000, 3_000_000, 10_000_000):
        found = transfuse.choose_layouts(compressed, most.least_memory_bytes + extra, {32: 1.0})
        taken = found.layer_bytes + found.other_bytes + found.cache_bytes + found.margin_bytes
        assert taken <= found.memory_bytes == most.least_memory_bytes + extra
        assert found.microseconds <= 1.0006 * before
        assert found.least_microseconds <= found.microseconds <= 1.001 * found.least_microseconds
        before = found.microseconds
    assert found.layouts == most.layouts and sum(most.count_layouts().values()) == len(most.layouts)
    with pytest.raises(transfuse.OutOfMemoryError, match="are missing"):
        transfuse.choose_layouts(compressed, most.least_memory_bytes - 1, 32)


def test_experts_have_one_layout(model: Path) -> None:
    experts = [name for name in _SHAPES if "experts" in name]
    found = transfuse.choose_layouts(model, "2GB", [1, 32])
    assert found.is_estimated and {found.layouts[name] for name in experts} <= {"packed", "coded"}
    found = transfuse.choose_layouts(model, "2GB", [1, 32], expert_layouts=["coded"])
    assert {found.layouts[name] for name in experts} == {"coded"}


def test_a_layout_that_is_named_twice(model: Path) -> None:
    once = transfuse.choose_layouts(model, "2GB", expert_layouts=["coded"])
    assert transfuse.choose_layouts(model, "2GB", expert_layouts=["coded", "coded"]) == once


def test_shares_whose_sum_is_no_number(model: Path) -> None:
    equal = transfuse.choose_layouts(model, "2GB", {1: 1, 64: 1})
    assert transfuse.choose_layouts(model, "2GB", {1: 1e308, 64: 1e308}) == equal


def test_gpus_and_context(model: Path) -> None:
    one = transfuse.choose_layouts(model, "2GB", context=100)
    assert one.cache_bytes == 100 * 5 * 4 * 2 * 64 * 2
    two = transfuse.choose_layouts(model, "2GB", context=100, gpus=2, card="H100")
    assert two.cache_bytes == one.cache_bytes // 2 and two.times_of.startswith("NVIDIA H100")
    assert two.least_memory_bytes - _MARGIN < 0.7 * (one.least_memory_bytes - _MARGIN)


def test_a_tuning_counts(model: Path, tmp_path: Path) -> None:
    tuning = tmp_path / "tuning.json"
    with pytest.raises(transfuse.NotFoundError):
        transfuse.choose_layouts(model, "2GB", tuning=tuning)
    tuning.write_text("{}")
    with pytest.raises(transfuse.DataError):
        transfuse.choose_layouts(model, "2GB", tuning=tuning)


def test_a_tuning_is_of_the_card_that_is_named(model: Path, tmp_path: Path) -> None:
    layer = {"layout": "packed", "codec": "bf16", "class_bits": 2, "raw_bits": 8, "scale_groups": False}
    layer |= {"rows": 1024, "cols": 256, "batches": [{"to": 64, "path": "packed", "microseconds": {"packed": 5000}}]}
    tunings = {"CPU": tmp_path / "cpu.json", "NVIDIA H200": tmp_path / "h200.json"}
    for device, path in tunings.items():
        path.write_text(json.dumps({"format": "transfuse tuning", "version": 2, "device": device, "layers": [layer]}))
    without = transfuse.choose_layouts(model, "2GB", card="H200")
    for tuning in (tunings["CPU"], str(tunings["CPU"])):
        with pytest.raises(transfuse.DeviceError, match=r"cpu\.json.*one for 'CPU'.*the card is 'H200'") as caught:
            transfuse.choose_layouts(model, "2GB", card="H200", tuning=tuning)
        assert caught.value.status is transfuse.Status.TRF_ERR_DEVICE
    with pytest.raises(transfuse.DeviceError, match=r"h200\.json.*one for 'NVIDIA H200'.*the card is 'H100'"):
        transfuse.choose_layouts(model, "2GB", card="H100", tuning=tunings["NVIDIA H200"])
    own = transfuse.choose_layouts(model, "2GB", tuning=tunings["CPU"])
    assert own.microseconds > 2 * without.microseconds and not own.is_own_card
    assert transfuse.choose_layouts(model, "2GB", card="CPU", tuning=tunings["CPU"]) == own
    for card in ("H200", "NVIDIA H200", None):
        found = transfuse.choose_layouts(model, "2GB", card=card, tuning=tunings["NVIDIA H200"])
        assert found.microseconds == own.microseconds and found.is_own_card and found.times_of == "NVIDIA H200"


def test_sizes_and_batches() -> None:
    assert [read_memory(size) for size in ("80GB", "80G", "1.5 GiB", 7)] == [8 * 10**10, 8 * 10**10, 3 << 29, 7]
    sizes: list[Any] = ["80 pounds", "", "0", 0, -1, True, "-1GB", "9" * 400 + "GB", 2**63, "0.5", [], None]
    for size in sizes:
        with pytest.raises(transfuse.ArgumentError, match="memory is"):
            read_memory(size)
    assert read_batches([1, 32]) == {1: 1, 32: 1} and read_batches({8: 0.5}) == {8: 0.5}
    shares: list[Any] = [0, float("nan"), float("inf"), 10**400, True, "1", None]
    wrong: list[Any] = [[], 0, [1, -1], True, 1.5, "1", [[1]], {"1": 1}, None, *({1: share} for share in shares)]
    for batches in wrong:
        with pytest.raises(transfuse.ArgumentError):
            read_batches(batches)


def test_what_makes_no_sense_is_refused(model: Path) -> None:
    wrongs: list[dict[str, Any]] = [{"gpus": 0}, {"context": -1}]
    wrongs += [{"expert_layouts": layouts} for layouts in (["dense"], ["plain"], ["packed8"], [5], [])]
    for wrong in wrongs:
        with pytest.raises(transfuse.ArgumentError):
            transfuse.choose_layouts(model, "2GB", **wrong)
    wrongs = [{"expert_layouts": "coded"}, {"expert_layouts": 5}, {"card": 5}]
    for wrong in wrongs:
        with pytest.raises(TypeError, match=next(iter(wrong))):
            transfuse.choose_layouts(model, "2GB", **wrong)
    (model / "config.json").unlink()
    with pytest.raises(transfuse.UnsupportedError, match="num_experts_per_tok"):
        transfuse.choose_layouts(model, "2GB")

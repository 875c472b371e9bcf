# SPDX-License-Identifier: Apache-2.0
"""Compressed models in diffusers: a small Flux transformer with random weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("diffusers", reason="diffusers is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import diffusers
import torch

import transfuse


@pytest.fixture(autouse=True)
def approximate() -> Iterator[None]:
    """Leaves exact mode off behind a test that turned it on."""
    yield
    transfuse.set_exact(False)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    model = diffusers.FluxTransformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=32,
        num_attention_heads=4,
        joint_attention_dim=96,
        pooled_projection_dim=64,
        axes_dims_rope=(8, 12, 12),
    )
    path = tmp_path_factory.mktemp("diffusers") / "transformer"
    model.to(torch.bfloat16).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def compressed(source: Path) -> Path:
    path = source.with_name("transformer-trf")
    transfuse.compress(source, path)
    return path


def load(path: Path, device: str, **options: Any) -> Any:
    options = {"torch_dtype": torch.bfloat16, "device_map": {"": device}, **options}
    return diffusers.FluxTransformer2DModel.from_pretrained(path, **options)


def run(model: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(model.device, torch.bfloat16)

    with torch.no_grad():
        output: torch.Tensor = model(
            hidden_states=draw(1, 24, 16),
            encoder_hidden_states=draw(1, 7, 96),
            pooled_projections=draw(1, 64),
            timestep=torch.tensor([0.5], device=model.device, dtype=torch.bfloat16),
            img_ids=torch.zeros(24, 3, device=model.device),
            txt_ids=torch.zeros(7, 3, device=model.device),
            return_dict=False,
        )[0]
    return output


def test_loading(source: Path, compressed: Path, device: str) -> None:
    from transfuse.torch._modules import CompressedModule

    model, dense = load(compressed, device), load(source, device)
    parameters = dict(dense.named_parameters())
    seen = 0
    for name, parameter in model.named_parameters():
        module = model.get_submodule(name.rpartition(".")[0])
        if parameter.dtype == torch.uint8:
            assert isinstance(module, CompressedModule)
            parameter, seen = module.decode_weight(), seen + 1
        assert torch.equal(parameter, parameters[name]), name
    assert seen == sum(tensor.compressed for tensor in transfuse.info(compressed).tensors) > 10
    expected = run(dense)
    assert torch.allclose(run(model).float(), expected.float(), atol=0.05, rtol=0.05)
    transfuse.set_exact(True)
    assert torch.equal(run(model), expected)


def test_without_a_device_map(source: Path, compressed: Path) -> None:
    model, loading = load(compressed, "cpu", device_map=None, output_loading_info=True)
    assert model.device.type == "cpu" and not any(loading.values())
    transfuse.set_exact(True)
    assert torch.equal(run(model), run(load(source, "cpu")))


def test_saving(tmp_path: Path, source: Path, compressed: Path, device: str) -> None:
    load(compressed, device).save_pretrained(tmp_path / "saved", max_shard_size="200KB")
    assert len(list((tmp_path / "saved").glob("*.safetensors"))) > 1
    transfuse.verify(tmp_path / "saved")
    again = load(tmp_path / "saved", device)
    transfuse.set_exact(True)
    assert torch.equal(run(again), run(load(source, device)))


@pytest.mark.parametrize("layout", ["plain", "packed"])
def test_layouts(tmp_path: Path, source: Path, compressed: Path, device: str, layout: str) -> None:
    from transfuse.torch import set_layout
    from transfuse.torch._modules import CompressedModule

    model = load(compressed, device)
    set_layout(model, layout)
    layouts = {module.layout for module in model.modules() if isinstance(module, CompressedModule)}
    assert layouts == {layout}
    model.save_pretrained(tmp_path / "saved")
    transfuse.verify(tmp_path / "saved")
    transfuse.set_exact(True)
    assert torch.equal(run(model), run(load(source, device)))


def test_what_has_to_fail(tmp_path: Path, source: Path, compressed: Path) -> None:
    with pytest.raises(transfuse.UnsupportedError, match="on the disk"):
        load(compressed, "cpu", device_map={"": "disk"})
    folder = Path(shutil.copytree(compressed, tmp_path / "broken"))
    config = json.loads((folder / "config.json").read_text())
    config["num_layers"] = 2
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="no file gives 'transformer_blocks.1"):
        load(folder, "cpu")
    data = (folder / "diffusion_pytorch_model.safetensors").read_bytes()
    (folder / "diffusion_pytorch_model.safetensors").write_bytes(data[:-100])
    with pytest.raises((transfuse.DataError, OSError)):
        load(folder, "cpu")

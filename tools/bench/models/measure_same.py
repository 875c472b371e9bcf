# SPDX-License-Identifier: Apache-2.0
"""Rows that compare values: weights after loading, logits in exact mode, gradients of adapters."""

from __future__ import annotations

import zlib

import model_shapes
import torch
from model_session import Session, collect, exact_mode, judge
from torch import nn
from transformers import PreTrainedModel
from transfuse.torch import TransfuseExperts

ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj")


def decode_parameter(model: nn.Module, name: str) -> torch.Tensor:
    """Returns a parameter of the uncompressed model, decoded where the model holds a blob in its place."""
    prefix, _, last = name.rpartition(".")
    module = model.get_submodule(prefix)
    if hasattr(module, "decode_weights"):  # experts
        return module.decode_weights()[last]
    if hasattr(module, "decode_weight") and last == "weight":
        return module.decode_weight()
    return module.get_parameter(last)


def count_blobs(model: nn.Module) -> int:
    """Returns how many parameters are blobs; tied ones count once."""
    return sum(parameter.dtype == torch.uint8 for parameter in model.parameters())


def count_layouts(model: nn.Module) -> dict[str, int]:
    """Returns how many experts modules lie in each layout."""
    layouts = [module.layout for module in model.modules() if isinstance(module, TransfuseExperts)]
    return {layout: layouts.count(layout) for layout in set(layouts)}


def measure_parameters(session: Session) -> None:
    """a: weights that differ, bit for bit, from those that the seed gives."""
    model = session.get("compressed")
    differ, weights = 0, 0
    for name, shape in model_shapes.list_parameters(session.source.config).items():
        loaded = decode_parameter(model, name)
        assert loaded.dtype == torch.bfloat16 and tuple(loaded.shape) == shape, (name, loaded.dtype, loaded.shape)
        for part, part_shape, take in model_shapes.list_parts(name, shape):
            expected = session.source.make(part, part_shape, str(session.device))
            differ += int((take(loaded).view(torch.int16) != expected.view(torch.int16)).sum())
            weights += expected.numel()
    session.emit(
        "a",
        what="weights that differ from the source",
        value=differ,
        weights=weights,
        blobs=count_blobs(model),
        **judge(differ, "== 0"),
    )


@torch.inference_mode()
def measure_logits(session: Session) -> None:
    """b: the logits of 512 tokens in exact mode against the uncompressed model's."""
    tokens = session.make_tokens(1, 64 if session.tiny else 512)
    with exact_mode(True):
        exact = session.get("compressed")(tokens, use_cache=False).logits
    with exact_mode(False):
        coded = session.get("compressed")(tokens, use_cache=False).logits
    plain = session.get("bf16")(tokens, use_cache=False).logits
    again = session.get("bf16")(tokens, use_cache=False).logits
    differ = int((exact.view(torch.int16) != plain.view(torch.int16)).sum())
    session.emit(
        "b",
        what="logits in exact mode that differ from the uncompressed model's",
        value=differ,
        logits=plain.numel(),
        finite=bool(plain.isfinite().all()),
        plain_differ_from_themselves=int((plain != again).sum()),
        not_exact_most=float((coded.float() - plain.float()).abs().max()),
        not_exact_same_argmax=float((coded.argmax(-1) == plain.argmax(-1)).float().mean()),
        most_logit=float(plain.float().abs().max()),
        **judge(differ, "== 0"),
    )


# ---- gradients ----


def add_adapters(model: PreTrainedModel) -> nn.Module:
    """Returns the model with LoRA adapters whose values depend only on their names."""
    from peft import LoraConfig, get_peft_model

    model.set_attn_implementation("eager")  # its backward pass gives the same bits each time
    found = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    adapted = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=sorted(found & set(ADAPTED))))
    for name, parameter in adapted.named_parameters():
        if parameter.requires_grad:
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            values = torch.empty(parameter.shape).normal_(0.0, 0.02, generator=generator)
            parameter.data.copy_(values)
    return adapted


def compute_gradients(model: nn.Module, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns the gradients of a model's adapters for one batch."""
    model.zero_grad(set_to_none=True)
    model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    gradients = {name: p.grad.detach().cpu() for name, p in model.named_parameters() if p.requires_grad}
    assert gradients and all(bool(g.abs().sum() > 0) for g in gradients.values()), "a gradient is zero"
    return gradients


def measure_error(gradients: dict[str, torch.Tensor], reference: dict[str, torch.Tensor]) -> float:
    """Returns the relative root mean square error over all gradients."""
    error = sum(float((gradients[name].double() - ref).square().sum()) for name, ref in reference.items())
    return (error / sum(float(ref.square().sum()) for ref in reference.values())) ** 0.5


def measure_adapters(session: Session) -> None:
    """j: gradients of LoRA adapters on the compressed base, in exact mode and not, against the uncompressed one's."""
    session.drop()
    tokens = session.make_tokens(2, 32 if session.tiny else 256)
    plain_model = add_adapters(session.get("bf16"))
    plain = compute_gradients(plain_model, tokens)
    again = compute_gradients(plain_model, tokens)
    del plain_model
    session.drop("bf16")
    coded_model = add_adapters(session.get("compressed"))
    with exact_mode(True):
        exact = compute_gradients(coded_model, tokens)
    with exact_mode(False):
        coded = compute_gradients(coded_model, tokens)
    del coded_model
    session.drop("compressed")
    wide = model_shapes.build_reference(session.source, str(session.device), torch.float64)
    if wide.get_experts_implementation():
        wide.set_experts_implementation("eager")  # grouped products have no F64
    wide = add_adapters(wide)
    reference = {name: g.double() for name, g in compute_gradients(wide, tokens).items()}
    del wide
    collect(session.device)
    differ = sum(not torch.equal(exact[name], plain[name]) for name in plain)
    errors = {"bf16": measure_error(plain, reference), "compressed": measure_error(coded, reference)}
    session.emit(
        "j",
        what="LoRA gradients in exact mode that differ from the uncompressed model's",
        value=differ,
        gradients=len(plain),
        plain_differ_from_themselves=sum(not torch.equal(plain[name], again[name]) for name in plain),
        **judge(differ, "== 0"),
    )
    ratio = errors["compressed"] / errors["bf16"]
    session.emit(
        "j",
        what="error of LoRA gradients against F64: the compressed model's over BF16's",
        value=round(ratio, 4),
        **errors,
        **judge(ratio, "<= 2"),
    )

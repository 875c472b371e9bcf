# SPDX-License-Identifier: Apache-2.0
"""Experts of transformers with compressed weights, against the model's own module with dense ones."""

# mypy: disable-error-code="no-untyped-call,no-any-return,call-arg"

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", minversion="5.0", reason="transformers 5 is not installed")

import torch
from torch import Tensor, nn
from transformers.integrations.moe import use_experts_implementation
from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3ForCausalLM
from transformers.models.gpt_oss.configuration_gpt_oss import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.mixtral.configuration_mixtral import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts, MixtralForCausalLM
from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts, Qwen3MoeForCausalLM

import transfuse
from transfuse.tests.torch_cases import exact, normal, same_bits
from transfuse.torch import _encode, _experts, _ops, _registry, make_container
from transfuse.torch._compress import compress_model
from transfuse.torch._containers import container_buffers
from transfuse.torch._dense_experts import encode_experts
from transfuse.torch._experts import (
    TransfuseExperts,
    find_experts_obstacle,
    get_experts_decode_threshold,
    replace_experts,
    set_experts_decode_threshold,
)
from transfuse.torch._modules import TransfuseLinear

EXPERTS, HIDDEN, INNER, K = 8, 80, 112, 3
IMPLEMENTATIONS = ["eager", "batched_mm", "grouped_mm"]


@pytest.fixture(autouse=True)
def decode_threshold() -> Iterator[None]:
    """Compressed products for few tokens, and what is set is put back."""
    before = get_experts_decode_threshold()
    set_experts_decode_threshold(24)  # 64 tokens: each goes to 3 of 8 experts
    yield
    set_experts_decode_threshold(before)


def make_experts(
    implementation: str = "eager",
    kind: type[Any] = MixtralExperts,
    dtype: torch.dtype = torch.bfloat16,
    hidden: int = HIDDEN,
    inner: int = INNER,
) -> Any:
    sizes: dict[str, Any] = {"hidden_size": hidden, "num_experts_per_tok": K}
    if kind is Qwen3MoeExperts:
        config: Any = Qwen3MoeConfig(num_experts=EXPERTS, moe_intermediate_size=inner, **sizes)
    else:
        config = MixtralConfig(num_local_experts=EXPERTS, intermediate_size=inner, **sizes)
    config._experts_implementation = implementation
    return fill(kind(config)).to(dtype)


def fill(module: nn.Module) -> Any:
    for index, parameter in enumerate(module.parameters()):
        parameter.data = normal(*parameter.shape, dtype=torch.float32, seed=index, scale=0.1)
    return module.requires_grad_(False).eval()


def make_routes(
    tokens: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0, hidden: int = HIDDEN
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns tokens, the experts of each (the last expert has none), and their weights."""
    generator = torch.Generator().manual_seed(seed)
    index = [torch.randperm(EXPERTS - 1, generator=generator)[:K] for _ in range(tokens)]
    weights = torch.rand(tokens, K, generator=generator).softmax(-1).to(dtype)
    x = normal(tokens, hidden, dtype=dtype, seed=seed + 1, scale=1.0)
    return x, torch.stack(index) if tokens else torch.empty(0, K, dtype=torch.int64), weights


def compress(module: Any, **options: Any) -> Any:
    return replace_experts(module, **encode_experts(module, **options))


def make_parts(dense: Any, *, apart: bool) -> dict[str, Tensor]:
    """Returns coded experts as `replace_experts` takes them, with gate and up in two containers or in one."""
    parts = encode_experts(dense)
    if not apart:
        halves = [expert_matrices(parts.pop(name)) for name in ("gate", "up")]
        parts["gate_up"] = make_container([_encode.encode(torch.cat(pair)) for pair in zip(*halves, strict=True)])
    return parts


def expert_matrices(container: Tensor) -> list[Tensor]:
    infos = _registry.expert_infos(container)
    buffers = container_buffers(container)
    return [_ops.decode(each, of.rows, of.cols, torch.bfloat16) for each, of in zip(buffers, infos, strict=True)]


def error_of(found: Tensor, want: Tensor) -> float:
    return float((found.double() - want).norm() / want.norm())


@pytest.mark.parametrize("kind", [MixtralExperts, Qwen3MoeExperts])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_experts(kind: type[Any], implementation: str) -> None:
    dense = make_experts(implementation, kind)
    precise = copy.deepcopy(dense).double()
    precise.config._experts_implementation = "eager"
    module = copy.deepcopy(dense)
    assert compress(module) is module and isinstance(module, kind) and isinstance(module, TransfuseExperts)
    for tokens in (1, 2, 7, 64):
        x, index, weights = make_routes(tokens, seed=tokens)
        want = precise(x.double(), index, weights.double())
        found = module(x, index, weights)
        assert found.dtype == torch.bfloat16 and found.shape == x.shape
        assert error_of(found, want) <= 2 * error_of(dense(x, index, weights), want)
        with exact():
            assert same_bits(module(x, index, weights), dense(x, index, weights))
    x, index, weights = make_routes(65)
    assert same_bits(module(x, index, weights), dense(x, index, weights))


def test_the_threshold_decides() -> None:
    module = compress(make_experts())
    ways: list[str] = []

    def watch(name: str) -> None:
        run = getattr(module, name)

        def watched(*routes: Tensor) -> Any:
            ways.append(name)
            return run(*routes)

        setattr(module, name, watched)

    watch("_forward_dense")
    watch("_forward_compressed")
    for limit, tokens in ((3, 8), (3, 9), (0, 1)):
        set_experts_decode_threshold(limit)
        module(*make_routes(tokens))
    with exact():
        set_experts_decode_threshold(100)
        module(*make_routes(1))
    assert ways == ["_forward_compressed", "_forward_dense", "_forward_dense", "_forward_dense"]
    with pytest.raises(ValueError, match="tokens is -1"):
        set_experts_decode_threshold(-1)


def test_no_tokens_and_weights_of_f32() -> None:
    module, dense = compress(make_experts()), make_experts()
    assert module(*make_routes(0)).shape == (0, HIDDEN)
    x, index, weights = make_routes(5)
    precise = copy.deepcopy(dense).double()
    want = precise(x.double(), index, weights.double())
    found = module(x, index, weights.float())  # as routers of Mixtral give them
    assert found.dtype == torch.bfloat16 and error_of(found, want) < 0.01


def test_fused_gate_and_up() -> None:
    module, dense = make_experts(), make_experts()
    containers = {
        name: [_encode.encode(expert) for expert in getattr(dense, f"{name}_proj")] for name in ("gate_up", "down")
    }
    replace_experts(module, **containers)
    assert list(module.state_dict()) == ["gate_up_proj", "down_proj"]
    assert module.container_shapes["gate_up_proj"] == (EXPERTS, 2 * INNER, HIDDEN)
    weights = module.decode_weights()
    assert same_bits(weights["gate_up_proj"], dense.gate_up_proj) and same_bits(weights["down_proj"], dense.down_proj)
    routes, apart = make_routes(9), compress(make_experts())
    torch.testing.assert_close(module(*routes), apart(*routes), rtol=0.02, atol=0.02)
    with exact():
        assert same_bits(module(*routes), dense(*routes))


@use_experts_implementation
class ClampedExperts(MixtralExperts):
    """As those of DeepSeek-V4: a gate of its own, that the eager way has, too."""

    def _apply_gate(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return self.act_fn(gate.clamp(max=0.5)) * up.clamp(-0.5, 0.5)


@use_experts_implementation(has_gate=False)
class GatelessExperts(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.num_experts = config.num_local_experts
        self.up_proj = nn.Parameter(torch.empty(EXPERTS, INNER, HIDDEN))
        self.down_proj = nn.Parameter(torch.empty(EXPERTS, HIDDEN, INNER))
        self.act_fn = nn.SiLU()

    def forward(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        raise AssertionError("the implementation is not eager")


@pytest.mark.parametrize("kind", [ClampedExperts, GatelessExperts])
def test_experts_with_another_gate(kind: type[Any]) -> None:
    dense, module = make_experts("batched_mm", kind), make_experts("batched_mm", kind)
    compress(module)
    routes = make_routes(6)
    precise = copy.deepcopy(dense).double()
    want = precise(routes[0].double(), routes[1], routes[2].double())
    assert error_of(module(*routes), want) <= 2 * error_of(dense(*routes), want)
    with exact():
        assert same_bits(module(*routes), dense(*routes))


@pytest.mark.parametrize("implementation", ["batched_mm", "grouped_mm"])
def test_gradients(implementation: str) -> None:
    dense, module = make_experts(implementation), make_experts(implementation)
    compress(module)
    for tokens in (3, 70):
        results = []
        for each in (dense, module):
            x, index, weights = make_routes(tokens)
            x.requires_grad_(), weights.requires_grad_()
            y = each(x, index, weights)
            (y * normal(*y.shape, seed=5, scale=1.0)).sum().backward()
            results.append((y.detach(), x.grad, weights.grad))
        assert all(same_bits(*pair) for pair in zip(*results))


def test_forward_mode() -> None:
    """Tangents are the dense module's, and not zero."""
    dense, module = make_experts("batched_mm"), compress(make_experts("batched_mm"))
    x, index, weights = make_routes(3)
    tangents = torch.ones_like(x), torch.ones_like(weights)
    found, wanted = (
        torch.func.jvp(lambda x, weights, each=each: each(x, index, weights), (x, weights), tangents)
        for each in (module, dense)
    )
    assert wanted[1].any() and all(same_bits(*pair) for pair in zip(found, wanted))


def test_dense_weights_are_not_kept_for_the_backward_pass() -> None:
    module = compress(make_experts("batched_mm"))
    x, index, weights = make_routes(3)
    sizes: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        sizes.append(tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(x.requires_grad_(), index, weights)
    assert max(sizes, default=0) < 2 * EXPERTS * INNER * HIDDEN


@pytest.mark.parametrize(("rows", "cols"), [(64, 48), (33, 17)])
def test_decoding_to_memory_that_is_there(rows: int, cols: int) -> None:
    dense = normal(3, rows, cols)
    container = make_container([_encode.encode(expert) for expert in dense])
    both = torch.full((3, 2 * rows, cols), 7.0, dtype=torch.bfloat16)
    # Experts of 33 x 17 begin at addresses that are no multiples of 16.
    _ops.decode_experts_into(container, both[:, rows:])
    assert same_bits(both[:, rows:], dense) and bool((both[:, :rows] == 7).all())
    torch.library.opcheck(torch.ops.transfuse.decode_experts_into.default, (container, torch.empty_like(dense)))
    for out in (
        torch.empty(3, rows, cols),  # F32
        torch.empty(2, rows, cols, dtype=torch.bfloat16),
        torch.empty(3, cols, rows, dtype=torch.bfloat16).transpose(1, 2),
        torch.empty(3, rows, 2 * cols, dtype=torch.bfloat16)[:, :, ::2],
        torch.empty(rows, cols, dtype=torch.bfloat16),
    ):
        with pytest.raises(RuntimeError, match="decode_experts: "):
            _ops.decode_experts_into(container, out)


# ---- state, copies ----


def round_trip(module: Any, way: str) -> Any:
    if way == "deepcopy":
        return copy.deepcopy(module)
    if way == "pickle":
        return pickle.loads(pickle.dumps(module))
    data = io.BytesIO()
    torch.save(module, data)
    data.seek(0)
    return torch.load(data, weights_only=False)


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "save"])
def test_copies(way: str) -> None:
    module, routes = compress(make_experts()), make_routes(5)
    again = round_trip(module, way)
    assert type(again) is type(module) and again.gate_proj is not module.gate_proj
    assert same_bits(again(*routes), module(*routes))


def test_state_dict() -> None:
    module, other = compress(make_experts()), compress(make_experts(), favor="size")
    assert list(module.state_dict()) == ["gate_proj", "up_proj", "down_proj"]
    assert module.gate_proj.numel() != other.gate_proj.numel()
    for parameter in other.parameters():
        assert parameter.dtype == torch.uint8 and not parameter.requires_grad
    down = other.down_proj
    other.load_state_dict(module.state_dict())
    assert other.down_proj is down and same_bits(other(*make_routes(4)), module(*make_routes(4)))
    with pytest.raises(RuntimeError, match='"down_proj": .*of 80 x 112: the container has 8 experts of 112 x 80'):
        other.load_state_dict({**module.state_dict(), "down_proj": module.up_proj.data})
    with pytest.raises(RuntimeError, match='"up_proj": .* is a container'):
        other.load_state_dict({**module.state_dict(), "up_proj": normal(EXPERTS, INNER, HIDDEN)})
    assert same_bits(other(*make_routes(4)), module(*make_routes(4)))


def test_meta_device() -> None:
    whole, containers = make_experts(), encode_experts(make_experts())
    with torch.device("meta"):
        module = make_experts_on_meta()
    empty = {name: torch.empty(0, dtype=torch.uint8, device="meta") for name in containers}
    replace_experts(module, **empty)
    assert module.gate_proj.is_meta and "weights to be loaded" in repr(module)
    with pytest.raises(ValueError, match="no weights yet"):
        module.decode_weights()
    module.gate_proj = nn.Parameter(containers["gate"], requires_grad=False)
    with pytest.raises(ValueError, match="down_proj .* 8 experts of 112 x 80"):
        module.down_proj = nn.Parameter(containers["up"], requires_grad=False)
    module.load_state_dict({f"{name}_proj": container for name, container in containers.items()}, assign=True)
    with exact():
        assert same_bits(module(*make_routes(4)), whole(*make_routes(4)))


# ---- parts of state dicts, and modules without bytes ----

# Sizes that can be packed.
SIZES: dict[str, Any] = {"hidden": 128, "inner": 96}


def make_pair(layout: str) -> tuple[Any, Any]:
    """Returns compressed experts of a layout, and coded ones with other weights."""
    module, other = compress(make_experts(**SIZES)), make_experts(**SIZES)
    for parameter in other.parameters():
        parameter.data *= -0.5
    assert module.convert_layout(layout) == ""
    return module, compress(other)


def dense_parts(module: Any) -> dict[str, Tensor]:
    weights = module.decode_weights()
    gate, up = weights["gate_up_proj"].chunk(2, dim=1)
    return {"gate_proj": gate, "up_proj": up, "down_proj": weights["down_proj"]}


@pytest.mark.parametrize("layout", ["coded", "packed"])
@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize(
    "names",
    [("down_proj",), ("gate_proj",), ("up_proj",), ("gate_proj", "up_proj"), ("up_proj", "down_proj"), ()],
)
def test_parts_of_a_state_dict(layout: str, assign: bool, names: tuple[str, ...]) -> None:
    """What is given is loaded, and the rest stays and is reported."""
    module, other = make_pair(layout)
    before, parameters = dense_parts(module), dict(module.named_parameters())
    state = {name: blob for name, blob in other.state_dict().items() if name in names}
    result = module.load_state_dict(state, strict=False, assign=assign)
    assert set(result.missing_keys) == set(before) - set(names) and not result.unexpected_keys
    want = {**before, **{name: part for name, part in dense_parts(other).items() if name in names}}
    assert module.layout == layout and all(same_bits(part, want[name]) for name, part in dense_parts(module).items())
    assert assign or all(parameter is parameters[name] for name, parameter in module.named_parameters())
    fresh = compress(make_experts(**SIZES))
    fresh.load_state_dict(module.state_dict())
    assert all(same_bits(part, want[name]) for name, part in dense_parts(fresh).items())


def test_packed_experts_report_a_packed_name() -> None:
    """A state dict has no container of this name, though the module has."""
    module, other = make_pair("packed")
    before = dense_parts(module)
    fused = replace_experts(make_experts(**SIZES), **make_parts(make_experts(**SIZES), apart=False))
    state = {"gate_up_proj": fused.gate_up_proj, "down_proj": other.down_proj}
    result = module.load_state_dict(state, strict=False)
    assert result.unexpected_keys == ["gate_up_proj"] and set(result.missing_keys) == {"gate_proj", "up_proj"}
    after = dense_parts(module)
    assert same_bits(after["gate_proj"], before["gate_proj"]) and same_bits(after["up_proj"], before["up_proj"])
    assert same_bits(after["down_proj"], dense_parts(other)["down_proj"])


@pytest.mark.parametrize("layout", ["coded", "packed"])
@pytest.mark.parametrize("way", ["to_empty", "to_empty and assign", "meta and assign"])
def test_loading_without_bytes(layout: str, way: str) -> None:
    module, other = make_pair(layout)
    module.to("meta")
    if "to_empty" in way:
        module.to_empty(device="cpu")
        for parameter in module.parameters():
            parameter.data.zero_()  # memory that was used before may hold anything
    module.load_state_dict(other.state_dict(), assign="assign" in way)
    assert module.layout == layout and not module.down_proj.is_meta
    want = dense_parts(other)
    assert all(same_bits(part, want[name]) for name, part in dense_parts(module).items())
    routes = make_routes(5, hidden=SIZES["hidden"])
    assert error_of(module(*routes), other(*routes).double()) < 0.01


@pytest.mark.parametrize("layout", ["coded", "packed"])
@pytest.mark.parametrize("assign", [False, True])
def test_a_state_dict_whose_memory_begins_anywhere(layout: str, assign: bool) -> None:
    module, other = make_pair(layout)

    def move(blob: torch.Tensor) -> torch.Tensor:
        memory = torch.empty(blob.numel() + 16, dtype=torch.uint8)
        start = 8 if memory.data_ptr() % 16 == 0 else 0
        return memory[start : start + blob.numel()].copy_(blob)

    module.load_state_dict({name: move(blob) for name, blob in other.state_dict().items()}, assign=assign)
    want = dense_parts(other)
    assert all(same_bits(part, want[name]) for name, part in dense_parts(module).items())


def test_packed_experts_on_the_meta_device_stay_there() -> None:
    """Parameters of any module do so unless they are assigned."""
    module, other = make_pair("packed")
    module.to("meta")
    with pytest.warns(UserWarning, match="which is a no-op"):
        module.load_state_dict(other.state_dict())
    assert module.gate_up_proj.is_meta and module.down_proj.is_meta


@pytest.mark.parametrize("way", ["to_empty", "meta"])
def test_parts_of_a_state_dict_without_bytes(way: str) -> None:
    """Packed gate and up come together then."""
    module, other = make_pair("packed")
    module.to("meta")
    if way == "to_empty":
        module.to_empty(device="cpu")
        for parameter in module.parameters():
            parameter.data.zero_()
    state = other.state_dict()
    with pytest.raises(RuntimeError, match='"gate_proj": gate_proj and up_proj .* come together.* lacks up_proj'):
        module.load_state_dict({"gate_proj": state["gate_proj"]}, strict=False, assign=True)
    for names in (("down_proj",), ("gate_proj", "up_proj")):
        module.load_state_dict({name: state[name] for name in names}, strict=False, assign=True)
    want = dense_parts(other)
    assert module.layout == "packed" and module.product_dtypes == (torch.bfloat16,)
    assert all(same_bits(part, want[name]) for name, part in dense_parts(module).items())


def test_a_state_dict_without_bytes_is_refused() -> None:
    module, other = make_pair("packed")
    before = dense_parts(module)
    with pytest.raises(RuntimeError, match="gate_proj of .*this one has no bytes"):
        module.load_state_dict(other.to("meta").state_dict(), assign=True)
    assert all(same_bits(part, before[name]) for name, part in dense_parts(module).items())


def test_packed_experts_are_encoded_in_the_order_in_which_they_were_packed() -> None:
    """The head of a container may change in memory after it was adopted."""
    module, _ = make_pair("packed")
    state = {name: blob.clone() for name, blob in module.state_dict().items()}
    module.gate_up_proj.data[12] ^= 1
    module.down_proj.data[12] ^= 1
    assert all(same_bits(blob, state[name]) for name, blob in module.state_dict().items())
    again = pickle.loads(pickle.dumps(module))
    assert all(same_bits(blob, state[name]) for name, blob in again.state_dict().items())


def make_experts_on_meta() -> Any:
    config = MixtralConfig(
        num_local_experts=EXPERTS, intermediate_size=INNER, hidden_size=HIDDEN, num_experts_per_tok=K
    )
    config._experts_implementation = "eager"
    return MixtralExperts(config).to(torch.bfloat16)


def test_casts_leave_the_containers() -> None:
    module = compress(make_experts())
    before = {name: container.clone() for name, container in module.state_dict().items()}
    module.half().float().bfloat16()
    assert all(same_bits(container, before[name]) for name, container in module.state_dict().items())
    with pytest.raises(TypeError, match="stays one"):
        module.type(torch.float16)
    with pytest.raises(RuntimeError, match="cannot be trained"):
        module.requires_grad_()


# ---- what is refused ----


def test_wrong_containers_are_refused() -> None:
    containers = encode_experts(make_experts())
    module = make_experts()
    for wrong, words in (
        (
            {"gate": containers["gate"], "down": containers["down"]},
            "takes gate_up_proj, down_proj or gate_proj, up_proj",
        ),
        ({"up": containers["up"], "down": containers["down"]}, "are given for up_proj, down_proj"),
        ({**containers, "down": containers["up"]}, "down_proj of .* the container has 8 experts of 112 x 80"),
        ({**containers, "up": make_container([_encode.encode(normal(INNER, HIDDEN))])}, "the container has 1 experts"),
    ):
        with pytest.raises(ValueError, match=words):
            replace_experts(module, **wrong)
    with pytest.raises(TypeError, match="is a container"):
        replace_experts(module, **{**containers, "up": normal(EXPERTS, INNER, HIDDEN)})
    with pytest.raises(transfuse.DataError):
        replace_experts(module, **{**containers, "up": containers["up"][:-512].clone()})
    # Nothing of it has changed the module.
    assert type(module) is MixtralExperts and same_bits(module(*make_routes(3)), make_experts()(*make_routes(3)))
    replace_experts(module, **containers)
    with pytest.raises(ValueError, match="compressed already"):
        replace_experts(module, **containers)


def test_modules_that_cannot_be_compressed() -> None:
    oss = GptOssExperts(GptOssConfig(num_local_experts=4, hidden_size=64, intermediate_size=64))
    assert find_experts_obstacle(oss) == "its weights are transposed"
    assert "no experts module" in str(find_experts_obstacle(nn.Linear(64, 64)))
    other = make_experts()
    other.extra = nn.Parameter(torch.zeros(4))
    assert find_experts_obstacle(other) == "what it does with extra is not known"
    assert find_experts_obstacle(make_experts()) is None
    model = nn.ModuleDict({"oss": oss, "mix": make_experts()})
    report = compress_model(model, codec="bf16")
    assert report.left["oss.gate_up_proj"] == "its weights are transposed"
    assert set(report.compressed) == {"mix.gate_up_proj", "mix.down_proj"}


# ---- whole models ----


def make_model(family: str) -> Any:
    common: dict[str, Any] = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 130,
        "num_experts_per_tok": 2,
    }
    if family == "mixtral":
        return MixtralForCausalLM(MixtralConfig(**common, intermediate_size=96, num_local_experts=4))
    if family == "qwen3_moe":
        config = Qwen3MoeConfig(**common, intermediate_size=96, moe_intermediate_size=48, num_experts=6, head_dim=16)
        return Qwen3MoeForCausalLM(config)
    common.update(num_key_value_heads=4, intermediate_size=96, moe_intermediate_size=48, n_routed_experts=8)
    common.update(q_lora_rank=32, kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=16)
    common.update(n_group=2, topk_group=1, first_k_dense_replace=1, n_shared_experts=1)
    return DeepseekV3ForCausalLM(DeepseekV3Config(**common))


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "deepseek_v3"])
def test_whole_models(family: str) -> None:
    dense = fill(make_model(family)).bfloat16()
    model = copy.deepcopy(dense)
    report = compress_model(model, embeddings=True)
    experts = [module for module in model.modules() if isinstance(module, TransfuseExperts)]
    assert len(experts) == (1 if family == "deepseek_v3" else 2)
    assert isinstance(model.lm_head, TransfuseLinear)
    assert {name for name in report.compressed if "experts." in name and "shared" not in name} == {
        f"{name}.{own}"
        for name, module in model.named_modules()
        if isinstance(module, TransfuseExperts)
        for own in ("gate_up_proj", "down_proj")
    }
    size = sum(p.nbytes for p in model.parameters()) + sum(b.nbytes for b in model.buffers())
    assert size == report.compressed_bytes + report.left_bytes
    ids = torch.randint(0, 130, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        with exact():
            assert same_bits(model(ids).logits, dense(ids).logits)
        precise = copy.deepcopy(dense).double()
        precise.set_experts_implementation("eager")
        want = precise(ids).logits
        assert error_of(model(ids).logits, want) <= 2 * error_of(dense(ids).logits, want)
    assert model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0).shape == (2, 15)


@pytest.mark.parametrize("tokens", [5, 70])
def test_compiles_as_one_graph(tokens: int) -> None:
    module = compress(make_experts("batched_mm"))
    routes = make_routes(tokens)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert same_bits(compiled(*routes), module(*routes))
        with exact():
            assert same_bits(compiled(*routes), make_experts("batched_mm")(*routes))
        set_experts_decode_threshold(0)
        assert same_bits(compiled(*routes), make_experts("batched_mm")(*routes))


def test_gradients_of_a_compiled_module() -> None:
    dense, module = make_experts("batched_mm"), compress(make_experts("batched_mm"))
    gradients: list[Any] = []
    for each in (dense, torch.compile(module, fullgraph=True, backend="aot_eager")):
        x, index, weights = make_routes(5)
        each(x.requires_grad_(), index, weights).sum().backward()
        gradients.append(x.grad)
    assert same_bits(*gradients)


def test_casts_of_the_model() -> None:
    module = compress(make_experts())
    for dtype in (torch.float16, torch.float32, torch.bfloat16):
        routes = make_routes(4, dtype)
        found, want = module.to(dtype)(*routes), make_experts().to(dtype)(*routes)
        assert found.dtype == dtype
        # Any other x than BF16 is multiplied by decoded weights, as the model does it.
        assert same_bits(found, want) if dtype != torch.bfloat16 else error_of(found, want) < 0.02
    quantized = compress(make_experts(), bits=7)
    assert quantized.product_dtypes == (torch.bfloat16, torch.float16)
    found, want = (each(*make_routes(4)) for each in (quantized, make_experts()))
    assert error_of(found, want) < 0.05


def test_what_is_exported() -> None:
    assert all(hasattr(_experts, name) for name in _experts.__all__)


@pytest.mark.parametrize("kind", [MixtralExperts, Qwen3MoeExperts])
@pytest.mark.parametrize("apart", [True, False])
def test_many_tokens_pack_coded_experts(kind: type[Any], apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU by its own products; a GPU packs, of which test_torch_packed_experts has tests."""
    monkeypatch.setattr(_experts, "_PACKING_DEVICES", ("cpu",))
    dense = make_experts("grouped_mm", kind)
    precise = copy.deepcopy(dense).double()
    precise.config._experts_implementation = "eager"
    parts = make_parts(dense, apart=apart)
    module = replace_experts(copy.deepcopy(dense), **parts)
    assert module.layout == "coded" and module.packing_refusal == ""
    decoded: list[str] = []
    monkeypatch.setattr(type(module), "decode_weights", lambda self: decoded.append("yes"))
    x, index, weights = make_routes(65)
    found = module(x, index, weights)
    assert not decoded and found.dtype == torch.bfloat16
    want = precise(x.double(), index, weights.double())
    assert error_of(found, want) <= 2 * error_of(dense(x, index, weights), want)
    monkeypatch.undo()
    with exact():
        assert same_bits(module(x, index, weights), dense(x, index, weights))
    half = copy.deepcopy(dense).half()
    found = module(x.half(), index, weights.half())
    assert error_of(found, half(x.half(), index, weights.half()).double()) < 1e-2


def test_compiled_calls_pack_coded_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_experts, "_PACKING_DEVICES", ("cpu",))
    module = compress(make_experts())
    x, index, weights = make_routes(65)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    assert same_bits(compiled(x, index, weights), module(x, index, weights))


def test_what_packing_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    module = compress(make_experts())
    assert module.packing_refusal == "experts are not packed for products on cpu"
    monkeypatch.setattr(_experts, "_PACKING_DEVICES", ("cpu",))
    dense = make_experts(hidden=84)
    assert "multiples of 8" in compress(copy.deepcopy(dense)).packing_refusal
    dense = make_experts()
    dense.act_fn = nn.GELU()
    refused = compress(dense)
    assert "silu and gelu_tanh" in refused.packing_refusal
    x, index, weights = make_routes(65)
    assert refused(x, index, weights).shape == x.shape

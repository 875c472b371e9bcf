# SPDX-License-Identifier: Apache-2.0
"""Packed experts: the op of whole mixtures, containers, and modules of transformers that have them."""

# mypy: disable-error-code="no-untyped-call,no-any-return,call-arg"

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", minversion="5.0", reason="transformers 5 is not installed")

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

import transfuse
import transfuse.torch as tt
from transfuse._memory_need import packed_bytes
from transfuse.tests import test_torch_experts as cases
from transfuse.tests.torch_cases import exact, make_unpackable, normal, same_bits
from transfuse.torch import _experts, _packed_experts
from transfuse.torch._compress import compress_model
from transfuse.torch._dense_experts import encode_experts
from transfuse.torch._experts import TransfuseExperts, replace_experts

HAS_KERNELS = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not HAS_KERNELS, reason="no GPU of 9.0"))]
EXPERTS, INNER, HIDDEN, TOKENS, K = 6, 96, 128, 13, 2
# mypy takes the operands that a tuple has for options, too.
moe: Any = tt.moe
moe_by_key: Any = tt.moe_by_key
# The sizes of modules: packed experts are no smaller than the weights unless sizes are about whole tiles.
SIZES: dict[str, Any] = {"hidden": 128, "inner": 96}


@pytest.fixture(autouse=True)
def compiled_code() -> Iterator[None]:
    """All modules share one function, which torch compiles a limited number of times."""
    yield
    torch._dynamo.reset()


class Mixture:
    """Dense experts, their packed containers, and routes; `want` gives the sum in F64."""

    def __init__(self, device: str, tokens: int = TOKENS) -> None:
        self.gate_up = normal(EXPERTS, 2 * INNER, HIDDEN, seed=1, scale=0.1).to(device)
        self.down = normal(EXPERTS, HIDDEN, INNER, seed=2, scale=0.1).to(device)
        self.packed_gate_up = tt.pack_experts(self.gate_up, interleave=True)
        self.packed_down = tt.pack_experts(self.down, interleave=False)
        generator = torch.Generator().manual_seed(3)
        ids = [torch.randperm(EXPERTS, generator=generator)[:K] for _ in range(tokens)]
        self.ids = (torch.stack(ids) if tokens else torch.empty(0, K, dtype=torch.int64)).to(device)
        self.weights = torch.rand(tokens, K, generator=generator).to(device)
        self.x = normal(tokens, HIDDEN, seed=4, scale=1.0).to(device)

    def operands(self) -> tuple[Any, ...]:
        return self.x, self.ids, self.weights, self.packed_gate_up, self.packed_down

    def run(self) -> Tensor:
        return moe(*self.operands())

    def want(
        self, gate: Callable[[Tensor], Tensor] = F.silu, biases: tuple[Tensor, Tensor] | None = None, first_id: int = 0
    ) -> Tensor:
        result = torch.zeros(self.x.shape, dtype=torch.float64, device=self.x.device)
        for token, slot in ((t, s) for t in range(self.x.shape[0]) for s in range(K)):
            expert = int(self.ids[token, slot]) - first_id
            if not 0 <= expert < EXPERTS:
                continue
            both = self.gate_up[expert].double() @ self.x[token].double()
            both += biases[0][expert].double() if biases else 0
            hidden = (gate(both[:INNER]) * both[INNER:]).bfloat16().double()
            y = self.down[expert].double() @ hidden + (biases[1][expert].double() if biases else 0)
            result[token] += self.weights[token, slot].double() * y
        return result


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tokens", [0, 1, 13, 150])
def test_mixtures(device: str, tokens: int) -> None:
    mixture = Mixture(device, tokens)
    y = moe(*mixture.operands())
    assert y.dtype == torch.bfloat16 and y.shape == (tokens, HIDDEN)
    if tokens:
        assert cases.error_of(y, mixture.want()) < 0.004
    x, ids, weights, *containers = mixture.operands()
    keys = [tt.layer_key(container) for container in containers]
    assert same_bits(moe_by_key(x, ids.int(), weights, *keys), y)
    spread = x.repeat_interleave(2, dim=1)[:, ::2]
    assert tokens == 0 or not spread.is_contiguous()
    assert same_bits(moe(spread, ids, weights, *containers), y)


@pytest.mark.parametrize("device", DEVICES)
def test_activations_biases_and_maps(device: str) -> None:
    mixture = Mixture(device)
    y = moe(*mixture.operands(), activation="gelu_tanh")
    assert cases.error_of(y, mixture.want(lambda gate: F.gelu(gate, approximate="tanh"))) < 0.004
    first, second = normal(EXPERTS, 2 * INNER, scale=0.3).to(device), normal(EXPERTS, HIDDEN, scale=0.3).to(device)
    turns = first.view(EXPERTS, 2, INNER // 8, 8).transpose(1, 2).reshape(EXPERTS, -1)
    y = moe(*mixture.operands(), gate_up_bias=turns, down_bias=second)
    assert cases.error_of(y, mixture.want(biases=(first, second))) < 0.004
    # Here are the experts 1 to 6 of 9, and token 0 goes to two that are elsewhere.
    mixture.ids += 1
    mixture.ids[0] = torch.tensor([0, 8])
    here = torch.tensor([-1, 0, 1, 2, 3, 4, 5, -1, -1], dtype=torch.int32, device=device)
    y = moe(*mixture.operands(), expert_map=here, num_ids=9)
    assert cases.error_of(y, mixture.want(first_id=1)) < 0.004 and not y[0].any()
    mixture.ids[:] = 77  # adds nothing
    assert not moe(*mixture.operands()).any()


@pytest.mark.parametrize("device", DEVICES)
def test_graphs(device: str) -> None:
    mixture = Mixture(device)
    operands: tuple[Any, ...] = (*mixture.operands(), None, None, None, "silu", 0)
    torch.library.opcheck(torch.ops.transfuse.moe.default, operands)
    keys = [tt.layer_key(container) for container in operands[3:5]]  # opcheck runs ops on copies, which are no keys
    for run, containers in ((moe, operands[3:5]), (moe_by_key, keys)):
        compiled = torch.compile(
            lambda *given, run=run: run(*given) + 1, fullgraph=True, backend="aot_eager", dynamic=True
        )
        for tokens in (13, 5):
            x, ids, weights = (each[:tokens] for each in operands[:3])
            assert same_bits(compiled(x, ids, weights, *containers), run(x, ids, weights, *containers) + 1)
    if device == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = moe(*mixture.operands())
        mixture.ids.copy_((mixture.ids + 1) % EXPERTS)
        graph.replay()
        assert same_bits(y, moe(*mixture.operands()))


def test_mixtures_of_coded_experts() -> None:
    """On the CPU, which takes experts of every size; a GPU's are those of modules below."""
    mixture = Mixture("cpu")
    routes, want = mixture.operands()[:3], mixture.want()
    gate, up = (tt.make_container([tt.encode(each) for each in part]) for part in mixture.gate_up.chunk(2, dim=1))
    both = tt.make_container([tt.encode(each) for each in mixture.gate_up])
    down = tt.make_container([tt.encode(each) for each in mixture.down])
    y = moe(*routes, gate, down, up=up)
    assert cases.error_of(y, want) < 0.004 and same_bits(moe(*routes, both, down), y)
    torch.library.opcheck(torch.ops.transfuse.moe.default, (*routes, gate, down, None, None, None, "silu", 0, up))
    for operands, options, words in [
        ((gate, down), {}, "do not fit"),
        ((gate, down), {"up": down}, "gates are 6 experts of 96x128"),
        ((both, mixture.packed_down), {}, "packed or coded both"),
        ((mixture.packed_gate_up, mixture.packed_down), {"up": up}, "no interleaved rows"),
    ]:
        with pytest.raises(RuntimeError, match=words):
            moe(*routes, *operands, **options)
    tt.forget(up)
    assert same_bits(moe(*routes, gate, down, up=up), y)  # adopted again


def test_what_mixtures_refuse() -> None:
    mixture = Mixture("cpu")
    x, ids, weights, gate_up, down = mixture.operands()
    coded = tt.make_container([tt.encode(expert) for expert in mixture.gate_up])
    wrong: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((x.float(), ids, weights, gate_up, down), {}, "x must be BF16 .13, 128."),
        ((x[:, :64], ids, weights, gate_up, down), {}, r"x must be BF16 \[13, 128\] .* its shape is \[13, 64\]"),
        ((x[0], ids, weights, gate_up, down), {}, r"x must be \[tokens, hidden\]"),
        ((x, ids.short(), weights, gate_up, down), {}, "ids must be int32 or int64"),
        ((x, ids[:4], weights, gate_up, down), {}, r"ids must be int32 or int64 \[13, 2\]"),
        ((x, ids, weights.bfloat16(), gate_up, down), {}, r"weights must be F32 \[13, 2\]"),
        ((x, ids, weights, coded, down), {}, "packed or coded both"),
        ((x, ids, weights, down, down), {}, "rows of gate and up are not interleaved"),
        ((x, ids, weights, gate_up, gate_up), {}, "down has interleaved rows"),
        ((x, ids, weights, gate_up, tt.pack_experts(mixture.down[1:], interleave=False)), {}, "as many experts"),
        ((x, ids, weights, gate_up, down), {"activation": "relu"}, "no activation 'relu'"),
        ((x, ids, weights, gate_up, down), {"expert_map": torch.zeros(3).int()}, r"expert_map must be int32 \[6\]"),
        ((x, ids, weights, gate_up, down), {"num_ids": 3}, "3 experts on all devices, and 6 here"),
        ((x, ids, weights, gate_up, down), {"gate_up_bias": x}, r"gate_up_bias must be BF16 \[6, 192\]"),
        ((x, ids.repeat(1, 20), weights.repeat(1, 20), gate_up, down), {}, "40 experts a token"),
    ]
    for operands, options, words in wrong:
        with pytest.raises(RuntimeError, match=words):
            moe(*operands, **options)
    offsets = torch.zeros(EXPERTS + 1, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="rows of gate and up are interleaved in this container"):
        tt.experts(x, offsets, gate_up, 2 * INNER)
    keys = tt.layer_key(gate_up), tt.layer_key(down)
    with pytest.raises(RuntimeError, match="neither gradients nor an exact mode"):
        moe(x.clone().requires_grad_(), ids, weights, gate_up, down)
    with pytest.raises(RuntimeError, match="no gradients"):
        moe_by_key(x, ids, weights.clone().requires_grad_(), *keys)
    with exact():
        with pytest.raises(RuntimeError, match="neither gradients nor an exact mode"):
            moe(x, ids, weights, gate_up, down)
        with pytest.raises(RuntimeError, match="mixtures have no exact mode"):
            moe_by_key(x, ids, weights, *keys)
    with pytest.raises(RuntimeError, match="key is of no experts that are known"):
        moe_by_key(x, ids, weights, keys[0].clone(), keys[1])
    tt.forget(down)
    with pytest.raises(RuntimeError, match="key is of no experts that are known"):
        moe_by_key(x, ids, weights, *keys)
    assert same_bits(moe(x, ids, weights, gate_up, down), Mixture("cpu").run())  # adopted again


def test_other_experts_at_the_same_place() -> None:
    """A mixture is made anew once its experts are others."""
    mixture, other = Mixture("cpu"), Mixture("cpu")
    before = moe(*mixture.operands())
    other.down = mixture.down.neg()
    packed = tt.pack_experts(other.down, interleave=False)
    tt.forget(mixture.packed_down)
    mixture.packed_down.copy_(packed)
    assert same_bits(moe(*mixture.operands()), -before)


# ---- containers ----


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("rows", "cols"), [(64, 48), (48, 17), (208, 272)])
@pytest.mark.parametrize("codec", ["bf16", "fp8_e4m3"])
def test_containers(device: str, codec: str, rows: int, cols: int) -> None:
    dense = normal(3, rows, cols).to(device)
    if codec == "fp8_e4m3":  # BF16 that was FP8
        dense = (100 * dense.float()).to(torch.float8_e4m3fn).to(torch.bfloat16) * 0.01
    coded = tt.make_container([tt.encode(expert, codec=codec) for expert in dense]).to(device)
    halves = [tt.make_container([tt.encode(e) for e in half]).to(device) for half in dense.chunk(2, dim=1)]
    for interleave in (False, True):
        packed = tt.pack_experts(dense, interleave=interleave)
        assert packed.device == dense.device
        layout = "packed" if codec == "bf16" else "packed8"
        assert {tt.layer_layout(buffer) for buffer in tt.container_buffers(packed)} == {layout}
        assert packed.numel() <= 256 + 3 * packed_bytes(rows, cols) + 512
        assert same_bits(tt.decode_experts(packed, 3, rows, cols, torch.bfloat16), dense)
        both = torch.full((3, 2 * rows, cols), 7.0, dtype=torch.bfloat16, device=device)
        tt.decode_experts_into(packed, both[:, rows:])
        assert same_bits(both[:, rows:], dense) and bool((both[:, :rows] == 7).all())
        assert same_bits(tt.decode_experts(packed, 3, rows, cols, torch.float32), dense.float())
        for parts in (list(dense.chunk(2, dim=1)), [packed], *([[coded], halves] if codec == "bf16" else [])):
            assert same_bits(tt.pack_experts(*parts, interleave=interleave), packed)
        if codec != "bf16":
            as_fp8 = tt.pack_experts(coded, interleave=interleave)
            assert {tt.layer_layout(buffer) for buffer in tt.container_buffers(as_fp8)} == {"packed8"}
            assert same_bits(tt.decode_experts(as_fp8, 3, rows, cols, torch.bfloat16), dense)
    turns = tt.decode(tt.container_buffers(packed)[1], rows, cols, torch.bfloat16)
    assert same_bits(turns[8:16], dense[1, rows // 2 : rows // 2 + 8])


def test_experts_that_are_larger_than_others() -> None:
    """Some tiles are stored, so that the container gets more memory than was expected."""
    dense = normal(3, 256, 256)
    dense[1:, :32, :32:2] *= 2.0**40
    packed = tt.pack_experts(dense, interleave=True)
    sizes = [buffer.numel() for buffer in tt.container_buffers(packed)]
    assert sizes[0] == packed_bytes(256, 256) and sizes[1] > sizes[0]
    assert same_bits(tt.decode_experts(packed, 3, 256, 256, torch.bfloat16), dense)


def test_what_packing_refuses() -> None:
    dense = normal(3, 48, 64)
    for weights, error, words in (
        ((dense[0],), ValueError, r"\[experts\]\[rows\]\[cols\]"),
        ((), ValueError, "needs the weights"),
        ((dense, dense[1:]), ValueError, "differ: 3 of 48 x 64 on cpu, 2 of 48 x 64"),
        ((dense[:, :40],), ValueError, "40 rows in all cannot take turns by 8"),
        ((dense.float(),), ValueError, "bfloat16"),
        (("gate",), TypeError, "torch.Tensor"),
    ):
        with pytest.raises(error, match=words):
            tt.pack_experts(*weights, interleave=True)  # type: ignore[arg-type]
    wide = torch.stack([dense[0], make_unpackable("wide", 48, 64)])
    with pytest.raises(transfuse.UnsupportedError, match="expert 1: .* would have to be stored"):
        tt.pack_experts(wide, interleave=False)
    quantized = tt.make_container([tt.encode(expert, bits=5) for expert in dense])
    with pytest.raises(transfuse.UnsupportedError, match="not of int"):
        tt.pack_experts(quantized, interleave=False)
    head = tt.pack_experts(dense, interleave=True).clone()
    head[12] = 2
    with pytest.raises(transfuse.DataError, match="order that is not known, 2"):
        tt.adopt(head)


# ---- modules ----


def make_packed(device: str = "cpu", kind: type[Any] = MixtralExperts, implementation: str = "eager") -> Any:
    module = cases.make_experts(implementation, kind, **SIZES).to(device)
    report = compress_model(nn.ModuleDict({"experts": module}), layout="packed")
    assert {name: found.layout for name, found in report.compressed.items()} == {
        "experts.gate_up_proj": "packed",
        "experts.down_proj": "packed",
    }
    assert report.compressed_bytes == sum(parameter.numel() for parameter in module.parameters())
    return module


def make_routes(tokens: int, device: str = "cpu", **options: Any) -> tuple[Tensor, ...]:
    return tuple(each.to(device) for each in cases.make_routes(tokens, hidden=SIZES["hidden"], **options))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [MixtralExperts, Qwen3MoeExperts])
def test_modules(device: str, kind: type[Any]) -> None:
    dense, module = cases.make_experts("eager", kind, **SIZES).to(device), make_packed(device, kind)
    precise = copy.deepcopy(dense).double()
    assert isinstance(module, kind) and module.layout == "packed" and "layout=packed" in repr(module)
    assert module.product_dtypes == (torch.bfloat16,)
    for tokens in (0, 1, 7, 64, 300):
        x, index, weights = make_routes(tokens, device)
        found = module(x, index, weights)
        assert found.dtype == torch.bfloat16 and found.shape == x.shape
        if tokens:
            want = precise(x.double(), index, weights.double())
            assert cases.error_of(found, want) <= 2 * cases.error_of(dense(x, index, weights), want)
            with exact():
                assert same_bits(module(x, index, weights), dense(x, index, weights))
    weights = module.decode_weights()
    assert same_bits(weights["gate_up_proj"], dense.gate_up_proj) and same_bits(weights["down_proj"], dense.down_proj)
    half = module.half()(*make_routes(5, device, dtype=torch.float16))
    assert same_bits(half, dense.half()(*make_routes(5, device, dtype=torch.float16)))


@pytest.mark.parametrize("device", DEVICES)
def test_gradients(device: str) -> None:
    dense = cases.make_experts("batched_mm", **SIZES).to(device)
    results = []
    for each in (dense, make_packed(device, implementation="batched_mm")):
        x, index, weights = make_routes(9, device)
        x.requires_grad_(), weights.requires_grad_()
        y = each(x, index, weights)
        y.sum().backward()
        results.append((y.detach(), x.grad, weights.grad))
    assert all(same_bits(*pair) for pair in zip(*results))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tokens", [5, 200])
def test_compiles_as_one_graph(device: str, tokens: int) -> None:
    dense, module = cases.make_experts("batched_mm", **SIZES).to(device), make_packed(device)
    module.config._experts_implementation = "batched_mm"
    routes = make_routes(tokens, device)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert same_bits(compiled(*routes), module(*routes))
        with exact():
            assert same_bits(compiled(*routes), dense(*routes))


@pytest.mark.skipif(not HAS_KERNELS, reason="no GPU of 9.0")
@pytest.mark.parametrize("tokens", [1, 16, 300])
def test_modules_in_cuda_graphs(tokens: int) -> None:
    module, routes = make_packed("cuda"), make_routes(tokens, "cuda")
    compiled = torch.compile(module, mode="reduce-overhead", fullgraph=True)
    with torch.no_grad():
        for _ in range(4):  # the graph is captured at the second or third call
            torch.compiler.cudagraph_mark_step_begin()
            found = compiled(*routes).clone()
            assert same_bits(found, module(*routes))


def test_layouts_and_state_dicts() -> None:
    packed, coded = make_packed(), cases.compress(cases.make_experts(**SIZES))
    routes, state = make_routes(6), coded.state_dict()
    assert list(packed.state_dict()) == list(state) == ["gate_proj", "up_proj", "down_proj"]
    assert all(same_bits(made, state[name]) for name, made in packed.state_dict().items())
    other = make_packed()
    assert tt.set_layout(other, "coded") == {} and other.layout == "coded" and list(other.state_dict()) == list(state)
    assert same_bits(other(*routes), coded(*routes))
    assert tt.set_layout(other, "packed") == {} and same_bits(other(*routes), packed(*routes))
    # The blobs of another encoding are the same again.
    small = cases.compress(cases.make_experts(**SIZES), favor="size")
    before = {name: blob.clone() for name, blob in small.state_dict().items()}
    small.convert_layout("packed")
    assert all(same_bits(made, before[name]) for name, made in small.state_dict().items())
    changed = cases.make_experts(**SIZES)
    changed.down_proj.data *= 0.5
    compress_model(nn.ModuleDict({"experts": changed}), layout="packed")
    parameter = changed.down_proj
    changed.load_state_dict(state)
    assert changed.down_proj is parameter and changed.layout == "packed"
    assert same_bits(changed(*routes), packed(*routes))
    del state["up_proj"]
    with pytest.raises(RuntimeError, match='Missing key.*"up_proj"'):
        changed.load_state_dict(state)
    with pytest.raises(RuntimeError, match="down_proj of .*this container has others"):
        changed.load_state_dict({**coded.state_dict(), "down_proj": coded.up_proj.data})
    assert same_bits(changed(*routes), packed(*routes))


def test_fused_gate_and_up() -> None:
    module = cases.make_experts(**SIZES)
    dense = copy.deepcopy(module)
    replace_experts(
        module,
        gate_up=[tt.encode(expert) for expert in dense.gate_up_proj],
        down=[tt.encode(expert) for expert in dense.down_proj],
    )
    before = {name: blob.clone() for name, blob in module.state_dict().items()}
    assert tt.set_layout(module, "packed") == {} and list(before) == ["gate_up_proj", "down_proj"]
    assert same_bits(module(*make_routes(6)), make_packed()(*make_routes(6)))
    assert all(same_bits(made, before[name]) for name, made in module.state_dict().items())


@pytest.mark.parametrize("way", ["copy", "deepcopy", "pickle", "save"])
def test_copies(way: str) -> None:
    module, routes = make_packed(), make_routes(5)
    again = copy.copy(module) if way == "copy" else cases.round_trip(module, way)
    assert type(again) is type(module) and again.layout == "packed"
    assert (again.gate_up_proj is module.gate_up_proj) == (way == "copy")
    assert same_bits(again(*routes), module(*routes))


def test_packed_containers_are_put_in() -> None:
    dense, coded = cases.make_experts(**SIZES), encode_experts(cases.make_experts(**SIZES))
    module = cases.make_experts(**SIZES)
    down = tt.pack_experts(dense.down_proj, interleave=False)
    for containers, error, words in (
        (
            {"gate_up": tt.pack_experts(dense.gate_up_proj, interleave=False)},
            ValueError,
            "rows of gate_up_proj are int",
        ),
        ({"gate": coded["gate"], "up": coded["up"]}, transfuse.UnsupportedError, "lie packed, and not coded"),
    ):
        with pytest.raises(error, match=words):
            replace_experts(module, **containers, down=down)
    replace_experts(module, gate_up=tt.pack_experts(dense.gate_up_proj, interleave=True), down=down)
    assert module.layout == "packed" and same_bits(module(*make_routes(3)), make_packed()(*make_routes(3)))
    assert all(same_bits(made, blob) for made, blob in zip(module.state_dict().values(), coded.values()))


def test_experts_that_stay_coded() -> None:
    def refuse(module: Any, words: str) -> None:
        kind, wrapper = type(module), nn.ModuleDict({"experts": module})
        with pytest.warns(UserWarning, match=f"since .*{words}"):
            report = compress_model(wrapper, layout="packed")
        assert isinstance(module, kind) and module.layout == "coded"
        assert {found.layout for found in report.compressed.values()} == {"coded"}
        with pytest.raises(transfuse.UnsupportedError, match=words):
            tt.set_layout(module, "packed")

    refuse(cases.make_experts(kind=cases.ClampedExperts, **SIZES), r"no gate but activation\(gate\) \* up")
    refuse(cases.make_experts("batched_mm", kind=cases.GatelessExperts), "packed experts have a gate")
    refuse(cases.make_experts(hidden=128, inner=100), "multiples of 8, and not 100 and 128")
    exact_gelu = cases.make_experts(**SIZES)
    exact_gelu.act_fn = nn.GELU()
    refuse(exact_gelu, "silu and gelu_tanh, and not GELU")
    wide = cases.make_experts(**SIZES)
    wide.down_proj.data[3] = make_unpackable("wide", 128, 96)
    refuse(wide, "expert 3: .*would have to be stored")
    quantized = nn.ModuleDict({"experts": cases.make_experts(**SIZES)})
    with pytest.warns(UserWarning, match="default options"):
        compress_model(quantized, layout="packed", bits=5)
    with pytest.warns(UserWarning, match="not of int"):
        assert len(tt.set_layout(quantized, "packed")) == 3
    small = nn.ModuleDict({"experts": cases.make_experts()})
    with pytest.warns(UserWarning, match="packing does not make them smaller"):
        compress_model(small, layout="packed")
    with torch.device("meta"):
        unloaded = cases.make_experts_on_meta()
    empty = torch.empty(0, dtype=torch.uint8, device="meta")
    replace_experts(unloaded, gate_up=empty, down=empty)
    with pytest.raises(transfuse.UnsupportedError, match="to be loaded first"):
        tt.set_layout(unloaded, "packed")


@pytest.mark.parametrize("activation", [nn.GELU("tanh"), nn.SiLU()])
def test_activations_of_modules(activation: nn.Module) -> None:
    dense, module = cases.make_experts(**SIZES), cases.make_experts(**SIZES)
    dense.act_fn = module.act_fn = activation
    compress_model(nn.ModuleDict({"experts": module}), layout="packed")
    assert module.layout == "packed"
    routes = make_routes(5)
    want = copy.deepcopy(dense).double()(routes[0].double(), routes[1], routes[2].double())
    assert cases.error_of(module(*routes), want) <= 2 * cases.error_of(dense(*routes), want)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "deepseek_v3"])
def test_whole_models(family: str, device: str) -> None:
    """Sizes of these models are small, so that a ratio of what packing saves does not count."""
    dense = cases.fill(cases.make_model(family)).bfloat16().to(device)
    model = copy.deepcopy(dense)
    compress_model(model)
    experts = [module for module in model.modules() if isinstance(module, TransfuseExperts)]
    assert all(module.convert_layout("packed") == "" for module in experts)
    ids = torch.randint(0, 130, (2, 12), generator=torch.Generator().manual_seed(0)).to(device)
    with torch.no_grad():
        with exact():
            assert same_bits(model(ids).logits, dense(ids).logits)
        precise = copy.deepcopy(dense).double()
        precise.set_experts_implementation("eager")
        want = precise(ids).logits
        assert cases.error_of(model(ids).logits, want) <= 2 * cases.error_of(dense(ids).logits, want)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert cases.error_of(compiled(ids).logits, want) <= 2 * cases.error_of(dense(ids).logits, want)
    assert model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0).shape == (2, 15)


def test_what_is_exported() -> None:
    assert all(hasattr(_experts, name) for name in _experts.__all__)
    assert tt.pack_experts is _packed_experts.pack_experts


# ---- FP8 experts ----


def make_fp8(rows: int, cols: int, seed: int) -> Tensor:
    """Returns the BF16 weights of all experts, FP8 codes times a scale for each block, which packed BF16 takes, too."""
    codes = (60 * normal(cases.EXPERTS, rows, cols, seed=seed, scale=1.0).float()).to(torch.float8_e4m3fn).float()
    blocks = cases.EXPERTS, -(-rows // 128), -(-cols // 128)
    scales = (torch.rand(blocks, generator=torch.Generator().manual_seed(seed)) + 1) / 1000
    return (codes * scales.repeat_interleave(128, 1).repeat_interleave(128, 2)[:, :rows, :cols]).bfloat16()


class Fp8Parts:
    """Gate, up and down, dense and as blobs of FP8 with scales, and a dense module of them."""

    def __init__(self, device: str, exceptions: int = 0) -> None:
        hidden, inner = SIZES["hidden"], SIZES["inner"]
        parts = [make_fp8(inner, hidden, 1), make_fp8(inner, hidden, 2), make_fp8(hidden, inner, 3)]
        parts[0][2, 0, :exceptions] = 3.0  # no code times the scale
        self.blobs = [[tt.encode(expert, codec="fp8_e4m3").to(device) for expert in part] for part in parts]
        self.dense = cases.make_experts("eager", **SIZES).to(device)
        self.dense.gate_up_proj.data = torch.cat(parts[:2], dim=1).to(device)
        self.dense.down_proj.data = parts[2].to(device)

    def make_module(self) -> Any:
        gate, up, down = self.blobs
        return replace_experts(copy.deepcopy(self.dense), gate=gate, up=up, down=down)


def layouts_of(module: Any) -> set[tuple[str, str]]:
    return {
        (name, tt.layer_layout(buffer))
        for name in ("gate_up_proj", "down_proj")
        for buffer in tt.container_buffers(getattr(module, name))
    }


@pytest.mark.parametrize("device", DEVICES)
def test_fp8_modules(device: str) -> None:
    parts = Fp8Parts(device)
    module, as_bf16 = parts.make_module(), copy.deepcopy(parts.dense)
    before = {name: blob.clone() for name, blob in module.state_dict().items()}
    assert tt.set_layout(module, "packed") == {}
    assert module.layout == "packed8" and "layout=packed8" in repr(module)
    assert layouts_of(module) == {("gate_up_proj", "packed8"), ("down_proj", "packed8")}
    compress_model(nn.ModuleDict({"experts": as_bf16}), layout="packed", codec="bf16")
    assert as_bf16.layout == "packed"
    for tokens in (0, 1, 7, 64, 300):
        routes = make_routes(tokens, device)
        assert same_bits(module(*routes), as_bf16(*routes))
        with exact():
            assert same_bits(module(*routes), parts.dense(*routes))
    weights = module.decode_weights()
    assert same_bits(weights["gate_up_proj"], parts.dense.gate_up_proj)
    assert same_bits(weights["down_proj"], parts.dense.down_proj)
    assert tt.set_layout(module, "packed8") == {} and tt.set_layout(module, "packed") == {}
    for way in ("deepcopy", "pickle"):
        again = cases.round_trip(module, way)
        assert again.layout == "packed8" and same_bits(again(*make_routes(5, device)), module(*make_routes(5, device)))
    assert all(same_bits(made, before[name]) for name, made in module.state_dict().items())
    module.load_state_dict(before)
    assert module.layout == "packed8" and same_bits(module.decode_weights()["down_proj"], parts.dense.down_proj)
    assert tt.set_layout(module, "coded") == {} and module.layout == "coded"
    assert all(same_bits(made, before[name]) for name, made in module.state_dict().items())


@pytest.mark.parametrize("device", DEVICES)
def test_fp8_that_does_not_fit(device: str) -> None:
    parts = Fp8Parts(device, exceptions=20)
    module, routes = parts.make_module(), make_routes(9, device)
    with pytest.warns(UserWarning, match="stay as they are"):
        refusals = tt.set_layout(nn.ModuleDict({"experts": parts.make_module()}), "packed8")
    assert len(refusals) == 3 and all("expert 2: " in reason for reason in refusals.values())
    with pytest.warns(UserWarning, match="1 weights of FP8 lie packed as BF16, and not packed8: gate_up_proj, since"):
        assert tt.set_layout(module, "packed") == {}
    assert "gate_up_proj: expert 2: " in module.layout_reason and "at most 15 may be" in module.layout_reason
    assert tt.layout_reason(module.gate_up_proj) in module.layout_reason
    assert not tt.layout_reason(module.down_proj) and "down_proj" not in module.layout_reason
    with pytest.warns(UserWarning, match=r"FP8 experts are packed as BF16: expert 2: .* at most 15 may be"):
        container = tt.pack_experts(*(tt.make_container(blobs) for blobs in parts.blobs[:2]), interleave=True)
    assert "expert 2: " in tt.layout_reason(container)
    assert module.layout == "packed"
    assert layouts_of(module) == {("gate_up_proj", "packed"), ("down_proj", "packed8")}
    with exact():
        assert same_bits(module(*routes), parts.dense(*routes))
    assert cases.error_of(module(*routes), parts.dense(*routes)) < 0.01
    with pytest.raises(transfuse.UnsupportedError, match="no coded FP8 with scales"):
        tt.set_layout(cases.compress(cases.make_experts(**SIZES)), "packed8")


@pytest.mark.parametrize("device", DEVICES)
def test_dense_experts_that_were_fp8(device: str) -> None:
    """FP8 is found in dense experts; one expert that is no FP8 makes all packed BF16, and is named."""
    dense = Fp8Parts(device).dense
    first, down = dense.gate_up_proj.detach(), dense.down_proj.detach()
    for weight, interleave in ((first, True), (down, False)):
        for changed, reason in ((None, ""), (2, "expert 2: the weights"), (0, "expert 0: the weights")):
            given = weight.clone()
            if changed is not None:
                given[changed] = normal(*given[changed].shape, seed=changed).to(device)
            container = _packed_experts.pack_experts_quietly(given, interleave=interleave)
            layouts = {tt.layer_layout(buffer) for buffer in tt.container_buffers(container)}
            assert layouts == {"packed" if reason else "packed8"}
            assert tt.layout_reason(container).startswith(reason) and bool(tt.layout_reason(container)) == bool(reason)
            assert same_bits(tt.decode_experts(container, *given.shape, torch.bfloat16), given)
            plain = tt.pack_experts(given, interleave=interleave, packed_bf16=True)
            assert tt.layer_layout(tt.container_buffers(plain)[0]) == "packed" and not tt.layout_reason(plain)
    with pytest.warns(UserWarning, match="FP8 experts are packed as BF16: expert 0: the weights of gate"):
        first[0] = normal(*first[0].shape, seed=9).to(device)
        tt.pack_experts(first, interleave=True)
    true_bf16 = normal(3, 64, 512, seed=3).to(device)
    assert not tt.layout_reason(tt.pack_experts(true_bf16, interleave=True))
    module, routes = Fp8Parts(device).dense, make_routes(7, device)
    as_bf16 = copy.deepcopy(module)
    compress_model(nn.ModuleDict({"experts": module}), layout="packed")
    compress_model(nn.ModuleDict({"experts": as_bf16}), layout="packed", codec="bf16")
    assert (module.layout, as_bf16.layout) == ("packed8", "packed") and not module.layout_reason
    assert same_bits(module(*routes), as_bf16(*routes))


@pytest.mark.parametrize("device", DEVICES)
def test_products_of_fp8_experts(device: str) -> None:
    parts = Fp8Parts(device)
    down = tt.pack_experts(tt.make_container(parts.blobs[2]), interleave=False)
    same = tt.pack_experts(parts.dense.down_proj, interleave=False)
    assert {tt.layer_layout(buffer) for buffer in tt.container_buffers(down)} == {"packed8"}
    x = normal(40, SIZES["inner"], seed=4, scale=1.0).to(device)
    offsets = torch.tensor([0, 3, 3] + [40] * (cases.EXPERTS - 2), dtype=torch.int32, device=device)
    found, want = (tt.experts(x, offsets, each, SIZES["hidden"]) for each in (down, same))
    assert same_bits(found, want)

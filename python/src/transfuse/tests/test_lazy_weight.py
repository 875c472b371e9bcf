# SPDX-License-Identifier: Apache-2.0
"""Parts of layers, and compressed weights that loaders take for dense ones: cutting, copying, and everything else."""

from __future__ import annotations

import copy
import ctypes.util
import gc
import json
import pickle
import re
import struct
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import transfuse
from transfuse.tests.torch_cases import DEVICES, normal, same_bits

pytest.importorskip("safetensors", reason="safetensors is not installed")

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import transfuse.torch as tt
from transfuse.torch import _load
from transfuse.vllm import _lazy_weight
from transfuse.vllm._lazy_weight import LazyWeight

ROWS, COLS = 700, 523
Cut = Callable[[Tensor], Tensor]


def with_special_bits(weight: Tensor) -> Tensor:
    """Puts NaNs with payloads, infinities, zeros of either sign and denormals among weights."""
    patterns = torch.tensor([0x7FC1, 0xFFA5 - 65536, 0x7F80, 0xFF80 - 65536, 0x8000 - 65536, 0, 1, 0x8001 - 65536])
    weight.view(torch.int16).view(-1)[:: weight.numel() // 100][:96] = patterns.to(torch.int16).repeat(12)
    return weight


@pytest.fixture(scope="module")
def dense() -> dict[str, Tensor]:
    return {
        "bf16": with_special_bits(normal(ROWS, COLS)),
        "f16": with_special_bits(normal(300, 520, dtype=torch.float16, seed=1)),
        "f8": normal(300, 528, seed=2).to(torch.float8_e4m3fn),
        "i8": (30 * normal(300, 528, dtype=torch.float32, seed=3, scale=1)).clamp(-127, 127).to(torch.int8),
        "wide": normal(270, 300, seed=4).float(),  # F32, each a BF16 number
        "experts": with_special_bits(normal(4, 300, 272, seed=5)),
        "norm": normal(64, seed=6),
        "float": normal(64, 96, dtype=torch.float32, seed=7),
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, dense: dict[str, Tensor]) -> Path:
    path = tmp_path_factory.mktemp("lazy") / "source.safetensors"
    save_file(dense, path)
    return path


@pytest.fixture(scope="module")
def target(source: Path) -> Path:
    path = source.with_name("model.safetensors")
    transfuse.compress(source, path)
    return path


@pytest.fixture
def lazy(target: Path) -> dict[str, Tensor]:
    return dict(_lazy_weight.iterate_dense([str(target)]))


def copied(tensor: Tensor, device: str = "cpu") -> Tensor:
    target = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    assert target.copy_(tensor) is target
    return target


# ---- parts of layers ----


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["coded", "plain"])
@pytest.mark.parametrize("rows", [None, (0, 256), (256, ROWS - 256), (512, ROWS - 512), (0, ROWS), (32, 48)])
@pytest.mark.parametrize("cols", [None, (256, 256), (512, COLS - 512), (16, 80)])
def test_load_part(target: Path, dense: dict[str, Tensor], device: str, layout: str, rows: Any, cols: Any) -> None:
    first_row, num_rows = rows or (0, ROWS)
    first_col, num_cols = cols or (0, COLS)
    wanted = dense["bf16"][first_row : first_row + num_rows, first_col : first_col + num_cols]
    layer = tt.load_layer(target, "bf16", device, layout=layout, rows=rows, cols=cols)
    assert layer.numel() <= 2 * 256 * 256 * -(-(num_rows + 32) // 256) * -(-(num_cols + 16) // 256) + 65536
    if layout == "coded" and (num_rows == 48 or num_cols == 80):
        with pytest.raises(RuntimeError, match="tiles of 256"):
            tt.decode(layer, num_rows, num_cols, torch.bfloat16)
    else:
        assert same_bits(tt.decode(layer, num_rows, num_cols, torch.bfloat16), wanted)


def test_load_part_refuses(target: Path) -> None:
    for rows in ((8, 16), (0, 24), (ROWS, 16), (704, 16), (0, 0), (-16, 16), (0, 2**32), (512, 256)):
        with pytest.raises(transfuse.ArgumentError):
            tt.load_layer(target, "bf16", "cpu", rows=rows)
        with pytest.raises(transfuse.ArgumentError):
            tt.load_layer(target, "bf16", "cpu", cols=rows)
    with pytest.raises(transfuse.ArgumentError, match="experts"):
        tt.load_layer(target, "experts", "cpu", rows=(0, 16))
    part = tt.load_layer(target, "experts[3]", "cpu", rows=(256, 44))
    assert tt.layer_info(part).rows == 44


# ---- lazy weights ----


def test_names(source: Path, target: Path, lazy: dict[str, Tensor], dense: dict[str, Tensor]) -> None:
    assert lazy.keys() == dense.keys()
    for name, tensor in lazy.items():
        assert isinstance(tensor, LazyWeight) == (name not in ("norm", "float"))
        assert (tensor.shape, tensor.dtype, tensor.device) == (
            dense[name].shape,
            dense[name].dtype,
            torch.device("cpu"),
        )
        assert same_bits(copied(tensor), dense[name]), name
    assert repr(lazy["experts"][1:3, :, 5:]) == f"LazyWeight(experts[1:3, 0:300, 5:272] of {target}, torch.bfloat16)"
    assert _lazy_weight.is_compressed([str(source), str(target)]) and not _lazy_weight.is_compressed([str(source)])
    plain = dict(_lazy_weight.iterate_dense([str(source)], skip=lambda name: name == "bf16"))
    assert plain.keys() == dense.keys() - {"bf16"}
    assert not any(isinstance(tensor, LazyWeight) for tensor in plain.values())
    assert "bf16" not in dict(_lazy_weight.iterate_dense([str(target)], skip=lambda name: name == "bf16"))


CUTS: list[tuple[str, Cut]] = [
    ("bf16", lambda x: x),
    ("bf16", lambda x: x.narrow(0, 17, 33)),
    ("bf16", lambda x: x[5:300, 100:477]),
    ("bf16", lambda x: x[-100:].narrow(1, 255, 2)),
    ("bf16", lambda x: x[3:][200:][1:77, 400:][5:, :7]),
    ("bf16", lambda x: x.chunk(3)[1]),
    ("bf16", lambda x: x.chunk(8, dim=-1)[7]),
    ("bf16", lambda x: x.split(64, dim=1)[-1]),
    ("bf16", lambda x: x.split([100, 550, 50])[1]),
    ("bf16", lambda x: x.tensor_split(3)[2]),
    ("bf16", lambda x: x[7:7]),
    ("bf16", lambda x: x.detach().data.view(ROWS, -1).reshape(x.shape).contiguous()[1:]),
    ("bf16", lambda x: torch.nn.Parameter(x, requires_grad=False)),
    ("f16", lambda x: x[257:, 3:519]),
    ("f8", lambda x: x[1:260, 260:]),
    ("i8", lambda x: x[100:, :500]),
    ("wide", lambda x: x[255:257]),
    ("experts", lambda x: x[2]),
    ("experts", lambda x: x[1:3]),
    ("experts", lambda x: x[1:][-1, 3:50]),
    ("experts", lambda x: x.chunk(2, dim=1)[1][3]),
    ("experts", lambda x: x.chunk(2, dim=-1)[0]),
    ("experts", lambda x: x.unbind()[1][:, 200:]),
    ("experts", lambda x: list(x)[3].narrow(0, 100, 157)),
    ("experts", lambda x: x.split([1, 3])[1].narrow(2, 1, 270)),
]  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("index", range(len(CUTS)))
def test_cuts_stay_lazy(lazy: dict[str, Tensor], dense: dict[str, Tensor], index: int, device: str) -> None:
    name, cut = CUTS[index]
    with torch.no_grad():
        part, wanted = cut(lazy[name]), cut(dense[name])
    assert isinstance(part, LazyWeight)
    assert (part.shape, part.dtype) == (wanted.shape, wanted.dtype)
    assert same_bits(copied(part, device), wanted)
    assert same_bits(part.dense(device), wanted)


OTHERS: list[tuple[str, Cut]] = [
    ("bf16", lambda x: x.t()),
    ("bf16", lambda x: x[5:300].transpose(0, 1).contiguous()),
    ("bf16", lambda x: x.float()),
    ("bf16", lambda x: x[3:9].to(torch.float32)),
    ("bf16", lambda x: x.clone()),
    ("bf16", lambda x: x[3]),
    ("bf16", lambda x: x[::2, 1:]),
    ("bf16", lambda x: x[[5, 1]]),
    ("bf16", lambda x: x.reshape(-1)),
    ("bf16", lambda x: x.unsqueeze(0)),
    ("bf16", lambda x: torch.cat([x[:5], x[9:]], dim=0)),
    ("f16", lambda x: x.abs()),
    ("experts", lambda x: x.permute(0, 2, 1)[1]),
    ("experts", lambda x: x[1, 2]),
    ("experts", lambda x: x[:, 5]),
    ("experts", lambda x: x.flatten(0, 1)),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(OTHERS)))
def test_other_operations_are_dense(lazy: dict[str, Tensor], dense: dict[str, Tensor], index: int) -> None:
    name, operation = OTHERS[index]
    result, wanted = operation(lazy[name]), operation(dense[name])
    assert not isinstance(result, LazyWeight)
    assert same_bits(result, wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_copies(lazy: dict[str, Tensor], dense: dict[str, Tensor], device: str) -> None:
    """The target may have another dtype, strides, or room for more; a broadcast is one of torch's."""
    weight, wanted = lazy["bf16"][10:20, 30:50], dense["bf16"][10:20, 30:50]
    wide = torch.zeros(10, 20, device=device)
    wide.copy_(weight)
    assert same_bits(wide, wanted.float())
    turned = torch.zeros(20, 10, dtype=torch.bfloat16, device=device)
    turned.t().copy_(weight)
    assert same_bits(turned, wanted.t())
    room = torch.zeros(64, 64, dtype=torch.bfloat16, device=device)
    room[3:13, 40:60].copy_(weight)
    assert same_bits(room[3:13, 40:60], wanted) and room.count_nonzero() == wanted.count_nonzero()
    many = torch.zeros(3, 10, 20, dtype=torch.bfloat16, device=device)
    many.copy_(weight)
    assert same_bits(many[2], wanted)
    assert same_bits(weight.to(device), wanted)
    assert same_bits(weight.to(device, torch.float32), wanted.float())
    with pytest.raises(RuntimeError, match="must match"):
        torch.zeros(3, device=device).copy_(weight)
    with pytest.raises(RuntimeError, match="must match"):
        torch.zeros(3, device="meta").copy_(weight)


class Copies(TorchDispatchMode):
    """Counts elements as vLLM does."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            assert args[0].numel() == args[1].numel()
            self.sizes.append(args[0].numel())
        return func(*args, **(kwargs or {}))


def test_reads_no_more_than_it_must(lazy: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy on the meta device reads nothing and is one copy; any other one reads the tiles that it touches."""
    loads: list[Any] = []

    def load(checkpoint: Any, name: str, device: Any, **part: Any) -> Tensor:
        loads.append((name, part["rows"], part["cols"]))
        return _load.load_layer(checkpoint, name, device, **part)

    monkeypatch.setattr(_lazy_weight, "load_layer", load)
    with Copies() as copies:
        torch.empty(33, 10, device="meta", dtype=torch.bfloat16).copy_(lazy["bf16"].narrow(0, 300, 33)[:, :10])
        assert not loads and lazy["experts"].to("meta").is_meta and not loads
        torch.empty(33, 10, dtype=torch.bfloat16).copy_(lazy["bf16"].narrow(0, 300, 33)[:, :10])
    assert copies.sizes == [330, 330]
    assert loads == [("bf16", (256, 256), (0, 256))]
    copied(lazy["experts"][2:, 255:260])
    assert loads[1:] == [("experts[2]", (0, 300), (0, 272)), ("experts[3]", (0, 300), (0, 272))]
    copied(lazy["bf16"][600:, 512:])
    assert loads[3] == ("bf16", (512, ROWS - 512), (512, COLS - 512))


def test_writes_are_refused(lazy: dict[str, Tensor], dense: dict[str, Tensor], target: Path) -> None:
    weight = lazy["bf16"]
    for write in (
        weight.zero_,
        lambda: weight[3:5].copy_(dense["bf16"][3:5]),
        lambda: torch.add(dense["bf16"], 1, out=weight),
    ):
        with pytest.raises(TypeError, match=rf"bf16\[.*{target.name}"):
            write()
    for wrong in (lambda: weight[ROWS], lambda: weight.narrow(0, 690, 11), lambda: lazy["experts"][4]):
        with pytest.raises((IndexError, RuntimeError)):
            wrong()
    with pytest.raises(RuntimeError, match="split_sizes"):
        weight.split([3, 4])


def test_corrupt_tensor(target: Path, tmp_path: Path, dense: dict[str, Tensor]) -> None:
    """The error names file and tensor; weights in other tiles are still there."""
    data = bytearray(target.read_bytes())
    with tt.open_checkpoint(target) as checkpoint:
        info = checkpoint.tensors["bf16"]
    data[info.file_offset + info.bytes - 100] ^= 1
    corrupt = tmp_path / "corrupt.safetensors"
    corrupt.write_bytes(data)
    weight = dict(_lazy_weight.iterate_dense([str(corrupt)]))["bf16"]
    with pytest.raises(transfuse.TransfuseError, match=r"corrupt\.safetensors.*'bf16'"):
        copied(weight)
    assert same_bits(copied(weight[:256, :256]), dense["bf16"][:256, :256])


def break_words(data: bytearray, blob: int, back: int) -> None:
    """Flips a bit of the rANS words at the end of a blob's first tile, and makes the checksums fit (FORMAT.md, 2-4)."""
    library = ctypes.util.find_library("xxhash")
    if not library:
        pytest.skip("no libxxhash, to make checksums of corrupt bytes")
    xxh3 = ctypes.CDLL(library).XXH3_64bits_withSeed
    xxh3.restype, xxh3.argtypes = ctypes.c_uint64, [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64]
    offset, size = struct.unpack_from("<QI", data, blob + 832)
    data[blob + offset + size - back] ^= 4
    tile = bytes(data[blob + offset : blob + offset + size])
    struct.pack_into("<Q", data, blob + 832 + 24, xxh3(tile, size, 0))
    struct.pack_into("<Q", data, blob + 56, 0)
    head_bytes = struct.unpack_from("<Q", data, blob + 64 + 112)[0]
    struct.pack_into("<Q", data, blob + 56, xxh3(bytes(data[blob : blob + head_bytes]), head_bytes, 0))


@pytest.mark.parametrize("device", DEVICES)
def test_corrupt_words(target: Path, tmp_path: Path, dense: dict[str, Tensor], device: str) -> None:
    """rANS words that loading takes for good are an error where they are decoded, on a GPU as well."""
    with tt.open_checkpoint(target) as checkpoint:
        blob = checkpoint.tensors["bf16"].file_offset
    corrupt = tmp_path / "corrupt.safetensors"
    found = False
    for back in range(130, 150):  # before the padding; some flips give other words that are as good
        data = bytearray(target.read_bytes())
        break_words(data, blob, back)
        corrupt.write_bytes(data)
        weight: Any = dict(_lazy_weight.iterate_dense([str(corrupt)]))["bf16"]
        layer = tt.load_layer(weight.checkpoint, "bf16", device)  # which sees nothing
        assert same_bits(copied(weight[256:], device), dense["bf16"][256:])
        try:
            copied(weight[250:256, :256], device)
        except (transfuse.TransfuseError, RuntimeError) as failure:
            found = True
            assert re.search(r"corrupt\.safetensors: tensor 'bf16': ", str(failure))
            with pytest.raises(type(failure), match=r"corrupt\.safetensors: tensor 'bf16': "):
                weight.check_tiles(layer)
    assert found


def test_no_memory(lazy: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch, target: Path) -> None:
    """An error that is not one of transfuse names file and tensor, too."""

    def fail(*arguments: object, **options: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(_lazy_weight, "load_layer", fail)
    with pytest.raises(torch.OutOfMemoryError, match=r"model\.safetensors: tensor 'experts\[1\]': CUDA out of memory"):
        copied(lazy["experts"][1])


def test_checkpoints_live_as_long_as_weights(target: Path, dense: dict[str, Tensor]) -> None:
    tensors = dict(_lazy_weight.iterate_dense([str(target)]))
    part = tensors.pop("bf16")[300:]
    checkpoint = part.checkpoint  # type: ignore[attr-defined]
    del tensors
    gc.collect()
    assert same_bits(copied(part), dense["bf16"][300:])
    handle = weakref.ref(checkpoint.handle)
    del part, checkpoint
    gc.collect()
    assert handle() is None


def test_folder_of_shards(tmp_path: Path) -> None:
    """Tensors come file by file, whether a file is compressed or not."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    first, second = {"a.weight": normal(300, 300), "a.bias": normal(300)}, {"norm.weight": normal(64)}
    save_file(first, source / names[0])
    save_file(second, source / names[1])
    weight_map = {**dict.fromkeys(first, names[0]), **dict.fromkeys(second, names[1])}
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    transfuse.compress(source, target)
    found = list(_lazy_weight.iterate_dense([str(target / name) for name in names]))
    assert sorted(name for name, _ in found[:2]) == sorted(first) and found[2][0] == "norm.weight"
    for name, tensor in found:
        assert same_bits(copied(tensor), {**first, **second}[name])
    save_file({**second, "a.weight": normal(300, 300)}, target / names[1])
    with pytest.raises(transfuse.DataError, match=rf"{names[1]}: tensor 'a.weight': .*{names[0]} has one of this name"):
        list(_lazy_weight.iterate_dense([str(target / name) for name in names]))


@pytest.mark.parametrize("kept", [-1, -1000, 100, 4, 0])
@pytest.mark.parametrize("is_source", [False, True])
def test_cut_file(source: Path, target: Path, tmp_path: Path, is_source: bool, kept: int) -> None:
    """The error names the file, compressed or not."""
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes((source if is_source else target).read_bytes()[:kept])
    with pytest.raises(transfuse.DataError, match=r"cut\.safetensors: "):
        list(_lazy_weight.iterate_dense([str(cut)]))


def test_cut_columns_have_the_strides_that_they_say(lazy: dict[str, Tensor], dense: dict[str, Tensor]) -> None:
    """A part of a matrix lies as a dense tensor of its shape would, for what counts on strides or memory."""
    part, due = lazy["bf16"][3:90, 5:60], dense["bf16"][3:90, 5:60].contiguous()
    assert part.stride() == due.stride()
    assert same_bits(part.as_strided((4, 7), (11, 2), 3), due.as_strided((4, 7), (11, 2), 3))
    for flat in (part.reshape(-1), part.flatten(), part.contiguous().view(-1)):
        assert same_bits(flat, due.flatten())
    for made in (copy.deepcopy(part), pickle.loads(pickle.dumps(part)), torch.utils.dlpack.from_dlpack(part)):
        assert type(made) is Tensor and same_bits(made, due)
    assert torch.tensor(part.tolist()).shape == due.shape
    with pytest.raises(RuntimeError, match="bf16.*has no memory"):
        part.data_ptr()


def test_rows_that_follow_each_other_are_joined(
    target: Path, lazy: dict[str, Tensor], dense: dict[str, Tensor]
) -> None:
    weight, other, experts = lazy["bf16"], lazy["wide"], lazy["experts"]
    assert isinstance(weight, LazyWeight)
    parts: list[Tensor] = [
        weight[:100],
        weight[100:100],
        weight[100:300],
        weight[300:],
        weight[:5],
        weight[6:9],
        other[9:12],
    ]
    parts += [weight[12:20, 3:9], weight[20:30, 3:9], weight[30:40, 3:8], dense["bf16"][:3], weight[3:6]]
    parts += [experts[0][:7], experts[0][7:], experts[1][:9], experts[:2], experts[2:]]
    parts += [LazyWeight(tt.Checkpoint(target), weight.info)[6:9]]  # the same tensor by another opening of its file
    joined = _lazy_weight.join_rows(iter(parts))
    assert [len(part) for part in joined] == [ROWS, 5, 3, 3, 18, 10, 3, 3, 300, 9, 2, 2, 3]
    assert same_bits(joined[0], dense["bf16"])
    assert same_bits(joined[4], dense["bf16"][12:30, 3:9])
    assert same_bits(joined[8], dense["experts"][0])
    assert joined[6] is parts[10]
    assert _lazy_weight.join_rows([]) == []

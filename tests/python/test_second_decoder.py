# SPDX-License-Identifier: Apache-2.0
"""The second decoder against its own encoder, the golden files, and (where TRANSFUSE names the command) the C one."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import xxhash

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"
sys.path[:0] = [str(HERE), str(GOLDEN)]

import make_golden  # noqa: E402
import second_decoder as ref  # noqa: E402
from second_encoder import Options, encode, seal  # noqa: E402
from second_safetensors import (  # noqa: E402
    INDEX_MAGIC,
    Tensor,
    is_compressed,
    read_plain,
    read_safetensors,
    rebuild_source,
    write_safetensors,
)

GOLDEN_INDEX = json.loads((GOLDEN / "golden.json").read_text())
CORRUPT_INDEX = json.loads((GOLDEN / "corrupt.json").read_text())
#: the last two have one and three column steps in their last tiles
SHAPES = [(1, 1), (15, 17), (16, 16), (257, 255), (300, 1000), (33, 4097), (300, 275), (560, 304)]
FLOAT_DTYPES = {"BF16": 2, "F16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1}

COMMAND = os.environ.get("TRANSFUSE", "")
needs_command = pytest.mark.skipif(not COMMAND, reason="TRANSFUSE does not name the transfuse command")


# ---------------------------------------------------------------------------------------------------------------
# Without the command
# ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("class_bits", [4, 2])
@pytest.mark.parametrize("codec", [ref.BF16, ref.FP16, ref.E4M3, ref.E5M2])
@pytest.mark.parametrize("shape", [(1, 1), (15, 300), (16, 16), (33, 40), (257, 49), (49, 405)])
def test_round_trip_of_random_floats(codec: int, class_bits: int, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng([codec, class_bits, *shape])
    for p, lower, slab_cols in ((9, 9, 256), (12, 16, 128), (10, 12, 128)):
        elements = rng.integers(0, 256 ** ref.ELEMENT_BYTES[codec], shape)
        options = make_golden.float_options(
            codec,
            class_bits=class_bits,
            probability_bits=p,
            state_bits=lower,
            slab_cols=slab_cols,
            exponent_offset=int(rng.integers(-5, 6)),
            row_offsets=rng.integers(-128, 128, shape[0]),
            col_offsets=rng.integers(-128, 128, shape[1]),
            modes=lambda t, p=p: (t + p) % 4,
            force=rng.random(shape) < 0.1,
        )
        header, decoded = ref.read_blob(encode(elements, options))
        assert decoded.dtype == np.uint16
        assert np.array_equal(decoded, elements)
        size = ref.ELEMENT_BYTES[codec]
        assert ref.source_bytes(header, decoded) == elements.astype(f"<u{size}").tobytes()


@pytest.mark.parametrize("class_bits,raw_bits", [(4, r) for r in range(8)] + [(2, r) for r in range(9)])
def test_round_trip_of_random_codes(class_bits: int, raw_bits: int) -> None:
    rng = np.random.default_rng([class_bits, raw_bits])
    codes = rng.integers(-1023, 1024, (49, 80))
    first = max(-1024, -((1 << class_bits) << raw_bits) // 2)
    options = Options(
        ref.INT, ref.F32, class_bits=class_bits, raw_bits=raw_bits, class_value=[first],
        granularity=ref.TENSOR, scales=np.float32([1]),
    )  # fmt: skip
    header, decoded = ref.read_blob(encode(codes, options))
    assert decoded.dtype == np.int16
    assert np.array_equal(decoded, codes)
    assert np.array_equal(np.frombuffer(ref.source_bytes(header, decoded), "<f4").reshape(codes.shape), codes)


@pytest.mark.parametrize("class_bits", [4, 2])
@pytest.mark.parametrize("granularity", [ref.TENSOR, ref.CHANNEL, ref.BLOCK])
def test_round_trip_of_scaled_fp8(class_bits: int, granularity: int) -> None:
    rng = np.random.default_rng([class_bits, granularity])
    shape = {ref.TENSOR: (1,), ref.CHANNEL: (273,), ref.BLOCK: (5, 6)}[granularity]
    table = np.exp2(rng.uniform(-100, 100, shape)).astype(np.float32)
    options = Options(
        ref.E4M3, ref.BF16_DTYPE, class_bits=class_bits, granularity=granularity, scales=table,
        scale_group_size=64 if granularity == ref.BLOCK else 0, stored=lambda t: t == 1,
        force=rng.random((273, 330)) < 0.1,
    )  # fmt: skip
    spread = table[:, None]
    if granularity == ref.BLOCK:
        spread = table.repeat(64, 0).repeat(64, 1)[:273, :330]
    elements = make_golden.scaled_fp8_weights(class_bits, 273, 330, spread)
    elements[rng.random(elements.shape) < 0.01] = 0xFFFF
    header, decoded = ref.read_blob(encode(elements, options))
    assert header.is_scaled_fp8
    assert np.array_equal(decoded, elements)
    assert ref.source_bytes(header, decoded) == elements.astype("<u2").tobytes()


def round_fraction(value: Fraction, precision: int, min_exponent: int, max_exponent: int) -> Fraction | None:
    """To nearest even, `precision` bits; None for infinity."""
    if value == 0:
        return value
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    while Fraction(2) ** exponent > magnitude:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= magnitude:
        exponent += 1
    quantum = Fraction(2) ** (max(exponent, min_exponent) - precision + 1)
    rounded = round(value / quantum) * quantum
    return None if abs(rounded) >= Fraction(2) ** (max_exponent + 1) else rounded


def test_scaled_fp8_is_rounded_twice() -> None:
    rng = np.random.default_rng(4)
    mantissas = np.concatenate([rng.integers(0, 1 << 23, 40), np.arange(20) << 15 | 0x4000, [0x7FFFFF]])
    for scale in (0x3F800000 | mantissas).astype(np.uint32).view(np.float32):
        for code in range(0x7F):
            exponent, mantissa = code >> 3, code & 7
            value = Fraction(8 * (exponent > 0) + mantissa) * Fraction(2) ** (max(exponent, 1) - 10)
            twice = round_fraction(round_fraction(value * Fraction(float(scale)), 24, -126, 127), 8, -126, 127)
            for sign in (0, 0x80):
                bits = int(ref.scale_fp8(np.array(code | sign), scale))
                found = np.uint32(bits << 16).view(np.float32)
                assert Fraction(float(found)) == (-twice if sign else twice)
                assert bits >> 15 == sign >> 7


@pytest.mark.parametrize("dtype", [ref.F32, ref.F16, ref.BF16_DTYPE])
def test_dequantized_weights_are_rounded_once(dtype: int) -> None:
    precision, low, high = {ref.F32: (24, -126, 127), ref.F16: (11, -14, 15), ref.BF16_DTYPE: (8, -126, 127)}[dtype]
    rng = np.random.default_rng(dtype)
    bits = np.concatenate([rng.integers(1, 0x7F800000, 60), [1, 2, 3, 0x007FFFFF, 0x00800000, 0x7F7FFFFF]])
    # Scales in the range of F16 as well, and ones that end half way between two numbers of the dtype.
    half_way = rng.integers(0x33000000, 0x47800000, 60) & ~0x3FF
    bits = np.concatenate([bits, half_way, 0x3F800000 + np.arange(64) * 0x8000])
    scales = bits.astype(np.uint32).view(np.float32)
    codes = rng.integers(-1023, 1024, (len(scales), 20))
    codes[:, :4] = [0, 1, -1, 3]
    options = Options(ref.INT, dtype, granularity=ref.CHANNEL, scales=scales)
    header, decoded = ref.read_blob(encode(codes, options))
    data = ref.source_bytes(header, decoded)
    if dtype == ref.BF16_DTYPE:
        result = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        result = np.frombuffer(data, "<f4" if dtype == ref.F32 else "<f2")
    for value, code, scale in zip(result.tolist(), codes.reshape(-1).tolist(), np.repeat(scales, 20).tolist()):
        wanted = round_fraction(code * Fraction(scale), precision, low, high)
        if wanted is None:
            assert value == (float("inf") if code > 0 else float("-inf"))
        else:
            assert Fraction(value) == wanted


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 15, 16])
def test_section_6_fills_a_slab_once(steps: int, blocks: int) -> None:
    rows, cols = ref.weight_places(8 * blocks * steps, blocks)
    assert len(set((rows * 256 + cols).reshape(-1).tolist())) == 16 * blocks * 16 * steps
    assert (rows.max(), cols.max()) == (16 * blocks - 1, 16 * steps - 1)
    for step in range(steps):
        paired = step ^ 1 < steps
        run = 8 if paired else 4
        for lane in range(32):
            weights = np.arange(8 * blocks * step, 8 * blocks * (step + 1))
            if paired:
                weights = np.concatenate([weights, weights + 8 * blocks * (1 if step % 2 == 0 else -1)])
            # The same neighbouring columns in every row: one piece of x.
            own = np.unique(cols[lane, weights])
            assert own.tolist() == list(range(own[0], own[0] + run)) and own[0] % run == 0
            assert np.unique(rows[lane, weights] % 16).tolist() == [lane // 4, lane // 4 + 8]


@pytest.mark.parametrize("width", [8, 4, 2, 1])
def test_section_7_fills_a_plane_once(width: int) -> None:
    places = ref.plane_bit_places(width)
    assert sorted(places.reshape(-1).tolist()) == list(range(32))
    assert (places[:4, 0] // 8).tolist() == [0, 2, 1, 3]
    for z_count in (1, 2, 3, 4, 5, 8, 14, 16):
        offsets = ref.plane_word_offsets(z_count)
        assert sorted(offsets.reshape(-1).tolist()) == list(range(0, 128 * z_count, 4))


@pytest.mark.parametrize("raw_bits", [3, 4, 5, 6, 8, 10, 11, 13])
def test_section_7_chunks(raw_bits: int) -> None:
    assert ref.raw_bytes(256, raw_bits) == 4 * 256 * raw_bits
    assert ref.chunk_weights(8) == [8] and ref.chunk_weights(144) == [64, 64, 16]
    # The raw bits of every slab begin at a multiple of 128 bytes.
    assert all(ref.raw_bytes(8 * steps * blocks, raw_bits) % 128 == 0 for steps in range(1, 17) for blocks in (1, 2))
    # 8 weights: a byte of each bit of R, in whole words for every plane.
    assert ref.raw_bytes(8, raw_bits) == 128 * sum(max(1, width // 4) for width in (8, 4, 2, 1) if raw_bits & width)


def first_word(codec: int, class_bits: int, fours: list[int]) -> int:
    """The first word of the raw bits of lane 0 whose first four weights are `fours`."""
    elements = np.full((16, 16), 1 << ref.MANTISSA_BITS[codec])
    rows, cols = ref.weight_places(8, 1)
    elements[rows[0, :4], cols[0, :4]] = fours
    blob = encode(elements, make_golden.float_options(codec, class_bits=class_bits))
    header, decoded = ref.read_blob(blob)
    assert np.array_equal(decoded, elements)
    return struct.unpack_from("<I", blob, header.data_offset)[0]


@pytest.mark.parametrize("class_bits", [4, 2])
def test_section_7_bf16_pairs_by_mask_and_rotation(class_bits: int) -> None:
    """What the text says of planes of 8: two weights are in place, the other two a rotation right by 8 away."""
    rng = np.random.default_rng(class_bits)
    for _ in range(50):
        fours = (rng.integers(0, 2, 4) << 15 | 1 << 7 | rng.integers(0, 128, 4)).tolist()
        word = first_word(ref.BF16, class_bits, fours)
        turned = word >> 8 | word << 24 & 0xFFFFFFFF
        found = [x & 0x807F for pair in (word, turned) for x in (pair, pair >> 16)]
        assert found == [four & 0x807F for four in fours]


def test_section_7_fp8_bytes_by_rotation() -> None:
    """Of E4M3 pairs: M in the nibbles of the bytes 0, 2, 1, 3, and all four signs on top of them a rotation later."""
    rng = np.random.default_rng(3)
    for _ in range(50):
        fours = (rng.integers(0, 2, 4) << 7 | 1 << 3 | rng.integers(0, 8, 4)).tolist()
        word = first_word(ref.E4M3, 4, fours)
        turned = (word >> 1 | word << 31 & 0xFFFFFFFF).to_bytes(4, "little")
        assert [turned[k] & 0x87 for k in (0, 2, 1, 3)] == [four & 0x87 for four in fours]


def test_section_7_e4m3_quads_by_two_bytes() -> None:
    """Of E4M3 quads: the word of 4 bits a weight has e and M[2:1], that of 2 bits the signs, a byte on, M[0] above."""
    rng = np.random.default_rng(4)
    for _ in range(50):
        fours = (rng.integers(0, 2, 4) << 7 | rng.integers(0, 126, 4)).tolist()
        elements = np.full((16, 16), 8)
        rows, cols = ref.weight_places(8, 1)
        elements[rows[0, :4], cols[0, :4]] = fours
        blob = encode(elements, make_golden.float_options(ref.E4M3, class_bits=2))
        at = ref.read_blob(blob)[0].data_offset
        four, two = (struct.unpack_from("<I", blob, x)[0] for x in (at, at + 128))
        signs_home, low_home = (two >> 1 | two << 31) & 0x80808080, two >> 1 & 0x01010101
        found = [
            (signs_home >> 8 * k & 0x80) | (four >> 8 * k & 15) << 1 | (low_home >> 8 * k & 1) for k in (0, 2, 1, 3)
        ]
        assert found == [four & 0x9F for four in fours]


@pytest.mark.parametrize("name", GOLDEN_INDEX)
def test_golden_file(name: str) -> None:
    entry = GOLDEN_INDEX[name]
    header, elements = ref.read_blob((GOLDEN / name).read_bytes())
    data = ref.source_bytes(header, elements)
    assert (header.rows, header.cols) == (entry["rows"], entry["cols"])
    assert (len(data), xxhash.xxh3_64_hexdigest(data)) == (entry["bytes"], entry["xxh3"])


@pytest.mark.parametrize("name", CORRUPT_INDEX)
def test_corrupt_file(name: str) -> None:
    with pytest.raises(ref.FormatError) as raised:
        ref.read_blob((GOLDEN / "corrupt" / name).read_bytes())
    assert raised.value.status == CORRUPT_INDEX[name]["status"]


def test_golden_files_are_as_their_generator_makes_them() -> None:
    for folder, (blobs, index), recorded in (
        (GOLDEN, make_golden.golden_files(), GOLDEN_INDEX),
        (GOLDEN / "corrupt", make_golden.corrupt_files(), CORRUPT_INDEX),
    ):
        assert index == recorded
        assert {path.name for path in folder.glob("*.trf")} == set(blobs)
        assert [name for name, blob in blobs.items() if (folder / name).read_bytes() != blob] == []


def test_the_decoder_as_a_command(tmp_path: Path) -> None:
    def run(*args: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(HERE / "second_decoder.py"), *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    name = "int_r2_scale_group16_f16.trf"
    good = run(GOLDEN / name, "--dump", "--npy", tmp_path / "elements.npy")
    assert good.returncode == 0, good.stderr
    assert "(scale-group)" in good.stdout and GOLDEN_INDEX[name]["xxh3"] in good.stdout
    assert np.array_equal(np.load(tmp_path / "elements.npy"), ref.read_blob((GOLDEN / name).read_bytes())[1])
    bad = run(GOLDEN / "corrupt" / "truncated_empty.trf")
    assert bad.returncode == 1 and "TRF_ERR_TRUNCATED" in bad.stderr


def test_every_flipped_bit_is_noticed() -> None:
    blob = (GOLDEN / "e5m2_16x16_quads.trf").read_bytes()
    for at in range(len(blob)):
        damaged = bytearray(blob)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(ref.FormatError):
            ref.read_blob(bytes(damaged))


@pytest.mark.parametrize("name", ["int_quads_r0_scale_block16_f16.trf", "e4m3_all_patterns_c4.trf", "bf16_1x1.trf"])
def test_damage_under_right_checksums_gives_a_status(name: str) -> None:
    """Never another exception, whatever a byte turns into. (Some bytes, as those of raw bits, cannot be told.)"""
    blob = (GOLDEN / name).read_bytes()
    rng = np.random.default_rng(len(blob))
    for at in [*range(56), *range(64, 256), *rng.integers(256, len(blob), 600).tolist()]:
        damaged = bytearray(blob)
        damaged[at] ^= 1 << int(rng.integers(8))
        try:
            ref.read_blob(bytes(seal(damaged)))
        except ref.FormatError as error:
            assert error.status.startswith("TRF_ERR_")


def test_blobs_in_a_safetensors_file(tmp_path: Path) -> None:
    golden = {name: (GOLDEN / name).read_bytes() for name in ("bf16_16x16.trf", "e5m2_few_symbols.trf")}
    slices = [make_golden.weights(ref.FP16, seed, 20, 30) for seed in range(3)]
    blobs = [encode(weights, make_golden.float_options(ref.FP16)) for weights in slices]
    offset, index = 48, b""
    for blob in blobs:
        index += struct.pack("<Q", offset)
        offset += len(blob)
    stack = struct.pack("<IIQ", INDEX_MAGIC, 3, 0) + index + bytes(8) + b"".join(blobs)
    plain = Tensor("F32", [2], bytes(8))
    packed = {f"{name}_trf": Tensor("U8", [len(blob)], blob) for name, blob in golden.items()}
    packed |= {"experts_trf": Tensor("U8", [len(stack)], stack), "odd_trf": plain}
    path = tmp_path / "compressed.safetensors"
    write_safetensors(path, packed, {"transfuse_format": "1"})
    found = read_safetensors(path)
    assert list(found) == [*golden, "experts", "odd_trf"]
    assert found["odd_trf"] == plain
    assert (found["experts"].dtype, found["experts"].shape) == ("F16", [3, 20, 30])
    assert found["experts"].data == np.stack(slices).astype("<u2").tobytes()
    for name in golden:
        assert xxhash.xxh3_64_hexdigest(found[name].data) == GOLDEN_INDEX[name]["xxh3"]


def container_faults() -> dict[str, tuple[str, dict[str, Tensor], dict[str, str]]]:
    """Malformed compressed files: status, tensors and metadata by name."""
    blobs = [encode(make_golden.weights(ref.FP16, k, 20, 30), make_golden.float_options(ref.FP16)) for k in (0, 1)]
    other = encode(make_golden.weights(ref.FP16, 2, 20, 31), make_golden.float_options(ref.FP16))

    def u8(data: bytes) -> Tensor:
        return Tensor("U8", [len(data)], data)

    def stack(parts: list[bytes], count: int, reserved: int = 0, first: int = 0, pad: bytes = bytes(8)) -> Tensor:
        head = struct.pack("<IIQ", INDEX_MAGIC, count, reserved)
        offset = ref.align16(len(head) + 8 * len(parts)) + first
        for part in parts:
            head += struct.pack("<Q", offset)
            offset += len(part)
        return u8(head + pad[: -len(head) % 16] + b"".join(parts))

    known = {"transfuse_format": "1"}
    entry = {"dtype": "F16", "shape": [20, 30], "data_offsets": [0, 1200]}

    def kept(header: dict[str, object] | str) -> dict[str, str]:
        return known | {"transfuse_source_header": header if isinstance(header, str) else json.dumps(header)}

    one, plain = {"e_trf": u8(blobs[0])}, Tensor("F16", [1], bytes(2))
    return {
        "index_reserved": ("TRF_ERR_HEADER", {"e_trf": stack(blobs, 2, reserved=1)}, known),
        "index_empty": ("TRF_ERR_HEADER", {"e_trf": stack([], 0)}, known),
        "index_too_long": ("TRF_ERR_TRUNCATED", {"e_trf": stack(blobs, 100000)}, known),
        "index_padding": ("TRF_ERR_HEADER", {"e_trf": stack([*blobs, blobs[0]], 3, pad=bytes(7) + b"1")}, known),
        "index_first_offset": ("TRF_ERR_HEADER", {"e_trf": stack(blobs, 2, first=16)}, known),
        "index_shapes_differ": ("TRF_ERR_HEADER", {"e_trf": stack([blobs[0], other], 2)}, known),
        "index_gap": ("TRF_ERR_HEADER", {"e_trf": stack([blobs[0] + bytes(16), blobs[1]], 2)}, known),
        "format_2": ("TRF_ERR_VERSION", one, {"transfuse_format": "2"}),
        "name_twice": ("TRF_ERR_FORMAT", one | {"e": plain}, known),
        "kept_shape": ("TRF_ERR_FORMAT", one, kept({"e": entry | {"shape": [30, 20]}})),
        "kept_dtype": ("TRF_ERR_FORMAT", one, kept({"e": entry | {"dtype": "BF16"}})),
        "kept_offsets": ("TRF_ERR_FORMAT", one, kept({"e": entry | {"data_offsets": [0, 1202]}})),
        "kept_tensor_missing": ("TRF_ERR_FORMAT", one, kept({"e": entry, "f": entry | {"data_offsets": [1200, 2400]}})),
        "kept_lacks_tensor": ("TRF_ERR_FORMAT", one | {"f": plain}, kept({"e": entry})),
        "kept_is_no_json": ("TRF_ERR_FORMAT", one, kept("{")),
        "blob_in_two_dimensions": (
            "TRF_ERR_FORMAT",
            {"e_trf": Tensor("U8", [1, len(other)], other)},
            kept({"e": entry}),
        ),
        "blob_without_magic": ("TRF_ERR_MAGIC", {"e_trf": u8(b"xxxx" + blobs[0][4:])}, kept({"e": entry})),
    }


@pytest.mark.parametrize("name", container_faults())
def test_malformed_safetensors_file(name: str, tmp_path: Path) -> None:
    status, tensors, metadata = container_faults()[name]
    path = tmp_path / "compressed.safetensors"
    write_safetensors(path, tensors, metadata)
    with pytest.raises(ref.FormatError) as raised:
        read_safetensors(path)
    assert raised.value.status == status


# ---------------------------------------------------------------------------------------------------------------
# With the command
# ---------------------------------------------------------------------------------------------------------------


def transfuse(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *map(str, args)], capture_output=True, text=True, timeout=280, check=False)


def run_ok(*args: object) -> None:
    result = transfuse(*args)
    assert result.returncode == 0, f"{args}: {result.stderr}"


def nasty(dtype: str, rng: np.random.Generator, shape: tuple[int, int], kind: str) -> bytes:
    """A tensor's bytes: all bit patterns in turn, random ones, or ones like a trained matrix."""
    size = FLOAT_DTYPES[dtype]
    count = shape[0] * shape[1]
    if kind == "patterns":
        values = rng.permutation(np.arange(max(count, 256**size)) % 256**size)[:count]
    elif kind == "random":
        values = rng.integers(0, 256**size, count)
    elif dtype == "I8":
        values = np.clip(np.rint(rng.standard_normal(count) * 20), -128, 127).astype(np.int64) & 255
    else:
        codec = {"BF16": ref.BF16, "F16": ref.FP16, "F8_E4M3": ref.E4M3, "F8_E5M2": ref.E5M2}[dtype]
        values = make_golden.weights(codec, int(rng.integers(1 << 20)), *shape).reshape(-1)
    return values.astype(f"<u{size}").tobytes()


def source_tensors(rng: np.random.Generator) -> dict[str, Tensor]:
    """Every dtype in every shape, two 3-D tensors, and what is not compressed."""
    tensors = {}
    for dtype in FLOAT_DTYPES:
        for shape in SHAPES:
            for kind in ("patterns", "random", "trained"):
                name = f"{dtype.lower()}.{shape[0]}x{shape[1]}.{kind}.weight"
                tensors[name] = Tensor(dtype, list(shape), nasty(dtype, rng, shape, kind))
        stack = b"".join(nasty(dtype, rng, (48, 80), "trained") for _ in range(3))
        tensors[f"{dtype.lower()}.experts"] = Tensor(dtype, [3, 48, 80], stack)
        # The command leaves a tensor as it is that would not get smaller; one with rare oddities does.
        shape = (1025, 1031)
        salted = np.frombuffer(nasty(dtype, rng, shape, "trained"), f"<u{FLOAT_DTYPES[dtype]}").copy()
        salted[rng.permutation(salted.size)[:65536]] = np.arange(65536).astype(salted.dtype)
        tensors[f"{dtype.lower()}.salted.weight"] = Tensor(dtype, list(shape), salted.tobytes())
    # NaN payloads and infinities only.
    nans = (0x7F80 + rng.integers(0, 128, (64, 64)) | rng.integers(0, 2, (64, 64)) << 15).astype("<u2")
    tensors["nan.weight"] = Tensor("BF16", [64, 64], nans.tobytes())
    tensors["constant.weight"] = Tensor("BF16", [256, 272], np.full(256 * 272, 0x3F80, "<u2").tobytes())
    tensors["norm.weight"] = Tensor("BF16", [77], rng.integers(0, 1 << 16, 77).astype("<u2").tobytes())
    for shape, (down, across) in zip(SHAPES[3:], ((1, 1), (1, 128), (128, 128), (128, 128), (560, 304))):
        scales = rng.uniform(1e-4, 1e-3, (-(-shape[0] // down), -(-shape[1] // across))).astype(np.float32)
        spread = scales.repeat(down, 0).repeat(across, 1)[: shape[0], : shape[1]]
        bits = make_golden.scaled_fp8_weights(int(rng.integers(1 << 20)), *shape, spread).astype("<u2")
        tensors[f"was_fp8.{shape[0]}x{shape[1]}.weight"] = Tensor("BF16", list(shape), bits.tobytes())
    tensors["positions"] = Tensor("I64", [5, 2], np.arange(10).astype("<i8").tobytes())
    tensors["empty.weight"] = Tensor("BF16", [0, 16], b"")
    tensors["mask"] = Tensor("BOOL", [3, 3], bytes(9))
    return tensors


def assert_same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert found[name].data == tensor.data, name


@needs_command
@pytest.mark.parametrize("codec", ["auto", "fp8"])
@pytest.mark.parametrize("favor", ["size", "speed"])
def test_lossless_files_of_the_command(favor: str, codec: str, tmp_path: Path) -> None:
    source, packed, restored = (tmp_path / name for name in ("in.safetensors", "out.safetensors", "back.safetensors"))
    tensors = source_tensors(np.random.default_rng(7))
    write_safetensors(source, tensors, {"format": "pt", "note": 'ä "quoted" \\ text'})
    run_ok("compress", source, "-o", packed, "--favor", favor, "--codec", codec)
    _, plain = read_plain(packed)
    assert sum(is_compressed(name, tensor) for name, tensor in plain.items()) > 0
    versions = {name: struct.unpack_from("<H", t.data, 4)[0] for name, t in plain.items() if is_compressed(name, t)}
    was_fp8 = {f"was_fp8.{rows}x{cols}.weight_trf" for rows, cols in ((33, 4097), (300, 275), (560, 304))}
    found = {name for name, version in versions.items() if version == ref.SCALED_FP8_VERSION}
    assert found == was_fp8
    assert_same(read_safetensors(packed), tensors)
    assert rebuild_source(packed) == source.read_bytes()
    run_ok("decompress", packed, "-o", restored)
    assert restored.read_bytes() == source.read_bytes()


def fp8_tensors(rng: np.random.Generator) -> dict[str, Tensor]:
    """FP8 weights with scales of every granularity; each has all codes, and its scales are in another file."""
    shapes = {"block": (3, 5), "row": (300, 1), "tensor": ()}
    tensors = {}
    for name, shape in shapes.items():
        codes = rng.normal(0x38, 6, (300, 515)).clip(0, 0x7E).astype(np.uint8) | rng.integers(0, 2, (300, 515)) << 7
        codes.flat[:256] = np.arange(256)
        scales = np.exp(rng.standard_normal(shape)).astype(np.float32)
        tensors[f"{name}.weight"] = Tensor("F8_E4M3", [300, 515], codes.astype(np.uint8).tobytes())
        tensors[f"{name}.weight_scale"] = Tensor("F32", list(shape), scales.tobytes())
    tensors["block.input_scale"] = Tensor("BF16", [1], b"\x00\x3f")
    return tensors


@needs_command
@pytest.mark.parametrize("favor", ["size", "speed"])
def test_fp8_folders_of_the_command(favor: str, tmp_path: Path) -> None:
    tensors = fp8_tensors(np.random.default_rng(9))
    (tmp_path / "source").mkdir()
    told = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = {"model_type": "test", "dtype": "bfloat16", "quantization_config": told}
    (tmp_path / "source" / "config.json").write_text(json.dumps(config))
    names = {
        "1.safetensors": [n for n in tensors if n.endswith("t")],
        "2.safetensors": [n for n in tensors if "_" in n],
    }
    for file, members in names.items():
        write_safetensors(tmp_path / "source" / file, {name: tensors[name] for name in members})
    run_ok("compress", tmp_path / "source", "-o", tmp_path / "packed", "--favor", favor)
    for file, members in names.items():
        assert_same(read_safetensors(tmp_path / "packed" / file), {name: tensors[name] for name in members})
        assert rebuild_source(tmp_path / "packed" / file) == (tmp_path / "source" / file).read_bytes()
        _, plain = read_plain(tmp_path / "packed" / file)
        assert set(plain) == ({f"{name}_trf" for name in members} if file == "1.safetensors" else set())


def lossy_tensors(rng: np.random.Generator) -> dict[str, Tensor]:
    """Weights of a real spread, with rows of zeros, tiny and huge rows, and denormals."""
    tensors = {}
    for rows, cols in ((1, 1), (15, 17), (16, 16), (257, 255), (300, 1000), (33, 4097)):
        values = rng.standard_normal((rows, cols)) * 0.02
        values[::7] = 0
        values[3::11] *= 2.0**-13
        values[5::13] *= 2.0**10
        f32 = values.astype("<f4")
        name = f"{rows}x{cols}"
        tensors[f"f32.{name}.weight"] = Tensor("F32", [rows, cols], f32.tobytes())
        tensors[f"f16.{name}.weight"] = Tensor("F16", [rows, cols], values.astype("<f2").tobytes())
        bf16 = (f32.view(np.uint32) >> 16).astype("<u2")
        tensors[f"bf16.{name}.weight"] = Tensor("BF16", [rows, cols], bf16.tobytes())
    return tensors


@needs_command
@pytest.mark.parametrize(
    "options",
    [
        ["--int8"],
        ["--bits", "4.25", "--granularity", "tensor"],
        ["--bits", "3.5", "--granularity", "channel"],
        ["--bits", "4.25", "--granularity", "scale-group:64"],
        ["--bits", "6", "--granularity", "scale-block:32"],
        ["--bits", "2", "--granularity", "scale-group:16", "--favor", "speed"],
    ],
    ids=" ".join,
)
def test_quantized_files_of_the_command(options: list[str], tmp_path: Path) -> None:
    source, packed, restored = (tmp_path / name for name in ("in.safetensors", "out.safetensors", "back.safetensors"))
    tensors = lossy_tensors(np.random.default_rng(8))
    write_safetensors(source, tensors)
    run_ok("compress", source, "-o", packed, *options)
    _, plain = read_plain(packed)
    assert {f"{dtype}.257x255.weight_trf" for dtype in ("f32", "f16", "bf16")} <= set(plain)
    run_ok("decompress", packed, "-o", restored)
    _, by_command = read_plain(restored)
    assert_same(read_safetensors(packed), by_command)
    assert {name: (t.dtype, t.shape) for name, t in by_command.items()} == {
        name: (t.dtype, t.shape) for name, t in tensors.items()
    }


@needs_command
def test_golden_files_by_the_command() -> None:
    problems = []
    for name in GOLDEN_INDEX:
        result = transfuse("verify", GOLDEN / name)
        if result.returncode != 0:
            problems.append(f"{name}: {result.stderr.strip()}")
    assert problems == []


@needs_command
def test_malformed_safetensors_files_by_the_command(tmp_path: Path) -> None:
    for name, (status, tensors, metadata) in container_faults().items():
        path = tmp_path / f"{name}.safetensors"
        write_safetensors(path, tensors, metadata)
        result = transfuse("verify", path)
        assert result.returncode == 1 and status in result.stderr, f"{name}: {result.stderr}"


@needs_command
def test_golden_files_decompressed_by_the_command(tmp_path: Path) -> None:
    for name, entry in GOLDEN_INDEX.items():
        restored = tmp_path / f"{name}.safetensors"
        run_ok("decompress", GOLDEN / name, "-o", restored)
        _, tensors = read_plain(restored)
        (tensor,) = tensors.values()
        assert (tensor.dtype, tensor.shape) == (entry["dtype"], [entry["rows"], entry["cols"]]), name
        assert xxhash.xxh3_64_hexdigest(tensor.data) == entry["xxh3"], name


@needs_command
def test_corrupt_files_by_the_command() -> None:
    problems = []
    for name, entry in CORRUPT_INDEX.items():
        result = transfuse("verify", GOLDEN / "corrupt" / name)
        if result.returncode != 1 or entry["status"] not in result.stderr:
            problems.append(f"{name}: {entry['status']} expected, exit {result.returncode}: {result.stderr.strip()}")
    assert problems == []

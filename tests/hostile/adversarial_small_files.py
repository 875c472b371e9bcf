# SPDX-License-Identifier: Apache-2.0
"""Arrays, tunings and buffers of layers that a stranger may have made."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import xxhash
from adversarial_files import Bases, Case, text_of

OK, TRUNCATED, MAGIC, VERSION = "TRF_OK", "TRF_ERR_TRUNCATED", "TRF_ERR_MAGIC", "TRF_ERR_VERSION"
HEADER, TILE, CHECKSUM, FORMAT = "TRF_ERR_HEADER", "TRF_ERR_TILE", "TRF_ERR_CHECKSUM", "TRF_ERR_FORMAT"


def written(name: str, content: bytes, size: int | None = None) -> Callable[[Path], None]:
    """size: what the file is made longer to, sparse."""

    def make(room: Path) -> None:
        with open(room / "in" / name, "wb") as file:
            file.write(content)
            if size is not None:
                file.truncate(size)

    return make


# ---- .npy ----


def npy(text: bytes, data: bytes = b"", version: int = 1, size: int | None = None) -> bytes:
    """size: the length that is written, if it is not the header's."""
    size = len(text) if size is None else size
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", size) + text + data


def shaped(shape: str, data: bytes = bytes(16), descr: str = "'<f4'", order: str = "False") -> bytes:
    return npy(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode(), data)


def npy_cases() -> Iterator[Case]:
    sound = shaped("(2, 2)")
    table: dict[str, tuple[bytes, str]] = {
        "empty": (b"", FORMAT), "magic_alone": (sound[:6], FORMAT), "no_length": (sound[:8], FORMAT),
        "half_a_length": (sound[:9], FORMAT), "no_header": (sound[:10], FORMAT),
        "other_magic": (b"\x93NUMPX" + sound[6:], FORMAT),
        "version_0": (npy(b"{}", version=0), FORMAT), "version_4": (npy(b"{}", version=4), FORMAT),
        "version_255": (npy(b"{}", version=255), FORMAT), "header_of_0": (npy(b"", bytes(16)), FORMAT),
        "header_behind_end": (npy(b"{}", size=9), FORMAT), "header_of_64_kb": (npy(b"{}", size=65535), FORMAT),
        "header_of_4_gb": (npy(b"{}", version=2, size=(1 << 32) - 1), FORMAT),
        "header_above_most": (npy(b" " * 70_000, version=3), FORMAT),
        "nul_in_header": (npy(b"{'descr': '<f4',\0 'shape': (4,)}", bytes(16)), FORMAT),
        "no_dict": (npy(b"[]" * 20), FORMAT),
        "no_descr": (npy(b"{'fortran_order': False, 'shape': (4,)}", bytes(16)), FORMAT),
        "no_order": (npy(b"{'descr': '<f4', 'shape': (4,)}", bytes(16)), FORMAT),
        "no_shape": (npy(b"{'descr': '<f4', 'fortran_order': False}", bytes(16)), FORMAT),
        "f8": (shaped("(2,)", descr="'<f8'"), FORMAT), "big_endian": (shaped("(4,)", descr="'>f4'"), FORMAT),
        "object": (shaped("(4,)", b"\x80\x04\x8c\x02os\x94.", descr="'|O'"), FORMAT),
        "record": (shaped("(4,)", descr="[('a', '<f4')]"), FORMAT), "no_type": (shaped("(4,)", descr="''"), FORMAT),
        "long_type": (shaped("(4,)", descr="'" + "f" * 60_000 + "'"), FORMAT),
        "type_with_escape": (shaped("(4,)", descr="'\x1b[2J'"), FORMAT), "open_type": (npy(b"{'descr': '<f4"), FORMAT),
        "fortran": (shaped("(2, 2)", order="True"), FORMAT), "order_number": (shaped("(2, 2)", order="0"), FORMAT),
        "no_dimension": (shaped("()"), FORMAT), "three_dimensions": (shaped("(1, 2, 2)"), FORMAT),
        "negative": (shaped("(-4,)"), FORMAT), "twice_negative": (shaped("(-2, -2)"), FORMAT),
        "real": (shaped("(4.0,)"), FORMAT),
        "hexadecimal": (shaped("(0x4,)"), FORMAT), "name": (shaped("(n,)"), FORMAT), "list": (shaped("[4]"), FORMAT),
        "nested": (shaped("((4,),)"), FORMAT),
        "open": (npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (4, "), FORMAT),
        "only_commas": (shaped("(,,,)"), FORMAT), "one_less": (shaped("(3,)"), FORMAT),
        "one_more": (shaped("(5,)"), FORMAT),
        "nothing_and_data": (shaped("(0, 4)"), FORMAT), "2_to_64": (shaped("(18446744073709551616,)"), FORMAT),
        "product_2_to_64": (shaped("(4294967296, 4294967296)"), FORMAT),
        "product_wraps_to_4": (shaped("(4611686018427387905, 4)"), FORMAT),
        "bytes_wrap_to_16": (shaped("(4611686018427387908,)"), FORMAT),
        "10000_digits": (shaped("(" + "9" * 10_000 + ",)"), FORMAT), "cut": (sound[:-1], FORMAT),
        "longer": (sound + b"x", FORMAT),
        "nothing": (shaped("(0,)", b""), OK), "zeros_before_number": (shaped("(00000000000000000004,)"), OK),
    }  # fmt: skip
    for name, (content, status) in table.items():
        yield Case(f"npy_{name}", written("x.npy", content), {"npy in/x.npy": status}, words=("x.npy",))
    yield Case("npy_64_gb_sparse", written("x.npy", sound, 64 << 30), {"npy in/x.npy": FORMAT}, words=("x.npy",))


# ---- tunings ----

LAYER = {"codec": "bf16", "class_bits": 2, "raw_bits": 8, "scale_groups": False, "rows": 5, "cols": 6, "batches": []}
POINT = {"to": 4, "path": "packed", "packed": {"kernel": "wgmma-128", "cut": 2}}


def tuning(layers: Any, **more: Any) -> bytes:
    return text_of({"format": "transfuse tuning", "version": 2, "device": "CPU", "layers": layers, **more})


def with_layer(**more: Any) -> bytes:
    return tuning([{**LAYER, **more}])


def with_point(**more: Any) -> bytes:
    return with_layer(layout="packed", batches=[{**POINT, **more}])


def tuning_cases() -> Iterator[Case]:
    sound = with_point()
    table: dict[str, tuple[bytes, str]] = {
        "empty": (b"", FORMAT), "no_json": (b"x", FORMAT), "array": (b"[]", FORMAT), "null": (b"null", FORMAT),
        "cut": (sound[:-1], FORMAT), "second_root": (sound * 2, FORMAT), "nul_behind": (sound + b"\0", FORMAT),
        "byte_order_mark": (b"\xef\xbb\xbf" + sound, FORMAT), "no_utf_8": (sound.replace(b"CPU", b"\xff"), FORMAT),
        "escaped_nul": (sound.replace(b"CPU", b"C\\u0000PU"), FORMAT),
        "lone_surrogate": (sound.replace(b"CPU", b"\\ud800"), FORMAT),
        "nested": (b'{"layers":' * 100_000, FORMAT),
        "nested_layers": (tuning([]).replace(b"[]", b"[" * 3000 + b"]" * 3000), FORMAT),
        "member_twice": (sound[:-1] + b',"version":2}', FORMAT),
        "member_of_layer_twice": (sound.replace(b'"rows":5', b'"rows":5,"rows":5'), FORMAT),
        "nan": (sound.replace(b'"rows":5', b'"rows":NaN'), FORMAT),
        "infinity": (with_point(microseconds={"packed": float("inf")}), FORMAT),
        "huge_time": (sound.replace(b'"cut":2}', b'"cut":2},"microseconds":{"packed":1e999}'), FORMAT),
        "format_number": (tuning([], format=2), FORMAT), "format_null": (tuning([], format=None), FORMAT),
        "version_text": (tuning([], version="2"), VERSION), "version_2_to_31": (tuning([], version=1 << 31), VERSION),
        "version_negative": (tuning([], version=-2), VERSION),
        "version_2_to_64": (sound.replace(b'"version":2', b'"version":18446744073709551618'), FORMAT),
        "device_number": (tuning([], device=1), FORMAT), "device_long": (tuning([], device="d" * 100_000), FORMAT),
        "capability_2_to_32": (tuning([], capability=1 << 32), FORMAT),
        "capability_real": (tuning([], capability=9.0), FORMAT),
        "multiprocessors_null": (tuning([], multiprocessors=None), FORMAT),
        "memory_negative": (tuning([], memory_gb_per_second=-1), FORMAT),
        "layers_missing": (text_of({"format": "transfuse tuning", "version": 2, "device": "x"}), FORMAT),
        "layers_object": (tuning({"0": LAYER}), FORMAT), "layers_65537": (tuning([1] * 65537), FORMAT),
        "layer_null": (tuning([None]), FORMAT),
        "layer_text": (tuning(["x" * 1000]), FORMAT), "codec_object": (with_layer(codec={}), FORMAT),
        "codec_int8": (with_layer(codec="int8"), FORMAT),
        "codec_empty": (with_layer(codec=""), FORMAT), "layout_empty": (with_layer(layout=""), FORMAT),
        "layout_null": (with_layer(layout=None), FORMAT),
        "class_bits_0": (with_layer(class_bits=0), FORMAT), "class_bits_9": (with_layer(class_bits=9), FORMAT),
        "raw_bits_17": (with_layer(raw_bits=17), FORMAT), "raw_bits_negative": (with_layer(raw_bits=-1), FORMAT),
        "scale_groups_null": (with_layer(scale_groups=None), FORMAT), "rows_0": (with_layer(rows=0), FORMAT),
        "rows_negative": (with_layer(rows=-5), FORMAT), "rows_text": (with_layer(rows="5"), FORMAT),
        "cols_2_to_32": (with_layer(cols=1 << 32), FORMAT),
        "cols_true": (with_layer(cols=True), FORMAT), "batches_object": (with_layer(batches={}), FORMAT),
        "batches_65": (with_layer(batches=[POINT] * 65), FORMAT),
        "batch_null": (with_layer(batches=[None]), FORMAT), "batch_0": (with_point(to=0), FORMAT),
        "batch_negative": (with_point(to=-4), FORMAT),
        "batch_2_to_32": (with_point(to=1 << 32), FORMAT), "batch_real": (with_point(to=4.5), FORMAT),
        "batch_twice": (with_layer(batches=[POINT, POINT]), FORMAT),
        "batches_descend": (with_layer(batches=[POINT, {**POINT, "to": 3}]), FORMAT),
        "path_auto": (with_point(path="auto"), FORMAT),
        "path_long": (with_point(path="p" * 100_000), FORMAT), "path_number": (with_point(path=5), FORMAT),
        "time_0": (with_point(microseconds={"packed": 0}), FORMAT),
        "time_negative": (with_point(microseconds={"packed": -1.5}), FORMAT),
        "time_text": (with_point(microseconds={"packed": "1"}), FORMAT),
        "packed_null": (with_point(packed=None), FORMAT), "packed_empty": (with_point(packed={}), FORMAT),
        "kernel_long": (with_point(packed={"kernel": "k" * 9000, "cut": 1}), FORMAT),
        "cut_0": (with_point(packed={"kernel": "wgmma-128", "cut": 0}), FORMAT),
        "cut_2_to_32": (with_point(packed={"kernel": "wgmma-128", "cut": 1 << 32}), FORMAT),
        "cut_negative": (with_point(packed={"kernel": "wgmma-128", "cut": -1}), FORMAT),
        "layer_twice": (tuning([LAYER, {**LAYER, "layout": "coded"}]), FORMAT),
        "times_array": (with_point(microseconds=[1]), FORMAT), "times_text": (with_point(microseconds="1"), FORMAT),
        "time_infinite_in_sums": (with_point(microseconds={"packed": 1e308}), FORMAT),
        "time_of_days": (with_point(microseconds={"packed": 1e12}), OK), "member_unknown": (tuning([], x=[{}]), OK),
        "to_most": (with_point(to=(1 << 32) - 1), OK),
    }  # fmt: skip
    for name, (content, status) in table.items():
        yield Case(f"tuning_{name}", written("t.json", content), {"tuning in/t.json": status}, words=("t.json",))
    yield Case("tuning_64_mb_sparse", written("t.json", sound, (64 << 20) + 1), {"tuning in/t.json": FORMAT},
               words=("t.json",))  # fmt: skip


# ---- buffers of layers ----

#: struct format and byte offset; those of all layouts, then each one's own, before and after the coded header
COMMON = {"magic": ("I", 0), "layout": ("H", 4), "version": ("H", 6), "head_bytes": ("I", 8), "reserved": ("I", 12),
          "buffer_bytes": ("Q", 16), "rows": ("I", 32), "cols": ("I", 36)}  # fmt: skip
OWN = {
    "plain": {"weight_dtype": ("B", 40), "reserved0": ("B", 47), "coded_magic": ("I", 64), "coded_version": ("H", 68),
              "coded_codec": ("B", 70), "coded_dtype": ("B", 71), "reserved1": ("B", 239)},
    "packed": {"padded_rows": ("I", 40), "padded_cols": ("I", 44), "codec": ("B", 48), "base": ("B", 49),
    "reserved0": ("H", 50),
               "flags": ("I", 52), "num_stored": ("I", 56), "num_lines": ("Q", 64), "num_tiles": ("Q", 72),
               "num_records": ("Q", 80),
               "row_offsets_offset": ("Q", 88), "lines_offset": ("Q", 96), "tiles_offset": ("Q", 104),
               "stored_offset": ("Q", 112)},
    "packed8": {"padded_rows": ("I", 40), "padded_cols": ("I", 44), "codec": ("B", 48), "reserved0": ("B", 51),
    "flags": ("I", 52),
                "num_lines": ("Q", 56), "num_tiles": ("Q", 64), "num_records": ("Q", 72), "lines_offset": ("Q", 80),
                "tiles_offset": ("Q", 88)},
}  # fmt: skip
MOST32, MOST64 = (1 << 32) - 1, (1 << 64) - 1


def changed_head(buffer: bytes, code: str, at: int, value: int, is_sealed: bool = True) -> bytes:
    """Returns a buffer with a field changed, and the head's checksum made to fit."""
    changed = bytearray(buffer)
    struct.pack_into("<" + code, changed, at, value)
    if is_sealed:
        head = bytes(changed[:24]) + bytes(8) + bytes(changed[32:240]) + bytes(16)
        struct.pack_into("<Q", changed, 24, xxhash.xxh3_64_intdigest(head))
    return bytes(changed)


def head_values(layout: str, size: int) -> Iterator[tuple[str, int, str]]:
    """Yields fields of a head with a value that is refused, and the status."""
    yield from [
        ("layout", 9, HEADER), ("layout", 65535, HEADER), ("version", 0, VERSION), ("version", 99, VERSION),
        ("head_bytes", 0, HEADER), ("head_bytes", MOST32, HEADER), ("reserved", 1, HEADER), ("buffer_bytes", 0, HEADER),
        ("buffer_bytes", 255, HEADER), ("buffer_bytes", size + 256, TRUNCATED), ("buffer_bytes", 1 << 63, TRUNCATED),
        ("buffer_bytes", MOST64, TRUNCATED), ("rows", 0, HEADER), ("rows", MOST32, HEADER), ("cols", 0, HEADER),
        ("cols", 1 << 31, HEADER),
    ]  # fmt: skip
    if layout == "plain":
        yield from [("rows", 65, HEADER), ("weight_dtype", 0, HEADER), ("weight_dtype", 2, HEADER),
        ("weight_dtype", 255, HEADER), ("reserved0", 1, HEADER),
                    ("coded_magic", 0, HEADER), ("coded_version", 99, HEADER), ("coded_codec", 5, HEADER),
                    ("coded_dtype", 6, HEADER), ("reserved1", 1, HEADER)]  # fmt: skip
        return
    yield from [
        ("padded_rows", 0, HEADER), ("padded_rows", MOST32, HEADER), ("padded_cols", 1, HEADER), ("codec", 0, HEADER),
        ("codec", 255, HEADER), ("reserved0", 1, HEADER), ("flags", 1 << 31, HEADER), ("num_lines", 0, HEADER),
        ("num_lines", MOST64, HEADER), ("num_tiles", 0, HEADER), ("num_tiles", 1 << 60, HEADER),
        ("num_records", MOST64, HEADER),
        ("lines_offset", 0, HEADER), ("lines_offset", 1 << 63, HEADER), ("tiles_offset", MOST64, HEADER),
    ]  # fmt: skip
    if layout == "packed8":
        yield from [("num_records", 1, HEADER), ("rows", 65, TILE)]
    if layout == "packed":
        yield from [("num_records", 1, TILE), ("rows", 65, HEADER), ("base", 0, HEADER), ("base", 255, HEADER),
        ("num_stored", 1, HEADER), ("num_stored", MOST32, HEADER),
                    ("row_offsets_offset", 256, HEADER), ("row_offsets_offset", MOST64, HEADER),
                    ("stored_offset", 1, HEADER)]  # fmt: skip


def buffer_cases(bases: Bases) -> Iterator[Case]:
    for layout, base in bases.buffers.items():
        fields = {**COMMON, **OWN[layout]}
        call = f"buffer in/b {layout}"
        for field, value, status in head_values(layout, len(base)):
            content = changed_head(base, *fields[field], value)
            yield Case(f"buffer_{layout}_{field}_{value}", written("b", content), {call: status})
        yield Case(f"buffer_{layout}_unsealed", written("b", changed_head(base, "I", 32, 63, False)), {call: CHECKSUM})
        yield Case(
            f"buffer_{layout}_other_magic", written("b", changed_head(base, "I", 0, 0x52414E53)), {call: VERSION}
        )
        for size in (0, 1, 255):
            yield Case(f"buffer_{layout}_of_{size}_bytes", written("b", base[:size]), {call: TRUNCATED})
        yield Case(f"buffer_{layout}_of_256_bytes", written("b", base[:256]), {call: TRUNCATED})
        yield Case(f"buffer_{layout}_cut", written("b", base[:-1]), {call: TRUNCATED})
        yield Case(f"buffer_{layout}_sound", written("b", base), {call: OK})
        others = [other for other in bases.buffers if other != layout]
        for other in others:
            status = OK if (layout, other) == ("packed8", "packed") else HEADER  # PACKED takes FP8 so
            yield Case(f"buffer_{layout}_as_{other}", written("b", base), {f"buffer in/b {other}": status})
    lines = struct.unpack_from("<Q", bases.buffers["packed"], 96)[0]
    for name, word, value in (
        ("count", 29, 30),
        ("count_2_to_32", 29, MOST32),
        ("stored_mask", 30, 1),
        ("first_stored", 31, 7),
    ):
        content = bytearray(bases.buffers["packed"])
        struct.pack_into("<I", content, lines + 4 * word, value)
        yield Case(f"buffer_packed_line_{name}", written("b", bytes(content)), {"buffer in/b packed": TILE})


def all_cases(bases: Bases) -> Iterator[Case]:
    assert json.loads(tuning([]))
    yield from npy_cases()
    yield from tuning_cases()
    yield from buffer_cases(bases)

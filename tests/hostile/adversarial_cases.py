# SPDX-License-Identifier: Apache-2.0
"""Files that a stranger may have made, and the exact status that each call must give for them.

A table has names, what is wrong, and the status; run_adversarial.py makes the files, and makes the calls. Blobs with
one fault each are those of tests/golden/corrupt_cases.py.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import adversarial_folders
import adversarial_small_files
from adversarial_files import (
    NAME,
    Bases,
    Case,
    experts_file,
    safetensors,
    source_file,
    source_header,
    split,
    tensor,
    weights,
)  # fmt: skip

OK, IO, NOT_FOUND, TRUNCATED = "TRF_OK", "TRF_ERR_IO", "TRF_ERR_NOT_FOUND", "TRF_ERR_TRUNCATED"
MAGIC, VERSION, HEADER, FORMAT = "TRF_ERR_MAGIC", "TRF_ERR_VERSION", "TRF_ERR_HEADER", "TRF_ERR_FORMAT"

FILE = f"in/{NAME}"


def put(content: bytes, name: str = FILE) -> Callable[[Path], None]:
    return lambda room: (room / name).write_bytes(content) and None


def all_calls(status: str) -> dict[str, str]:
    """Returns the calls that open a file, all of which then fail in one way."""
    lines = f"open {FILE}", f"verify {FILE}", f"compress {FILE} out/x", f"decompress {FILE} out/x", f"load {FILE} a"
    return dict.fromkeys(lines, status)


def refused(name: str, content: bytes, status: str = FORMAT, words: tuple[str, ...] = ()) -> Case:
    return Case(name, put(content), all_calls(status), words=(NAME, *words))


# ---- safetensors: the length of the header, and its text ----


def sparse(size: int, start: bytes) -> Callable[[Path], None]:
    def make(room: Path) -> None:
        with open(room / FILE, "wb") as file:
            file.write(start)
            file.truncate(size)

    return make


def length_cases() -> Iterator[Case]:
    sound = source_file()
    text_bytes = int.from_bytes(sound[:8], "little")
    for size in (0, 1, 7):
        yield refused(f"length_file_of_{size}_bytes", sound[:size], TRUNCATED)
    for name, size, status in (
        ("zero", 0, FORMAT), ("one", 1, FORMAT), ("one_less", text_bytes - 1, FORMAT),
        ("one_more", text_bytes + 1, FORMAT), ("file_end", len(sound) - 8, FORMAT),
        ("behind_file_end", len(sound) - 7, TRUNCATED), ("most", 100_000_000, TRUNCATED),
        ("above_most", 100_000_001, FORMAT), ("2_to_31", 1 << 31, FORMAT),
        ("2_to_32_more", text_bytes | 1 << 32, FORMAT),
        ("2_to_63", 1 << 63, FORMAT), ("minus_8", (1 << 64) - 8, FORMAT), ("minus_1", (1 << 64) - 1, FORMAT),
    ):  # fmt: skip
        yield refused(f"length_{name}", struct.pack("<Q", size) + sound[8:], status)
    yield refused("length_of_git_lfs_pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", FORMAT,
                  ("Git LFS",))  # fmt: skip
    most = struct.pack("<Q", 100_000_000)
    once = {f"open {FILE}": FORMAT}
    yield Case("length_100_mb_of_zeros", sparse(100_000_008, most), once, words=(NAME,))
    yield Case("length_100_mb_of_spaces", put(most + b" " * 100_000_000), once, words=(NAME,))
    yield Case("length_64_gb_sparse", sparse(64 << 30, b""), all_calls(FORMAT), words=(NAME,))
    yield Case("length_64_gb_sparse_behind_tensors", sparse(64 << 30, sound), all_calls(FORMAT), words=(NAME,))


def text_cases() -> Iterator[Case]:
    one = b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
    texts: dict[str, bytes] = {
        "empty_array": b"[]", "string": b'"a"', "null": b"null", "number": b"1", "nothing": b"   ", "open": one[:-1],
        "closed_twice": one + b"}", "second_object": one + one, "comma_at_end": one[:-1] + b",}",
        "comment": b"/* */" + one, "single_quotes": one.replace(b'"', b"'"), "no_quotes": one.replace(b'"', b""),
        "byte_order_mark": b"\xef\xbb\xbf" + one, "utf_16": one.decode().encode("utf-16-le"),
        "nul_after": one + b"\0", "nul_in_name": one.replace(b"a", b"\0", 1),
        "escaped_nul_in_name": one.replace(b"a", b"\\u0000", 1), "line_feed_in_name": one.replace(b"a", b"\n", 1),
        "overlong_utf_8": one.replace(b"a", b"\xc0\x80", 1), "surrogate_utf_8": one.replace(b"a", b"\xed\xa0\x80", 1),
        "beyond_unicode": one.replace(b"a", b"\xf5\x80\x80\x80", 1), "cut_utf_8": one.replace(b"a", b"\xe2\x82", 1),
        "lone_surrogate": one.replace(b"a", b"\\ud800", 1), "bad_escape": one.replace(b"a", b"\\x41", 1),
        "nested_arrays": b"[" * 100_000, "nested_objects": b'{"a":' * 100_000,
        "nested_shape": one.replace(b"[4]", b"[" * 5000 + b"]" * 5000),
        "nested_unknown_member": one[:-2] + b',"x":' + b"[" * 3000 + b"]" * 3000 + b"}}",
        "same_tensor_twice": one[:-1] + b"," + one[1:], "same_member_twice": one[:-2] + b',"dtype":"U8"}}',
        "same_metadata_twice": b'{"__metadata__":{},"__metadata__":{},' + one[1:],
        "same_key_of_metadata_twice": b'{"__metadata__":{"x":"","x":""},' + one[1:],
        "same_tensor_twice_escaped": one[:-1] + b"," + one[1:].replace(b'"a"', b'"\\u0061"'),
        "nan": one.replace(b"[4]", b"[NaN]"), "infinity": one.replace(b",4]", b",Infinity]"),
        "minus_infinity": one.replace(b",4]", b",-Infinity]"), "huge_real": one.replace(b"[4]", b"[1e999]"),
        "leading_zero": one.replace(b"[4]", b"[04]"), "plus_sign": one.replace(b"[4]", b"[+4]"),
        "hexadecimal": one.replace(b"[4]", b"[0x4]"),
        "too_large_integer": one.replace(b",4]", b",9223372036854775808]"),
        "integer_of_64_bits": one.replace(b",4]", b",18446744073709551620]"),
        "integer_of_10000_digits": one.replace(b",4]", b"," + b"9" * 10_000 + b"]"),
    }  # fmt: skip
    for name, text in texts.items():
        yield refused(f"text_{name}", safetensors(text, bytes(4)))


# ---- safetensors: tensors ----


def member_cases() -> Iterator[Case]:
    """Members of one tensor, "a/../b", of four bytes."""
    big = (1 << 63) - 1
    table: dict[str, tuple[dict[str, Any], str]] = {
        "no_object": ([], FORMAT), "null": (None, FORMAT), "empty": ({}, FORMAT),
        "dtype_missing": ({"shape": [4], "data_offsets": [0, 4]}, FORMAT), "dtype_number": (tensor(4), FORMAT),
        "dtype_null": (tensor(None), FORMAT), "dtype_too_wide": (tensor("F64"), FORMAT),
        "shape_missing": ({"dtype": "U8", "data_offsets": [0, 4]}, FORMAT), "shape_number": (tensor(shape=4), FORMAT),
        "shape_string": (tensor(shape="4"), FORMAT), "shape_object": (tensor(shape={"0": 4}), FORMAT),
        "shape_negative": (tensor(shape=[-4]), FORMAT), "shape_twice_negative": (tensor(shape=[-2, -2]), FORMAT),
        "shape_real": (tensor(shape=[4.0]), FORMAT), "shape_true": (tensor(shape=[True, 4]), FORMAT),
        "shape_null": (tensor(shape=[None]), FORMAT), "shape_of_strings": (tensor(shape=["4"]), FORMAT),
        "shape_nested": (tensor(shape=[[4]]), FORMAT), "shape_scalar_of_one_byte": (tensor(shape=[]), FORMAT),
        "shape_one_less": (tensor(shape=[3]), FORMAT), "shape_one_more": (tensor(shape=[5]), FORMAT),
        "shape_zero": (tensor(shape=[4, 0]), FORMAT), "product_2_to_64": (tensor(shape=[1 << 32, 1 << 32]), FORMAT),
        "product_2_to_64_and_4": (tensor(shape=[(1 << 62) + 1, 4]), FORMAT),
        "product_wraps_to_4": (tensor(shape=[1 << 33, 1 << 31, 4]), FORMAT),
        "product_overflows_before_zero": (tensor(shape=[big, big, 0], end=0), FORMAT),
        "bits_overflow": (tensor("F64", [1 << 59], end=0), FORMAT),
        "bits_wrap_to_32": (tensor(shape=[(1 << 61) + 4]), FORMAT),
        "half_a_byte": (tensor("F4", [9]), FORMAT), "six_bits": (tensor("F6_E2M3", [5]), FORMAT),
        "offsets_missing": ({"dtype": "U8", "shape": [4]}, FORMAT),
        "offsets_one": ({"dtype": "U8", "shape": [4], "data_offsets": [0]}, FORMAT),
        "offsets_three": ({"dtype": "U8", "shape": [4], "data_offsets": [0, 4, 4]}, FORMAT),
        "offsets_object": ({"dtype": "U8", "shape": [4], "data_offsets": {"0": 0}}, FORMAT),
        "offsets_negative": (tensor(begin=-4, end=0), FORMAT), "offsets_descend": (tensor(begin=4, end=0), FORMAT),
        "offsets_real": (tensor(begin=0.0), FORMAT), "offsets_strings": (tensor(begin="0", end="4"), FORMAT),
        "offsets_not_from_zero": (tensor(begin=1, end=5), FORMAT),
        "offsets_behind_file": (tensor(shape=[5], end=5), TRUNCATED),
        "offsets_at_2_to_63": (tensor(shape=[4], begin=big - 4, end=big), FORMAT),
        "size_2_to_60": (tensor("U8", [1 << 60], end=1 << 60), TRUNCATED),
        "size_2_to_63": (tensor("U8", [big], end=big), FORMAT),
    }  # fmt: skip
    for name, (member, status) in table.items():
        yield refused(f"member_{name}", safetensors({"a/../b": member}, bytes(4)), status, ("a/../b",))


def range_cases() -> Iterator[Case]:
    """Several tensors whose places do not fit each other."""
    t = tensor
    table: dict[str, tuple[dict[str, Any], int, str]] = {
        "same_place": ({"a": t(), "b": t()}, 4, FORMAT), "same_place_twice_the_data": ({"a": t(), "b": t()}, 8, FORMAT),
        "overlap_by_one": ({"a": t(), "b": t(begin=3, end=7)}, 7, FORMAT),
        "one_in_the_other": ({"a": t(shape=[8], end=8), "b": t(shape=[2], begin=3, end=5)}, 8, FORMAT),
        "hole_of_one": ({"a": t(), "b": t(begin=5, end=9)}, 9, FORMAT),
        "byte_before": ({"a": t(begin=1, end=5)}, 5, FORMAT), "byte_behind": ({"a": t()}, 5, FORMAT),
        "last_cut": ({"a": t(), "b": t(begin=4, end=8)}, 7, TRUNCATED),
        "nothing_in_the_middle_of_one": ({"a": t(), "b": t(shape=[0], begin=2, end=2)}, 4, FORMAT),
        "nothing_behind_the_end": ({"a": t(), "b": t(shape=[0], begin=9, end=9)}, 4, FORMAT),
        "no_tensor_and_data": ({}, 4, FORMAT), "metadata_alone_and_data": ({"__metadata__": {"x": "y"}}, 4, FORMAT),
        "sum_overflows": ({"a": t(shape=[1 << 62], end=1 << 62), "b": t(shape=[1 << 62], begin=1 << 62, end=1 << 63)},
                          4, FORMAT),
        "one_byte_behind": ({"a": t(shape=[3], end=3)}, 4, FORMAT),
        "sum_of_2_to_61": ({"a": t(shape=[1 << 60], end=1 << 60), "b": t(shape=[1 << 60], begin=1 << 60, end=1 << 61)},
                           4, TRUNCATED),
    }  # fmt: skip
    for name, (header, size, status) in table.items():
        yield refused(f"range_{name}", safetensors(header, bytes(size)), status)
    for name, metadata in (
        ("array", []), ("string", "x"), ("number_in_it", {"x": 1}), ("null_in_it", {"x": None}),
        ("object_in_it", {"x": {}}), ("tensor", tensor()),
    ):  # fmt: skip
        header = {"__metadata__": metadata, "a": tensor()}
        yield refused(f"metadata_{name}", safetensors(header, bytes(4)), FORMAT, ("__metadata__",))


def name_cases() -> Iterator[Case]:
    """Names that are strange and sound: the model is compressed and comes back, and nothing else is written."""
    names = {
        "path_up": "../../../../etc/passwd", "absolute": "/tmp/transfuse_hostile", "dot": ".", "dots": "..",
        "empty": "",
        "slash": "/", "backslash": "..\\..\\x", "line_feeds": "a\nb\r\nc", "escape_sequence": "\x1b[2J\x1b]0;x\x07",
        "control_sequence_in_one": "\x9b2J", "deletes": "\x7f\x08\x08\x08", "right_to_left": "\u202etxt\u2066",
        "format": "%s%n%100000d%p", "quotes": "\"'`$(id)", "options": "--force -o x", "brackets": "a[0]",
        "long": "n" * 1_000_000, "cut_at_1": "\u20ac" * 1000,
        "cut_at_2": "a" + "\u20ac" * 1000, "cut_at_3": "aa" + "\u20ac" * 1000,
        "cut_at_4": "aaa" + "\U0001f600" * 500,
        "beyond_16_bits": "\U0001f600.weight",
        "blob_name": "a_trf", "blob_names_blob": "a_trf_trf", "metadata_name": "__metadata__ ",
    }  # fmt: skip
    for name, text in names.items():
        path = {
            f"compress {FILE} out/c store": OK,
            "verify out/c": OK,
            "decompress out/c out/d": OK,
            f"open {FILE}": OK,
        }
        content = source_file(text)
        same = [(FILE, "out/d")]
        yield Case(f"name_{name}", put(content), path, ["c", "d"], same)
        bad = content.replace(b'"BF16","shape":[64', b'"BF16","shape":[65', 1)
        yield Case(f"name_{name}_of_wrong_shape", put(bad), {f"open {FILE}": FORMAT}, words=(NAME,))


# ---- compressed files of weights ----


def damaged(file: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Returns a compressed file whose header is changed. The data stay."""
    header, data = split(file)
    change(header)
    return safetensors(header, data)


def kept_cases(base: bytes) -> Iterator[Case]:
    """What the compressor keeps in __metadata__."""

    def with_metadata(key: str, value: Any) -> bytes:
        return damaged(base, lambda h: h["__metadata__"].__setitem__(key, value))

    def with_kept(kept: Any) -> bytes:
        return with_metadata("transfuse_source_header", kept if isinstance(kept, str) else json.dumps(kept))

    yield refused("kept_format_2", with_metadata("transfuse_format", "2"), VERSION)
    yield refused("kept_format_empty", with_metadata("transfuse_format", ""), VERSION)
    yield refused("kept_format_1_and_more", with_metadata("transfuse_format", "1.0"), VERSION)
    bias, weight = source_header()["a.bias"], source_header()["a.weight"]
    huge = (1 << 63) - 1
    kept = {
        "empty": "", "no_json": "x", "array": "[]", "nested": "[" * 5000, "null": "null", "no_tensor": {},
        "one_tensor": {"a.bias": tensor("F16", [16], 0, 32)}, "other_names": {"x": weight, "y": bias},
        "one_more": {"a.weight": weight, "a.bias": bias, "c": tensor(begin=12320, end=12324)},
        "other_dtype": {"a.weight": tensor("F16", [64, 96], 0, 12288), "a.bias": bias},
        "other_shape": {"a.weight": tensor("BF16", [96, 64], 0, 12288), "a.bias": bias},
        "larger": {"a.weight": tensor("BF16", [65, 96], 0, 12480), "a.bias": tensor("F16", [16], 12480, 12512)},
        "largest": {"a.weight": tensor("U8", [huge - 32], 0, huge - 32),
                    "a.bias": tensor("F16", [16], huge - 32, huge)},
        "plain_tensor_larger": {"a.weight": weight, "a.bias": tensor("F16", [17], 12288, 12322)},
        "overlap": {"a.weight": weight, "a.bias": tensor("F16", [16], 0, 32)},
        "hole": {"a.weight": weight, "a.bias": tensor("F16", [16], 12290, 12322)},
        "name_twice": json.dumps({"a.weight": weight})[:-1] + "," + json.dumps({"a.weight": weight})[1:],
        "name_of_blob": {"a.weight_trf": weight, "a.bias": bias},
        "offsets_overflow": {"a.weight": tensor("BF16", [1 << 62, 4], 0, 12288), "a.bias": bias},
    }  # fmt: skip
    for name, value in kept.items():
        yield refused(f"kept_header_{name}", with_kept(value))
    for name, value in (
        ("empty", ""), ("no_json", "{"), ("array", "[]"), ("no_members", "{}"), ("one_member", '{"used":{}}'),
        ("unknown_tensor", '{"used":{"z":"AA=="},"unused":{}}'), ("nested", "[" * 5000),
        ("tensor_of_the_file", '{"used":{"a.bias":"AA=="},"unused":{}}'), ("number", '{"used":{"z":1},"unused":{}}'),
        ("twice", '{"used":{"z":"","z":""},"unused":{}}'),
    ):  # fmt: skip
        yield refused(f"kept_tables_{name}", with_metadata("transfuse_side_tables", value))


def side_table_cases(base: bytes) -> Iterator[Case]:
    """Tables of scales that a compressed file of FP8 keeps in __metadata__."""
    good = json.loads(split(base)[0]["__metadata__"]["transfuse_side_tables"])
    (name, text), *_ = good["used"].items()

    def with_tables(value: Any, has_checksum: bool = False) -> bytes:
        def damage(header: Any) -> None:
            header["__metadata__"]["transfuse_side_tables"] = value if isinstance(value, str) else json.dumps(value)
            if not has_checksum:
                del header["__metadata__"]["transfuse_side_tables_checksum"]

        return damaged(base, damage)

    other = "B" if text[0] == "A" else "A"
    yield refused(
        "side_table_changed",
        with_tables({"used": {name: other + text[1:]}, "unused": good["unused"]}, True),
        "TRF_ERR_CHECKSUM",
    )

    for label, value in (
        ("missing", {"used": {}, "unused": {}}), ("twice", {"used": {name: text}, "unused": {name: text}}),
        ("no_base64", {"used": {name: "*" * len(text)}, "unused": {}}),
        ("short", {"used": {name: text[:4]}, "unused": {}}),
        ("empty", {"used": {name: ""}, "unused": {}}), ("long", {"used": {name: text + "AAAA"}, "unused": {}}),
        ("bits_behind", {"used": {name: text[:-3] + "/=="}, "unused": {}}),
        ("null", {"used": {name: None}, "unused": {}}),
        ("huge", {"used": {name: "A" * 1_000_000}, "unused": {}}),
    ):  # fmt: skip
        yield refused(f"side_table_{label}", with_tables(value), FORMAT)


def blob_place_cases(base: bytes) -> Iterator[Case]:
    """Blobs that are not where, or what, the header says."""
    header, data = split(base)
    begin, end = header["a.weight_trf"]["data_offsets"]

    def with_bytes(at: int, new: bytes, without_kept: bool = False) -> bytes:
        changed = bytearray(data)
        changed[begin + at : begin + at + len(new)] = new
        if not without_kept:
            return safetensors(header, bytes(changed))
        plain = {key: value for key, value in header.items() if key != "__metadata__"}
        return safetensors({**plain, "__metadata__": {"transfuse_format": "1"}}, bytes(changed))

    def renamed(old: str, new: str) -> bytes:
        return damaged(base, lambda h: h.__setitem__(new, h.pop(old)))

    def member(key: str, value: Any) -> bytes:
        return damaged(base, lambda h: h["a.weight_trf"].__setitem__(key, value))

    yield refused("blob_other_magic", with_bytes(0, b"SNAS"), MAGIC, ("a.weight",))
    yield refused("blob_no_magic", with_bytes(0, bytes(4)), MAGIC, ("a.weight",))
    yield refused("blob_version_99", with_bytes(4, b"\x63\0"), VERSION, ("a.weight",))
    yield refused("blob_no_rows", with_bytes(12, bytes(4)), HEADER, ("a.weight",))
    yield refused("blob_no_dtype", with_bytes(7, b"\xff"), HEADER, ("a.weight",))
    yield refused("blob_more_rows", with_bytes(12, b"\xff\xff\xff\x7f"), FORMAT, ("a.weight",))
    yield refused("blob_expert_magic", with_bytes(0, b"SNAX"), HEADER, ("a.weight",))
    yield refused("blob_of_dtype_i8", member("dtype", "I8"), FORMAT, ("a.weight",))
    yield refused("blob_of_two_dimensions", member("shape", [2, (end - begin) // 2]), FORMAT, ("a.weight",))
    yield refused("blob_of_other_name", renamed("a.weight_trf", "b.weight_trf"), FORMAT, ("a.weight",))
    yield refused("blob_without_suffix", renamed("a.weight_trf", "a.weight"), FORMAT, ("a.weight",))
    yield refused("blob_of_plain_name", renamed("a.bias", "a.bias_trf"), FORMAT, ("a.bias",))
    # Where no header is kept the blobs say what the tensors were.
    most = b"\xff\xff\xff\xff"
    yield refused("blob_rebuilt_of_2_to_66_bytes", with_bytes(12, most + most, True), HEADER, ("a.weight",))
    yield refused("blob_rebuilt_of_2_to_64_bytes", with_bytes(12, b"\0\0\0\x80\xff\xff\xff\xff", True), HEADER,
                  ("a.weight",))  # fmt: skip
    large = with_bytes(12, b"\xff\xff\xff\x3f\xff\xff\xff\x3f", True)
    calls = {f"open {FILE}": HEADER, f"verify {FILE}": HEADER, f"load {FILE} a.weight": HEADER}
    yield Case("blob_rebuilt_of_2_to_61_bytes", put(large), calls, words=(NAME, "a.weight"))
    short = {"x_trf": tensor("U8", [16], 0, 16)}
    yield refused("blob_of_16_bytes", safetensors(short, b"SNAR" + bytes(12)), TRUNCATED, ("x_trf",))
    pair = {"x_trf": tensor("U8", [16], 0, 16), "x": tensor("U8", [16], 16, 32)}
    yield refused("blob_beside_its_plain_tensor", safetensors(pair, b"SNAR" + bytes(28)), TRUNCATED, ("x_trf",))


def expert_cases(base: bytes) -> Iterator[Case]:
    """The index of a tensor of experts: magic, count, two reserved words, an offset for each, padding."""
    header, data = split(base)
    begin = header["e.weight_trf"]["data_offsets"][0]
    first, second, third = struct.unpack_from("<3Q", data, begin + 16)

    def with_words(at: int, code: str, *words: int) -> bytes:
        changed = bytearray(data)
        struct.pack_into("<" + code, changed, begin + at, *words)
        return safetensors(header, bytes(changed))

    for name, at, code, words, status in (
        ("count_0", 4, "I", [0], HEADER), ("count_2", 4, "I", [2], HEADER), ("count_4", 4, "I", [4], HEADER),
        ("count_2_to_31", 4, "I", [1 << 31], HEADER), ("count_most", 4, "I", [(1 << 31) - 1], TRUNCATED),
        ("count_2_to_32", 4, "I", [(1 << 32) - 1], HEADER), ("reserved", 8, "I", [1], HEADER),
        ("reserved_too", 12, "I", [1], HEADER), ("first_one_more", 16, "Q", [first + 128], HEADER),
        ("first_0", 16, "Q", [0], HEADER), ("second_0", 24, "Q", [0], HEADER),
        ("second_is_first", 24, "Q", [first], HEADER), ("second_unaligned", 24, "Q", [second + 1], HEADER),
        ("second_behind_third", 24, "Q", [third + 128], HEADER),
        ("third_before_second", 32, "Q", [second - 128], HEADER),
        ("third_behind_end", 32, "Q", [1 << 40], HEADER), ("third_at_2_to_64", 32, "Q", [(1 << 64) - 128], HEADER),
        ("padding", 40, "Q", [1], HEADER), ("swapped", 24, "QQ", [third, second], HEADER),
    ):  # fmt: skip
        yield refused(f"experts_{name}", with_words(at, code, *words), status, ("e.weight",))
    inside = with_words(24, "Q", second + 128)  # aligned, and yet no blob
    calls = {f"verify {FILE}": HEADER, f"decompress {FILE} out/x": HEADER}
    yield Case("experts_second_inside_a_blob", put(inside), calls, words=(NAME, "e.weight"))
    two = damaged(base, lambda h: h["__metadata__"].__setitem__(
        "transfuse_source_header", json.dumps({"e.weight": tensor("BF16", [2, 64, 96], 0, 24576)})))  # fmt: skip
    yield refused("experts_kept_shape_of_two", two, FORMAT, ("e.weight",))
    for number in (3, 18446744073709551615, 18446744073709551616):
        call = {f"load {FILE} e.weight[{number}]": NOT_FOUND}
        yield Case(f"experts_number_{number}", put(base), call, words=(NAME, "e.weight"))


def all_cases(bases: Bases) -> list[Case]:
    assert weights() and experts_file()
    makers: tuple[Iterator[Case], ...] = (
        length_cases(), text_cases(), member_cases(), range_cases(), name_cases(), kept_cases(bases.compressed),
        side_table_cases(bases.fp8[NAME]), blob_place_cases(bases.compressed), expert_cases(bases.experts),
        adversarial_folders.all_cases(bases), adversarial_small_files.all_cases(bases),
    )  # fmt: skip
    return [case for maker in makers for case in maker]

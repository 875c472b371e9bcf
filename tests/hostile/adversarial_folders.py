# SPDX-License-Identifier: Apache-2.0
"""Folders that a stranger may have made: indexes, shards, what is no file, config.json, places of outputs."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from adversarial_files import (
    CONFIG,
    FP8_CONFIG,
    INDEX,
    NAME,
    Bases,
    Case,
    codes,
    fp8_file,
    index_of,
    safetensors,
    source_file,
    source_folder,
    source_header,
    tensor,
    text_of,
    write_folder,
)  # fmt: skip

OK, IO, NOT_FOUND, TRUNCATED = "TRF_OK", "TRF_ERR_IO", "TRF_ERR_NOT_FOUND", "TRF_ERR_TRUNCATED"
FORMAT, UNSUPPORTED, EXISTS = "TRF_ERR_FORMAT", "TRF_ERR_UNSUPPORTED", "TRF_ERR_EXISTS"
ARGUMENT, MISMATCH = "TRF_ERR_ARGUMENT", "TRF_ERR_MISMATCH"

MODEL = "in/m"
Files = dict[str, bytes]
Change = Callable[[Path], Any]


def folder(content: Files, change: Change | None = None) -> Callable[[Path], None]:
    """change: is given the model's folder."""

    def make(room: Path) -> None:
        write_folder(room / MODEL, content)
        if change:
            change(room / MODEL)

    return make


def outcome(status: str, *lines: str) -> tuple[dict[str, str], list[str]]:
    """Returns calls that all end in one way, and what is in the output then."""
    made = ["x"] if status == OK and any(" out/x" in line for line in lines) else []
    return dict.fromkeys(lines, status), made


def case(name: str, make: Callable[[Path], None], status: str, *lines: str, words: tuple[str, ...] = ()) -> Case:
    calls, made = outcome(status, *lines)
    return Case(name, make, calls, made, words=words)


# ---- what stands in the place of a file ----


def link(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def listener(path: Path) -> None:
    path.unlink(missing_ok=True)
    before = os.getcwd()
    os.chdir(path.parent)  # the address of a socket is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(before)


def subfolder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def loop(path: Path) -> None:
    link(path.parent / "other", path.name)
    link(path, "other")


def sparse(size: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_bytes(b"")
        os.truncate(path, size)

    return make


def unreadable(path: Path) -> None:
    path.chmod(0o200)
    path.parent.parent.parent.joinpath("out").chmod(0o777)


NO_FILES: dict[str, Change] = {
    "fifo": fifo, "socket": listener, "device": lambda path: link(path, "/dev/zero"),
    "null_device": lambda path: link(path, "/dev/null"), "directory": subfolder, "loop": loop,
    "dangling": lambda path: link(path, "/nonexistent/file"), "link_to_itself": lambda path: link(path, path.name),
    "link_to_its_folder": lambda path: link(path, "."), "link_to_root": lambda path: link(path, "/"),
}  # fmt: skip


def no_file_cases() -> Iterator[Case]:
    """A file of weights, an index, a tuning, an array and a layer that are no files."""
    by_kind = {"dangling": NOT_FOUND}
    for kind, make in NO_FILES.items():
        for call, name in (("open", NAME), ("layer", "a.trf"), ("tuning", "tuning.json"), ("npy", "x.npy")):
            status = by_kind.get(kind, IO)
            if call == "open" and kind in ("directory", "link_to_its_folder", "link_to_root"):
                status = NOT_FOUND  # a folder without files of weights
            line = f"{call} {MODEL}/{name}"
            yield case(f"{kind}_as_{call}", folder({name: b""}, lambda m, n=name, k=make: k(m / n)), status, line,
                       words=(MODEL,))  # fmt: skip
    for call, name in (("open", NAME), ("layer", "a.trf"), ("tuning", "tuning.json"), ("npy", "x.npy")):
        make = folder({name: b""}, lambda m, n=name: unreadable(m / n))
        yield Case(f"unreadable_as_{call}", make, {"as_other_user": OK, f"{call} {MODEL}/{name}": IO}, words=(name,))


def entry_cases(bases: Bases) -> Iterator[Case]:
    """The same in a folder: for a file of weights, an index, config.json, and a file that is carried over."""
    weights = {
        "directory": NOT_FOUND,
        "dangling": NOT_FOUND,
        "link_to_its_folder": NOT_FOUND,
        "link_to_root": NOT_FOUND,
    }
    indexes = {"dangling": NOT_FOUND, "directory": OK,
               "link_to_its_folder": UNSUPPORTED, "link_to_root": UNSUPPORTED}  # fmt: skip
    extra = {"loop": IO, "link_to_itself": IO, "directory": OK, "dangling": OK}
    config = {"loop": IO, "link_to_itself": IO, "directory": OK, "dangling": OK}
    for kind, make in NO_FILES.items():
        lines = f"compress {MODEL} out/x", f"decompress {MODEL} out/x"
        yield case(f"{kind}_as_weights_in_folder", folder(source_folder(), lambda m, k=make: k(m / NAME)),
                   weights.get(kind, IO), f"open {MODEL}", f"verify {MODEL}", *lines, words=(MODEL,))  # fmt: skip
        yield case(f"{kind}_as_index_in_folder", folder(source_folder(), lambda m, k=make: k(m / INDEX)),
                   indexes.get(kind, IO), lines[0], words=(MODEL,))  # fmt: skip
        yield case(f"{kind}_as_config", folder(source_folder(), lambda m, k=make: k(m / "config.json")),
                   config.get(kind, UNSUPPORTED), lines[0], words=(MODEL,))  # fmt: skip
        for label, files, line in (("source", source_folder(), lines[0]), ("compressed", bases.folder, lines[1])):
            content = folder({**files, "extra": b""}, lambda m, k=make: k(m / "extra"))
            yield case(f"{kind}_carried_over_of_{label}", content, extra.get(kind, UNSUPPORTED), line,
                       words=(MODEL,))  # fmt: skip


def deep(levels: int) -> Change:
    return lambda m: (m / "/".join("d" * levels)).mkdir(parents=True)


def raw_name(name: bytes) -> Change:
    return lambda m: Path(os.fsdecode(os.fsencode(m) + b"/" + name)).write_bytes(b"x")


def outside(m: Path) -> Path:
    (m.parent / "outside").mkdir()
    (m.parent / "outside/file").write_bytes(b"not the model's")
    return m.parent / "outside"


def tree_cases() -> Iterator[Case]:
    line = f"compress {MODEL} out/x"
    for name, change, status in (
        ("63_levels", deep(62), OK), ("64_levels", deep(64), UNSUPPORTED),
        ("name_of_255_bytes", raw_name(b"n" * 255), OK),
        ("name_with_line_feed", raw_name(b"a\nb"), OK), ("name_with_escape", raw_name(b"\x1b[2J"), OK),
        ("name_of_no_utf_8", raw_name(b"\xff\xfe"), OK), ("name_of_option", raw_name(b"--force"), OK),
        ("fifo_in_git", lambda m: ((m / ".git").mkdir(), fifo(m / ".git/x")), OK),
        ("fifo_below", lambda m: ((m / "d").mkdir(), fifo(m / "d/x")), UNSUPPORTED),
        ("link_to_fifo_outside", lambda m: (fifo(outside(m) / "x"), link(m / "x", "../outside/x")), UNSUPPORTED),
        ("link_to_folder_with_fifo", lambda m: (fifo(outside(m) / "x"), link(m / "d", "../outside")), UNSUPPORTED),
        ("two_links_to_each_other", lambda m: (link(m / "d", "e/x"), link(m / "e", "d/x")), IO),
        ("dangling_up", lambda m: link(m / "x", "../../../../nonexistent"), OK),
        ("link_to_long_path", lambda m: link(m / "x", "d/" * 2000), OK),
    ):  # fmt: skip
        yield case(f"tree_{name}", folder(source_folder(), change), status, line, words=(MODEL,))
    # Links that lead elsewhere are followed when they are read, and never when an output is written.
    for name, change, same in (
        ("file", lambda m: (outside(m), link(m / "x", "../outside/file")), ("in/outside/file", "out/x/x")),
        ("folder", lambda m: (outside(m), link(m / "d", "../outside")), ("in/outside/file", "out/x/d/file")),
    ):
        yield Case(f"tree_link_to_{name}_outside", folder(source_folder(), change), {line: OK}, ["x"], [same])
    for name in (NAME, INDEX, "config.json"):
        content = {**source_folder(), name: b""}
        original = source_folder()[name]

        def change(m: Path, name: str = name, original: bytes = original) -> None:
            (outside(m) / name).write_bytes(original)
            link(m / name, f"../outside/{name}")

        calls = {line: OK, "decompress out/x out/y": OK}
        same = [(f"in/outside/{name}", f"out/y/{name}")]
        yield Case(f"tree_{name}_is_link_to_outside", folder(content, change), calls, ["x", "y"], same)


# ---- indexes and shards ----

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def shards(second: dict[str, Any] | None = None, names: dict[str, Any] | None = None) -> Files:
    one = safetensors({"a": tensor()}, b"1234")
    other = safetensors(second or {"b": tensor()}, b"5678")
    return {FIRST: one, SECOND: other, INDEX: index_of(names or {"a": FIRST, "b": SECOND})}


def index_cases() -> Iterator[Case]:
    sound = dict.fromkeys(source_header(), NAME)
    one = {"a.weight": NAME}
    text = index_of(sound)
    table: dict[str, tuple[bytes, str]] = {
        "empty": (b"", FORMAT), "no_json": (b"x", FORMAT), "array": (b"[]", FORMAT),
        "string": (b'"weight_map"', FORMAT),
        "nested": (b'{"weight_map":' * 100_000, FORMAT),
        "nested_metadata": (text[:-1] + b',"x":' + b"[" * 5000, FORMAT),
        "no_map": (b'{"metadata":{}}', FORMAT), "map_array": (text_of({"weight_map": [NAME]}), FORMAT),
        "map_null": (text_of({"weight_map": None}), FORMAT), "map_text": (text_of({"weight_map": NAME}), FORMAT),
        "file_number": (index_of({**one, "a.bias": 1}), FORMAT),
        "file_null": (index_of({**one, "a.bias": None}), FORMAT),
        "file_array": (index_of({**one, "a.bias": [NAME]}), FORMAT),
        "file_empty": (index_of({**one, "a.bias": ""}), FORMAT),
        "file_absolute": (index_of({**one, "a.bias": "/etc/passwd"}), FORMAT),
        "file_up": (index_of({**one, "a.bias": f"../m/{NAME}"}), FORMAT),
        "file_below": (index_of({**one, "a.bias": f"d/{NAME}"}), FORMAT),
        "file_here": (index_of({**one, "a.bias": f"./{NAME}"}), FORMAT),
        "file_dot": (index_of({**one, "a.bias": "."}), NOT_FOUND),
        "file_dots": (index_of({**one, "a.bias": ".."}), NOT_FOUND),
        "file_missing": (index_of({**one, "a.bias": "gone.safetensors"}), NOT_FOUND),
        "file_itself": (index_of({**one, "a.bias": INDEX}), NOT_FOUND),
        "file_backslash": (index_of({**one, "a.bias": f"..\\{NAME}"}), NOT_FOUND),
        "file_long": (index_of({**one, "a.bias": "n" * 1_000_000}), NOT_FOUND),
        "file_with_escape": (index_of({**one, "a.bias": "\x1b[2J\n"}), NOT_FOUND),
        "file_with_nul": (index_of({**one, "a.bias": NAME + "\0x"}), FORMAT),
        "tensor_missing": (index_of(one), FORMAT), "tensor_elsewhere": (index_of({**sound, "c": NAME}), FORMAT),
        "tensor_long": (index_of({**sound, "n" * 1_000_000: NAME}), FORMAT),
        "tensor_twice": (text.replace(b'"a.bias"', b'"a.weight"'), FORMAT),
        "map_twice": (text[:-1] + b',"weight_map":{}}', FORMAT),
        "no_utf_8": (text.replace(b"a.bias", b"\xff.bias"), FORMAT), "nul_behind": (text + b"\0", FORMAT),
        "cut": (text[:-1], FORMAT), "second_root": (text + text, FORMAT),
        "nan": (text.replace(b"12320", b"NaN"), OK), "infinity": (text.replace(b"12320", b"-Infinity"), OK),
        "huge_number": (text.replace(b"12320", b"1" * 400), OK), "size_text": (text.replace(b"12320", b'"x"'), OK),
        "byte_order_mark": (b"\xef\xbb\xbf" + text, OK), "map_empty": (index_of({}), FORMAT),
        "all_files_missing": (index_of(dict.fromkeys(sound, "gone.safetensors")), OK),
    }  # fmt: skip
    for name, (content, status) in table.items():
        lines = f"open {MODEL}", f"open {MODEL}/{INDEX}", f"compress {MODEL} out/x"
        yield case(f"index_{name}", folder({**source_folder(), INDEX: content}), status, *lines, words=(INDEX,))
    yield case("index_of_400_mb", folder(source_folder(), lambda m: sparse(400_000_001)(m / INDEX)), FORMAT,
               f"open {MODEL}", words=(INDEX,))  # fmt: skip
    other = {**source_folder(), "model.safetensors.index.fp16.json": index_of({**one, "a.bias": "gone"})}
    yield case("index_second_one_is_wrong", folder(other), NOT_FOUND, f"open {MODEL}", words=("index.fp16",))


def shard_cases() -> Iterator[Case]:
    line = f"compress {MODEL} out/x store"
    lines = f"open {MODEL}", line
    both = {"a": tensor(), "b": tensor(begin=4, end=8)}
    twice = {**shards(), SECOND: safetensors(both, b"12345678")}
    table: dict[str, tuple[Files, Change | None, str]] = {
        "tensor_in_both": (twice, None, FORMAT),
        "tensor_in_both_without_index": ({k: v for k, v in twice.items() if k != INDEX}, None, OK),
        "swapped": (shards(names={"a": SECOND, "b": FIRST}), None, FORMAT),
        "one_for_both": (shards(names={"a": FIRST, "b": FIRST}), None, FORMAT),
        "missing": ({k: v for k, v in shards().items() if k != SECOND}, None, NOT_FOUND),
        "empty": ({**shards(), SECOND: b""}, None, TRUNCATED),
        "cut": ({**shards(), SECOND: shards()[SECOND][:-1]}, None, TRUNCATED),
        "longer": ({**shards(), SECOND: shards()[SECOND] + b"x"}, None, FORMAT),
        "is_text": ({**shards(), SECOND: b"<!DOCTYPE html><html>"}, None, FORMAT),
        "is_link_to_first": (shards(), lambda m: link(m / SECOND, FIRST), NOT_FOUND),
        "is_hard_link_of_first": (shards(), lambda m: ((m / SECOND).unlink(), os.link(m / FIRST, m / SECOND)), FORMAT),
        "is_fifo": (shards(), lambda m: fifo(m / SECOND), IO),
        "is_folder": (shards(), lambda m: subfolder(m / SECOND), NOT_FOUND),
        "is_sparse": (shards(), lambda m: sparse(64 << 30)(m / SECOND), FORMAT),
        "named_trf": ({**shards(), "x.trf": b"x"}, None, OK),
        "with_escape_in_name": ({**shards(), "\x1b[2J.safetensors": b""}, None, TRUNCATED),
    }  # fmt: skip
    for name, (files, change, status) in table.items():
        yield case(f"shard_{name}", folder(files, change), status, *lines, words=(MODEL,))


# ---- config.json ----


def quantized(config: Any) -> Files:
    told = {**CONFIG, "quantization_config": config}
    return {NAME: fp8_file(), "config.json": text_of(told)}


def config_cases() -> Iterator[Case]:
    text = text_of(CONFIG)
    line = f"compress {MODEL} out/x"
    many = b'"quantization_config":false,"transformers_weights":"x",' * 50_000
    parts = b"".join(b'"p%d":{"model_type":"m"},' % k for k in range(30_000))
    table: dict[str, tuple[bytes, str]] = {
        "empty": (b"", FORMAT), "array": (b"[]", FORMAT), "string": (b'"x"', FORMAT), "cut": (text[:-1], FORMAT),
        "nested": (b'{"a":' * 100_000, FORMAT), "nested_2000": (b'{"a":' * 2000 + b"1" + b"}" * 2000, OK),
        "no_utf_8": (text.replace(b"llama", b"\xff"), FORMAT), "nul_behind": (text + b"\0", FORMAT),
        "two_roots": (text + text, FORMAT), "comment": (b"//\n" + text, FORMAT),
        "nan": (text.replace(b"96", b"NaN"), OK), "infinity": (text.replace(b"96", b"-Infinity"), OK),
        "huge_number": (text.replace(b"96", b"9" * 5000), OK),
        "lone_surrogate": (text.replace(b"llama", b"\\ud800"), OK),
        "escaped_nul": (text.replace(b"llama", b"\\u0000"), OK), "byte_order_mark": (b"\xef\xbb\xbf" + text, OK),
        "type_object": (text.replace(b'"llama"', b'{"a":[]}'), OK),
        "dtype_array": (text.replace(b'"bfloat16"', b"[[]]"), OK),
        "members_100000_times": (b"{" + many + text[1:], OK), "parts_30000": (b"{" + parts + text[1:], OK),
        "part_twice": (b'{"a":1,"b":{},"a":{"model_type":"x"},' + text[1:], OK),
        "part_twice_first_empty": (b'{"a":{},"a":{"model_type":"x"},' + text[1:], OK),
        "quantized_null": (text[:-1] + b',"quantization_config":null}', OK),
        "quantized_text": (text[:-1] + b',"quantization_config":"x"}', UNSUPPORTED),
        "quantized_deep": (text[:-1] + b',"a":[[{"quantization_config":{}}]]}', UNSUPPORTED),
        "says_transfuse": (text[:-1] + b',"quantization_config":{"quant_method":"transfuse"}}', ARGUMENT),
    }  # fmt: skip
    for name, (content, status) in table.items():
        make = folder({**source_folder(), "config.json": content})
        if status == OK:
            calls, same = {line: OK, "decompress out/x out/y": OK}, [("in/m/config.json", "out/y/config.json")]
            yield Case(f"config_{name}", make, calls, ["x", "y"], same)
        else:
            yield case(f"config_{name}", make, status, line, words=(MODEL,))
    yield case("config_of_16_mb", folder(source_folder(), lambda m: sparse((16 << 20) + 1)(m / "config.json")), FORMAT,
               line, words=("config.json",))  # fmt: skip


def fp8_config_cases() -> Iterator[Case]:
    line = f"compress {MODEL} out/x"
    groups = {
        "quant_method": "compressed-tensors",
        "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}},
    }
    bomb = "re:" + "(" * 4 + "a" + "{1,255})" * 4

    def block(value: Any) -> dict[str, Any]:
        return {**FP8_CONFIG, "weight_block_size": value}

    def group(**more: Any) -> dict[str, Any]:
        return {**groups, "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float", **more}}}}

    table: dict[str, tuple[Any, str]] = {
        "method_number": ({"quant_method": 8}, UNSUPPORTED),
        "method_long": ({"quant_method": "n" * 100_000}, UNSUPPORTED),
        "method_with_escape": ({"quant_method": "\x1b[2J"}, UNSUPPORTED),
        "fmt_long": ({**FP8_CONFIG, "fmt": "e" * 5000}, UNSUPPORTED),
        "block_text": (block("128"), UNSUPPORTED), "block_one_side": (block([128]), UNSUPPORTED),
        "block_three_sides": (block([128, 128, 128]), UNSUPPORTED), "block_oblong": (block([128, 64]), UNSUPPORTED),
        "block_zero": (block([0, 0]), UNSUPPORTED), "block_negative": (block([-128, -128]), UNSUPPORTED),
        "block_nan": (block([float("nan")] * 2), UNSUPPORTED),
        "block_infinite": (block([float("inf")] * 2), UNSUPPORTED),
        "block_huge": (block([1e300, 1e300]), UNSUPPORTED), "block_2_to_32": (block([1 << 32, 1 << 32]), UNSUPPORTED),
        "block_17": (block([17, 17]), UNSUPPORTED), "block_16_and_a_half": (block([16.5, 16.5]), UNSUPPORTED),
        "block_text_in_group": (group(strategy="block", block_structure="128"), UNSUPPORTED),
        "block_text_hexadecimal": (group(strategy="block", block_structure="0x80x0x80"), UNSUPPORTED),
        "block_text_nan": (group(strategy="block", block_structure="nanxnan"), UNSUPPORTED),
        "group_bits_huge": (group(num_bits=1e300), UNSUPPORTED),
        "group_null": ({**groups, "config_groups": {"g": None}}, UNSUPPORTED),
        "groups_array": ({**groups, "config_groups": [1]}, UNSUPPORTED),
        "zero_points": (group(symmetric=False), UNSUPPORTED),
        "ignore_number": ({**groups, "ignore": 7}, OK), "ignore_mixed": ({**groups, "ignore": [7, None, {}, ""]}, OK),
        "ignore_stars": ({**groups, "ignore": ["*a" * 5000 + "b"]}, OK),
        "ignore_long": ({**groups, "ignore": ["n" * 1_000_000, "re:" + "n" * 1_000_000]}, OK),
        "ignore_bad_pattern": ({**groups, "ignore": ["re:(", "re:[", "re:*", "re:a{2,1}", "re:\\"]}, OK),
        "ignore_nested_pattern": ({**groups, "ignore": ["re:" + "(" * 500 + "a" + ")" * 500]}, OK),
        "ignore_nested_stars": ({**groups, "ignore": ["re:" + "(" * 300 + "a" + "*)" * 300]}, OK),
        "ignore_pattern_of_gigabytes": ({**groups, "ignore": [bomb]}, OK),
        "ignore_pattern_of_32767": ({**groups, "ignore": ["re:(a{32767}){32767}"]}, OK),
        "ignore_pattern_of_steps": ({**groups, "ignore": ["re:(a|b)*a" + "(a|b)" * 150]}, OK),
    }  # fmt: skip
    for name, (config, status) in table.items():
        words = (MODEL,) if status != OK else ()
        yield case(f"fp8_{name}", folder(quantized(config)), status, line, words=words)
    for kind in ("fifo", "device", "directory", "loop", "dangling"):
        content = folder(
            {**source_folder(), "hf_quant_config.json": b""}, lambda m, k=kind: NO_FILES[k](m / "hf_quant_config.json")
        )
        expected = {"dangling": OK, "loop": IO}.get(kind, UNSUPPORTED)
        yield case(f"fp8_{kind}_as_modelopt_file", content, expected, line, words=(MODEL,))
    for name, dtype, shape, size in (
        ("of_two_rows", "F32", [2], 8), ("of_nothing", "F32", [0], 0), ("of_columns", "F32", [1, 96], 384),
        ("of_blocks", "F32", [1, 1, 2], 8), ("of_dtype_i32", "I32", [1], 4), ("of_dtype_f64", "F64", [1], 8),
    ):  # fmt: skip
        header = {
            "b.weight": tensor("F8_E4M3", [64, 96], 0, 6144),
            "b.weight_scale": tensor(dtype, shape, 6144, 6144 + size),
        }
        content = {**quantized(FP8_CONFIG), NAME: safetensors(header, codes() + bytes(size))}
        yield case(f"fp8_scale_{name}", folder(content), UNSUPPORTED, line, words=(MODEL,))


def layout_cases() -> Iterator[Case]:
    """Sizes of a model in config.json that a KV cache depends on."""
    for field in ("num_hidden_layers", "num_attention_heads", "hidden_size"):
        for name, value in (
            ("missing", None), ("zero", 0), ("negative", -1), ("half", 1.5), ("nan", float("nan")), ("huge", 1e308),
            ("2_to_53", 1 << 53), ("2_to_64", 1 << 64), ("text", "4"), ("array", [4]),
        ):  # fmt: skip
            content = {**source_folder(), "config.json": text_of({**CONFIG, field: value})}
            yield case(f"layouts_{field}_{name}", folder(content), UNSUPPORTED, f"layouts {MODEL}", words=(field,))


# ---- compressed folders ----


def compressed_cases(bases: Bases) -> Iterator[Case]:
    base = bases.folder
    config = json.loads(base["config.json"])
    index = json.loads(base[INDEX])
    line = f"decompress {MODEL} out/x"

    def kept(value: Any) -> Files:
        told = {**config, "quantization_config": {**config["quantization_config"], "source_config": value}}
        return {**base, "config.json": text_of(told)}

    def kept_index(value: Any) -> Files:
        return {**base, INDEX: text_of({**index, "metadata": {**index["metadata"], "transfuse_source_index": value}})}

    for name, value in (("null", None), ("number", 1), ("empty", ""), ("no_json", "x"), ("array", []),
                        ("nested", "[" * 5000), ("nul", "{}\0{}"), ("long", "x" * 500_000)):  # fmt: skip
        yield case(f"kept_config_{name}", folder(kept(value)), FORMAT, line, f"verify {MODEL}", words=("config.json",))
    up = {"weight_map": {"a.weight": "../../x.safetensors", "a.bias": "/x.safetensors"}}
    for name, value, status in (
        ("empty", "", FORMAT),
        ("no_json", "x", FORMAT),
        ("nested", "[" * 5000, FORMAT),
        ("no_map", "{}", FORMAT),
        ("files_up", json.dumps(up), FORMAT),
        ("other_tensors", index_of({"x": NAME}).decode(), FORMAT),
        ("other_files", index_of(dict.fromkeys(source_header(), "gone.safetensors")).decode(), NOT_FOUND),
    ):
        status = FORMAT if status == NOT_FOUND else status
        yield case(f"kept_index_{name}", folder(kept_index(value)), status, line, f"verify {MODEL}", words=(INDEX,))
    source = {**source_folder()}
    for name, change in (
        ("fifo", lambda room: fifo(room / "in/s/extra")), ("loop", lambda room: loop(room / "in/s/extra")),
        ("device", lambda room: link(room / "in/s/extra", "/dev/zero")),
        ("missing", lambda room: (room / "in/s/extra").unlink()),
        ("other", lambda room: (room / "in/s/extra").write_bytes(b"y")),
    ):  # fmt: skip

        def make(room: Path, change: Change = change) -> None:
            write_folder(room / MODEL, {**base, "extra": b"x"})
            write_folder(room / "in/s", {**source, "extra": b"x"})
            change(room)

        status = {"missing": OK, "loop": IO, "other": MISMATCH}.get(name, UNSUPPORTED)
        yield Case(f"against_{name}", make, {f"verify {MODEL} in/s": status}, words=("in/",))


# ---- places of outputs, and files that change ----


def output_cases() -> Iterator[Case]:
    source = f"in/{NAME}"

    def with_out(change: Change) -> Callable[[Path], None]:
        def make(room: Path) -> None:
            (room / source).write_bytes(source_file())
            (room / "in/keep").write_bytes(b"keep")
            change(room / "out")

        return make

    def model_with_out(change: Change) -> Callable[[Path], None]:
        def make(room: Path) -> None:
            write_folder(room / MODEL, source_folder())
            (room / "in/keep").write_bytes(b"keep")
            (room / "out/x").mkdir()
            change(room / "out/x")

        return make

    for name, change, status, path in (
        ("fifo", lambda out: fifo(out / "x"), EXISTS, "x"), ("socket", lambda out: listener(out / "x"), EXISTS, "x"),
        ("device", lambda out: link(out / "x", "/dev/null"), EXISTS, "x"),
        ("dangling", lambda out: link(out / "x", "../in/new"), NOT_FOUND, "x"),
        ("loop", lambda out: link(out / "x", "x"), IO, "x"),
        ("folder", lambda out: subfolder(out / "x"), EXISTS, "x"),
        ("under_file", lambda out: (out / "x").write_bytes(b"x"), IO, "x/y"),
        ("in_missing_folder", lambda out: (out / "x").write_bytes(b"x"), IO, "z/y"),
        ("dots", lambda out: subfolder(out / "x"), ARGUMENT, "x/.."),
        ("dot", lambda out: subfolder(out / "x"), ARGUMENT, "x/."),
        ("weights", lambda out: (out / "x").write_bytes(safetensors({"z": tensor()}, b"1234")), EXISTS, "x"),
    ):  # fmt: skip
        yield Case(f"output_{name}", with_out(change), {f"compress {source} out/{path} overwrite": status}, ["x"])
    long = "n" * 300
    yield Case("output_long_name", with_out(lambda out: None), {f"compress {source} out/{long}": IO})
    for name, change, status in (
        ("fifo_in_it", lambda x: fifo(x / "z"), EXISTS),
        ("link_in_it", lambda x: link(x / "z", "../../in/keep"), EXISTS),
        ("loop_in_it", lambda x: loop(x / "z"), EXISTS), ("file_in_it", lambda x: (x / "z").write_bytes(b"z"), EXISTS),
        ("config_is_link", lambda x: link(x / "config.json", "../../in/keep"), OK),
        ("weights_are_link", lambda x: link(x / NAME, "../../in/keep"), OK),
        ("temporaries_are_links", lambda x: link(x.parent / "x.transfuse-tmp-00000000", "../in/keep"), OK),
        ("journal_is_fifo", lambda x: fifo(x.parent / "x.transfuse-resume-00000000"), OK),
    ):  # fmt: skip
        resume = "overwrite,resume" if name == "journal_is_fifo" else "overwrite"
        made = {"temporaries_are_links": ["x", "x.transfuse-tmp-00000000"],
                "journal_is_fifo": ["x", "x.transfuse-resume-00000000"]}.get(name, ["x"])  # fmt: skip
        yield Case(f"output_{name}", model_with_out(change), {f"compress {MODEL} out/x {resume}": status}, made)
    for line, path in (("compress", "in/x.safetensors/y"), ("compress", f"in/{NAME}"), ("extract", "")):
        if line == "compress":
            status = IO if path.endswith("y") else ARGUMENT
            yield Case(f"output_{path.rpartition('/')[2]}_of_input", with_out(lambda out: None),
                       {f"compress {source} {path} overwrite": status})  # fmt: skip


def put(room: Path, content: bytes) -> None:
    (room / f"in/{NAME}").write_bytes(content)


def change_cases(bases: Bases) -> Iterator[Case]:
    """Files whose size changes while they are read."""
    source, size = source_file(), len(source_file())
    compressed = bases.compressed
    for name, content, call, bytes_then, status in (
        ("cut", source, "compress", 9000, TRUNCATED),
        ("emptied", source, "compress", 0, TRUNCATED),
        ("longer", source, "compress", size + 1, IO),
        ("sparse", source, "compress", 1 << 36, IO),
        ("cut", compressed, "decompress", 4000, TRUNCATED),
        ("emptied", compressed, "decompress", 0, TRUNCATED),
        ("longer", compressed, "decompress", len(compressed) + 1, IO),
    ):
        path = f"in/{NAME}"
        calls = {f"arm {path} {bytes_then}": OK, f"{call} {path} out/x": status}
        yield Case(f"change_{call}_{name}", lambda room, c=content: put(room, c), calls, words=(NAME,))


def all_cases(bases: Bases) -> Iterator[Case]:
    for make in (no_file_cases, tree_cases, index_cases, shard_cases, config_cases, fp8_config_cases, layout_cases,
                 output_cases):  # fmt: skip
        yield from make()
    for with_bases in (entry_cases, compressed_cases, change_cases):
        yield from with_bases(bases)

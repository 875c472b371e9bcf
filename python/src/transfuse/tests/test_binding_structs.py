# SPDX-License-Identifier: Apache-2.0
"""The structs and enums of this package are those of the public headers, which a C compiler is asked about.

TRF_SOURCE_DIR names the source tree whose headers they are; without it, or without a compiler, this is skipped.
"""

from __future__ import annotations

import ctypes
import enum
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import transfuse
from transfuse import _structs as s
from transfuse._library import library

_HEADERS = ("transfuse.h", "transfuse/checkpoints.h", "transfuse/device_memory.h", "transfuse/layouts.h")
_STRUCTS = {
    "trf_error": s.ErrorStruct,
    "trf_build_info": s.BuildInfoStruct,
    "trf_matrix": s.MatrixStruct,
    "trf_encode_options": s.EncodeOptionsStruct,
    "trf_layer_report": s.LayerReportStruct,
    "trf_layer_info": s.LayerInfoStruct,
    "trf_layer_size": s.LayerSizeStruct,
    "trf_layer_memory": s.LayerMemoryStruct,
    "trf_device_matrix": s.DeviceMatrixStruct,
    "trf_device_layer_info": s.DeviceLayerInfoStruct,
    "trf_limits": s.LimitsStruct,
    "trf_checkpoint_options": s.CheckpointOptionsStruct,
    "trf_left_tensors": s.LeftTensorsStruct,
    "trf_checkpoint_report": s.CheckpointReportStruct,
    "trf_tensor_info": s.TensorInfoStruct,
    "trf_layout_layer": s.LayoutLayerStruct,
    "trf_layouts_options": s.LayoutsOptionsStruct,
    "trf_layouts_choice": s.LayoutsChoiceStruct,
    "trf_layout_set_options": s.LayoutSetOptionsStruct,
    "trf_layout_set_info": s.LayoutSetInfoStruct,
}
_ENUMS: dict[str, type[enum.IntEnum]] = {
    "TRF_DTYPE_": s.Dtype,
    "TRF_CODEC_": s.Codec,
    "TRF_GRANULARITY_": s.GranularityKind,
    "TRF_FAVOR_": s.Favor,
    "TRF_LAYOUT_": s.Layout,
    "TRF_LEFT_": s.LeftReason,
    "": transfuse.Status,
}


def _ctypes_values() -> dict[str, int]:
    values = {}
    for name, struct in _STRUCTS.items():
        values[f"sizeof({name})"] = ctypes.sizeof(struct)
        for field in struct._fields_:
            place = getattr(struct, field[0])
            values[f"offsetof({name}, {field[0]})"] = place.offset
            values[f"sizeof((({name} *)0)->{field[0]})"] = place.size
    for prefix, members in _ENUMS.items():
        for member in members:
            values[prefix + member.name] = member.value
    values["TRF_LEFT_COUNT"] = len(s.LeftReason)
    values["TRF_STATUS_COUNT"] = len(transfuse.Status)
    values["TRF_LAYOUTS"] = s.LAYOUTS
    values["TRF_NO_OFFSET == UINT64_MAX"] = int(s.NO_OFFSET == 2**64 - 1)
    return values


def _read_header() -> str:
    """Returns the headers without their comments."""
    if "TRF_SOURCE_DIR" not in os.environ:
        pytest.skip("there is no TRF_SOURCE_DIR")
    include = Path(os.environ["TRF_SOURCE_DIR"]) / "include"
    text = "".join((include / name).read_text() for name in _HEADERS)
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def _read_fields(text: str, struct: str) -> list[str]:
    """Returns the names of a struct's fields, in their order; several may stand in one declaration."""
    body = re.search(rf"typedef struct {struct} \{{(.*?)\}} {struct};", text, re.S)
    assert body, struct
    declarations = [re.sub(r"\[[^\]]+\]", "", part) for part in body[1].split(";") if part.strip()]
    return [re.findall(r"\w+", name)[-1] for declaration in declarations for name in declaration.split(",")]


def test_nothing_is_missing() -> None:
    text = _read_header()
    for name, struct in _STRUCTS.items():
        assert _read_fields(text, name) == [field[0] for field in struct._fields_], name
    for prefix, members in _ENUMS.items():
        if prefix:
            found = dict(re.findall(rf"\b{prefix}(?!COUNT\b)(\w+) = (\d+)", text))
            assert {key: int(value) for key, value in found.items()} == {m.name: m.value for m in members}, prefix


def test_same_as_the_header(tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if "TRF_SOURCE_DIR" not in os.environ or not compiler:
        pytest.skip("there is no TRF_SOURCE_DIR, or no C compiler")
    wanted = _ctypes_values()
    lines = "".join(f'    printf("%lld\\n", (long long)({expression}));\n' for expression in wanted)
    program = tmp_path / "values.c"
    includes = "".join(f"#include <{name}>\n" for name in ("stdio.h", *_HEADERS))
    program.write_text(f"{includes}int main(void) {{\n{lines}    return 0;\n}}\n")
    include = Path(os.environ["TRF_SOURCE_DIR"]) / "include"
    subprocess.run([compiler, f"-I{include}", program, "-o", tmp_path / "values"], check=True)
    printed = subprocess.run([tmp_path / "values"], capture_output=True, text=True, check=True).stdout.split()
    assert dict(zip(wanted, map(int, printed))) == wanted


def test_structs_are_as_large_as_the_library_thinks() -> None:
    for name, struct in (
        ("trf_matrix_init", s.MatrixStruct),
        ("trf_encode_options_init", s.EncodeOptionsStruct),
        ("trf_checkpoint_options_init", s.CheckpointOptionsStruct),
        ("trf_limits_init", s.LimitsStruct),
        ("trf_layout_layer_init", s.LayoutLayerStruct),
        ("trf_layouts_options_init", s.LayoutsOptionsStruct),
        ("trf_layout_set_options_init", s.LayoutSetOptionsStruct),
    ):
        filled = struct()
        getattr(library(), name)(ctypes.byref(filled))
        assert filled.struct_bytes == ctypes.sizeof(struct), name


def test_names_of_statuses() -> None:
    lib = library()
    lib.trf_status_name.restype = ctypes.c_char_p
    assert [lib.trf_status_name(status.value).decode() for status in transfuse.Status] == list(
        transfuse.Status.__members__
    )
    assert transfuse.__version__ == lib.trf_version().decode()

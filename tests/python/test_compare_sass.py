# SPDX-License-Identifier: Apache-2.0
"""tools/compare_sass.py on made-up listings: what it reads of them, how it pairs kernels, and what it reports."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "compare_sass.py"
SPEC = importlib.util.spec_from_file_location("compare_sass", TOOL)
compare_sass = importlib.util.module_from_spec(SPEC)
sys.modules["compare_sass"] = compare_sass  # dataclasses look their module up
SPEC.loader.exec_module(compare_sass)

needs_demangler = pytest.mark.skipif(not shutil.which("c++filt"), reason="there is no c++filt")


def mangle(file: str, function: str, type_name: str) -> str:
    """The name of a kernel in the unnamed namespace of a file: `template <bool> void function(type_name, x)`."""
    namespace = f"_GLOBAL__N__b32df634_{len(file)}_{file}_79a79b42"
    return f"_ZN{len(namespace)}{namespace}{len(function)}{function}ILb0EEEv{len(type_name)}{type_name}NS_1xE"


KERNEL = mangle("edges_a_cu", "edges", "trf_slice")
MEANING = "void (anonymous namespace)::edges<false>(trf_slice, (anonymous namespace)::x)"


def listing(
    name: str,
    code: str = "IADD R1, R2, 0x10",
    called: str = "_Z3onev",
    registers: int = 32,
    arch: str = "sm_90a",
    common: int = 0,
) -> str:
    return f"""
Fatbin elf code:
================
arch = {arch}
code version = [1,8]

Resource usage:
 Common:
  GLOBAL:{common} CONSTANT[3]:8
 Function {name}:
  REG:{registers} STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:768 TEXTURE:0 SURFACE:0 SAMPLER:0

\tcode for {arch}
\t.target\t{arch}

\t\tFunction : {name}
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   {code} ;      /* 0x00000a00ff017624 */
                                                 /* 0x000fe400078e00ff */
        /*0010*/                   CALL.REL `({called}) ;  /* 0x00006300ff007a0c */
                                                 /* 0x000fe20003f05270 */
\t\t..........


"""


def build_of(*texts: str, renames: tuple = ()) -> dict:
    kernels, modules = [], []
    for text in texts:
        found, module = compare_sass.parse_dump(line.encode() for line in text.splitlines(keepends=True))
        kernels += found
        modules.append(module)
    names = compare_sass.demangle("c++filt", [name for kernel in kernels for name in (kernel.name, *kernel.names)])
    return compare_sass.collect(kernels, modules, compare_sass.rename(names, renames))


def test_reads_listings() -> None:
    lines = (listing(KERNEL, common=4) + listing(KERNEL, arch="sm_80")).encode().splitlines(keepends=True)
    kernels, modules = compare_sass.parse_dump(lines)
    assert [(kernel.arch, kernel.name, kernel.instructions) for kernel in kernels] == [
        ("sm_90a", KERNEL, 2),
        ("sm_80", KERNEL, 2),
    ]
    assert kernels[0].names == ["`(_Z3onev)"] and kernels[0].code == kernels[1].code
    assert dict(kernels[0].resources) == {
        "REG": 32,
        "STACK": 0,
        "SHARED": 1024,
        "LOCAL": 0,
        "CONSTANT[0]": 768,
        "TEXTURE": 0,
        "SURFACE": 0,
        "SAMPLER": 0,
    }
    assert modules == {
        ("sm_90a", "GLOBAL"): 4,
        ("sm_90a", "CONSTANT[3]"): 8,
        ("sm_80", "GLOBAL"): 0,
        ("sm_80", "CONSTANT[3]"): 8,
    }


def test_leaves_out_padding() -> None:
    padded = listing(KERNEL).replace(" ;  /*", f" ;{40 * ' '}/*").replace("ff */\n", "ff */    \n")
    assert padded != listing(KERNEL)
    assert compare_sass.compare(build_of(listing(KERNEL)), build_of(padded))[0] == []


def test_leaves_out_file_hashes() -> None:
    without = compare_sass.without_file_hashes
    assert without("a_INTERNAL_b32df634_10_edges_a_cu_79a79b42_77b") == "a_INTERNALb"
    assert without("_GLOBAL__N__b32df634_10_edges_a_cu_79a79b42::f") == "_GLOBAL__N_::f"
    assert without("$__internal_16_$__cuda_sm70_warpsync") == "$__internal_$__cuda_sm70_warpsync"
    assert without("trf_INTERNAL_deadbeef_99_short") == "trf_INTERNAL_deadbeef_99_short"


def test_reads_renames() -> None:
    assert compare_sass.read_renames("# table\nold_a new_a\n\n old_b\tnew_b # why\n") == [
        ("old_a", "new_a"),
        ("old_b", "new_b"),
    ]
    with pytest.raises(ValueError, match="only_one"):
        compare_sass.read_renames("only_one\n")


def test_renames_whole_identifiers_at_once() -> None:
    names = {"m": "void a::ab<b, (a)1>(b*, $a)"}
    assert compare_sass.rename(names, [("a", "b"), ("b", "a")]) == {"m": "void b::ab<a, (b)1>(a*, $a)"}
    assert compare_sass.rename(names, []) == names


@needs_demangler
def test_pairs_kernels_across_files_and_names() -> None:
    old = build_of(listing(KERNEL))
    assert ("sm_90a", MEANING) in old
    moved = build_of(listing(mangle("edges_bb_cu", "edges", "trf_slice")))
    assert compare_sass.compare(old, moved) == (
        [],
        "1 kernels are the same, 0 differ, 0 are only in OLD, 0 only in NEW (sm_90a)",
    )
    renamed = build_of(listing(mangle("edges_bb_cu", "trf_edges", "trf_cut"), called="_Z5firstv"))
    assert len(compare_sass.compare(old, renamed)[0]) == 2
    renames = (("edges", "trf_edges"), ("trf_slice", "trf_cut"), ("one", "first"))
    assert compare_sass.compare(build_of(listing(KERNEL), renames=renames), renamed)[0] == []


@needs_demangler
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"code": "IADD R1, R2, 0x11"}, "code of 2 instructions"),
        ({"code": "NOP ;\n        /*0008*/ NOP"}, "2 -> 3 instructions"),
        ({"called": "_Z3twov"}, "names in the code"),
        ({"registers": 40}, "REG 32 -> 40"),
    ],
)
def test_reports_what_differs(changed: dict, said: str) -> None:
    lines, summary = compare_sass.compare(build_of(listing(KERNEL)), build_of(listing(KERNEL, **changed)))
    assert lines == [f"differs: sm_90a {MEANING}: {said}"]
    assert summary.startswith("0 kernels are the same, 1 differ,")


@needs_demangler
def test_reports_other_differences() -> None:
    one, two = listing("_Z3onev"), listing("_Z3twov")
    lines, summary = compare_sass.compare(build_of(one), build_of(two))
    assert lines == ["only in OLD: sm_90a one()", "only in NEW: sm_90a two()"]
    assert summary == "0 kernels are the same, 0 differ, 1 are only in OLD, 1 only in NEW (sm_90a)"
    # Copies of a kernel are one; variants of it are several.
    assert compare_sass.compare(build_of(one), build_of(one, one))[0] == [
        f"differs: sm_90a {compare_sass.MODULES}: CONSTANT[3] 8 -> 16"
    ]
    lines, _ = compare_sass.compare(build_of(one, listing("_Z3onev", registers=8)), build_of(one, one))
    assert lines == ["differs: sm_90a one(): 2 variants -> 1"]
    lines, summary = compare_sass.compare(build_of(one), build_of(listing("_Z3onev", common=12)))
    assert lines == [f"differs: sm_90a {compare_sass.MODULES}: GLOBAL 0 -> 12"]
    assert summary.endswith("; memory of no kernel differs")

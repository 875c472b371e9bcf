# SPDX-License-Identifier: Apache-2.0
"""Every public function that can fail is called in a test in which what it calls fails; so is every call of CUDA.

A function can fail if it returns a trf_status. On the CPU the tests are those of failing allocations and the acts that
they do; on a GPU it is the list of tests/gpu/gpu_failing_runtime.c, under the same acts.
Usage: test_failing_functions.py [--root DIR]
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from repository_files import ROOT, read_text, report

ACTS = "tests/common/device_acts.c"
RUNTIME = "tests/gpu/gpu_failing_runtime.c"

# Calls of CUDA that are not made to fail.
CUDA_WITHOUT_FAILURE = {
    "cudaDriverGetVersion": "only after a failure, for its message",
    "cudaGetErrorName": "gives a text",
    "cudaGetErrorString": "gives a text",
    "cudaLaunchKernelEx": "a template over cudaLaunchKernelExC",
}


def find_failing(root: Path) -> set[str]:
    """Returns the public functions that return a status."""
    headers = [read_text(path) for path in sorted((root / "include").rglob("*.h"))]
    return set(re.findall(r"\bTRF_API\s+trf_status\s+(trf_\w+)\(", "\n".join(headers)))


def find_calls(text: str, prefix: str) -> set[str]:
    """Returns the names with this prefix that are called, comments aside."""
    code = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    return set(re.findall(rf"\b({prefix}\w+)\(", code))


def find_tried(root: Path) -> set[str]:
    tests = sorted((root / "tests/unit").glob("test_*.c"))
    marked = [text for text in map(read_text, tests) if "TRF_TEST_WRAPS_ALLOCATIONS" in text]
    return find_calls("\n".join([read_text(root / ACTS), *marked]), "trf_")


def find_cuda_calls(root: Path) -> set[str]:
    names: set[str] = set()
    for folder in ("decoder_gpu", "fused", "packing", "runtime"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".c", ".h", ".cu", ".cuh"):
                names |= find_calls(read_text(path), "cuda[A-Z]")
    return names


def find_wrapped(text: str) -> set[str]:
    return set(re.findall(r"^(?:FAILS|MAKES|FREES|WAITS|TELLS)\((\w+),", text, flags=re.MULTILINE))


def compare(can_fail: set[str], tried: set[str], exempt: dict[str, str], place: str) -> list[str]:
    """Returns a line for each name that is not tried, and for each that need not be exempt."""
    lines = [f"{name} can fail, and is not tried: see {place}" for name in sorted(can_fail - tried - set(exempt))]
    lines += [f"{name} is exempt, and tried: see {place}" for name in sorted(set(exempt) & tried)]
    return lines + [f"{name} is exempt, and nothing has it" for name in sorted(set(exempt) - can_fail)]


def test_compares() -> None:
    assert find_calls("a = trf_a(1); /* trf_b() */ trf_c; // trf_d()\n trf_e (", "trf_") == {"trf_a"}
    assert find_wrapped("FAILS(cudaA, (int a), (a))\n#define FAILS(name, x)\nFREES(cudaB, (int b), b)") == {
        "cudaA",
        "cudaB",
    }
    assert compare({"a", "b", "c"}, {"a", "d"}, {"c": "why"}, "it") == ["b can fail, and is not tried: see it"]
    assert len(compare({"a"}, {"a"}, {"a": "why", "z": "why"}, "it")) == 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--build", type=Path, help="not used: every test of this folder gets it")
    parser.add_argument("--nm", help="not used either")
    options = parser.parse_args()
    test_compares()

    can_fail, cuda = find_failing(options.root), find_cuda_calls(options.root)
    lines = compare(can_fail, find_tried(options.root), {}, ACTS)
    lines += compare(cuda, find_wrapped(read_text(options.root / RUNTIME)), CUDA_WITHOUT_FAILURE, RUNTIME)
    return report(lines, f"{len(can_fail)} public functions that can fail, {len(cuda)} of CUDA; {len(lines)} findings")


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The library writes device memory in the order of a stream that it names.

cudaMemset, and cudaMemcpy from memory of the host that is not page-locked, return before the bytes are there. They are
in the order of the default stream, for which the library's own streams do not wait, so a kernel on one of these may
come first. cudaMemcpyAsync and cudaMemsetAsync on the kernel's stream cannot be overtaken.
Usage: test_stream_order.py [--root DIR]; other arguments are those that every test here gets.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import c_tokens
from repository_files import C_SUFFIXES, ROOT, list_files, read_text, report

FOLDERS = ("decoder_gpu/", "fused/", "packing/", "runtime/", "python/torch_ops/")
EXEMPT = {"runtime/device/trf_device_memory_cuda.c": "waits for the device before the copy and after it"}


def find_unordered(text: str) -> list[tuple[int, str]]:
    """Returns the lines of calls that write device memory in no stream's order but the default one's, and their names.

    A copy to the host alone is none of them: it returns when the bytes are there.
    """
    tokens, _ = c_tokens.tokenize(text)
    found = []
    for at, token in enumerate(tokens):
        if not token.text.startswith(("cudaMemset", "cudaMemcpy")) or "Async" in token.text:
            continue
        rest = [following.text for following in tokens[at + 1 :]]
        if rest[:1] == ["("] and "cudaMemcpyDeviceToHost" not in rest[: rest.index(";")]:
            found.append((token.line, token.text))
    return found


def test_finds() -> None:
    assert find_unordered("a;\ncudaMemset(p, 0, 1);\ncudaMemsetAsync(p, 0, 1, s); /* cudaMemset(p) */") == [
        (2, "cudaMemset")
    ]
    assert find_unordered("e = cudaMemcpy(p, &h,\n 8, cudaMemcpyHostToDevice);") == [(1, "cudaMemcpy")]
    assert find_unordered("cudaMemcpy2D(p, 1, q, 1, 1, 1, kind);") == [(1, "cudaMemcpy2D")]
    assert not find_unordered("cudaMemcpy(&h, p, 8, cudaMemcpyDeviceToHost); cudaMemcpyAsync(p, q, 8, kind, s);")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    options, _ = parser.parse_known_args()
    test_finds()

    names = [name for name in list_files(options.root) if name.startswith(FOLDERS) and name.endswith(C_SUFFIXES)]
    lines = [f"{name} is exempt, and there is no such file" for name in sorted(set(EXEMPT) - set(names))]
    for name in names:
        found = find_unordered(read_text(options.root / name))
        if name in EXEMPT:
            lines += [] if found else [f"{name} is exempt, and has no such call"]
        else:
            lines += [f"{name}:{line}: {call} is in no order with the library's streams" for line, call in found]
    return report(lines, f"{len(names)} files; {len(lines)} findings", has_checked=bool(names))


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Runs the snippets of a page in order, in the working folder: Python in one namespace, and shell line by line.

Usage: run_page_blocks.py BLOCKS.json      a list of {"language": "python" or "sh", "line": N, "text": "..."}
tests/python/test_page_snippets.py calls it, with the Python that a reader would have.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    blocks = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        print(f"== line {block['line']}", flush=True)
        start = time.perf_counter()
        if block["language"] == "python":
            # The page's own line numbers in tracebacks.
            source = "\n" * block["line"] + block["text"]
            exec(compile(source, block["page"], "exec"), namespace)
        else:
            print(f"$ {block['text']}", flush=True)
            done = subprocess.run(["bash", "-ec", block["text"]])
            if done.returncode != 0:
                sys.exit(f"{block['page']}: line {block['line']}: exit status {done.returncode}: {block['text']}")
        print(f"== {time.perf_counter() - start:.2f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Measures one model: compares a compressed checkpoint that make_model.py has made with the same model in BF16.

Usage: measure_model.py MODEL FOLDER --rows a,b,... [--out FILE] [--scale tiny] ...

Each row writes lines of JSON, with what it measured as `value` and, where there is a bound, `must` and `pass`: a
weights that differ after loading; b logits in exact mode; c memory; d load time (needs --plain, the source); e decoding
of a dense model; f prefill; g decoding and prefill of a model with experts; h decoding of a model that BF16 has no room
for; i the host's time for a call; j LoRA's gradients; k load-free cycles; m decoding and prefill of a model with packed
experts; q decoding of eager steps in a CUDA graph, for a first look. A row that fails writes a line with its traceback,
and the next row follows; a row that has ended writes `done`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import make_model
import measure_leaks
import measure_memory
import measure_same
import measure_speed
import transfuse  # noqa: F401  (registers the quantizer)
from model_session import Session
from transformers.utils import logging


def measure_quickly(session: Session) -> None:
    """q: decoding at each batch, eager steps in a CUDA graph: nothing is compiled, seconds in place of minutes."""
    for batch in (1, 8, 16, 32):
        measure_speed.measure_decoding(session, "q", batch, None, mode="graph")


def measure_dense(session: Session) -> None:
    """e: decoding at each batch, by the loop, and at batch 1 by generate, too."""
    must = measure_speed.DECODE_MUST
    for batch in session.options.batches if session.takes("loop", True) else ():
        measure_speed.measure_decoding(session, "e", batch, must.get(batch))
    for batch in session.options.generate_batches if session.takes("generate", True) else ():
        measure_speed.measure_generate(session, "e", batch, must.get(batch))


def measure_prompts(session: Session) -> None:
    """f: prefill."""
    for length in session.options.prompts:
        measure_speed.measure_prefill(session, "f", length, measure_speed.PREFILL_MUST.get(length))


def measure_experts(session: Session) -> None:
    """g: a model with experts: prefill, and decoding by the loop."""
    measure_speed.measure_prefill(session, "g", 2048, ">= 0.8")
    if session.takes("loop", True):
        measure_speed.measure_decoding(session, "g", 1, ">= 1.0")
    if session.takes("generate", False):
        measure_speed.measure_generate(session, "g", 1, ">= 1.0")


def measure_packed_experts(session: Session) -> None:
    """m: a model with packed experts: decoding by the loop, and prefill, each against BF16's faster way."""
    session.get("compressed")  # before BF16: packing takes the memory of both for a while
    counts = measure_same.count_layouts(session.get("compressed"))
    session.emit("m", what="experts modules by layout", value=counts.get(session.options.layout, 0), layouts=counts)
    for length in session.options.prompts:
        measure_speed.measure_prefill(session, "m", length, ">= 1.0")
    for batch in session.options.batches:
        for way in session.options.experts:
            measure_speed.measure_decoding(session, "m", batch, ">= 1.15", experts=way)


def measure_large(session: Session) -> None:
    """h: a model that is too large in BF16: loading, and decoding by generate."""
    model = session.get("compressed")
    session.emit("h", what="loaded", value=round(session.load_seconds or 0.0, 2), blobs=measure_same.count_blobs(model))
    if session.takes("generate", True):
        measure_speed.measure_generate(session, "h", 1, ">= 28", ("compressed",))
    if session.takes("loop", False):
        measure_speed.measure_decoding(session, "h", 1, ">= 28", ("compressed",))


def measure_loading(session: Session) -> None:
    """d: load time."""
    if not session.options.plain:
        raise ValueError("row d needs --plain, the folder of the uncompressed checkpoint")
    measure_memory.measure_load_time(session, session.options.plain)


ROWS = {
    "a": measure_same.measure_parameters,
    "b": measure_same.measure_logits,
    "c": measure_memory.measure_memory,
    "d": measure_loading,
    "e": measure_dense,
    "f": measure_prompts,
    "g": measure_experts,
    "h": measure_large,
    "i": measure_speed.measure_host_time,
    "j": measure_same.measure_adapters,
    "k": measure_leaks.measure_leaks,
    "m": measure_packed_experts,
    "q": measure_quickly,
}


def make_numbers(text: str) -> list[int]:
    """Returns the numbers of a list such as "1,8"."""
    return [int(part) for part in text.split(",") if part]


def make_words(text: str) -> list[str]:
    """Returns the words of a list such as "batched_mm,grouped_mm"."""
    return [part for part in text.split(",") if part]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=make_model.model_shapes.SHAPES)
    parser.add_argument("folder", type=Path)
    make_model.add_model_options(parser)
    parser.add_argument("--rows", required=True, help=f"some of {','.join(ROWS)}, in the order to measure them")
    parser.add_argument("--out", type=Path, help="a file to which lines are added")
    parser.add_argument("--plain", type=Path, help="the uncompressed checkpoint, for row d")
    parser.add_argument("--layout", choices=("coded", "packed", "plain"), default="coded", help="of the loaded layers")
    parser.add_argument("--in-memory", action="store_true", help="compress the model on the device; FOLDER is a name")
    parser.add_argument(
        "--experts", type=make_words, default=["batched_mm"], help="row m: how BF16 has its experts run"
    )
    parser.add_argument("--compile-prefill", action="store_true", help="prefill by torch.compile, and not eager")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rounds-of-loading", type=int, default=3)
    parser.add_argument("--batches", type=make_numbers, default=[1, 8, 16])
    parser.add_argument("--generate-batches", type=make_numbers, default=[1])
    parser.add_argument(
        "--ways", choices=("loop", "generate", "both"), help="how to decode; each row has its own usual"
    )
    parser.add_argument("--prompts", type=make_numbers, default=[512, 2048, 8192])
    parser.add_argument("--decode", choices=("compile", "graph", "eager"), default="compile")
    parser.add_argument("--cycles", type=int, default=10000)
    parser.add_argument("--log", type=argparse.FileType("w"), default=sys.stderr, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable_progress_bar()
    session = Session(options)
    failed = 0
    for row in options.rows.split(","):
        session.log(f"row {row}")
        start = time.perf_counter()
        try:
            ROWS[row](session)
        except Exception as failure:
            failed = 1
            session.emit(row, error=f"{type(failure).__name__}: {failure}", traceback=traceback.format_exc())
        else:
            session.emit(row, done=True, seconds=round(time.perf_counter() - start, 1))
        session.log(f"row {row} took {time.perf_counter() - start:.1f} s")
    return failed


if __name__ == "__main__":
    sys.exit(main())

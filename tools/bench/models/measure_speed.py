# SPDX-License-Identifier: Apache-2.0
"""Rows about speed: decoding, prefill, and the host's time for one call."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
import transfuse.torch
from measure_memory import run_prefill
from model_session import MODELS, Session, judge, summarize, synchronize, time_in_turns, time_once
from torch import nn
from transformers import PreTrainedModel, StaticCache
from transfuse.torch import TransfuseLinear

# The bound for each batch of an 8B on an H200.
DECODE_MUST = {1: ">= 1.15", 8: ">= 1.05", 16: ">= 1.0"}
PREFILL_MUST = {2048: ">= 0.88", 8192: ">= 0.94"}


class Decoder:
    """One decoding step with a static cache, prepared for a batch: compiled, captured in a CUDA graph, or both.

    `mode` is "compile" (torch.compile with mode reduce-overhead, as generate has it: a CUDA graph of compiled kernels),
    "graph" (a CUDA graph of the eager step) or "eager". A step takes the last token and gives the next one: the mask,
    all layers, the head and the greedy choice. Between steps only the graph's launch runs on the host. `ready` is
    called between the prompt and the first step.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompt: torch.Tensor,
        steps: int,
        mode: str,
        ready: Callable[[], object] = lambda: None,
    ) -> None:
        self.model, self.prompt, self.steps = model, prompt, steps
        self.cache = StaticCache(config=model.config, max_cache_len=prompt.shape[1] + steps)
        with torch.no_grad():
            out = model(prompt, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
            self.token = out.logits[:, -1].argmax(-1, keepdim=True)
            self.first = self.token.clone()
        ready()
        start = time.perf_counter()
        self._step: Callable[[torch.Tensor], torch.Tensor] = self._compute
        self._graph: torch.cuda.CUDAGraph | None = None
        on_gpu = prompt.device.type == "cuda"
        if mode == "compile":
            self._step = torch.compile(self._compute, mode="reduce-overhead" if on_gpu else None, dynamic=False)
        elif mode == "graph" and on_gpu:
            self._capture()
        self.run(min(4, steps))
        synchronize(prompt.device)
        self.seconds_to_prepare = time.perf_counter() - start

    def _compute(self, token: torch.Tensor) -> torch.Tensor:
        out = self.model(input_ids=token, past_key_values=self.cache, use_cache=True)
        return out.logits[:, -1].argmax(-1, keepdim=True)

    @torch.no_grad()
    def _capture(self) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._compute(self.token)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        self._rewind()
        with torch.cuda.graph(self._graph):
            self.token.copy_(self._compute(self.token))

    def _rewind(self) -> None:
        """Sets the cache back to the end of the prompt; the graph goes on using its memory."""
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(self.prompt.shape[1])

    @torch.no_grad()
    def run(self, steps: int | None = None, tokens: list[torch.Tensor] | None = None) -> None:
        """Decodes from the end of the prompt; adds the tokens to `tokens`, if that is given."""
        self._rewind()
        for _ in range(self.steps if steps is None else steps):
            if self._graph:
                self._graph.replay()
            else:
                torch.compiler.cudagraph_mark_step_begin()
                self.token.copy_(self._step(self.token))
            if tokens is not None:
                tokens.append(self.token.clone())

    @torch.no_grad()
    def compare_with_eager(self) -> float:
        """Returns the share of the prepared step's tokens that eager steps give for the same tokens, too.

        Not all need be: compiled kernels round elsewhere. But a graph that computes something else shows here.
        """
        self.token.copy_(self.first)
        prepared: list[torch.Tensor] = []
        self.run(tokens=prepared)
        self._rewind()
        same = 0.0
        for before, after in zip([self.first, *prepared], prepared):
            same += float((self._compute(before) == after).float().mean()) / len(prepared)
        return round(same, 4)


@contextlib.contextmanager
def decoding(model: PreTrainedModel):
    """Prepares a model for decoding as `generate` does: experts take the way that is fastest for few tokens."""
    with getattr(model, "_optimize_model_for_decode", contextlib.nullcontext)():
        yield


@contextlib.contextmanager
def running_experts(model: PreTrainedModel, implementation: str):
    """Has a model's own function for experts run in one way. Ways for few tokens copy weights, so that there is no
    memory for a prompt.
    """
    before = model.get_experts_implementation()
    model.set_experts_implementation(implementation)
    try:
        yield
    finally:
        model.set_experts_implementation(before)


@contextlib.contextmanager
def counting(found: dict[str, dict[str, int]], name: str):
    """Adds to `found` how many graphs torch.compile makes in the block, and what it cannot do (zeros are expected)."""
    from torch._dynamo.utils import counters

    counters.clear()
    yield
    found[name] = {
        "graphs": counters["stats"]["unique_graphs"],
        "graph_breaks": sum(counters["graph_break"].values()),
        "cudagraph_skips": counters["inductor"]["cudagraph_skips"],
    }


def reset_compiler() -> None:
    """Forgets compiled code, so that a batch is compiled for its own size, and not with a size left open."""
    torch._dynamo.reset()


def measure_decoding(
    session: Session,
    row: str,
    batch: int,
    must: str | None,
    names: tuple[str, ...] = MODELS,
    mode: str | None = None,
    experts: str | None = None,
) -> None:
    """e, g, h, m, q: tokens/s of a loop of one prepared step.

    `mode` is Decoder's, --decode's if it is left out; `experts` is how the models' own functions have experts run, as
    in `generate` if it is left out.
    """
    mode = mode or session.options.decode
    prompt_tokens, steps = (16, 8) if session.tiny else (128, 32)
    prompt = session.make_tokens(batch, prompt_tokens)
    reset_compiler()
    decoders, counters = {}, {}
    with contextlib.ExitStack() as stack:
        for name in names:
            session.log(f"row {row}: preparing {name} at batch {batch} ({mode})")
            model = session.get(name)
            way = running_experts(model, experts) if experts else decoding(model)

            def ready(way: contextlib.AbstractContextManager[None] = way) -> None:
                stack.enter_context(way)

            with counting(counters, name):
                decoders[name] = Decoder(model, prompt, steps, mode, ready)
        works = {name: decoder.run for name, decoder in decoders.items()}
        times = time_in_turns(works, session.device, session.options.rounds)
        same = {name: decoder.compare_with_eager() for name, decoder in decoders.items()}
    report = {
        "what": "decoding, a loop of one prepared step",
        "decode": mode,
        "batch": batch,
        **({"bf16_experts": experts} if experts else {}),
        "tokens_per_second": {n: round(batch * steps / statistics.median(t), 2) for n, t in times.items()},
        "seconds_to_prepare": {name: round(d.seconds_to_prepare, 1) for name, d in decoders.items()},
        "same_tokens_as_eager": same,
        "torch_compile": counters,
    }
    _emit_speed(session, row, report, times, must, report["tokens_per_second"]["compressed"])


def measure_generate(session: Session, row: str, batch: int, must: str | None, names: tuple[str, ...] = MODELS) -> None:
    """e, g, h: tokens/s of transformers' own generate with a static cache, which compiles by itself on a GPU.

    It times the difference of two lengths, so that neither the prompt nor what generate does once counts.
    """
    prompt_tokens, few, many = (16, 4, 12) if session.tiny else (128, 16, 80)
    prompt = session.make_tokens(batch, prompt_tokens)
    reset_compiler()

    def generate(name: str, length: int) -> None:
        session.get(name).generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=length,
            min_new_tokens=length,
            do_sample=False,
            pad_token_id=0,
            cache_implementation="static",
            max_cache_len=prompt_tokens + many,
        )

    prepared, counters = {}, {}
    for name in names:
        session.log(f"row {row}: preparing generate of {name} at batch {batch}")
        start = time.perf_counter()
        with counting(counters, name):
            generate(name, few)
            synchronize(session.device)
        prepared[name] = round(time.perf_counter() - start, 1)
    times: dict[str, list[float]] = {name: [] for name in names}
    for at in range(1 + max(3, session.options.rounds // 2)):
        for name in names:
            seconds = [time_once(lambda n=name, k=length: generate(n, k), session.device) for length in (few, many)]
            if at:
                times[name].append(seconds[1] - seconds[0])
    rates = {n: round(batch * (many - few) / statistics.median(t), 2) for n, t in times.items()}
    report = {
        "what": "decoding, transformers' generate with cache_implementation='static'",
        "batch": batch,
        "tokens_per_second": rates,
        "seconds_to_prepare": prepared,
        "torch_compile": counters,
    }
    _emit_speed(session, row, report, times, must, rates["compressed"])


def _emit_speed(
    session: Session, row: str, report: dict, times: dict[str, list[float]], must: str | None, rate: float
) -> None:
    if "bf16" in times:
        report |= summarize(times)
        value = report["ratio"]
    else:
        value = rate
    session.emit(row, **report, value=value, **(judge(value, must) if must else {}))


def measure_prefill(session: Session, row: str, length: int, must: str | None) -> None:
    """f, g, m: time of a prompt, eager, as generate runs it, or, with --compile-prefill, compiled and without cache."""
    tokens = session.make_tokens(1, length // 16 if session.tiny else length)
    compiled = session.options.compile_prefill
    if compiled:
        reset_compiler()
        works = {name: _compile_prefill(session.get(name), tokens) for name in MODELS}
    else:
        works = {name: lambda n=name: run_prefill(session, n, tokens) for name in MODELS}
    report = {"what": f"prefill, {'compiled' if compiled else 'eager'}", "tokens": length}
    times = time_in_turns(works, session.device, session.options.rounds)
    _emit_speed(session, row, report, times, must, 0.0)


def _compile_prefill(model: PreTrainedModel, tokens: torch.Tensor) -> Callable[[], None]:
    compiled = torch.compile(lambda ids: model(ids, use_cache=False, logits_to_keep=1).logits, dynamic=False)

    def run() -> None:
        with torch.no_grad():
            compiled(tokens)

    return run


# ---- the host's time ----


def time_calls(call: Callable[[], object], device: torch.device, calls: int, rounds: int) -> float:
    """Returns the host's seconds for one call; the device catches up between the rounds, which is not timed."""
    seconds = []
    for _ in range(rounds):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        seconds.append((time.perf_counter() - start) / calls)
    return statistics.median(seconds)


@torch.no_grad()
def measure_host_time(session: Session) -> None:
    """i: what a call of the op takes of the host, eager, beside F.linear's in the same run."""
    size, calls, rounds = 256, 500, 20
    weight = torch.randn(size, size, device=session.device).mul_(0.02).bfloat16()
    blob = transfuse.torch.encode(weight.cpu()).to(session.device)
    transfuse.torch.adopt(blob)
    x = torch.randn(1, size, device=session.device).bfloat16()
    dense = nn.Linear(size, size, bias=False, device=session.device, dtype=torch.bfloat16)
    module = TransfuseLinear.from_buffer(blob, size, size)
    works: dict[str, Callable[[], object]] = {
        "F.linear": lambda: F.linear(x, weight),
        "op": lambda: torch.ops.transfuse.linear.default(x, blob, None, size),
        "transfuse.torch linear": lambda: transfuse.torch.linear(x, blob, None, size),
        "nn.Linear": lambda: dense(x),
        "TransfuseLinear": lambda: module(x),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for at in range(4):
        for name, work in works.items():
            seconds = time_calls(work, session.device, calls, rounds // 4 if at else 1)
            times[name] += [seconds] if at else []
    micro = {name: round(1e6 * statistics.median(values), 3) for name, values in times.items()}
    added = micro["op"] - micro["F.linear"]
    session.emit(
        "i",
        what="host time of the op beyond F.linear's, microseconds",
        value=round(added, 3),
        microseconds=micro,
        calls=calls * rounds,
        **judge(added, "<= 4"),
    )

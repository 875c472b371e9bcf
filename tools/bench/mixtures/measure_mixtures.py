#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times whole mixtures of experts on a GPU, in one process and with the same routes: transfuse's packed experts, vLLM's
fused experts in BF16, and torch's grouped products.

    python3 measure_mixtures.py [--shapes 128x768x2048/8,...] [--tokens 1,64,...] [--routes uniform,skewed] [--coded]
                                [--out CSV]

A mixture is routes, gate and up with SwiGLU, down, and the weighted sum; top-k of the router is in none of them. Each
way is a CUDA graph of calls with routes of their own, so that the L2 cache is cold; all of them take turns. vLLM runs
with its tuned table for the card and shape and with its default, and where it has no table also with the best of a
search, --search-seconds for all shapes together. Each y is compared with F64.

--out gets lines as docs/performance/mixtures.csv has them, from which tools/bench/performance_tables.py makes its
table; lines "limit, packed" and "limit, bf16" are the least time by the rates of reading and multiplying. These come
from --rates, a file of `transfuse bench --device cuda --mode moe --json`, or from torch. A way that is missing is left
out, and said. TRF_COMMIT of the environment goes into the file. With --device cpu it tries itself on small shapes.

--coded also times coded experts: those that each call packs, and those that it decodes for torch's grouped products.
Encoding takes the CPU up to minutes a shape. Both are compared with each other alone.

Exit status 1: a y was wrong, or a way failed that was there.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import gc
import os
import sys
import time
from pathlib import Path

import torch
from mixture_routes import MIXTURES, TOKENS, Mixture, calls_of, draw_routes, mean_active
from mixture_timer import PAUSE_SECONDS, PAUSE_TOKENS, Rates, Timer, measure_rates, read_rates, time_in_turns
from mixture_vllm import Config, Vllm, compile_ahead, trials
from mixture_ways import Experts, Layer, Missing, draw_experts, make_coded, make_grouped, make_packed, relative_error
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from medians import FIELDS, rows_of

OURS = "packed mixture"
CODED = {"packed": "coded, packed by each call", "dense": "coded, decoded by each call"}
LIMITS = {"packed": "limit, packed", "bf16": "limit, bf16"}
MOST_ERROR = 1e-2  # y, each product and the weights may be rounded to BF16
SEARCH_ROUNDS = 3


class Run:
    """What has been asked for, and what was found."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = torch.device(options.device)
        self.until = time.monotonic() + options.seconds
        self.search_seconds = options.search_seconds
        self.missing: set[str] = set()
        self.failed = 0
        self.vllm: Vllm | None = None
        self.rates: Rates
        self.bench = {"gpu": "CPU", "commit": os.environ.get("TRF_COMMIT", ""), "figures": []}

    def leave_out(self, name: str, why: object) -> None:
        """Says once that a way is left out."""
        if name not in self.missing:
            print(f"goes on without {name}: {why}", file=sys.stderr, flush=True)
        self.missing.add(name)

    def fail(self, what: str) -> None:
        print(f"FAILED: {what}", file=sys.stderr, flush=True)
        self.failed += 1


# ---- one mixture and number of tokens ----


class Case:
    """The calls of one mixture, kind of routes and number of tokens."""

    def __init__(self, run: Run, experts: Experts, tokens: int, routes: str) -> None:
        self.run, self.experts, self.tokens = run, experts, tokens
        self.subject = experts.mixture.subject(routes)
        ids, weights = draw_routes(experts.mixture, tokens, routes)
        self.active = mean_active(ids)
        self.calls = calls_of(tokens)
        self.ids, self.weights = (torch.from_numpy(values).to(run.device) for values in (ids, weights))
        generator = torch.Generator(run.device).manual_seed(tokens)
        self.x = torch.randn(tokens, experts.mixture.hidden, generator=generator, device=run.device).to(torch.bfloat16)
        self.pause = PAUSE_SECONDS if run.device.type == "cuda" and tokens >= PAUSE_TOKENS else 0.0

    def timer(self, layer: Layer) -> Timer:
        return Timer(lambda call: layer(self.x, self.ids[call], self.weights[call]), self.calls, self.run.device)

    def limit(self, expert_bytes: float) -> float:
        flops = 2.0 * self.experts.mixture.weights * self.ids[0].numel()
        return self.run.rates.limit(self.active, expert_bytes, flops)

    def add_timer(self, timers: dict[str, Timer], name: str, layer: Layer) -> None:
        """Makes a timer, and adds it if its y is right."""
        try:
            timer = self.timer(layer)
            timer.run()
        except Exception as fault:  # the others are still worth their time
            self.run.fail(f"{self.subject}, {self.tokens} tokens, {name}: {type(fault).__name__}: {fault}")
            return
        y: Tensor = timer.y
        error = relative_error(self.experts, y, self.x, self.ids[-1], self.weights[-1])
        if not error < MOST_ERROR:
            self.run.fail(f"{self.subject}, {self.tokens} tokens, {name}: y has an error of {error:.2g}")
            return
        timers[name] = timer


def find_config(case: Case, seconds: float) -> Config | None:
    """The fastest of a search's configurations, or None if none ran within so many seconds."""
    until = time.monotonic() + seconds
    best: tuple[float, Config] | None = None
    for config in trials(case.experts.mixture, case.tokens):
        if time.monotonic() > until:
            break
        try:
            timer = case.timer(case.run.vllm.layer(case.experts, config))
            taken = min(timer.run() for _ in range(SEARCH_ROUNDS))
        except Exception:  # tiles that do not fit in shared memory, which a search is to find out
            continue
        if best is None or taken < best[0]:
            best = taken, config
    return best[1] if best else None


def add_vllm(case: Case, timers: dict[str, Timer], search_seconds: float) -> None:
    vllm = case.run.vllm
    if vllm is None:
        return
    configs = vllm.configs(case.experts.mixture, case.tokens)
    if "table" not in configs and search_seconds > 0:
        begin = time.monotonic()
        found = find_config(case, min(search_seconds, case.run.search_seconds))
        case.run.search_seconds -= time.monotonic() - begin
        if found:
            configs["searched"] = found
    for name, config in configs.items():
        case.add_timer(timers, f"vllm, {name}", vllm.layer(case.experts, config))


@dataclasses.dataclass(frozen=True)
class Ours:
    """What transfuse has of a mixture; what is missing is empty."""

    packed: tuple[Layer, float] | None
    coded: tuple[Layer, ...]  # in the order of CODED


def measure_case(case: Case, ours: Ours, search_seconds: float) -> None:
    run, packed, timers = case.run, ours.packed, {}
    if packed:
        case.add_timer(timers, OURS, packed[0])
    for name, layer in zip(CODED.values(), ours.coded):
        case.add_timer(timers, name, layer)
    for name, compiled in (("torch grouped_mm", False), ("torch grouped_mm, compiled", True)):
        if compiled and run.options.no_compile:
            continue
        try:
            case.add_timer(timers, name, make_grouped(case.experts, compiled))
        except Missing as why:
            run.leave_out(name, why)
    add_vllm(case, timers, search_seconds)
    rounds = run.options.repeats if case.tokens < 4096 else max(3, run.options.repeats // 2)
    seconds = time_in_turns(timers, rounds, case.pause)
    limits = {"bf16": case.limit(2 * case.experts.mixture.weights)}
    if packed:
        limits["packed"] = case.limit(packed[1])
    report(case, seconds, limits)
    for what, taken in [*seconds.items(), *((LIMITS[layout], [limit]) for layout, limit in limits.items())]:
        figure = {"subject": case.subject, "batch": case.tokens, "what": what, "seconds": taken}
        run.bench["figures"].append(figure)


def report(case: Case, seconds: dict[str, list[float]], limits: dict[str, float]) -> None:
    """Prints a line for each way: microseconds, how much of them its limit is, and how much faster ours is."""
    medians = {name: sorted(taken)[len(taken) // 2] for name, taken in seconds.items()}
    ours = medians.get(OURS)
    for name, median in medians.items():
        share = 100 * limits["packed" if name in {OURS, CODED["packed"]} and ours else "bf16"] / median
        ratio = f"{median / ours:7.2f}" if ours and name != OURS else "      -"
        print(
            f"{case.subject:44} {case.tokens:6} {name:28} {1e6 * median:10.1f} us {share:4.0f} % of the limit{ratio}",
            flush=True,
        )
    others = [median for name, median in medians.items() if name not in {OURS, *CODED.values()}]
    if ours and others:
        print(f"{case.subject:44} {case.tokens:6} fastest other by ours: {min(others) / ours:.3f}", flush=True)
    if set(CODED.values()) <= medians.keys():
        ratio = medians[CODED["dense"]] / medians[CODED["packed"]]
        print(f"{case.subject:44} {case.tokens:6} decoding by packing: {ratio:.3f}", flush=True)


# ---- all of them ----


def compile_vllm(run: Run) -> None:
    """Compiles what vLLM will need, in several processes, before this one uses the GPU."""
    units = {}
    for mixture in run.options.shapes:
        for tokens in run.options.tokens:
            configs = run.vllm.configs(mixture, tokens)
            wanted = list(configs.values())
            if "table" not in configs and run.search_seconds > 0:
                wanted += trials(mixture, tokens)
            for config in wanted:
                # Triton compiles anew for a number that is a multiple of 16, and vLLM takes another way for few.
                key = mixture, tuple(config.items()), tokens * mixture.routed % 16 == 0, tokens <= 4
                units.setdefault(key, (mixture, tokens, config))
    begin = time.monotonic()
    processes = max(1, min(12, (os.cpu_count() or 2) - 2))  # each has a mixture's weights on the GPU
    compile_ahead(run.vllm, list(units.values()), processes, min(run.until, begin + run.search_seconds + 30))
    print(f"compiled {len(units)} configurations of vLLM in {time.monotonic() - begin:.0f} s", flush=True)


def has_time(run: Run, mixture: Mixture, cases: list[tuple[str, int]]) -> bool:
    """Says so if there is none for these cases."""
    if time.monotonic() < run.until:
        return True
    left = "; ".join(f"{mixture.subject(routes)}, {tokens} tokens" for routes, tokens in cases)
    run.fail(f"no time is left for {left}")
    return False


def measure_mixture(run: Run, mixture: Mixture) -> None:
    cases = [(routes, tokens) for routes in run.options.routes for tokens in run.options.tokens]
    if not has_time(run, mixture, cases):
        return
    experts = draw_experts(mixture, run.device)
    ours = Ours(None, ())
    try:
        ours = Ours(make_packed(experts), ())
        if run.options.coded:
            ours = dataclasses.replace(ours, coded=make_coded(experts, not run.options.no_compile))
    except Missing as why:
        run.leave_out(OURS, why)
    for number, (routes, tokens) in enumerate(cases):
        if not has_time(run, mixture, cases[number:]):
            return
        measure_case(Case(run, experts, tokens, routes), ours, run.search_seconds / (len(cases) - number))
        gc.collect()
        if run.device.type == "cuda":
            torch.cuda.empty_cache()


def prepare(run: Run) -> None:
    if run.device.type != "cuda":
        run.leave_out("vLLM", "it needs a GPU")
    else:
        try:
            run.vllm = Vllm()
            compile_vllm(run)
        except Missing as why:
            run.leave_out("vLLM", why)
        run.bench["gpu"] = torch.cuda.get_device_name()
    run.rates = read_rates(run.options.rates) if run.options.rates else measure_rates(run.device, 5)
    print(
        f"{run.bench['gpu']}: reads {run.rates.bytes * 1e-12:.2f} TB/s, multiplies {run.rates.flops * 1e-12:.0f} "
        f"TFLOP/s ({run.rates.origin})",
        flush=True,
    )


def write_rows(run: Run) -> None:
    with open(run.options.out, "w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, FIELDS, lineterminator="\n")
        out.writeheader()
        out.writerows(rows_of(run.bench))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=MIXTURES, help="EXPERTSxINNERxHIDDEN/ROUTED,... [%(default)s]")
    parser.add_argument("--tokens", default=TOKENS, help="[%(default)s]")
    parser.add_argument("--routes", default="uniform", help="uniform, skewed, or both [%(default)s]")
    parser.add_argument("--repeats", type=int, default=11, help="rounds; from 4096 tokens on half as many [11]")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing more after so many [no limit]")
    parser.add_argument("--search-seconds", type=float, default=120, help="where vLLM has no table; 0: no search [120]")
    parser.add_argument("--rates", type=Path, help="a JSON file of bench --mode moe of this machine")
    parser.add_argument("--coded", action="store_true", help="time coded experts, too")
    parser.add_argument("--no-compile", action="store_true", help="leave out the compiled torch layer")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--out", type=Path, help="a CSV file")
    options = parser.parse_args()
    try:
        options.shapes = [Mixture.parse(text) for text in options.shapes.split(",")]
        options.tokens = [int(text) for text in options.tokens.split(",")]
    except ValueError as fault:
        parser.error(str(fault))
    options.routes = options.routes.split(",")
    if not set(options.routes) <= {"uniform", "skewed"}:
        parser.error(f"--routes {','.join(options.routes)}: uniform or skewed")
    if min(options.tokens) < 1 or options.repeats < 1:
        parser.error("--tokens and --repeats are 1 or more")
    return options


def main() -> int:
    run = Run(parse())
    prepare(run)
    try:
        with torch.no_grad():
            for mixture in run.options.shapes:
                if run.vllm:
                    with run.vllm.current():
                        measure_mixture(run, mixture)
                else:
                    measure_mixture(run, mixture)
                gc.collect()
    finally:  # time on a GPU is expensive: what was measured is kept
        if run.options.out and run.bench["figures"]:
            write_rows(run)
    return 1 if run.failed else 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # vLLM's threads and torch's compile workers may keep the process from ending

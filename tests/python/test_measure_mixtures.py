# SPDX-License-Identifier: Apache-2.0
"""Runs the script that times whole mixtures on the CPU, and tests its routes, its rates, and that a wrong y fails."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

FOLDER = Path(__file__).resolve().parents[2] / "tools" / "bench" / "mixtures"
sys.path.insert(0, str(FOLDER))
sys.dont_write_bytecode = True

import measure_mixtures  # noqa: E402
import mixture_routes  # noqa: E402
import mixture_timer  # noqa: E402
import mixture_vllm  # noqa: E402
import mixture_ways  # noqa: E402
from mixture_routes import Mixture, draw_routes  # noqa: E402

SMALL = Mixture(13, 24, 64, 3)


@pytest.mark.parametrize("routes", ["uniform", "skewed"])
@pytest.mark.parametrize("mixture", [SMALL, Mixture(8, 8, 8, 2), Mixture(9, 8, 8, 8), Mixture(4, 8, 8, 4)])
def test_tokens_have_different_experts_and_weights_that_add_up(mixture: Mixture, routes: str) -> None:
    for tokens in (1, 5, 300):
        ids, weights = draw_routes(mixture, tokens, routes)
        assert ids.shape == weights.shape == (mixture_routes.calls_of(tokens), tokens, mixture.routed)
        assert ids.min() >= 0 and ids.max() < mixture.experts
        in_order = np.sort(ids, axis=-1)
        assert (in_order[..., 1:] > in_order[..., :-1]).all()
        assert np.allclose(weights.sum(-1), 1) and weights.min() > 0


def test_one_token_walks_through_all_experts() -> None:
    ids, _ = draw_routes(Mixture(128, 8, 8, 8), 1, "uniform")
    assert sorted(ids.flatten().tolist()) == list(range(128))


@pytest.mark.parametrize("mixture, share, idle", [((128, 8, 8, 8), 1, 40), ((8, 8, 8, 2), 0.5, 2)])
def test_skewed_routes_have_a_popular_expert_and_idle_ones(mixture: tuple, share: float, idle: int) -> None:
    mixture = Mixture(*mixture)
    ids, _ = draw_routes(mixture, 1000, "skewed")
    for call in ids:
        counts = np.bincount(call.flatten(), minlength=mixture.experts)
        assert counts.max() == share * 1000 and (counts == 0).sum() == idle
    uniform, _ = draw_routes(mixture, 1000, "uniform")
    assert mixture_routes.mean_active(uniform) == mixture.experts == mixture_routes.mean_active(ids) + idle


def test_mixtures_are_parsed() -> None:
    assert Mixture.parse("128x768x2048/8") == Mixture(128, 768, 2048, 8)
    for text in ("128x768x2048", "8x16x16/9", "8x20x16/2", "0x16x16/1", "8x16x16/0", "8x16x16/2x"):
        with pytest.raises(ValueError, match=text.split("/")[0]):
            Mixture.parse(text)


def test_trials_are_different_and_fit() -> None:
    for tokens in (1, 64, 16384):
        trials = mixture_vllm.trials(Mixture(64, 2048, 7168, 8), tokens)
        assert len({tuple(trial.items()) for trial in trials}) == len(trials) == mixture_vllm.MOST_TRIALS
        assert tokens > 1 or {trial["BLOCK_SIZE_M"] for trial in trials} == {16}


def test_rates_come_from_a_file_of_the_bench(tmp_path: Path) -> None:
    file = tmp_path / "moe.json"
    figures = [{"what": "read", "median_seconds": 1e-3}, {"what": "cuBLASLt", "median_seconds": 2e-3}]
    file.write_text(json.dumps({"figures": figures}))
    rates = mixture_timer.read_rates(file)
    assert rates.bytes == (2 << 30) / 1e-3 and rates.flops == 2 * 8192**3 / 2e-3
    assert rates.limit(4, rates.bytes, rates.flops) == 4  # memory binds, and then multiplying
    assert rates.limit(4, rates.bytes, 5 * rates.flops) == 5
    file.write_text(json.dumps({"figures": figures[:1]}))
    with pytest.raises(ValueError, match=r"moe\.json.*lacks"):
        mixture_timer.read_rates(file)


def test_a_wrong_y_and_a_way_that_breaks_are_failures(capsys: pytest.CaptureFixture) -> None:
    run = measure_mixtures.Run(Namespace(device="cpu", seconds=1e9, search_seconds=0))
    experts = mixture_ways.draw_experts(SMALL, run.device)
    case = measure_mixtures.Case(run, experts, 5, "uniform")
    right = mixture_ways.make_grouped(experts, compiled=False)

    def breaks(*_: object) -> torch.Tensor:
        raise RuntimeError("out of order")

    timers: dict = {}
    case.add_timer(timers, "right", right)
    assert list(timers) == ["right"] and run.failed == 0
    case.add_timer(timers, "unweighted", lambda x, ids, weights: right(x, ids, torch.full_like(weights, 1 / 3)))
    case.add_timer(timers, "other experts", lambda x, ids, weights: right(x, (ids + 1) % 13, weights))
    case.add_timer(timers, "broken", breaks)
    assert list(timers) == ["right"] and run.failed == 3
    said = capsys.readouterr().err
    assert "unweighted: y has an error of" in said and "broken: RuntimeError: out of order" in said


class OtherEngine:
    """In place of vLLM: a layer of torch's, which only tiles of 16 rows can compute."""

    def __init__(self, configs: dict) -> None:
        self._configs = configs

    def configs(self, mixture: Mixture, tokens: int) -> dict:
        return dict(self._configs)

    def layer(self, experts: mixture_ways.Experts, config: dict) -> mixture_ways.Layer:
        if config["BLOCK_SIZE_M"] != 16 or config["BLOCK_SIZE_N"] != 64:
            raise RuntimeError("out of shared memory")
        return mixture_ways.make_grouped(experts, compiled=False)


@pytest.mark.parametrize("has_table", [False, True])
def test_what_has_no_table_is_searched(has_table: bool) -> None:
    run = measure_mixtures.Run(Namespace(device="cpu", seconds=1e9, search_seconds=60))
    case = measure_mixtures.Case(run, mixture_ways.draw_experts(SMALL, run.device), 4, "uniform")
    fits = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64}
    run.vllm = OtherEngine({"default": fits, "table": fits} if has_table else {"default": fits})
    timers: dict = {}
    measure_mixtures.add_vllm(case, timers, 60)
    assert list(timers) == ["vllm, default", "vllm, table" if has_table else "vllm, searched"]
    assert (run.search_seconds == 60) == has_table and run.failed == 0
    if not has_table:
        assert measure_mixtures.find_config(case, 60).items() >= fits.items()
        assert measure_mixtures.find_config(case, -1) is None


def test_the_script_writes_rows_and_says_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "mixtures.csv"
    command = [sys.executable, "-B", str(FOLDER / "measure_mixtures.py"), "--device", "cpu", "--no-compile"]
    command += ["--shapes", "13x24x64/3", "--tokens", "1,5", "--repeats", "2", "--out", str(out)]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert "goes on without vLLM: it needs a GPU" in made.stderr
    with open(out, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = [(row["subject"], row["batch"], row["what"]) for row in rows if "packed" not in row["what"]]
    subject = "13 of 24x64, 3 routed, uniform"
    assert found == [(subject, tokens, what) for tokens in "15" for what in ("torch grouped_mm", "limit, bf16")]
    assert all(0 < float(row["q1_us"]) <= float(row["median_us"]) <= float(row["q3_us"]) for row in rows)
    packed = [row["what"] for row in rows if row["what"] == "packed mixture"]
    assert len(packed) == 2 or "goes on without packed mixture" in made.stderr

    late = subprocess.run([*command, "--seconds", "0"], capture_output=True, text=True)
    assert late.returncode == 1 and f"no time is left for {subject}, 1 tokens" in late.stderr
    wrong = subprocess.run([*command, "--routes", "even"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "--routes even" in wrong.stderr

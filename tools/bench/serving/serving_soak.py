#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Serves random requests for some minutes, and fails if one goes wrong or if the GPU's memory grows.

    python3 serving_soak.py [--transfuse] [--http] [--seconds 480] [--shape 1b] [--json FILE]

Requests have random prompts, lengths and sampling parameters, and arrive at random times; a fifth of them want a long
answer, and are aborted at a random time. The engine is vLLM's asynchronous one, with weights N(0, 0.02) that are made
on the GPU, as serving_bench.py makes them. With --http it is `vllm serve`, which loads a checkpoint of such weights
that is written first, and each abort closes a connection. --model FOLDER serves another checkpoint. It needs vLLM, and
GPUs that nothing else uses: their memory is what nvidia-smi says.

Prints a line for each look at the memory, and a report as JSON. Exits with 1 if a request failed, made another number
of tokens than it had been asked for, or never ended; if a greedy request alone had other tokens at the end than at the
beginning; or if the memory at any time after the warm-up was over 16 MiB more than at its end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any

from serving_bench import SHAPES, config_of, make_dummy_weights_gaussian, write_checkpoint

ABORTED_SHARE = 0.2
MOST_GROWTH_MIB = 16
# Longer than any request takes.
PATIENCE_S = 300
START_S = 600
SETTINGS = {"max_model_len": 4096, "max_num_seqs": 128, "dtype": "bfloat16", "seed": 0}
LONGEST_PROMPT, LONGEST_ANSWER = 3072, 512


class Engine:
    """vLLM's asynchronous engine, whose core is a process that is forked from this one."""

    def __init__(self, model: str, args: argparse.Namespace) -> None:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        make_dummy_weights_gaussian()
        options: dict[str, Any] = {
            **SETTINGS,
            "skip_tokenizer_init": True,
            "enable_prefix_caching": False,
            "gpu_memory_utilization": args.gpu_memory_utilization,
            **json.loads(args.engine_args),
        }
        if args.transfuse:
            options["quantization"] = "transfuse"
        if not args.model:
            options["load_format"] = "dummy"
        self.llm = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, **options))

    async def generate(self, request: dict[str, Any]) -> list[int]:
        """Returns the tokens of an answer; if it is cancelled, the request is aborted."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        given = {name: value for name, value in request.items() if name != "prompt"}
        sampling = SamplingParams(**given, detokenize=False, output_kind=RequestOutputKind.DELTA)
        tokens: list[int] = []
        prompt = {"prompt_token_ids": request["prompt"]}
        async for output in self.llm.generate(prompt, sampling, request_id=uuid.uuid4().hex):
            tokens += output.outputs[0].token_ids
        return tokens

    def is_alive(self) -> bool:
        """Returns whether the engine still runs."""
        return not self.llm.errored

    def count_requests(self) -> int:
        """Returns how many requests it has that have not ended."""
        return int(self.llm.output_processor.get_num_unfinished_requests())

    def stop(self) -> None:
        """Ends the engine's process."""
        self.llm.shutdown()


class Server:
    """`vllm serve` in a process, and requests over HTTP by the standard library."""

    def __init__(self, model: str, args: argparse.Namespace) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.model = model
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model, "--port", str(self.port)]
        command += ["--host", "127.0.0.1", "--skip-tokenizer-init", "--no-enable-prefix-caching"]
        command += ["--gpu-memory-utilization", str(args.gpu_memory_utilization)]
        for name, value in (SETTINGS | json.loads(args.engine_args)).items():
            option = name.replace("_", "-")
            if isinstance(value, bool):
                command.append(f"--{option}" if value else f"--no-{option}")
            else:
                command += [f"--{option}", value if isinstance(value, str) else json.dumps(value)]
        if args.transfuse:
            command += ["--quantization", "transfuse"]
        self.log = Path(args.log)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            self._wait()
        except BaseException:
            self.stop()
            sys.stderr.write(self.log.read_text(errors="replace")[-4000:])
            raise

    def _read(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as response:
            content: bytes = response.read()
        return content

    def _wait(self) -> None:
        """Waits until the server answers."""
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"vllm serve ended with {self.process.returncode}: see {self.log}")
            with contextlib.suppress(OSError):
                self._read("/health")
                return
            time.sleep(1)
        raise RuntimeError(f"vllm serve did not answer for {START_S} s: see {self.log}")

    async def generate(self, request: dict[str, Any]) -> list[int]:
        """Returns the tokens of an answer; if it is cancelled, the connection is closed."""
        body = json.dumps({"model": self.model, "stream": True, "return_token_ids": True, **request}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        try:
            writer.write(head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n" + body)
            await writer.drain()
            status = await reader.readline()
            while await reader.readline() not in (b"\r\n", b""):
                pass
            if b" 200 " not in status:
                raise RuntimeError(f"{status.decode().strip()}: {(await reader.read(2000)).decode(errors='replace')}")
            tokens: list[int] = []
            async for event in read_events(reader):
                if event == "[DONE]":
                    return tokens
                fields = json.loads(event)
                if "error" in fields:
                    raise RuntimeError(event)
                for choice in fields["choices"]:
                    tokens += choice.get("token_ids") or []
            raise RuntimeError("the stream ended early")
        finally:
            writer.close()

    def is_alive(self) -> bool:
        """Returns whether the server still runs."""
        return self.process.poll() is None

    def count_requests(self) -> int:
        """Returns how many requests it has that have not ended."""
        lines = self._read("/metrics").decode().splitlines()
        names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
        return int(sum(float(line.split()[-1]) for line in lines if line.startswith(names)))

    def stop(self) -> None:
        """Ends the server and the processes that it started."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


async def read_events(reader: asyncio.StreamReader) -> Any:
    """Yields the data of server-sent events, which come in chunks of HTTP."""
    pending = b""
    while size := int((await reader.readline()).strip() or b"0", 16):
        pending += await reader.readexactly(size)
        await reader.readline()
        *events, pending = pending.split(b"\n\n")
        for event in events:
            yield event.removeprefix(b"data: ").decode()


class Soak:
    """Random requests, and their outcomes."""

    def __init__(self, target: Engine | Server, args: argparse.Namespace, vocabulary: int) -> None:
        self.target, self.args, self.vocabulary = target, args, vocabulary
        self.random = random.Random(args.seed)
        self.counts = {"finished": 0, "aborted": 0, "errors": 0, "tokens": 0}
        self.problems: list[str] = []
        self.memory: list[tuple[float, int]] = []
        self.start = time.monotonic()

    def make_request(self) -> dict[str, Any]:
        """Returns a request by the names of OpenAI's API, which are those of vLLM's sampling parameters as well."""
        length = int(math.exp(self.random.uniform(0, math.log(LONGEST_PROMPT))))
        request: dict[str, Any] = {
            "prompt": [self.random.randrange(self.vocabulary) for _ in range(length)],
            "max_tokens": int(math.exp(self.random.uniform(0, math.log(LONGEST_ANSWER)))),
            "ignore_eos": True,
            "temperature": self.random.choice((0.0, self.random.uniform(0.1, 2))),
        }
        for name, value in (
            ("top_p", self.random.uniform(0.1, 1)),
            ("top_k", self.random.randint(1, 1000)),
            ("min_p", self.random.uniform(0, 0.2)),
            ("seed", self.random.randrange(1 << 31)),
            ("presence_penalty", self.random.uniform(-2, 2)),
            ("frequency_penalty", self.random.uniform(-2, 2)),
            ("repetition_penalty", self.random.uniform(0.5, 2)),
        ):
            if self.random.random() < 0.3:
                request[name] = value
        return request

    async def run_request(self, request: dict[str, Any], abort_after: float | None) -> None:
        """Runs one, and counts it."""
        try:
            tokens = await asyncio.wait_for(self.target.generate(request), abort_after or PATIENCE_S)
        except TimeoutError:
            if abort_after is None:
                self.fail(f"a request had not ended after {PATIENCE_S} s")
            else:
                self.counts["aborted"] += 1
        except Exception as error:
            self.fail(f"{type(error).__name__}: {error}")
        else:
            self.counts["finished"] += 1
            self.counts["tokens"] += len(tokens)
            if len(tokens) != request["max_tokens"]:
                self.fail(f"a request made {len(tokens)} tokens instead of {request['max_tokens']}")

    def fail(self, problem: str) -> None:
        """Notes what went wrong."""
        self.counts["errors"] += 1
        if len(self.problems) < 20:
            self.problems.append(problem)
            print(f"error: {problem}", file=sys.stderr, flush=True)

    async def probe(self) -> list[int]:
        """Returns the tokens of a greedy request alone, the same one each time."""
        prompt = [number % self.vocabulary for number in range(7, 207)]
        return await self.target.generate({"prompt": prompt, "max_tokens": 32, "ignore_eos": True, "temperature": 0.0})

    async def watch_memory(self) -> None:
        """Looks at the GPU's memory, until it is cancelled."""
        while True:
            seconds, used = time.monotonic() - self.start, await asyncio.to_thread(memory_mib)
            self.memory.append((seconds, used))
            print(f"{seconds:6.0f} s: {used} MiB, {json.dumps(self.counts)}", flush=True)
            await asyncio.sleep(self.args.interval)

    async def send_requests(self) -> None:
        """Sends requests as they arrive, at first as many as fit at once, and waits for the last of them."""
        running: set[asyncio.Task[None]] = set()
        sent = 0
        while time.monotonic() - self.start < self.args.seconds and self.target.is_alive():
            if sent >= self.args.at_once:
                await asyncio.sleep(self.random.expovariate(self.args.rate))
            while len(running) >= self.args.at_once:
                _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            request, after = self.make_request(), None
            if self.random.random() < ABORTED_SHARE:
                request["max_tokens"], after = LONGEST_ANSWER, self.random.expovariate(1 / self.args.abort_after)
            task = asyncio.create_task(self.run_request(request, after))
            running.add(task)
            task.add_done_callback(running.discard)
            sent += 1
        if running:
            await asyncio.wait(running)

    async def check_end(self, first: list[int]) -> None:
        """Checks that the engine still runs, is idle, and answers as at the beginning."""
        if not self.target.is_alive():
            self.fail("the engine has ended")
            return
        for _ in range(10):
            if (left := await asyncio.to_thread(self.target.count_requests)) == 0:
                break
            await asyncio.sleep(1)
        else:
            self.fail(f"the engine still has {left} requests, for which nobody waits")
        if await self.probe() != first:
            self.fail("a greedy request has other tokens than at the beginning")

    async def run(self) -> dict[str, Any]:
        """Runs the whole soak, and returns the report."""
        first = await self.probe()
        self.start = time.monotonic()
        watch = asyncio.create_task(self.watch_memory())
        await self.send_requests()
        watch.cancel()
        await self.check_end(first)
        after = [used for seconds, used in self.memory if seconds >= self.args.warm_up]
        memory = {"first": after[0], "last": after[-1], "max": max(after)} if after else {}
        if not after:
            self.fail("there was no time left after the warm-up")
        elif memory["max"] - memory["first"] > MOST_GROWTH_MIB:
            self.fail(f"the memory grew by {memory['max'] - memory['first']} MiB")
        return {**self.counts, "MiB after the warm-up": memory, "looks": len(after), "problems": self.problems}


def memory_mib() -> int:
    """Returns the memory that is in use on the GPUs of CUDA_VISIBLE_DEVICES, or on all."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        query += ["-i", visible]
    return sum(map(int, subprocess.run(query, check=True, capture_output=True, text=True).stdout.split()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=[shape for shape in SHAPES if shape != "qwen3-30b-a3b"], default="1b")
    parser.add_argument("--model", help="a checkpoint, whose weights are loaded")
    parser.add_argument("--transfuse", action="store_true", help="--quantization transfuse")
    parser.add_argument("--http", action="store_true", help="vllm serve, over HTTP")
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--warm-up", type=float, help="seconds (default: a quarter of all, 60 at most)")
    parser.add_argument("--interval", type=float, default=5, help="seconds from one look at the memory to the next")
    parser.add_argument("--rate", type=float, default=40, help="requests a second")
    parser.add_argument("--at-once", type=int, default=192, help="most requests at a time, and those of the beginning")
    parser.add_argument("--abort-after", type=float, default=0.5, help="seconds until an abort, in the mean")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.2)
    parser.add_argument("--engine-args", default="{}", help="further arguments of the engine as JSON")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", default="vllm_serve.log", help="where the server's messages go")
    parser.add_argument("--json", help="also write the report to this file")
    args = parser.parse_args()
    if args.warm_up is None:
        args.warm_up = min(60, args.seconds / 4)
    with tempfile.TemporaryDirectory() as folder:
        config = json.loads((Path(args.model) / "config.json").read_text()) if args.model else config_of(args.shape)
        if args.http and not args.model:
            # It runs in a process of its own, so that this one uses no GPU.
            writer = multiprocessing.get_context("spawn").Process(
                target=write_checkpoint, args=(args.shape, Path(folder))
            )
            writer.start()
            writer.join()
            if writer.exitcode != 0:
                sys.exit("the checkpoint could not be written")
        elif not args.model:
            (Path(folder) / "config.json").write_text(json.dumps(config))
        report = asyncio.run(serve(args.model or folder, args, config["vocab_size"]))
    text = json.dumps({"settings": vars(args), **report})
    print(text)
    if args.json:
        Path(args.json).write_text(text + "\n")
    sys.exit(1 if report["errors"] else 0)


async def serve(model: str, args: argparse.Namespace, vocabulary: int) -> dict[str, Any]:
    """Starts what serves, soaks it, and ends it."""
    # The engine's own tasks belong to the loop that runs here.
    target = await asyncio.to_thread(Server, model, args) if args.http else Engine(model, args)
    try:
        return await Soak(target, args, vocabulary).run()
    finally:
        await asyncio.to_thread(target.stop)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Work on other threads ends with the call that wants it done, whatever is raised, and whenever Ctrl-C comes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from transfuse._threads import Cancel, call_interruptible, run_on_threads


@pytest.mark.parametrize("num_threads", [1, 3, 40])
@pytest.mark.parametrize("count", [0, 1, 20])
def test_every_item(count: int, num_threads: int) -> None:
    taken: list[tuple[int, int]] = []
    here = threading.get_ident()

    def work(item: int) -> int:
        assert threading.get_ident() != here
        return item * item

    def take(item: int, result: int) -> None:
        assert threading.get_ident() == here
        taken.append((item, result))

    run_on_threads(work, range(count), take, num_threads=num_threads, cancel=Cancel())
    assert sorted(taken) == [(item, item * item) for item in range(count)]


@pytest.mark.parametrize("where", ["work", "take"])
def test_failure_waits_for_the_others(where: str) -> None:
    cancel, begun, ended = Cancel(), list[int](), list[int]()

    def work(item: int) -> None:
        begun.append(item)
        while item and not cancel.is_set():
            time.sleep(0.01)
        time.sleep(0.05)
        ended.append(item)
        if where == "work" and not item:
            raise RuntimeError("first")

    def take(item: int, _: None) -> None:
        if where == "take":
            raise RuntimeError("first")

    with pytest.raises(RuntimeError, match="first"):
        run_on_threads(work, range(1000), take, num_threads=3, cancel=cancel)
    assert cancel.is_set() and 0 in begun and len(begun) < 10
    assert sorted(begun) == sorted(ended)


def test_call_interruptible() -> None:
    def fail() -> None:
        raise failure

    failure = RuntimeError("of the work")
    done: list[int] = []
    call_interruptible(lambda: done.append(1), Cancel())
    assert done == [1]
    with pytest.raises(RuntimeError) as caught:
        call_interruptible(fail, Cancel())
    assert caught.value is failure


# Interrupts itself some time after each call began, be it done or not. Counts what works when the call has ended.
_PROGRAM = """
import _thread, random, sys, time
from transfuse._threads import Cancel, run_on_threads
random.seed(int(sys.argv[1]))
interrupted, working = 0, []
def work(item):
    working.append(item)
    time.sleep(0)
    working.remove(item)
def interrupt(seconds):
    time.sleep(seconds)
    _thread.interrupt_main()
    sent.append(1)
for _ in range(600):
    sent = []
    try:
        try:
            _thread.start_new_thread(interrupt, (random.uniform(0, 3e-3),))
            run_on_threads(work, range(60), lambda *_: None, num_threads=4, cancel=Cancel())
        finally:
            assert not working, working
        while True:
            time.sleep(1e-4)
    except KeyboardInterrupt:
        interrupted += 1
    while not sent:
        time.sleep(1e-4)
print("interrupted", interrupted)
"""


@pytest.mark.parametrize("seed", range(4))
def test_interrupted_anywhere(seed: int) -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, str(seed)], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted 600\n", "", 0)

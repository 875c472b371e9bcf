# SPDX-License-Identifier: Apache-2.0
"""Runs threads that work for a call, and that end with it whenever Ctrl-C is pressed.

KeyboardInterrupt comes in the main thread, between any two of its steps in Python: also where `threading` and
`concurrent.futures` have just taken a lock of theirs and are about to note it. That lock is never given back, and a
thread that needs it never ends. So everything that the main thread shares with the others here is implemented in C.
"""

from __future__ import annotations

import _thread
import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# A wait may take this long to notice Ctrl-C: a signal that another thread got does not wake the main one.
_PATIENCE_SECONDS = 0.1


class Cancel:
    """Asks work on other threads to stop: `set` ends, within a second, the loads that were given this object.

    Attributes
    ----------
    flag : ctypes.c_int32
        Nonzero once it is set; the library reads it.
    """

    def __init__(self) -> None:
        self.flag = ctypes.c_int32(0)

    def set(self) -> None:
        """Asks to stop."""
        self.flag.value = 1

    def is_set(self) -> bool:
        """Returns whether `set` has been called."""
        return self.flag.value != 0


def run_on_threads(
    work: Callable[[_Item], _Result],
    items: Sequence[_Item],
    take: Callable[[_Item, _Result], None],
    *,
    num_threads: int,
    cancel: Cancel,
) -> None:
    """Calls `work` of each item on other threads, begun in order, and `take` on this one of each item and its result.

    Results come in the order in which they are ready. If `work`, `take` or a signal (KeyboardInterrupt) raises an
    exception, `cancel` is set, at which `work` has to look. The exception is passed on once no thread works any more.
    """
    remaining = iter(items)  # each thread takes its next item from it
    outcomes: SimpleQueue[tuple[_Item, _Result] | BaseException | None] = SimpleQueue()
    started: list[int] = []
    ended: list[None] = []

    def run() -> None:
        try:
            for item in remaining:
                if cancel.is_set():
                    break
                outcomes.put((item, work(item)))
        except BaseException as failure:
            outcomes.put(failure)
        finally:
            ended.append(None)
            outcomes.put(None)  # wakes the wait below

    try:
        # This is one step, so that no thread runs that `started` does not know.
        started.extend(map(_thread.start_new_thread, [run] * num_threads, [()] * num_threads))
        while len(ended) < len(started) or not outcomes.empty():
            with suppress(Empty):
                outcome = outcomes.get(timeout=_PATIENCE_SECONDS)
                if isinstance(outcome, BaseException):
                    raise outcome
                if outcome:
                    take(*outcome)
    except BaseException:
        # The threads use memory of this call, so it must not be left, however often Ctrl-C is pressed.
        while True:
            try:
                cancel.set()
                while len(ended) < len(started):
                    with suppress(Empty):
                        outcomes.get(timeout=_PATIENCE_SECONDS)
                break
            except KeyboardInterrupt:
                continue
        raise


def call_interruptible(work: Callable[[], None], cancel: Cancel) -> None:
    """Runs `work` on a thread of its own, so that Ctrl-C is noticed while it runs, as `run_on_threads` does."""
    run_on_threads(lambda _: work(), [None], lambda *_: None, num_threads=1, cancel=cancel)

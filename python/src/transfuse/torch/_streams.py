# SPDX-License-Identifier: Apache-2.0
"""The streams of a thread, for other threads that work for it."""

from __future__ import annotations

from collections.abc import Callable

import torch


def find_streams() -> Callable[[], None]:
    """Returns a function that gives the thread that calls it this thread's current streams, and its current device.

    torch's current stream is each thread's own, and a new thread has the default one, which does not wait for others: a
    weight that the caller's kernels are still writing would be read, and memory would be allocated in another stream's
    order than the caller frees it in.
    """
    if not torch.cuda.is_initialized():
        return lambda: None
    device = torch.cuda.current_device()
    current = [torch.cuda.current_stream(each) for each in range(torch.cuda.device_count())]
    # A new thread has the default ones. Setting them would make a context on each device.
    streams = [stream for stream in current if stream != torch.cuda.default_stream(stream.device)]

    def take_over() -> None:
        for stream in streams:
            torch.cuda.set_stream(stream)
        if streams or device:
            torch.cuda.set_device(device)

    return take_over


__all__ = ["find_streams"]

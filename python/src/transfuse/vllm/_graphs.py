# SPDX-License-Identifier: Apache-2.0
"""Has vLLM capture its CUDA graphs again when the kernel arguments of a layer have changed.

A captured product holds its kernel arguments by value, among them the layer's window and the places of its sections.
New weights of about the same scale fit the window of the old ones, and graphs multiply by them from then on. Others get
a window of their own, as a model's weights do after vLLM's dummy weights. Then every rank drops its graphs and has vLLM
capture them again, at the end of the update, or, if vLLM's cache sleeps, when it wakes up. Until that is done, running
a step raises an error.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from vllm.compilation.breakable_cudagraph import BreakableCUDAGraphWrapper
from vllm.compilation.cuda_graph import CUDAGraphWrapper
from vllm.config import CUDAGraphMode
from vllm.distributed.parallel_state import get_pp_group, get_tp_group, model_parallel_is_initialized
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.utils.gc_utils import freeze_gc_heap

logger = init_logger("vllm.transfuse")

# How an update ended on a rank. Where there are several ranks the highest number counts.
_SAME, _CHANGED, _FAILED = range(3)

# What vLLM's sleep mode puts to sleep.
_SLEEPERS = frozenset({"weights", "kv_cache"})

# Attributes of a worker, which say what sleeps, and whether graphs have to be captured again.
_ASLEEP = "transfuse_asleep"
_DUE = "transfuse_capture_due"

# Layers of this process that need other kernel arguments than those that graphs, if there are any, have captured.
_changed: list[str] = []


def note_changed(name: str) -> None:
    """Notes that products of a layer need other kernel arguments than before."""
    if name not in _changed:
        _changed.append(name)


def forget_changes() -> None:
    """Forgets the noted layers, for a new model, which has no captured graphs."""
    _changed.clear()


def _finish_update(finish: Callable[..., Any], worker: Any, *args: Any, **kwargs: Any) -> Any:
    """Wraps a worker's method that ends an update of weights: graphs are captured again if any rank needs it.

    A rank that fails tells the others, which then do not wait for it. In that case nothing is captured, and if layers
    have changed, the next step raises an error.
    """
    state = _FAILED
    try:
        result = finish(worker, *args, **kwargs)
        state = _CHANGED if _changed else _SAME
    finally:
        state = _agree(state)
    if state == _CHANGED:
        setattr(worker, _DUE, True)
        _capture_if_due(worker)
    return result


def _sleep(go_to_sleep: Callable[..., Any], worker: Any, *args: Any, **kwargs: Any) -> None:
    """Wraps a worker's `sleep`: graphs cannot be captured while the worker sleeps."""
    go_to_sleep(worker, *args, **kwargs)
    setattr(worker, _ASLEEP, _SLEEPERS)


def _wake_up(wake: Callable[..., Any], worker: Any, tags: list[str] | None = None) -> None:
    """Wraps a worker's `wake_up`: graphs that have to be captured again are captured once everything is awake."""
    wake(worker, tags)
    setattr(worker, _ASLEEP, frozenset() if tags is None else getattr(worker, _ASLEEP, frozenset()) - set(tags))
    _capture_if_due(worker)


def _run_step(step: Callable[..., Any], worker: Any, *args: Any, **kwargs: Any) -> Any:
    """Wraps a worker's method that runs the model.

    Raises
    ------
    RuntimeError
        Graphs would multiply by weights that no longer exist.
    """
    if (_changed or getattr(worker, _DUE, False)) and _uses_graphs(worker):
        changed = _changed[0] if _changed else "a layer of another rank"
        raise RuntimeError(
            f"{changed}: its new weights need other kernel arguments than the CUDA graphs hold, which were not "
            "captured again, since the update failed, has not ended yet or went past vLLM's reload_weights and "
            "finish_weight_update; call one of them, or serve with --enforce-eager"
        )
    return step(worker, *args, **kwargs)


def _agree(state: int) -> int:
    """Returns the highest state among the ranks that multiply together; each of them has to call this."""
    if model_parallel_is_initialized():
        for group in (get_tp_group(), get_pp_group()):
            if group.world_size > 1:
                highest = torch.tensor([state], device="cpu")
                torch.distributed.all_reduce(highest, op=torch.distributed.ReduceOp.MAX, group=group.cpu_group)
                state = int(highest)
    return state


def _uses_graphs(worker: Any) -> bool:
    config = worker.vllm_config
    return not config.model_config.enforce_eager and config.compilation_config.cudagraph_mode != CUDAGraphMode.NONE


def _capture_if_due(worker: Any) -> None:
    if not getattr(worker, _DUE, False) or getattr(worker, _ASLEEP, None):
        return
    if _uses_graphs(worker):
        logger.info("transfuse: new weights need other kernel arguments: CUDA graphs are captured again")
        _capture_again(worker.model_runner)
    setattr(worker, _DUE, False)
    forget_changes()


def _wrappers() -> list[Any]:
    """Returns the objects that hold graphs of a whole model or of its pieces, for both of vLLM's model runners."""
    return [*CUDAGraphWrapper._all_instances, *BreakableCUDAGraphWrapper._all_instances]


def _managers(runner: Any) -> list[Any]:
    """Returns the objects that hold graphs of the model, and of one that drafts, for the second model runner alone."""
    owners = [runner, getattr(runner, "speculator", None)]
    found = [value for owner in owners if owner is not None for value in vars(owner).values()]
    return [value for value in found if hasattr(type(value), "run_fullgraph")]


def _drop_graphs(runner: Any) -> None:
    for holder in (*_wrappers(), runner.model):  # the model holds graphs where vLLM overlaps two batches
        if hasattr(type(holder), "clear_graphs"):
            holder.clear_graphs()
    for manager in _managers(runner):
        manager.graphs.clear()
    encoder = getattr(runner, "encoder_cudagraph_manager", None)
    if encoder is not None:
        encoder.clear()


def _capture_again(runner: Any) -> None:
    """Drops all graphs of a model runner, and has it capture them once more; called on all ranks.

    Graphs get a new pool of memory: torch takes the old one back when its last graph is gone, and does not lend it a
    second time.
    """
    torch.accelerator.synchronize()
    _drop_graphs(runner)
    pool = current_platform.graph_pool_handle()
    type(current_platform)._global_graph_pool = pool
    for wrapper in _wrappers():
        wrapper.graph_pool = pool
    for manager in _managers(runner):
        if manager.pool is not None:
            manager.pool = pool
    gc.collect()
    torch.accelerator.empty_cache()
    with _requests_put_aside(runner):
        runner.capture_model()
    freeze_gc_heap()  # as vLLM does after it has captured


@contextmanager
def _requests_put_aside(runner: Any) -> Iterator[None]:
    """A block in which the first model runner's tables of cache blocks are empty.

    vLLM empties them, too, where it captures graphs beside requests. The second runner's tables are not used for that.
    """
    tables = getattr(getattr(runner, "input_batch", None), "block_table", None)
    buffers = [table.block_table for table in getattr(tables, "block_tables", [])]
    saved = [(buffer.gpu.clone(), buffer.cpu.clone()) for buffer in buffers]
    if tables is not None:
        tables.clear()
    try:
        yield
    finally:
        for buffer, (on_gpu, on_cpu) in zip(buffers, saved, strict=True):
            buffer.gpu.copy_(on_gpu)
            buffer.cpu.copy_(on_cpu)


# The function that wraps each of these methods of a worker.
AROUND_WORKER: dict[str, Callable[..., Any]] = {
    "reload_weights": _finish_update,
    "finish_weight_update": _finish_update,
    "sleep": _sleep,
    "wake_up": _wake_up,
    "execute_model": _run_step,
    "execute_dummy_batch": _run_step,
}

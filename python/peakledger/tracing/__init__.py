"""``peakledger.trace``: a training step of any ``nn.Module``, storage by storage, with no GPU."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import keystr, tree_leaves_with_path

from .answer import Trace
from .fake import Fakes
from .modules import Modules
from .stand_in import stand_in
from .step import Program, run
from .storages import Log

__all__ = ["Trace", "trace"]


def trace(
    model: torch.nn.Module,
    batch: Any,
    optimizer: Any = torch.optim.AdamW,
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    *,
    micro_batches: int = 1,
    autocast: torch.dtype | None = None,
    clip_grad_norm: float | None = None,
    hold_outputs: bool = False,
    capability: tuple[int, int] = (9, 0),
) -> Trace:
    """Traces the first and a steady training step of a model as they would run on a CUDA card, with none.

    The step is the usual one: forward, loss and backward for each micro-batch, then ``clip_grad_norm_``,
    ``optimizer.step()`` and ``optimizer.zero_grad()``. It runs under ``FakeTensorMode``: every op is dispatched, none is
    computed, and no memory of the model's size is taken. The model may be on any device, ``meta`` among them; its tensors
    are replaced while the trace runs and put back afterwards, and no value of the model or the optimizer changes.

    Args:
        model: The module, as it is trained: in ``train()`` mode, parameters frozen, adapters in place, checkpointing on.
        batch: What the model is called with: a dict gives keyword arguments, a tuple or list positional ones, a tensor one
            argument. Only shapes and types count. It is on the GPU from the beginning of the step.
        optimizer: An optimizer over the model's parameters; or what makes one from the list of trained parameters, such as
            ``torch.optim.AdamW`` or ``lambda p: torch.optim.SGD(p, momentum=0.9)``; or None for a step without update.
        loss: Makes the loss, one number, of the model's output and the batch. Without it, the output must have one
            (``out.loss``, ``out["loss"]``, ``out[0]`` or ``out`` itself), as transformers' models do when given labels.
        micro_batches: How often forward, loss and backward run before the update, each with this batch.
        autocast: The type that forward and loss run in under ``torch.autocast("cuda")``, ``torch.bfloat16`` or
            ``torch.float16``; None for none.
        clip_grad_norm: Clip the gradients to this norm before the update.
        hold_outputs: The loop keeps the model's output until backward ends, as one does that binds it to a name.
        capability: The card's compute capability; before (8, 0) there is no flash attention.

    Returns:
        A `Trace`: a ledger for each of the two steps, and their phases. Sizes are exact bytes as the caching allocator
        hands them out: each storage rounded up to 512. Memory that kernels allocate inside themselves is not seen.

    Raises:
        TypeError: The loss is not one number, or ``optimizer`` does not make an optimizer.
        ValueError: ``micro_batches`` is less than 1.
        RuntimeError: An older torch, built for CUDA, asks for a driver, and there is none.

    The rules that count are torch's own: the dispatcher's, autograd's, and those of torch.distributed._tools.MemTracker, with
    which the figures agree wherever it runs. What CUDA does differently from the device at hand is listed, and tested, in
    `peakledger.tracing.stand_in`.
    """
    if micro_batches < 1:
        raise ValueError(f"micro_batches: a step has at least one, and this is {micro_batches}")
    fakes = Fakes()
    modules = Modules(model)
    log = Log(modules)
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.RNNBase):
            log.notes[f"{path or 'the model'} is traced as the ops that it is made of; on a card cuDNN keeps less"] = (
                None
            )
    with stand_in(capability), FakeTensorMode(), fakes.in_model(model), torch.enable_grad(), _no_collector():
        batches = [Fakes().of_all(batch) for _ in range(micro_batches)]
        made = fakes.optimizer(optimizer, model) if optimizer is not None else None
        _hold(log, model, batches)
        program = Program(model, batches, loss, made, autocast, clip_grad_norm, hold_outputs)
        with log, modules.followed(), _driver_named():
            first = run(program, log, modules)
            steady = run(program, log, modules)
    return Trace(log.tape, first, steady)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Python's garbage collector comes at a moment of its own, and what it frees then would be freed at another next time."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _driver_named() -> Iterator[None]:
    """Says what to do where an older torch, built for CUDA, asks for a driver under FakeTensorMode."""
    try:
        yield
    except RuntimeError as error:
        if "driver" not in str(error) or torch.cuda.is_available():
            raise
        raise RuntimeError(
            f"trace: torch {torch.__version__} is built for CUDA and asks for a driver where this model needs none; "
            "use a newer torch, or one that is built for the CPU"
        ) from error


def _hold(log: Log, model: torch.nn.Module, batches: list[Any]) -> None:
    """What is there before the step."""
    for name, parameter in model.named_parameters():
        log.hold(parameter, name, "parameter")
    for name, buffer in model.named_buffers():
        log.hold(buffer, name, "parameter", "buffer")
    for index, batch in enumerate(batches):
        for path, leaf in tree_leaves_with_path(batch):
            if isinstance(leaf, torch.Tensor):
                log.hold(leaf, f"batch{keystr(path)}.{index}", "activation", "input")

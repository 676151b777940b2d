"""Runs a training step on fakes, phase by phase, while the log is on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from .._tape import NEVER
from .modules import Modules
from .storages import Log


@dataclass(slots=True)
class Program:
    """What a step runs."""

    model: torch.nn.Module
    batches: list[Any]
    """One a micro-batch."""
    loss: Callable[[Any, Any], torch.Tensor] | None
    optimizer: torch.optim.Optimizer | None
    autocast: torch.dtype | None
    clip_grad_norm: float | None
    hold_outputs: bool


def run(program: Program, log: Log, modules: Modules) -> range:
    """One step. Returns the log's moments that it took."""
    first = len(log.tape.moments)
    modules.new_step()
    log.tape.phase("load")
    for index in range(len(program.batches)):
        _micro_batch(program, log, modules, index)
    if program.optimizer is not None:
        log.tape.phase("update")
        _update(program, log, modules, program.optimizer)
        log.tape.phase("zero_grad")
        program.optimizer.zero_grad()
    log.tape.end()
    return range(first, len(log.tape.moments))


def _micro_batch(program: Program, log: Log, modules: Modules, index: int) -> None:
    batch = program.batches[index]
    autocast = torch.autocast("cuda", dtype=program.autocast) if program.autocast else nullcontext()
    with autocast:
        modules.outside("")
        log.tape.phase("forward", index)
        out = _call(program.model, batch)
        log.tape.phase("loss", index)
        modules.outside("loss")
        outputs = [stored for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor) for stored in log.of(leaf)]
        loss = loss_of(out, batch, program.loss)
        if len(program.batches) > 1:
            loss = loss / len(program.batches)
        held = out if program.hold_outputs else None
        del out
        log.tape.phase(
            "backward", index
        )  # before autocast ends and lets go of its weights, as MemTracker's figures have it
    modules.outside("")
    began = len(log.tape.moments)
    loss.backward()
    _name_activations(log, outputs, began)
    for name, parameter in program.model.named_parameters():
        if parameter.grad is not None:
            log.hold(parameter.grad, f"{name}.grad", "gradient")
    log.tape.end()
    del loss, held


def _update(program: Program, log: Log, modules: Modules, optimizer: torch.optim.Optimizer) -> None:
    names = {id(parameter): name for name, parameter in program.model.named_parameters()}
    if program.clip_grad_norm is not None:
        modules.outside("clip_grad_norm")
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, program.clip_grad_norm)
    modules.outside("optimizer")
    optimizer.step()
    for parameter, state in optimizer.state.items():
        owner = names.get(id(parameter), "optimizer")
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                category = "master_weight" if "master" in key else "optimizer_state"
                log.hold(value, f"{owner}.{key}", category)
    modules.outside("")


def _call(model: torch.nn.Module, batch: Any) -> Any:
    if isinstance(batch, dict):
        return model(**batch)
    if isinstance(batch, (tuple, list)):
        return model(*batch)
    return model(batch)


def loss_of(out: Any, batch: Any, loss: Callable[[Any, Any], torch.Tensor] | None) -> torch.Tensor:
    """The loss: what `loss` makes of output and batch, or what the model has put out as one.

    Raises:
        TypeError: There is no loss in the output, and no function was given.
    """
    value = loss(out, batch) if loss is not None else out
    if loss is None and not isinstance(out, torch.Tensor):
        value = out.get("loss") if isinstance(out, dict) else getattr(out, "loss", None)
        if value is None and isinstance(out, (tuple, list)) and out:
            value = out[0]
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise TypeError(
            f"loss: backward needs one number, and this is {what}; pass loss=, a function of the model's output and the batch"
        )
    return value


def _name_activations(log: Log, outputs: list[Any], began: int) -> None:
    """What forward or loss has made and backward lets go of was kept for it, by autograd or as the model's output."""
    for stored in outputs:
        if not stored.category:
            stored.detail = "output"
    for stored in log.tape.stored:
        if stored.birth < began <= stored.death < NEVER and not stored.category and stored.detail is None:
            stored.detail = "saved_tensor"

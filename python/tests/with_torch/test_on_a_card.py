"""What only a CUDA card can show; `scripts/gpu_check.sh` runs it. Without a card the same code runs on the CPU where it can."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_map_only

import peakledger
from peakledger.recording.peaks import CardPeaks
from peakledger.tracing.answer import Trace
from peakledger.tracing.modules import Modules
from peakledger.tracing.step import Program, run
from peakledger.tracing.storages import Log
from steps import TRAININGS, Training, Transformer, ids, next_token, phases_of

pytestmark = pytest.mark.torch

needs_a_card = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA card: run scripts/gpu_check.sh on one"
)


def really_traced(training: Training, device: str) -> Trace:
    """Two real steps on real tensors, with the log of a trace on."""
    model = training.make()
    on_meta = any(parameter.is_meta for parameter in model.parameters())
    model = model.to_empty(device=device) if on_meta else model.to(device)
    batch = tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), training.batch)
    modules = Modules(model)
    log = Log(modules)
    for name, parameter in model.named_parameters():
        log.hold(parameter, name, "parameter")
    for name, buffer in model.named_buffers():
        log.hold(buffer, name, "parameter", "buffer")
    for leaf in torch.utils._pytree.tree_leaves(batch):
        log.hold(leaf, "batch", "activation", "input")
    program = Program(
        model, [batch], training.loss, training.optimizer(list(model.parameters())), training.options.get("autocast"),
        training.options.get("clip_grad_norm"), False,
    )  # fmt: skip
    with log, modules.followed():
        return Trace(log.tape, run(program, log, modules), run(program, log, modules))


def test_the_log_takes_real_tensors_too() -> None:
    trace = really_traced(TRAININGS["transformer"], "cpu")
    assert [phase["phase"] for phase in trace.phases] == ["load", "forward", "loss", "backward", "update", "zero_grad"]
    states = trace.to_document()["states"]
    assert {"blocks.0.qkv.weight.grad", "blocks.1.mlp.1: gelu_backward"} <= {state["name"] for state in states}


@needs_a_card
@pytest.mark.parametrize("name", TRAININGS)
def test_what_stands_in_for_a_card_does_as_the_card(name: str) -> None:
    training = TRAININGS[name]
    fake = peakledger.trace(
        training.make(), training.batch, training.optimizer, training.loss,
        capability=torch.cuda.get_device_capability(), **training.options,
    )  # fmt: skip
    real = really_traced(training, "cuda")
    assert [phases_of(fake.first), phases_of(fake.steady)] == [phases_of(real.first), phases_of(real.steady)]


@needs_a_card
def test_a_recorded_card_has_phases_and_what_is_trained(tmp_path: Path) -> None:
    model = Transformer().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = ids().cuda()
    with peakledger.record(snapshot=tmp_path / "snapshot.pickle") as recording:
        for _ in range(2):
            next_token(model(batch), batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    ledger = recording.ledger()
    assert {"forward", "loss", "backward", "update", "zero_grad"} <= {phase["phase"] for phase in ledger.phases}
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert ledger.peak["peak_bytes"] >= 4 * weights


@needs_a_card
def test_the_peaks_of_phases_are_at_least_the_traced_ones() -> None:
    model = Transformer(layers=4, width=512).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = ids(4, 256).cuda()
    peaks = CardPeaks()
    for _ in range(2):
        peaks.start()
        next_token(model(batch), batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        peaks.stop()
        measured = peaks.take()
    trace = peakledger.trace(model, batch, optimizer, next_token, capability=torch.cuda.get_device_capability())
    for phase in trace.phases:
        if phase["phase"] != "load":
            assert phase["peak_bytes"] <= measured[phase["phase"]] <= phase["peak_bytes"] + 64 * 2**20, phase["phase"]


@needs_a_card
def test_running_out_of_memory_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    callback = peakledger.PeakLedgerCallback(tmp_path / "oom.pickle")
    callback.on_train_begin(None, None, None)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(2**50, device="cuda")
    callback.on_train_end()
    assert (tmp_path / "oom.pickle").stat().st_size > 0
    assert "ran out of memory: 1048576.00 GiB asked for" in capsys.readouterr().err

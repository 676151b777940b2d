"""Recordings of real steps on the CPU, and of a card by fakes at its boundary."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import peakledger
from steps import Transformer, ids, next_token

pytestmark = pytest.mark.torch


def train(steps: int = 2, micro_batches: int = 1) -> tuple[torch.nn.Module, peakledger.recording.Recording]:
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = ids()
    with peakledger.record("cpu") as run:
        for _ in range(steps):
            for _ in range(micro_batches):
                next_token(model(batch), batch).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return model, run


def test_phases_are_told_without_a_word() -> None:
    _, run = train(micro_batches=2)
    micro = [(phase, index) for index in range(2) for phase in ("forward", "loss", "backward")]
    expected = [("load", None), *micro, ("update", None), ("zero_grad", None)]
    assert [[(p.phase, p.micro_batch) for p in step.phases] for step in run.steps] == [expected, expected]


def test_a_reconciliation_closes() -> None:
    model, run = train()
    closed = run.reconcile(peakledger.trace(model, ids(), loss=next_token))
    assert [rule["rule"] for rule in closed.to_dict()["rules"] if not rule["holds"]] == []
    assert all(phase["measured_bytes"] for phase in closed.phases)
    named = {part["name"]: part["bytes"] for part in closed.remainder}
    assert named["predicted"] + named["unexplained"] == named["allocated"]
    update = next(phase for phase in closed.phases if phase["phase"].startswith("update"))
    rounding = 512 * sum(1 for _ in model.parameters())
    for category in update["by_category"]:
        if category["category"] in ("parameter", "gradient"):
            assert abs(category["difference_bytes"]) <= rounding, category


def test_what_is_trained_is_measured_to_the_byte() -> None:
    model, run = train()
    weights = sum(parameter.nbytes for parameter in model.parameters())
    first, steady = ({phase.phase: phase.by_category for phase in step.phases} for step in run.steps)
    assert first["load"]["parameter"] == steady["load"]["parameter"] == weights
    assert "optimizer_state" not in first["load"]
    assert steady["load"]["optimizer_state"] == 2 * weights + sum(4 for _ in model.parameters())
    assert steady["update"]["gradient"] == weights
    assert "gradient" not in steady["forward"]


def test_a_measured_ledger_is_of_the_cpu_and_leaves_the_gpu_at_nothing() -> None:
    _, run = train()
    assert run.ledger().peak["peak_bytes"] == 0
    moved = run.ledger(on="gpu")
    assert moved.peak["peak_bytes"] == max(phase.peak_bytes for phase in run.steps[-1].phases)


def test_measured_and_traced_hold_the_same_parameters_gradients_and_states_but_for_rounding() -> None:
    model, run = train()
    trace = peakledger.trace(model, ids(), loss=next_token, clip_grad_norm=1.0)
    traced = {phase["phase"]: phase["by_category"] for phase in trace.phases}
    for phase in run.steps[-1].phases:
        for category in ("parameter", "optimizer_state"):
            rounding = traced[phase.phase][category] - phase.by_category[category]
            assert -4 * 22 <= rounding < 512 * 2 * 22, (phase.phase, category)  # and 4 bytes of `step` a parameter


def test_phases_by_hand() -> None:
    with peakledger.record("cpu") as run:
        with run.phase("forward"):
            kept = torch.ones(1000)
        with run.phase("update"):
            more = torch.ones(2000)
    del kept, more
    phases = {phase.phase: phase for phase in run.steps[0].phases}
    assert list(phases) == ["load", "forward", "update"]
    assert (phases["forward"].end_bytes, phases["update"].end_bytes) == (4000, 12000)
    with pytest.raises(ValueError, match="phase: 'warm-up' is none of forward"), run.phase("warm-up"):
        pass


def test_an_exception_ends_the_recording_and_leaves_torch_as_it_was() -> None:
    backward, zero_grad = torch.autograd.backward, torch.optim.Optimizer.zero_grad
    run = peakledger.record("cpu")

    def fails() -> None:
        with run:
            Transformer()(ids())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert torch.autograd.backward is backward and torch.optim.Optimizer.zero_grad is zero_grad
    assert run.steps[0].phases[1].phase == "forward"


def test_evaluation_is_no_forward() -> None:
    model = Transformer()
    with peakledger.record("cpu") as run, torch.no_grad():
        model(ids())
    assert [phase.phase for phase in run.steps[0].phases] == ["load"]


class FakeCard:
    """torch.cuda.memory's recording, as far as it is called."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, dict[str, Any]]] = []

    def record(self, enabled: Any = "all", **options: Any) -> None:
        self.calls.append((enabled, options))


def test_a_card_is_recorded_by_its_allocators_history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    card = FakeCard()

    def record(  # the arguments of torch 2.15's
        enabled: Any = "all",
        context: Any = "all",
        stacks: str = "all",
        max_entries: int = 1,
        clear_history: bool = False,
        global_record_annotations: bool = False,
    ) -> None:
        card.record(
            enabled,
            context=context,
            stacks=stacks,
            max_entries=max_entries,
            clear_history=clear_history,
            annotations=global_record_annotations,
        )

    snapshot = {"segments": [], "device_traces": [[]], "allocator_settings": {}}
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", record)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: snapshot)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    path = tmp_path / "snapshot.pickle"
    with peakledger.record("cuda", snapshot=path, max_entries=1000) as run:
        pass
    assert card.calls[0] == (
        "all",
        {"context": "all", "stacks": "python", "max_entries": 1000, "clear_history": True, "annotations": True},
    )
    assert card.calls[1][0] is None
    assert run.snapshot == path and pickle.loads(path.read_bytes()) == snapshot


def test_a_card_of_an_older_torch_is_asked_for_less(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    card = FakeCard()

    def record(enabled: Any = "all", context: Any = "all", stacks: str = "all", max_entries: int = 1) -> None:
        card.record(enabled, max_entries=max_entries)

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", record)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", dict)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with peakledger.record("cuda", snapshot=tmp_path / "snapshot.pickle"):
        pass
    assert [enabled for enabled, _ in card.calls] == ["all", None]


def test_what_a_card_recorded_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shared: Path) -> None:
    snapshot = pickle.loads((shared / "data" / "snapshots" / "06_cuda_step.pickle").read_bytes())
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda *words, **options: None)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: snapshot)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with peakledger.record("cuda") as run:
        pass
    assert run.ledger().peak["peak_bytes"] == run.peak["peak_bytes"] > 0


def test_there_is_no_third_device() -> None:
    with pytest.raises(ValueError, match="device: 'tpu' is neither 'cuda' nor 'cpu'"):
        peakledger.record("tpu")  # type: ignore[arg-type]

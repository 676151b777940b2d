"""The callback in a real Trainer on the CPU, in Lightning's order of calls, and on a card by fakes at its boundary."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from peakledger import PeakLedgerCallback
from steps import Transformer, ids, next_token

pytestmark = pytest.mark.torch

KEYS = {f"peakledger/{phase}_peak_bytes" for phase in ("forward", "loss", "backward", "update", "zero_grad")}


class WithLoss(torch.nn.Module):
    """What a Trainer trains: a forward that returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = Transformer()

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": next_token(self.inside(input_ids), input_ids)}


def test_a_trainers_logs_have_the_peaks(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, logging_steps=1, report_to=[], save_strategy="no", use_cpu=True,
        per_device_train_batch_size=2, disable_tqdm=True, gradient_accumulation_steps=2,
    )  # fmt: skip
    data = [{"input_ids": row} for row in ids(batch=8)]
    callback = PeakLedgerCallback()
    trainer = transformers.Trainer(WithLoss(), args, train_dataset=data, callbacks=[callback])
    callback.attach(trainer)
    assert trainer.callback_handler.callbacks[0] is callback
    assert trainer.callback_handler.callbacks.count(callback) == 1
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    weights = sum(parameter.nbytes for parameter in trainer.model.parameters())
    assert len(logged) == 2 and all(set(entry) >= KEYS for entry in logged)
    assert logged[1]["peakledger/update_peak_bytes"] >= 4 * weights, "weights, gradients and two states"
    assert logged[0]["peakledger/forward_peak_bytes"] < logged[1]["peakledger/forward_peak_bytes"]


def test_lightning_logs_the_peaks() -> None:
    model, logged = Transformer(), []
    optimizer = torch.optim.AdamW(model.parameters())
    module = SimpleNamespace(log_dict=logged.append)
    callback = PeakLedgerCallback()
    callback.on_train_start(None, module)
    callback.on_train_batch_start(None, module, ids(), 0)
    optimizer.zero_grad()
    next_token(model(ids()), ids()).backward()
    optimizer.step()
    optimizer.zero_grad()
    callback.on_train_batch_end(None, module, None, ids(), 0)
    callback.on_train_end(None, module)
    assert len(logged) == 1 and set(logged[0]) == KEYS


class Card:
    """The card's statistics and its allocator's history, as far as they are called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allocated = self.peak = 0
        self.recording: list[Any] = []
        self.observers: list[Any] = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: self.peak)
        monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"segments": [], "device_traces": [[]]})
        monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda *a, **k: self.recording.append((a, k)))
        monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", self.observers.append, raising=False)

    def reset(self) -> None:
        self.peak = self.allocated

    def allocate(self, size: int) -> None:
        self.allocated += size
        self.peak = max(self.peak, self.allocated)


def test_on_a_card_each_phase_has_the_peak_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(monkeypatch)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4))

        def forward(self) -> torch.Tensor:
            card.allocate(1000), card.allocate(-400)
            return self.weight.sum()

    model = Model()
    optimizer = torch.optim.SGD(model.parameters())
    callback = PeakLedgerCallback()
    callback.on_train_begin(None, None, None)
    out = model()
    card.allocate(50)
    out.backward()
    optimizer.step()
    card.allocate(-650)
    optimizer.zero_grad()
    state, logs = SimpleNamespace(log_history=[{}]), {"loss": 1.0}
    callback.on_log(None, state, None, logs)
    callback.on_train_end(None, None, None)
    assert logs == {
        "loss": 1.0,
        "peakledger/forward_peak_bytes": 1000.0,
        "peakledger/loss_peak_bytes": 650.0,
        "peakledger/backward_peak_bytes": 650.0,
        "peakledger/update_peak_bytes": 650.0,
        "peakledger/zero_grad_peak_bytes": 0.0,
    }
    assert set(state.log_history[-1]) == KEYS
    assert card.recording[0][1]["max_entries"] == 100_000 and card.recording[-1] == ((None,), {})


def test_running_out_of_memory_leaves_a_snapshot_and_its_explanation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    card = Card(monkeypatch)
    path = tmp_path / "oom.pickle"
    callback = PeakLedgerCallback(path)
    callback.on_train_begin(None, None, None)
    card.observers[0](0, 2 * 2**30, 16 * 2**30, 2**29)
    callback.on_exception(None, None, MemoryError())
    assert pickle.loads(path.read_bytes()) == {"segments": [], "device_traces": [[]]}
    err = capsys.readouterr().err
    assert (
        "cuda:0 ran out of memory: 2.00 GiB asked for, 0.50 GiB of 16.00 GiB free" in err
        and "only the final state is known" in err
    )

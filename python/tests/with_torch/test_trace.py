"""Traces against torch's own tracker, and where that one stops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import peakledger
import steps
from steps import TRAININGS, Cnn, Training, Transformer, ids, next_token, phases_of, squares

pytestmark = pytest.mark.torch


def traced(training: Training) -> peakledger.tracing.Trace:
    return peakledger.trace(training.make(), training.batch, training.optimizer, training.loss, **training.options)


@pytest.mark.parametrize("name", TRAININGS)
def test_agrees_with_the_tracker_in_every_phase_of_both_steps(name: str) -> None:
    trace = traced(TRAININGS[name])
    assert [phases_of(trace.first), phases_of(trace.steady)] == steps.tracked(TRAININGS[name])


def test_the_ledger_of_a_trace_adds_up_to_its_phases() -> None:
    trace = traced(TRAININGS["transformer"])
    ledger = trace.ledger()
    batch = TRAININGS["transformer"].batch.nbytes
    backward = next(phase for phase in trace.phases if phase["phase"] == "backward")
    of_ledger = next(phase for phase in ledger.phases if phase["phase"] == "backward")
    assert of_ledger["total_bytes"] in (backward["peak_bytes"], backward["peak_bytes"] + batch)
    assert sum(entry["bytes"] for entry in trace.contributors) == trace.peak["bytes"]
    assert sum(trace.peak["by_category"].values()) == trace.peak["bytes"]


def test_frozen_parameters_where_the_tracker_raises() -> None:
    def frozen() -> nn.Module:
        model = Transformer()
        model.blocks[0].requires_grad_(False)
        return model

    training = Training(frozen, ids(), next_token, lambda p: torch.optim.AdamW([q for q in p if q.requires_grad]))
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        steps.tracked(training)
    document = traced(training).to_document()
    gradients = [state["name"] for state in document["states"] if state["category"] == "gradient"]
    assert gradients and not any(name.startswith("blocks.0.") for name in gradients)
    assert all(f"{name}.grad" in gradients for name, p in frozen().named_parameters() if p.requires_grad)


def test_more_forwards_in_a_step_where_the_tracker_raises() -> None:
    training = TRAININGS["cnn"]
    trace = peakledger.trace(training.make(), training.batch, training.optimizer, training.loss, micro_batches=3)
    names = [(phase["phase"], phase["micro_batch"]) for phase in trace.phases]
    assert names == [
        ("load", None),
        *((phase, index) for index in range(3) for phase in ("forward", "loss", "backward")),
        ("update", None),
        ("zero_grad", None),
    ]
    first, second, _ = (p["by_category"].get("gradient", 0) for p in trace.phases if p["phase"] == "forward")
    assert first == 0 < second, "gradients wait for the update"


def test_the_optimizer_state_is_made_in_the_first_update_and_stays() -> None:
    trace = traced(TRAININGS["transformer"])
    parameters = trace.phases[0]["by_category"]["parameter"]
    assert "optimizer_state" not in trace.first.phases[0].by_category
    assert trace.phases[0]["by_category"]["optimizer_state"] == 2 * parameters


def test_checkpoints_run_again_in_backward_and_what_they_make_there_is_activation() -> None:
    plain, checkpointed = (
        peakledger.trace(Transformer(layers=6, checkpointed=which), ids(), loss=next_token) for which in (False, True)
    )

    def activations(trace: Any, phase: str) -> int:
        return next(p["by_category"]["activation"] for p in trace.phases if p["phase"] == phase)

    assert activations(checkpointed, "forward") < activations(plain, "forward") / 2
    again = [s for s in checkpointed.to_document()["states"] if s["name"].startswith("blocks.0.mlp.0: ")]
    assert {s["category"] for s in again if s["residencies"][0]["start_phase"] == "backward.0"} >= {"activation"}


def test_lora() -> None:
    peft = pytest.importorskip("peft")
    model = steps.hugging_face(steps.LLAMA, torch.bfloat16)
    with torch.device("meta"):
        model = peft.get_peft_model(
            model, peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"])
        )
    trace = peakledger.trace(model, {"input_ids": ids()}, loss=next_token)
    states = trace.to_document()["states"]
    assert {state["name"].split(".")[-3] for state in states if state["category"] == "gradient"} == {"default"}
    assert trace.phases[0]["by_category"]["optimizer_state"] < trace.phases[0]["by_category"]["parameter"] / 4


def test_nothing_of_the_caller_changes() -> None:
    model = Cnn()
    optimizer = torch.optim.AdamW(model.parameters())
    before = {name: (id(tensor), tensor.clone()) for name, tensor in model.state_dict(keep_vars=True).items()}
    peakledger.trace(model, torch.zeros(2, 3, 32, 32), optimizer, squares)
    after = model.state_dict(keep_vars=True)
    assert {name: id(tensor) for name, tensor in after.items()} == {name: before[name][0] for name in before}
    assert all(torch.equal(after[name], value) for name, (_, value) in before.items())
    assert not optimizer.state and all(parameter.grad is None for parameter in model.parameters())


def test_a_traced_model_on_meta_and_on_the_cpu_are_one() -> None:
    with torch.device("meta"):
        on_meta = Transformer()
    traces = [peakledger.trace(model, ids(), loss=next_token) for model in (on_meta, Transformer())]
    assert traces[0].to_dict() == traces[1].to_dict()


def test_names_say_the_module_in_backward_too() -> None:
    states = traced(TRAININGS["transformer"]).to_document()["states"]
    names = {state["name"] for state in states}
    assert len(names) == len(states)
    assert "blocks.1.mlp.1: gelu_backward" in names
    assert "blocks.0.qkv.weight.exp_avg_sq" in names
    of_linear = next(s for s in states if s["name"] == "blocks.1.mlp.0: addmm")
    assert of_linear["detail"] == "saved_tensor", "gelu keeps what it is given"


def test_offloaded_activations_are_on_the_host() -> None:
    class Offloaded(Transformer):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            with torch.autograd.graph.save_on_cpu(pin_memory=True):
                return super().forward(ids)

    plain, offloaded = (peakledger.trace(model, ids(), loss=next_token) for model in (Transformer(), Offloaded()))
    on_host = [s for s in offloaded.to_document()["states"] if (s.get("residencies") or [s])[0]["device"] == "cpu"]
    assert sum(state["size_bytes"] for state in on_host) > 0
    ends = [next(p["end_bytes"] for p in trace.phases if p["phase"] == "forward") for trace in (plain, offloaded)]
    assert ends[1] < ends[0]


def test_a_loss_with_a_constant_of_its_own() -> None:
    weights = torch.ones(128)

    def loss(out: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(out.flatten(0, 1), batch.flatten(), weight=weights)

    trace = peakledger.trace(Transformer(), ids(), loss=loss)
    assert trace.notes == (
        "a tensor of shape [128] from outside was taken to be on the card; its bytes are not counted",
    )


def test_a_model_that_makes_its_loss_itself() -> None:
    model = steps.hugging_face(steps.LLAMA, torch.bfloat16)
    trace = peakledger.trace(model, {"input_ids": ids(), "labels": ids()})
    assert [phase["phase"] for phase in trace.phases][:4] == ["load", "forward", "loss", "backward"]
    assert "gradient" in trace.phases[4]["by_category"]


def test_recurrent_layers_are_traced_with_a_note() -> None:
    trace = peakledger.trace(nn.LSTM(8, 16), torch.zeros(4, 2, 8), loss=lambda out, batch: out[0].sum())
    assert trace.peak["bytes"] > 0
    assert trace.notes == ("the model is traced as the ops that it is made of; on a card cuDNN keeps less",)


def test_what_cannot_be_traced_is_said() -> None:
    with pytest.raises(
        TypeError, match=r"loss: backward needs one number, and this is a tensor of shape \(2, 32, 128\)"
    ):
        peakledger.trace(Transformer(), ids())
    with pytest.raises(ValueError, match="micro_batches: a step has at least one"):
        peakledger.trace(Transformer(), ids(), micro_batches=0)
    with pytest.raises(TypeError, match=r"optimizer: a torch.optim.Optimizer was to be made, and this is a list"):
        peakledger.trace(Transformer(), ids(), list, next_token)

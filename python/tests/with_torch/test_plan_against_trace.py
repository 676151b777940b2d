"""The planner and the trace, which know nothing of each other, on the same small models: equal in every phase of both steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import peakledger
from steps import GPT2, LLAMA, hugging_face, ids

pytestmark = pytest.mark.torch

SHAPE = {key: LLAMA[key] for key in LLAMA if key != "model_type"}
BATCH, LENGTH = 2, 32


@dataclass(frozen=True)
class Case:
    """One step, as the planner and as the trace take it."""

    config: dict[str, Any]
    planned: dict[str, Any]
    traced: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    checkpoint: bool = False
    lora: dict[str, Any] | None = None


CASES = {
    "llama": Case(LLAMA, {"precision": "bf16"}, dtype=torch.bfloat16),
    "gpt2": Case(GPT2, {"precision": "bf16-mixed"}, {"autocast": torch.bfloat16}),
    "qwen2": Case(
        {"model_type": "qwen2", **SHAPE},
        {"precision": "bf16-mixed", "recompute": "full", "clip_grad_norm": True},
        {"autocast": torch.bfloat16, "clip_grad_norm": 1.0},
        checkpoint=True,
    ),
    "qwen3": Case(
        {"model_type": "qwen3", **SHAPE, "head_dim": 16},
        {"precision": "bf16", "gradient_accumulation_steps": 3},
        {"micro_batches": 3},
        dtype=torch.bfloat16,
    ),
    "llama-lora": Case(
        LLAMA,
        {
            "precision": "bf16-mixed",
            "recompute": "full",
            "hold_outputs": True,
            "lora": {"r": 4, "dropout": 0.1, "dtype": "fp32", "targets": "q_proj+down_proj"},
        },
        {"autocast": torch.bfloat16, "hold_outputs": True},
        checkpoint=True,
        lora={"r": 4, "lora_dropout": 0.1, "target_modules": ["q_proj", "down_proj"]},
    ),
    "gemma2": Case(
        {"model_type": "gemma2", **SHAPE, "head_dim": 16, "query_pre_attn_scalar": 16, "tie_word_embeddings": True},
        {"precision": "bf16", "optimizer": "sgd", "attention": "eager"},
        {"optimizer": lambda parameters: torch.optim.SGD(parameters)},
        dtype=torch.bfloat16,
    ),
}


def totals(phases: list[dict[str, Any]]) -> dict[tuple[str, int | None], tuple[int, int, dict[str, int]]]:
    return {
        (phase["phase"], phase["micro_batch"]): (phase["peak_bytes"], phase["end_bytes"], phase["by_category"])
        for phase in phases
    }


@pytest.mark.parametrize("name", CASES)
def test_equal_in_every_phase_of_both_steps(name: str) -> None:
    case = CASES[name]
    model: Any = hugging_face(case.config, case.dtype, attention=case.planned.get("attention", "sdpa"))
    if case.lora:
        peft = pytest.importorskip("peft")
        with torch.device("meta"):
            model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **case.lora))
        model.enable_input_require_grads()
    if case.checkpoint:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def loss(out: Any, batch: Any) -> torch.Tensor:
        return model.loss_function(logits=out.logits, labels=batch["input_ids"], vocab_size=128)

    trace = peakledger.trace(model, {"input_ids": ids(BATCH, LENGTH)}, loss=loss, **case.traced).to_dict()
    plan = peakledger.plan(case.config, seq_len=LENGTH, micro_batch_size=BATCH, **case.planned).to_dict()
    for step in ("first_step", "steady_step"):
        assert totals(trace[step]["phases"]) == totals(plan[step]["phases"]), step

"""Traces against the planner's truth: rows that torch's tracker has left, to the byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import peakledger
from steps import hugging_face, phases_of

pytestmark = pytest.mark.torch

TRUTH = Path(__file__).resolve().parents[3] / "crates" / "plan" / "tests" / "data" / "truth.jsonl"
IDS = [
    "llama-bf16", "llama-math-fp32", "llama-fp16-eager-ckpt", "llama-amp-accum3-ckpt-clip", "llama-fused-amp",
    "llama-forloop-amp", "llama-drop-amp-accum", "llama-lora-amp-all-linear", "llama-adafactor-amp", "llama-attndrop-sdpa",
    "gpt2-amp-ckpt-clip", "gemma3_text-fp16-odd-fused", "mixtral-amp-ckpt-clip",
]  # fmt: skip
"""Some of each kind: every row takes seconds."""

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "adamw_fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
    "adamw_forloop": lambda parameters: torch.optim.AdamW(parameters, foreach=False),
    "adafactor": torch.optim.Adafactor,
}


def rows() -> dict[str, dict[str, Any]]:
    found = (json.loads(line) for line in TRUTH.read_text(encoding="utf-8").splitlines())
    return {row["id"]: row for row in found if row["id"] in IDS}


def traced(job: dict[str, Any]) -> peakledger.tracing.Trace:
    dtype, precision = DTYPES[job["dtype"]], job.get("precision", "pure")
    weights = dtype if precision == "pure" else torch.float32
    model: Any = hugging_face(job["config"], weights, job.get("attn", "sdpa"))
    vocabulary = model.config.get_text_config().vocab_size
    if job.get("lora"):
        peft = pytest.importorskip("peft")
        with torch.device("meta"):
            config = peft.LoraConfig(task_type="CAUSAL_LM", **job["lora"])
            model = peft.get_peft_model(model, config, autocast_adapter_dtype=job.get("lora_fp32", True))
    if job.get("checkpoint"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def loss(out: Any, batch: Any) -> torch.Tensor:
        return model.loss_function(logits=out.logits, labels=batch["input_ids"], vocab_size=vocabulary)

    return peakledger.trace(
        model,
        {"input_ids": torch.zeros(job["batch"], job["seq"], dtype=torch.long)},
        OPTIMIZERS[job.get("optimizer", "adamw")],
        loss,
        micro_batches=job.get("accum", 1),
        autocast=dtype if precision == "autocast" else None,
        clip_grad_norm=job.get("clip"),
        hold_outputs=not job.get("drop_logits", False),
        capability=(7, 5) if job.get("sdpa_kernel") in ("efficient", "math") else (9, 0),
    )


def expected(step: list[tuple[str, int, int]]) -> dict[str, tuple[int, int]]:
    phases = {phase: (peak, end) for phase, peak, end in step}
    clip, update = phases.pop("clip"), phases["update"]
    return phases | {"update": (max(clip[0], update[0]), update[1])}


@pytest.mark.parametrize("name", IDS)
def test_equal_to_the_byte(name: str) -> None:
    row = rows()[name]
    trace = traced(row["job"])
    assert phases_of(trace.first) == expected(row["first_step"])
    assert phases_of(trace.steady) == expected(row["steady_step"])

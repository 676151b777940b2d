"""Small models and their steps, which several tests run, and torch's own tracker run over them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Cnn(nn.Module):
    """Convolutions, batch norm, dropout, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.1),
            nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.SiLU(), nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip
        self.head = nn.Linear(32, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(image).flatten(1))


class UNet(nn.Module):
    """Down, through attention, and up again over what was kept on the way."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.time = nn.Linear(8, width)
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, width * 2, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, width * 2)
        self.attention = nn.MultiheadAttention(width * 2, 4, batch_first=True)
        self.up = nn.ConvTranspose2d(width * 2, width, 4, stride=2, padding=1)
        self.last = nn.Conv2d(width * 2, 3, 3, padding=1)

    def forward(self, image: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        first = self.first(image) + self.time(time)[:, :, None, None]
        inside = functional.silu(self.norm(self.down(first)))
        flat = inside.flatten(2).transpose(1, 2)
        flat = flat + self.attention(flat, flat, flat, need_weights=False)[0]
        up = self.up(flat.transpose(1, 2).reshape(inside.shape))
        return self.last(torch.cat([up, first], 1))


class Block(nn.Module):
    """Attention and an MLP, with norms before them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm_1(x)).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_2(x))


class Transformer(nn.Module):
    """Someone's own transformer."""

    def __init__(self, layers: int = 2, width: int = 64, vocab: int = 128, checkpointed: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.head = nn.Linear(width, vocab, bias=False)
        self.checkpointed = checkpointed

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)


def next_token(out: Any, batch: Any) -> torch.Tensor:
    """The loss of a language model, of its logits and its ids."""
    logits = out if isinstance(out, torch.Tensor) else out.logits
    ids = batch["input_ids"] if isinstance(batch, dict) else batch
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def squares(out: torch.Tensor, batch: Any) -> torch.Tensor:
    """A loss of anything."""
    del batch
    return out.float().square().mean()


@dataclass
class Training:
    """A step that is traced, and that torch's tracker is run over."""

    make: Callable[[], nn.Module]
    batch: Any
    loss: Callable[[Any, Any], torch.Tensor]
    optimizer: Callable[[list[Any]], torch.optim.Optimizer] = torch.optim.AdamW
    options: dict[str, Any] = field(default_factory=dict)


def ids(batch: int = 2, length: int = 32, vocab: int = 128) -> torch.Tensor:
    """Token ids."""
    return torch.zeros(batch, length, dtype=torch.long).remainder_(vocab)


def hugging_face(config: dict[str, Any], dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> nn.Module:
    """A model of transformers on meta, in training mode."""
    from transformers import AutoConfig, AutoModelForCausalLM

    made = AutoConfig.for_model(**config)
    made.use_cache = False
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(made, attn_implementation=attention, dtype=dtype).train()


GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 64}
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip

TRAININGS: dict[str, Training] = {
    "cnn": Training(Cnn, torch.zeros(4, 3, 32, 32), squares, lambda p: torch.optim.SGD(p, momentum=0.9)),
    "unet": Training(UNet, (torch.zeros(2, 3, 16, 16), torch.zeros(2, 8)), squares),
    "transformer": Training(Transformer, ids(), next_token),
    "transformer-autocast": Training(Transformer, ids(), next_token, options={"autocast": torch.bfloat16}),
    "transformer-checkpoint": Training(
        lambda: Transformer(checkpointed=True),
        ids(),
        next_token,
        options={"autocast": torch.float16, "clip_grad_norm": 1.0},
    ),
    "gpt2": Training(lambda: hugging_face(GPT2), {"input_ids": ids()}, next_token),
    "llama": Training(lambda: hugging_face(LLAMA, torch.bfloat16), {"input_ids": ids()}, next_token),
}
"""Steps that torch's tracker can run."""

Phases = dict[str, tuple[int, int]]
"""By phase, the largest total of bytes and the total at the end."""


def phases_of(step: Any) -> Phases:
    """The phases of a traced step, without load, which the tracker's loop has no phase for."""
    named = {
        p.phase if p.micro_batch is None else f"{p.phase}.{p.micro_batch}": p for p in step.phases if p.phase != "load"
    }
    return {name: (phase.peak_bytes, phase.end_bytes) for name, phase in named.items()}


def tracked(training: Training) -> list[Phases]:
    """Two steps under torch.distributed._tools.MemTracker, on the same fake card as a trace."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    from peakledger.tracing.fake import Fakes
    from peakledger.tracing.stand_in import Device, stand_in
    from peakledger.tracing.step import _call

    model, fakes, steps = training.make(), Fakes(), []
    autocast = training.options.get("autocast")
    with stand_in(), FakeTensorMode(), fakes.in_model(model), Device():
        batch = fakes.of_all(training.batch)
        optimizer = training.optimizer(list(model.parameters()))
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        watch = _Watch(tracker)
        gc.disable()
        for _ in range(2):
            watch.phases = {}
            with tracker:
                with torch.autocast("cuda", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
                    watch.begin("forward.0")
                    out = _call(model, batch)
                    watch.begin("loss.0")
                    loss = training.loss(out, batch)
                    del out
                    watch.begin("backward.0")
                loss.backward()
                watch.end()
                del loss
                watch.begin("update")
                if norm := training.options.get("clip_grad_norm"):
                    torch.nn.utils.clip_grad_norm_(model.parameters(), norm)
                optimizer.step()
                watch.begin("zero_grad")
                optimizer.zero_grad()
                watch.end()
                tracker.reset_mod_stats()
            steps.append(watch.phases)
        gc.enable()
    return steps


class _Watch:
    """Reads the tracker phase by phase."""

    def __init__(self, tracker: Any) -> None:
        self.tracker, self.phases, self._name = tracker, {}, ""

    def begin(self, name: str) -> None:
        self.end()
        now = self.tracker.get_tracker_snapshot()
        self.tracker._peak_mem_snap = now
        self.tracker._peak_mem = {device: snapshot["Total"] for device, snapshot in now.items()}
        self._name = name

    def end(self) -> None:
        if self._name:
            self.phases[self._name] = (self._total("peak"), self._total("current"))
        self._name = ""

    def _total(self, which: str) -> int:
        snapshot = self.tracker.get_tracker_snapshot(which)
        return sum(held["Total"] for device, held in snapshot.items() if device.type == "cuda")

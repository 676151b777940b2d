"""``trace`` beside torch's MemTracker: two training steps of a GPT-2 of 12 layers, on the same fake card.

``PEAKLEDGER_TORCH=1 ./python/test bench`` runs it.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable

import torch

import peakledger
from steps import Training, hugging_face, ids, next_token, phases_of, tracked

warnings.simplefilter("ignore")
logging.disable()

RUNS = 3
CONFIG = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}


def best(function: Callable[[], object]) -> tuple[float, object]:
    """The shortest of several runs, in seconds, and what it returned."""
    took, answer = [], None
    for _ in range(RUNS):
        start = time.perf_counter()
        answer = function()
        took.append(time.perf_counter() - start)
    return min(took), answer


def main() -> None:
    """Prints both times, and holds the answers equal."""
    model = hugging_face(CONFIG, torch.bfloat16)
    training = Training(lambda: model, {"input_ids": ids(1, 1024)}, next_token)
    of_trace, trace = best(lambda: peakledger.trace(model, training.batch, training.optimizer, training.loss))
    of_tracker, phases = best(lambda: tracked(training))
    assert isinstance(trace, peakledger.tracing.Trace)
    assert [phases_of(trace.first), phases_of(trace.steady)] == phases, "they disagree"
    print(
        f"torch {torch.__version__}, GPT-2, 12 layers, two steps, best of {RUNS}; both find a peak of {trace.peak['bytes']} bytes"
    )
    print(f"peakledger.trace  {of_trace:6.2f} s")
    print(f"MemTracker        {of_tracker:6.2f} s   ({of_tracker / of_trace:.1f} times as long)")


if __name__ == "__main__":
    main()

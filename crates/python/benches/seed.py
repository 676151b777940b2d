"""``python crates/python/benches/seed.py``: the seed's summary of 100 000 states, by peakledger and in plain Python, in one
run on the same dicts.

States are as a program makes them (words that are the same objects) and as ``json.load`` gives them. Each figure is the
best of five, in seconds of the processor, which other programs take less part in than in those of the clock. With ``--at-least N`` the exit code is 1 where peakledger is not N times as fast.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peakledger

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "python" / "tests"))
import naive

STATES, TIMES = 100_000, 5


def states() -> list[dict[str, Any]]:
    chance = random.Random(1)
    made = []
    for index in range(STATES):
        start, end = sorted((chance.randrange(6), chance.randrange(6)))
        made.append(
            {
                "name": f"model.layers.{index % 96}.mlp.tensor_{index}",
                "category": chance.choice(sorted(naive.KINDS)),
                "size_mb": chance.randrange(1 << 28) / (1 << 20),
                "start_phase": naive.ORDER[start],
                "end_phase": naive.ORDER[end],
                "device": chance.choice(["gpu", "gpu", "gpu", "cpu"]),
                "persistent": False,
            }
        )
    return made


def best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(TIMES):
        gc.collect()
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--at-least", type=float, default=0.0)
    least = parser.parse_args().at_least
    ratios = []
    made = states()
    for kind, held in (("made", made), ("json", json.loads(json.dumps(made)))):
        assert peakledger.summarize_phase_memory(held) == naive.summary(held)
        theirs = best(lambda held=held: naive.summary(held))
        ours = best(lambda held=held: peakledger.summarize_phase_memory(held))
        ratios.append(theirs / ours)
        print(
            f"summarize_phase_memory, {STATES} states ({kind}): "
            f"{ours * 1e3:.1f} ms / {theirs * 1e3:.1f} ms in plain Python = {theirs / ours:.1f}x"
        )
    return int(min(ratios) < least)


if __name__ == "__main__":
    sys.exit(main())

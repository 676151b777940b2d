"""The seed's way in Python: read a list of states, check each one, sum every phase, find the peak and who forms it.

Prints the seconds from file to answer, those of the seed's summary with the states in memory (each phase's sum, names and
sizes), those of the six bare sums, and the peak in MiB.
"""

import json
import sys
import time

ORDER = ["load", "forward", "loss", "backward", "update", "zero_grad"]
KINDS = {"parameter", "master_weight", "activation", "gradient", "optimizer_state", "workspace", "communication_buffer"}
FIELDS = {"name", "category", "size_mb", "start_phase", "end_phase", "device", "persistent"}


def check(state):
    absent = sorted(FIELDS - set(state))
    if absent:
        raise KeyError(absent)
    size = state["size_mb"]
    if isinstance(size, bool) or not isinstance(size, (int, float)):
        raise TypeError("size_mb")
    if float(size) < 0:
        raise ValueError("size_mb")
    if state["category"] not in KINDS or state["device"] not in {"cpu", "gpu"}:
        raise ValueError("category or device")
    if state["start_phase"] not in ORDER or state["end_phase"] not in ORDER:
        raise ValueError("phase")
    if ORDER.index(state["start_phase"]) > ORDER.index(state["end_phase"]):
        raise ValueError("interval")
    if not isinstance(state["persistent"], bool):
        raise TypeError("persistent")


def phase_sums(states):
    records = []
    for index, phase in enumerate(ORDER):
        resident = [
            s
            for s in states
            if s["device"] == "gpu" and ORDER.index(s["start_phase"]) <= index <= ORDER.index(s["end_phase"])
        ]
        records.append(
            {
                "phase": phase,
                "total_mb": sum(float(s["size_mb"]) for s in resident),
                "names": [str(s["name"]) for s in resident],
                "sizes": {str(s["name"]): float(s["size_mb"]) for s in resident},
            }
        )
    return records


def six_sums(states):
    totals = []
    for index in range(len(ORDER)):
        resident = [
            s
            for s in states
            if s["device"] == "gpu" and ORDER.index(s["start_phase"]) <= index <= ORDER.index(s["end_phase"])
        ]
        totals.append(sum(float(s["size_mb"]) for s in resident))
    return totals


began = time.perf_counter()
with open(sys.argv[1], encoding="utf-8") as file:
    ledger = json.load(file)
for one in ledger:
    check(one)
peak = max(phase_sums(ledger), key=lambda record: record["total_mb"])
by_size = sorted(peak["sizes"], key=lambda name: (-peak["sizes"][name], name))
answered = time.perf_counter() - began

began = time.perf_counter()
phase_sums(ledger)
summarised = time.perf_counter() - began

began = time.perf_counter()
totals = six_sums(ledger)
summed = time.perf_counter() - began
assert max(totals) == peak["total_mb"] and len(by_size) == len(peak["names"])
print(answered, summarised, summed, peak["total_mb"])

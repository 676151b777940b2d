"""``python -m peakledger.conformance``: does the installed PyTorch show what the ledger says?

A controlled computation runs on the CPU under ``torch.profiler``: a square tensor of ones that requires a gradient, the sum of
its squares, and backward. The ledger keeps the CPU's bytes out of the GPU's; the profiler shows the phases and the memory.
"""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import asdict, dataclass

try:
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function
except ModuleNotFoundError as missing:
    if __name__ != "__main__" or missing.name != "torch":
        raise
    print("error: torch is not installed here, and it is what is checked\n  help: pip install torch", file=sys.stderr)
    sys.exit(2)

from . import PHASES, __version__, summarize_phase_memory

SIDE = 128
"""The tensor is float32 of shape [128, 128]: 65,536 bytes."""


@dataclass(frozen=True)
class Conformance:
    """What the check has found."""

    versions: dict[str, str]
    """Of peakledger, torch and Python."""
    checks: dict[str, bool]
    """Each thing that must hold."""
    tensor_bytes: int
    """The bytes of the controlled tensor."""
    profiled_bytes: int
    """The bytes that the profiler saw allocated, summed over its events."""

    @property
    def passed(self) -> bool:
        """Whether all hold."""
        return all(self.checks.values())


def check() -> Conformance:
    """Runs the check, in less than a second and with no GPU.

    Returns:
        The checks by name:
        ``phases_in_order``: forward and backward are both in the profile, forward first, as in ``PHASES``;
        ``memory_reported``: the profiler saw at least the tensor's bytes allocated on the CPU;
        ``cpu_not_in_gpu_totals``: the tensor in the ledger, on the CPU, adds nothing to any phase of the GPU;
        ``gradient_present``: backward has made a gradient of the tensor's shape, and it is finite.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        with record_function("forward"):
            value = torch.ones((SIDE, SIDE), requires_grad=True)
            loss = value.square().sum()
        with record_function("backward"):
            loss.backward()
    events = list(profiled.events())
    began = {event.name: event.time_range.start for event in reversed(events)}
    in_order = [phase for phase in PHASES if phase in began]
    profiled_bytes = sum(max(_cpu_bytes(event), 0) for event in events)
    state = {
        "name": "controlled_tensor",
        "category": "activation",
        "size_mb": value.nbytes / 2**20,
        "start_phase": "forward",
        "end_phase": "backward",
        "device": "cpu",
        "persistent": False,
    }
    gradient = value.grad
    checks = {
        "phases_in_order": in_order == ["forward", "backward"] and began["forward"] < began["backward"],
        "memory_reported": profiled_bytes >= value.nbytes > 0,
        "cpu_not_in_gpu_totals": all(record["total_mb"] == 0 for record in summarize_phase_memory([state])),
        "gradient_present": gradient is not None and gradient.shape == value.shape and bool(gradient.isfinite().all()),
    }
    versions = {"peakledger": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return Conformance(versions, checks, value.nbytes, profiled_bytes)


def _cpu_bytes(event: object) -> int:
    """The bytes that an event allocated itself, without its children's; negative where it freed more."""
    return int(getattr(event, "self_cpu_memory_usage", getattr(event, "cpu_memory_usage", 0)))


def main(arguments: list[str] | None = None) -> int:
    """Prints the check, as JSON with ``--json``. Returns 0 if it passed, 1 if not, 2 for other arguments."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments not in ([], ["--json"]):
        print(f"error: {' '.join(arguments)}: not an option\n  help: --json is the only one", file=sys.stderr)
        return 2
    found = check()
    if arguments:
        print(json.dumps({"passed": found.passed, **asdict(found)}))
        return 0 if found.passed else 1
    print(", ".join(f"{name} {version}" for name, version in found.versions.items()))
    for name, holds in found.checks.items():
        print(f"{'ok    ' if holds else 'FAILED'}  {name}")
    print(f"the tensor has {found.tensor_bytes} bytes; the profiler saw {found.profiled_bytes} allocated")
    return 0 if found.passed else 1


if __name__ == "__main__":
    sys.exit(main())

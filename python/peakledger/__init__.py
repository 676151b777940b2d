"""One ledger for training memory: where the peak is, who forms it, and what would change it.

>>> import peakledger
>>> planned = peakledger.plan("llama-3.2-1b", precision="bf16", gpu="rtx-4090")
>>> planned.peak["phase"], planned.fits
('backward', True)

Sizes are ints of bytes; where a name ends in ``_mb``, a float in units of 2**20 bytes. What is wrong with an input is a
:class:`PeakledgerError`, with the place, the cause and the mend.

Importing this package imports neither torch nor numpy. What needs torch (``trace``, ``record``, the callbacks) is loaded
when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._answers import Answer
from ._errors import PeakledgerError
from ._ledger import Comparison, Ledger
from ._native import __version__
from ._plan import Fit, Plan, fit, list_families, list_gpus, list_models, plan
from ._read import Reading, Replay, read, replay
from ._reconcile import Diff, Reconciliation, diff, reconcile
from ._seed import (
    PHASES,
    VALID_CATEGORIES,
    compare_peak_candidates,
    find_peak_overlap,
    summarize_phase_memory,
    validate_state_lifecycle,
)
from ._words import FitOptions, PlanOptions, ReadOptions, ReconcileOptions, ReplayOptions, StepOptions

if TYPE_CHECKING:
    from .callbacks import PeakLedgerCallback as PeakLedgerCallback
    from .recording import record as record
    from .tracing import trace as trace

__all__ = [
    "PHASES",
    "VALID_CATEGORIES",
    "Answer",
    "Comparison",
    "Diff",
    "Fit",
    "FitOptions",
    "Ledger",
    "PeakledgerError",
    "Plan",
    "PlanOptions",
    "ReadOptions",
    "Reading",
    "ReconcileOptions",
    "Reconciliation",
    "Replay",
    "ReplayOptions",
    "StepOptions",
    "__version__",
    "compare_peak_candidates",
    "diff",
    "find_peak_overlap",
    "fit",
    "list_families",
    "list_gpus",
    "list_models",
    "plan",
    "read",
    "reconcile",
    "replay",
    "summarize_phase_memory",
    "validate_state_lifecycle",
]

# What needs torch: the name, and the module that has it. A module must not have the name of a function here, since
# importing it would put the module in the function's place.
_LAZY: dict[str, str] = {
    "trace": "tracing",
    "record": "recording",
    "PeakLedgerCallback": "callbacks",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        said = f"`peakledger.{name}` needs {error.name}, which is not installed here: `pip install {error.name}`"
        raise ModuleNotFoundError(said, name=error.name) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_LAZY, *(name for name in globals() if name.startswith("__"))})

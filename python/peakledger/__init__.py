"""One ledger for training memory: where the peak is, who forms it, and what would change it.

Importing this package imports neither torch nor numpy. What needs torch (``trace``, ``record``, the callbacks) is loaded
when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ._native import __version__

__all__ = ["__version__"]

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
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})

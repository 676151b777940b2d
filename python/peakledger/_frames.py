"""Data frames, by whichever library is there."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Literal


def frame(rows: Sequence[dict[str, Any]], backend: Literal["pandas", "polars"] | None = None) -> Any:
    """Rows as a data frame of pandas or polars."""
    if backend not in (None, "pandas", "polars"):
        raise ValueError(f"backend {backend!r} is not known: it is 'pandas' or 'polars'")
    for library in (backend,) if backend else ("pandas", "polars"):
        try:
            return import_module(library).DataFrame(list(rows))
        except ModuleNotFoundError as error:
            if error.name != library:
                raise
    wanted = backend or "pandas or polars"
    raise ImportError(f"a data frame needs {wanted}: pip install {backend or 'pandas'}")

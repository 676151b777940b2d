"""What every answer has in common: the command line's JSON and table, as text and as objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from html import escape
from typing import Any, Literal

from . import _native
from ._frames import frame
from ._html import page

Record = dict[str, Any]


class Answer:
    """An answer of the engine; it never changes.

    ``print(answer)`` shows the table that the command line prints; a notebook shows it as HTML.
    """

    def __init__(self, json_text: str, table: str) -> None:
        self._json, self._table = json_text, table

    def to_json(self) -> str:
        """The answer as the command line's ``--format json`` prints it, byte for byte."""
        return self._json

    def to_dict(self) -> Any:
        """The answer as dicts, lists, numbers and strings of the caller's own; bytes are ints."""
        return json.loads(self._json)

    @cached_property
    def _dict(self) -> Any:
        return self.to_dict()

    def __str__(self) -> str:
        return self._table

    def __repr__(self) -> str:
        first, *_ = self._table.splitlines() or [""]
        return f"<peakledger.{type(self).__name__}: {first}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self._table)}</pre>"


class Phased(Answer):
    """An answer with phases, a peak and who forms it."""

    @property
    def peak(self) -> Record:
        """The peak: where it is and how many bytes."""
        peak: Record = self._dict["peak"]
        return peak

    @property
    def phases(self) -> list[Record]:
        """The phases in order, each with its bytes by category."""
        phases: list[Record] = self._dict["phases"]
        return phases

    @property
    def contributors(self) -> list[Record]:
        """Who is there at the peak, the largest first: name, category, bytes and share."""
        contributors: list[Record] = self.peak["contributors"]
        return contributors

    def to_dataframe(self, backend: Literal["pandas", "polars"] | None = None) -> Any:
        """The phases as a data frame: a row each, and a column of bytes for each category.

        Args:
            backend: ``pandas`` or ``polars``; if None, pandas where it is installed, else polars.

        Raises:
            ImportError: it is not installed, or neither is.
        """
        return frame(self._rows(), backend)

    def _rows(self) -> list[Record]:
        return [flat(phase) for phase in self.phases]

    def _repr_html_(self) -> str:
        first, *_ = self._table.splitlines() or [""]
        return page(first, self.phases, self.contributors)


def flat(record: Mapping[str, Any]) -> Record:
    """A record without lists, its ``by_category`` as columns."""
    row = {key: value for key, value in record.items() if not isinstance(value, list | dict)}
    return row | {f"{category}_bytes": size for category, size in record.get("by_category", {}).items()}


class Question:
    """A verb, its options and what it is about, to be asked once or again with one more option."""

    def __init__(self, verb: str, options: Sequence[str], about: str | None, config: str | None = None) -> None:
        self._verb, self._options, self._about, self._config = verb, list(options), about, config

    def ask(self, *more: str) -> tuple[str, str]:
        """The JSON and the table that the command line answers."""
        about = [] if self._about is None else ["--", self._about]
        return _native.ask([self._verb, *self._options, *more, *about], self._config)

    def without(self, option: str) -> Question:
        """The same question without that option."""
        kept = [word for word in self._options if not word.startswith(f"--{option}=")]
        return Question(self._verb, kept, self._about, self._config)

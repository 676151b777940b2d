"""The extension module: ``crates/python`` of the repository. Use the package's names, not these."""

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, final

__all__ = [
    "PHASES",
    "VALID_CATEGORIES",
    "Ledger",
    "__version__",
    "ask",
    "compare_peak_candidates",
    "find_peak_overlap",
    "run",
    "summarize_phase_memory",
    "validate_state_lifecycle",
]

__version__: str
PHASES: list[str]
VALID_CATEGORIES: set[str]

def validate_state_lifecycle(state: Mapping[str, object]) -> None: ...
def summarize_phase_memory(states: Iterable[Mapping[str, object]]) -> list[dict[str, Any]]: ...
def find_peak_overlap(phase_records: Iterable[Mapping[str, Any]]) -> dict[str, Any]: ...
def compare_peak_candidates(
    baseline_states: Iterable[Mapping[str, object]],
    candidate_states: Mapping[str, Iterable[Mapping[str, object]]],
) -> dict[str, Any]: ...
def ask(words: list[str], config: str | None = None) -> tuple[str, str]: ...
def run(arguments: list[str]) -> int: ...

@final
class Ledger:
    @staticmethod
    def open(path: str | PathLike[str]) -> Ledger: ...
    @staticmethod
    def parse(text: str) -> Ledger: ...
    def show(self) -> tuple[str, str]: ...
    def compare(self, candidates: list[tuple[str, Ledger]]) -> tuple[str, str]: ...
    def document(self) -> str: ...
    def __len__(self) -> int: ...

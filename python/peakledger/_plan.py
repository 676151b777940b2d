"""Planning a training step, with no GPU and without the model's weights."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from . import _native
from ._answers import Answer, Phased, Question, Record, flat
from ._errors import no_standard_input
from ._frames import frame
from ._ledger import Ledger
from ._words import words_of

if TYPE_CHECKING:
    if sys.version_info >= (3, 11):
        from typing import Unpack
    else:
        from typing_extensions import Unpack

    from ._words import FitOptions, PlanOptions

Model = str | os.PathLike[str] | Mapping[str, Any]


def plan(model: Model | Any = None, /, **options: Unpack[PlanOptions]) -> Plan:
    """Predicts the memory of a training step, op by op, from a model's config.

    Args:
        model: a name of :func:`list_models`, the path of a ``config.json`` or of a folder with one, ``org/name`` from the
            local Hugging Face cache, a config as a dict, or a config object of transformers. Nothing is downloaded. Left out,
            it is the one that a config of ``from_`` names.
        options: those of ``peakledger plan`` with underscores for dashes (:class:`peakledger.PlanOptions`).

    Returns:
        The plan. Bytes are allocated bytes at op level, each storage rounded up to 512, but where a name says device.

    Raises:
        PeakledgerError: an option or the config cannot be used; the place, the cause and the mend.

    Source: torch 2.15 and the modules of transformers 5.24, to whose ``MemTracker`` figures plans are equal to the byte
    (``docs/accuracy.md`` of the repository).

    >>> planned = plan("llama-3.2-1b", seq_len=4096, gpu="rtx-4090")
    >>> planned.peak["phase"], planned.peak["bytes"], planned.fits
    ('backward', 32155953152, False)
    """
    return Plan(_question("plan", model, words_of(options)))


def fit(model: Model | Any = None, /, **options: Unpack[FitOptions]) -> Fit:
    """Finds what fits a card: the largest micro-batch and length, of the step as given and of the usual changes of it.

    With ``search`` or ``among`` it tries every combination of some options instead, at one global batch: the rows are those that
    can be, and ``to_dict()`` also has ``not_possible``.

    Args:
        model: as of :func:`plan`.
        options: those of ``peakledger fit`` with underscores for dashes; ``gpu`` is needed.

    Raises:
        PeakledgerError: an option or the config cannot be used; the place, the cause and the mend.

    >>> found = fit("llama-3.2-1b", gpu="a100-80gb", precision="bf16")
    >>> found.fits, found.rows[0]["largest_micro_batch"] > 1
    (True, True)
    >>> found = fit("llama-3.1-8b", gpu="h100-80gb", gpus=8, fsdp="full_shard", among={"tp": [1, 2], "batch": [1, 2]})
    >>> len(found.rows), found.rows[0]["pareto"]
    (3, True)
    """
    return Fit(*_question("fit", model, words_of(options)).ask())


def list_models() -> list[Record]:
    """The models that are known by name, with their parameters, family and limit of tokens."""
    return _listed("models")


def list_gpus() -> list[Record]:
    """The cards that are known by name, with ``total_bytes`` as torch reports it."""
    return _listed("gpus")


def list_families() -> list[Record]:
    """The model families that can be planned."""
    return _listed("families")


def _listed(what: str) -> list[Record]:
    listed: list[Record] = json.loads(_native.ask(["list", what])[0])
    return listed


def _question(verb: str, model: Any, options: list[str]) -> Question:
    if model is None:
        return Question(verb, options, None)
    if isinstance(model, str | os.PathLike):
        return Question(verb, options, no_standard_input(os.fspath(model)))
    if hasattr(model, "to_dict"):  # a config of transformers
        model = model.to_dict()
    if not isinstance(model, Mapping):
        raise TypeError(f"a model is a name, a path or a config, not of type {type(model).__name__}")
    return Question(verb, options, "config", json.dumps(dict(model)))


class Plan(Phased):
    """What a training step will hold: the answer of ``peakledger plan``.

    ``peak``, ``phases`` and ``contributors`` are at op level, as torch's tracker counts; ``device_peak`` counts the batch
    and what kernels allocate inside themselves too.
    """

    def __init__(self, question: Question) -> None:
        super().__init__(*question.ask())
        self._question = question

    @property
    def phases(self) -> list[Record]:
        """The phases of the steady step (of the first where only that was planned)."""
        step = self._dict.get("steady_step") or self._dict["first_step"]
        phases: list[Record] = step["phases"]
        return phases

    @property
    def device_peak(self) -> Record:
        """Where ``torch.cuda.max_memory_allocated`` would be reached, and its bytes."""
        peak: Record = self._dict["device_peak"]
        return peak

    @property
    def verdict(self) -> Record | None:
        """Whether it fits the card, and the room that is left; None where no ``gpu`` was named."""
        verdict: Record | None = self._dict["verdict"]
        return verdict

    @property
    def fits(self) -> bool | None:
        """Whether it fits the card; None where no ``gpu`` was named."""
        verdict = self.verdict
        return None if verdict is None else bool(verdict["fits"])

    @property
    def candidates(self) -> dict[str, Record]:
        """The other ways to run the step, by name."""
        candidates: dict[str, Record] = self._dict.get("candidates") or {}
        return candidates

    def explain(self, state: str) -> Answer:
        """Says how a number came about: of a contributor, a category, a module or a state (``peakledger plan --explain``).

        Raises:
            PeakledgerError: nothing of that name is there.
        """
        alone = self._question.without("candidate").without("candidates")
        return Answer(*alone.ask(f"--explain={state}"))

    def ledger(self, step: Literal["first", "steady"] | None = None) -> Ledger:
        """The ledger of a step, at device level: what :meth:`save` writes.

        Args:
            step: the steady step if None, or the first where only that was planned.
        """
        with tempfile.TemporaryDirectory(prefix="peakledger-") as folder:
            path = Path(folder, "ledger.json")
            self.save(path, step)
            return Ledger.of_json(path.read_text(encoding="utf-8"))

    def save(
        self,
        path: str | os.PathLike[str],
        step: Literal["first", "steady"] | None = None,
        *,
        force: bool = False,
    ) -> None:
        """Writes the ledger of a step to a file, for ``peakledger show`` and ``compare``: as ``peakledger plan --save``.

        Args:
            path: the file; it is written whole or not at all.
            step: the steady step if None, or the first where only that was planned.
            force: overwrite the file.

        Raises:
            PeakledgerError: the file exists and ``force`` is not set, or it cannot be written.
        """
        more = [f"--save={os.fspath(path)}", *(["--force"] if force else [])]
        if step is None:
            self._question.ask(*more)
        else:
            self._question.without("step").ask(f"--step={step}", *more)

    def to_dataframe(self, backend: Literal["pandas", "polars"] | None = None) -> Any:
        """The phases of both steps as a data frame: a row each, and a column of bytes for each category.

        Args:
            backend: ``pandas`` or ``polars``; if None, pandas where it is installed, else polars.

        Raises:
            ImportError: it is not installed, or neither is.
        """
        return super().to_dataframe(backend)

    def _rows(self) -> list[Record]:
        steps = ((step, self._dict.get(f"{step}_step")) for step in ("first", "steady"))
        return [{"step": step, **flat(phase)} for step, held in steps if held for phase in held["phases"]]


class Fit(Answer):
    """What fits a card: the answer of ``peakledger fit``."""

    @property
    def rows(self) -> list[Record]:
        """The step as given, then the changes of it: each with ``fits``, ``largest_micro_batch`` and ``largest_seq_len``. Of a
        search: the combinations that can be, those that fit first, the quickest first."""
        rows: list[Record] = self._dict["rows"]
        return rows

    @property
    def fits(self) -> bool:
        """Whether the step fits as it was given; of a search, whether any combination does."""
        return bool(self.rows and self.rows[0]["fits"])

    def to_dataframe(self, backend: Literal["pandas", "polars"] | None = None) -> Any:
        """The rows as a data frame; ``backend`` as of :meth:`Plan.to_dataframe`."""
        return frame([flat(row) for row in self.rows], backend)

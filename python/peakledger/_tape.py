"""A tape: storages with their births and deaths on a line of moments, in phases. Traces and recordings are tapes."""

from __future__ import annotations

from dataclasses import dataclass, field

NEVER = 2**63
"""The death of what is still there."""


@dataclass(slots=True)
class Stored:
    """A storage, or one size of it where it was resized."""

    requested: int
    """Bytes asked for."""
    device: str
    """``gpu`` or ``cpu``."""
    birth: int
    """The moment from which it is there."""
    seen: int
    """The moment from which torch's tracker knows it: later than `birth` for a batch, which no op has handed out."""
    module: str
    """The module that it was born in, or, in backward, whose backward it was born in."""
    op: str
    """The op whose result it is, by torch's name."""
    phase: str
    """The phase that it was born in."""
    recomputed: bool = False
    """Born in backward inside a module's forward: a checkpoint that runs again."""
    death: int = NEVER
    """The last moment at which it is there."""
    name: str = ""
    category: str = ""
    detail: str | None = None
    persistent: bool = False

    @property
    def bytes(self) -> int:
        """Bytes that the caching allocator hands out: the request, rounded up to 512 on the GPU."""
        return -(-self.requested // 512) * 512 if self.device == "gpu" else self.requested


@dataclass(slots=True)
class Moment:
    """One op that handed out memory, or the end of a phase."""

    module: str
    op: str


@dataclass(slots=True)
class Mark:
    """The beginning of a phase."""

    phase: str
    micro_batch: int | None
    first: int


END_OF_PHASE = "end of phase"

_FREE_FIRST = ("backward", "update", "zero_grad")
"""Phases that free before they allocate, so that how they begin is a moment too."""


@dataclass(slots=True)
class Tape:
    """What happened, in the order in which it did."""

    stored: list[Stored] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    """What had to be assumed."""
    _in_phase: bool = False

    def phase(self, name: str, micro_batch: int | None = None) -> None:
        """A phase begins, and the one before it ends if it has not."""
        self.end()
        self.marks.append(Mark(name, micro_batch, len(self.moments)))
        if name in _FREE_FIRST:
            self.moments.append(Moment("", name))
        self._in_phase = True

    def end(self) -> None:
        """The phase ends."""
        if self._in_phase:
            self.moments.append(Moment("", END_OF_PHASE))
        self._in_phase = False

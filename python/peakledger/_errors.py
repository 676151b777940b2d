"""What goes wrong, in one class."""

from __future__ import annotations


class PeakledgerError(ValueError):
    """An input or an option that cannot be used: the place, the cause and the mend.

    ``str(error)`` is what the command line prints, with options named as Python names them::

        `optimizer`: `adamv` is none of its values
          help: did you mean `adamw`? They are `adamw`, `adamw-8bit`, `sgd`, `adafactor`

    The four parts are attributes, each ``None`` where there is none but ``cause``, which always is.

    Attributes:
        file: the file, as it was named; ``config`` and ``ledger`` are objects that were passed.
        place: an option (``seq_len``), a line and column with a JSON pointer (``2:26 (/0/categry)``), or the pointer alone.
        cause: what is wrong.
        mend: what would mend it.
    """

    file: str | None
    place: str | None
    cause: str
    mend: str | None

    def __init__(
        self,
        message: str,
        *,
        cause: str | None = None,
        mend: str | None = None,
        place: str | None = None,
        file: str | None = None,
    ) -> None:
        super().__init__(message)
        self.file, self.place, self.mend = file, place, mend
        self.cause = message if cause is None else cause

    def __reduce__(self) -> tuple[object, ...]:
        return (_again, (str(self), self.cause, self.mend, self.place, self.file))


def _again(message: str, cause: str, mend: str | None, place: str | None, file: str | None) -> PeakledgerError:
    return PeakledgerError(message, cause=cause, mend=mend, place=place, file=file)


def option_error(option: str, cause: str, mend: str) -> PeakledgerError:
    """The error of an option, as the engine words it."""
    return PeakledgerError(f"`{option}`: {cause}\n  help: {mend}", cause=cause, mend=mend, place=option)


def no_standard_input(path: str) -> str:
    """The path, unless it is what the command line reads standard input by."""
    if path == "-":
        cause, mend = "standard input is not read here", "pass a path, or the object itself"
        raise PeakledgerError(f"{cause}\n  help: {mend}", cause=cause, mend=mend)
    return path

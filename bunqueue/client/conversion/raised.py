"""What a handler or a step has raised: its text, and the mark that says that trying again would not help."""

from __future__ import annotations

from bunqueue.errors import Unrecoverable

_FINAL = "__bunqueue_final__"
MAX_ERROR = 2_000  # characters of an error's text; enough for a person, small enough for every list


def text_of(error: BaseException) -> str:
    """`TypeError: message`, on one or more lines, bounded."""
    try:
        message = str(error)
    except Exception as problem:  # a broken __str__ must not cost the report of the failure
        message = f"(its text cannot be had: {type(problem).__name__})"
    text = well_formed(f"{type(error).__name__}: {message}" if message else type(error).__name__)
    return text if len(text) <= MAX_ERROR else text[: MAX_ERROR - 3] + "..."


def well_formed(text: str) -> str:
    """Text that can be sent: half characters, as names of files may have, are written out."""
    return text.encode("utf-8", "backslashreplace").decode()


def is_final(error: BaseException) -> bool:
    """Whether no other attempt would help."""
    return isinstance(error, Unrecoverable) or getattr(error, _FINAL, False) is True


def made_final(error: BaseException) -> BaseException:
    """The error, marked so that no other attempt follows it."""
    try:
        setattr(error, _FINAL, True)
    except AttributeError:  # a class with __slots__
        return Unrecoverable(f"{type(error).__name__}: {error}")
    return error

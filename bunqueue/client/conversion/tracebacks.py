"""Tracebacks as Python formats them, ten times faster when the same lines fail repeatedly."""

from __future__ import annotations

import traceback
from types import CodeType, TracebackType

from bunqueue.client.conversion.raised import causes_of, is_a, marked, trace_of

HEADING = "Traceback (most recent call last)"
MAX_KNOWN = 1000  # places in the code whose formatted line is cached
MAX_DEPTH = 50  # frames; in deeper tracebacks Python leaves repeated ones out
_OWN = ("__main__", "builtins")  # modules that are not shown with class names
# For these, Python searches the whole traceback for suggestions ("did you mean").
_WITH_HINTS = (NameError, AttributeError, ImportError, SyntaxError)

_known: dict[tuple[CodeType, int], str] = {}


def trace_text(error: BaseException, trace: TracebackType | None) -> str | None:
    """The traceback of an exception, from `trace` on; None if formatting raises."""
    try:  # it runs foreign code: __str__, __repr__, source loaders
        frames = _frames_of(error, trace)
        if frames is None:
            return "".join(traceback.format_exception(type(error), error, trace))
        return "".join([f"{HEADING}:\n", *frames, _last_line(error)])
    except BaseException:
        return None


def _frames_of(error: BaseException, trace: TracebackType | None) -> list[str] | None:
    """The lines of each frame; None if Python has to format the whole."""
    if trace is None or is_a(error, BaseExceptionGroup, *_WITH_HINTS) or marked(error, "__notes__"):
        return None
    if len(list(causes_of(error))) > 1:
        return None
    frames: list[str] = []
    while trace is not None:
        if len(frames) == MAX_DEPTH:
            return None
        frames.append(_frame_text(trace))
        trace = trace.tb_next
    return frames


def _last_line(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ in _OWN else f"{kind.__module__}.{kind.__qualname__}"
    text = str(error)
    return f"{name}: {text}\n" if text else f"{name}\n"


def _frame_text(trace: TracebackType) -> str:
    place = trace.tb_frame.f_code, trace.tb_lasti
    text = _known.get(place)
    if text is None:
        if len(_known) >= MAX_KNOWN:
            _known.clear()
        text = _known[place] = "".join(traceback.format_tb(trace, 1))
    return text


def own_trace(error: BaseException, package: str) -> TracebackType | None:
    """The traceback without its outermost frames if they belong to a package."""
    trace = trace_of(error)
    while trace is not None and _is_of(trace, package):
        trace = trace.tb_next
    return trace


def _is_of(trace: TracebackType, package: str) -> bool:
    return str(trace.tb_frame.f_globals.get("__package__")).partition(".")[0] == package

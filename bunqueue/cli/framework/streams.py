"""Standard streams that are there, also where whoever started the program has closed them (``>&-``)."""

from __future__ import annotations

import os
import sys

# What is written to closed output fails, as output that is lost must; what is said beside it may be lost.
_STREAMS = (
    ("stdin", "r", os.O_RDONLY),
    ("stdout", "w", os.O_RDONLY),
    ("stderr", "w", os.O_WRONLY),
)


def open_closed_streams() -> None:
    """Put something in the place of those that are closed, before a socket or a file takes their numbers."""
    for number, (name, mode, flags) in enumerate(_STREAMS):
        if getattr(sys, name) is not None:
            continue
        opened = os.open(os.devnull, flags)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))

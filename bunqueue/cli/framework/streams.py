"""Opens standard streams that the program was started without (``>&-``)."""

from __future__ import annotations

import os
import sys

# Writing to a closed standard output must fail, as the output is lost. Standard error may be lost.
_STREAMS = (
    ("stdin", "r", os.O_RDONLY),
    ("stdout", "w", os.O_RDONLY),
    ("stderr", "w", os.O_WRONLY),
)


def open_closed_streams() -> None:
    """Replace closed streams, before a socket or a file gets their file descriptors."""
    for number, (name, mode, flags) in enumerate(_STREAMS):
        if getattr(sys, name) is not None:
            continue
        opened = os.open(os.devnull, flags)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))

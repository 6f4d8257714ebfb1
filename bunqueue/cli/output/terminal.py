"""The only module that writes to a terminal.

Queues, jobs, errors and metrics carry text that somebody else chose. An escape sequence in it could clear an
operator's screen, rename the window, or type commands. Within `plain_streams`, everything that goes to the
standard streams is cleaned, whatever its source: print, errors, logs, help, tracebacks. Only rich adds
colours: it bypasses this cleaning, through a `console` that cleans the text of each cell.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from bunqueue.text import harmless

if TYPE_CHECKING:
    from rich.console import Console


class PlainStream:
    """A text stream that writes control characters as text. Otherwise it behaves like the stream it wraps."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(harmless(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def plain_streams() -> Iterator[None]:
    """Clean what is written to standard output and standard error."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, PlainStream(_own(stream))) for stream in before)
    try:
        yield
    except Exception:
        raise  # Python shows it on standard error
    except BaseException:
        sys.stdout, sys.stderr = before
        raise
    sys.stdout, sys.stderr = before


def give_streams_back() -> None:
    """Restore the streams. The rest of this process is the user's program, which may write what it likes."""
    sys.stdout, sys.stderr = _own(sys.stdout), _own(sys.stderr)


def _own(stream: TextIO) -> TextIO:
    """The stream that a `PlainStream` writes to, if it is one."""
    return stream.stream if isinstance(stream, PlainStream) else stream


def console(*, stderr: bool = False) -> Console:
    """Rich's console, with colours. Text that it prints cannot control the terminal."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class PlainConsole(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=harmless(segment.text))

    return PlainConsole(file=_own(sys.stderr if stderr else sys.stdout), highlight=False)

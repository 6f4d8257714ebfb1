"""What keeps the server from starting."""

from __future__ import annotations

BAD_USAGE = 2  # repeating the start cannot help: settings, installation
FAILED = 1


class StartError(Exception):
    """The server cannot start or go on; the text is one line that says what to do."""

    def __init__(self, text: str, status: int = FAILED) -> None:
        super().__init__(text)
        self.status = status

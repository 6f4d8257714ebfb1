"""Errors that keep the server from starting."""

from __future__ import annotations

BAD_USAGE = 2  # another start cannot help: settings, installation
FAILED = 1
WRONG_FILES = 9  # the files of the data folder do not belong together: an operator has to decide


class StartError(Exception):
    """The server cannot start or continue; the text is one line that says what to do."""

    def __init__(self, text: str, status: int = FAILED) -> None:
        super().__init__(text)
        self.status = status

"""Writes each entry of a host's trail once more, as a line of JSON, for those who collect such lines.

One thread of the first router reads what all processes append to the trail, so whoever collects slowly holds
up nothing but this.
"""

from __future__ import annotations

import os
import sys
import threading

from bunqueue.logs import get_logger
from bunqueue.server.settings.settings import Settings

from .trail import Follower

STDOUT = "stdout"
EVERY_S = 0.5
MODE = 0o600

_log = get_logger("audit")


class Shipping:
    """The thread, if the settings want it."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._target = settings, settings.audit_log
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._failed = False

    def start(self) -> None:
        """Ship what is appended from now on."""
        if self._target:
            follower = Follower(self._settings.data_dir)
            self._thread = threading.Thread(target=self._run, args=(follower,), name="audit", daemon=True)
            self._thread.start()

    def stop(self, wait_s: float) -> None:
        """Ship what is left."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(wait_s)

    def _run(self, follower: Follower) -> None:
        is_last = False
        while not is_last:
            is_last = self._stopped.wait(EVERY_S)
            if lines := follower.lines():
                self._write(b"".join(lines))

    def _write(self, lines: bytes) -> None:
        try:
            if self._target == STDOUT:
                sys.stdout.buffer.write(lines)
                sys.stdout.buffer.flush()
            else:  # opened each time, so that it may be rotated
                with open(os.open(self._target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, MODE), "ab") as file:
                    file.write(lines)
            self._failed = False
        except OSError as error:
            if not self._failed:
                _log.error("entries of the trail cannot be shipped", to=self._target, error=str(error))
            self._failed = True

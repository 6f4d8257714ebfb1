"""The process that ships what changes in the data folder of a server (``--backup``).

It reads a `ShipperStart` from its standard input, and writes a `Shipping` each second. When its input ends,
it stores what is left, and ends.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from bunqueue.logs import configure_logging, get_logger
from bunqueue.server.folder.data_folder import DataFolderError
from bunqueue.server.folder.unreadable import NotReadable
from bunqueue.server.host.process_arguments import name_process
from bunqueue.server.links.pipe_messages import ShipperStart, Shipping
from bunqueue.server.settings.settings import Settings

from .create import BackupError, clock_problem
from .primary import Superseded
from .repository import Repository, ms_of
from .sealing import key_of
from .shipper import Shipper
from .targets import TargetError, target_of

EACH_S = 1.0
EACH_BYTES = 1 << 20  # that have changed: they are not kept waiting
LOOK_S = 0.2
AGAIN_S = 15.0  # the longest pause after a failure; it is doubled each time
FAILURES = (BackupError, TargetError, DataFolderError, NotReadable, OSError)

_log = get_logger("backup")


def main() -> int:
    """Run it; returns the exit status."""
    name_process("bunqueue backup")
    try:
        start = msgspec.json.decode(sys.stdin.buffer.readline(), type=ShipperStart)
    except msgspec.DecodeError:
        return 1  # the router was killed before it had sent everything
    settings = set_up(start.settings)
    os.nice(5)  # the shards come first
    try:
        key = key_of(settings.backup_key, settings.backup_key_command)
        repository = Repository(target_of(settings.backup), key)
        shipper = Shipper(Path(settings.data_dir), repository, address=start.address)
    except TargetError as error:
        say(Shipping(error=str(error)))
        _log.error("nothing is backed up", error=str(error))
        _ended(AGAIN_S)
        return 1
    with suppress(BrokenPipeError):  # the router is gone
        run(shipper)
    shipper.close()
    return 0


def set_up(text: str) -> Settings:
    """Make this a process of a server with these settings, as JSON, which are returned."""
    settings = Settings.from_json(text)
    os.umask(0o077)
    configure_logging(settings.log_level, settings.log_format)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the router decides when it ends
        signal.signal(number, signal.SIG_IGN)
    return settings


def run(shipper: Shipper) -> None:
    """Ship until the input ends."""
    error, pause = "", 0.0
    while True:
        ends = _wait(shipper, pause)
        said, base = error, shipper.base
        try:
            shipper.step()
            error, pause = "", 0.0
        except Superseded as problem:
            _log.error("nothing is backed up any more", error=str(problem))
            say(Shipping(shipper.until, 0, shipper.pending, str(problem), passed=True))
            _ended(None)  # the router ends the server
            return
        except FAILURES as problem:
            error, pause = str(problem), min(max(1.0, 2 * pause), AGAIN_S)
        if error and error != said:
            _log.warning("what changes cannot be stored; tried again", error=error)
        if said and not error:
            _log.info("what changes is stored again")
        if shipper.base and shipper.base != base:
            _log.info("made a backup, which goes on", id=shipper.base)
            if wrong := clock_problem(ms_of(shipper.base), time.time() * 1000):
                _log.warning(wrong)
        made = ms_of(shipper.base) if shipper.base else 0
        say(Shipping(shipper.until, made, shipper.pending, error))
        if ends:
            if not error:
                with suppress(*FAILURES):
                    shipper.end()
            return


def _wait(shipper: Shipper, pause: float) -> bool:
    """Wait until it is time to ship; whether the input has ended."""
    deadline = time.monotonic() + (pause or EACH_S)
    while not _ended(LOOK_S):
        if time.monotonic() >= deadline or (not pause and shipper.pending >= EACH_BYTES):
            return False
    return True


def _ended(seconds: float | None) -> bool:
    """Wait for so long, or until that is so; whether the input has ended."""
    readable, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(readable) and not os.read(sys.stdin.fileno(), 1024)


def say(report: msgspec.Struct) -> None:
    """Tell the router."""
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()

"""The beginning of the router's process: reads the settings, forks the fork server, then loads the router.

The fork server loads the program of a shard while this process loads its own, so this module imports only
what both need.
"""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import bunqueue.protocol.codec  # noqa: F401 (large, and both need it: forked, it is loaded once)
from bunqueue.logs import configure_logging, report_error
from bunqueue.server.host.descriptors import raise_file_limit
from bunqueue.server.settings import SettingsError
from bunqueue.server.settings.settings import Settings

from .errors import BAD_USAGE, StartError
from .processes import fork_server

SIBLINGS = ("bunqueue", "shardproc")  # generic names: another module of the user's may answer to them


def main(arguments: Sequence[str], command: Sequence[str] | None = None) -> int:
    """Run the server; returns the exit status. The settings come as JSON through an inherited pipe.
    ``command`` starts a shard, if that is not to be a copy of the fork server."""
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to read again
        settings = read_settings(arguments[:2])
        secrets_in = read_secrets_in(arguments[2:])
        check_siblings()
    except SettingsError as error:
        report_error(str(error))
        return BAD_USAGE
    except StartError as error:
        report_error(str(error))
        return error.status
    os.umask(0o077)  # private, even where the data folder is open to others
    configure_logging(settings.log_level, settings.log_format)
    forks = None
    if command is None:
        raise_file_limit()  # forked processes inherit the limit
        program = "shardproc.replication.replicated_process" if settings.store else "shardproc.process"
        forks = fork_server.start([program])
    from .process import main as run  # not before: see above

    return run(settings, forks, secrets_in, command)


def read_settings(arguments: Sequence[str]) -> Settings:
    """The settings from the descriptor that ``--settings-fd N`` names."""
    if len(arguments) != 2 or arguments[0] != "--settings-fd" or not arguments[1].isdecimal():
        raise StartError("the router is started by: bunqueue start", BAD_USAGE)
    try:
        with open(int(arguments[1]), "rb") as pipe:
            return Settings.from_json(pipe.read())
    except OSError as error:
        raise StartError(f"the settings cannot be read: {error.strerror}", BAD_USAGE) from error


def read_secrets_in(arguments: Sequence[str]) -> str:
    """The file that ``--secrets-in FILE`` names; "" without it."""
    if arguments and (len(arguments) != 2 or arguments[0] != "--secrets-in"):
        raise StartError("the router is started by: bunqueue start", BAD_USAGE)
    return arguments[1] if arguments else ""


def check_siblings() -> None:
    """StartError unless the packages we are about to run are those that came with this one."""
    home = Path(__file__).resolve().parents[1]
    for name in SIBLINGS:
        spec = importlib.util.find_spec(name)
        places = list(spec.submodule_search_locations or ()) if spec else []
        if [Path(place).resolve().parent for place in places] != [home]:
            found = (places[0] if places else spec.origin) if spec else "nowhere"
            raise StartError(f"the package {name} is found {found} and not in {home}", BAD_USAGE)

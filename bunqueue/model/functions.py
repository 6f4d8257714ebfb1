"""Functions that apps declare: what the server knows about the jobs of a name, before there is one."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from bunqueue.model.durations import DAY_MS

InvalidJobs = Literal["accept", "warn", "refuse"]
ACCEPT: Final = "accept"
WARN: Final = "warn"
REFUSE: Final = "refuse"
POLICIES: tuple[InvalidJobs, ...] = (ACCEPT, WARN, REFUSE)
"""What happens to a job that no function can run; the strictest last."""

MANY_CALLS = "*"  # the key of the data of a job that calls its function several times; no parameter's name

MAX_FUNCTIONS = 1_000  # of a queue
MAX_ALIASES = 20
MAX_DESCRIPTION = 4_096
MAX_OPTIONS_BYTES = 16 << 10  # of a function
MAX_BYTES = 1 << 20  # of all that is declared for a queue
RETIRED_MS = DAY_MS
"""How long a function is known after its app has left it out: programs of an older version may still run."""


class Function(Struct, omit_defaults=True, gc=False):
    """A function as it is stored; times are in epoch ms."""

    changed: int  # when this revision was declared
    revision: int = 1
    aliases: list[str] = []
    description: str = ""
    options: bytes = b""  # FunctionOptions of the protocol, as MessagePack
    schema: bytes = b""  # JSON Schema of its jobs' data, as MessagePack
    retired: int | None = None  # when its app left it out


class AppFunctions(Struct, omit_defaults=True, gc=False):
    """What an app has declared for a queue, by the names of its functions."""

    functions: dict[str, Function]
    declared: int  # epoch ms
    invalid_jobs: InvalidJobs = ACCEPT
    any_name: bool = False  # it runs jobs of all names
    version: str | None = None  # of the app
    by: str | None = None  # the program that declared it


class QueueFunctions(Struct, omit_defaults=True, gc=False):
    """What apps have declared for a queue, by the names of the apps ("": without one)."""

    apps: dict[str, AppFunctions] = {}

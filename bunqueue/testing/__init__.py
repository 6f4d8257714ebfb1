"""The test kit: a sandbox with in-memory queues and a stopped clock. See docs/testing.md.

In pytest use the fixture `bunqueue`; elsewhere use `with Sandbox() as bunqueue:`. Names are imported on first
use, because pytest loads the plugin in every test run, even in projects that do not use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .crashes import CrashReport, run_with_crashes
    from .errors import SandboxError
    from .faults import Faults
    from .sandbox import Sandbox
    from .worker import Ran

__all__ = ["CrashReport", "Faults", "Ran", "Sandbox", "SandboxError", "run_with_crashes"]

_WHERE = {
    "CrashReport": "crashes",
    "Faults": "faults",
    "Ran": "worker",
    "Sandbox": "sandbox",
    "SandboxError": "errors",
    "run_with_crashes": "crashes",
}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value

"""Handlers by the path with which another process finds them: `package.module:function`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from bunqueue.client.connection.options import shown
from bunqueue.worker.active_job import Handler
from bunqueue.worker.typed_data import with_typed_data

MAIN = "__mp_main__"
"""The name of the program's main file in another process, where it is not the main program. It is the name
that Python's `multiprocessing` uses, so processes that a job starts can unpickle what the job pickles.
"""
_PATH, _MAKE = "__bunqueue_path__", "__bunqueue_handler__"

importing = False
"""Whether handlers are being imported for another process, where nothing else may be started."""
_mains: dict[str, ModuleType] = {}  # main files that were run here


def path_of(handler: Handler) -> str:
    """The path of a handler. Raises TypeError if another process could not find the handler there.

    If a decorator has replaced the function with an object, that object has a method `__bunqueue_handler__`,
    which returns the handler. If the handler is a method of the object, its path is made from the object's
    `__module__` and `__qualname__`; otherwise the object gives the path itself, as `__bunqueue_path__`.
    """
    if sys.platform == "win32":
        raise TypeError("handler: run_in='process' is not to be had on Windows; leave it out, or use threads")
    maker = getattr(handler, "__self__", None)  # it is a method of the object that returns it
    found_as = maker if hasattr(maker, _MAKE) else handler
    path = getattr(found_as, _PATH, None)
    if path is None:
        name = getattr(found_as, "__qualname__", "<nameless>")
        if "<" in name:
            raise TypeError(
                f"handler: {shown(handler)} cannot be found by another process; run_in='process' needs a "
                f"function that a module defines at its top level"
            )
        path = f"{_module_of(found_as)}:{name}"
    found = _resolve(sys.modules["__main__"] if path.partition(":")[0].endswith(".py") else None, path)
    if found is not found_as and not hasattr(found, _MAKE):
        raise TypeError(f"handler: {path} is not {shown(handler)}; another process would run something else")
    return str(path)


def _module_of(handler: Any) -> str:
    module: str = handler.__module__
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    if main.__spec__ is not None:  # python -m package.module
        return main.__spec__.name
    file = getattr(main, "__file__", None)
    if file is None:
        raise TypeError(f"handler: {shown(handler)} is in no file; run_in='process' needs a module")
    return str(Path(file).resolve())


def _resolve(module: Any, path: str) -> Any:
    name, _, names = path.rpartition(":")
    found = module or importlib.import_module(name)
    for attribute in names.split("."):
        found = getattr(found, attribute, None)
    return found


def object_at(path: str) -> Any:
    """The object at a path; None if there is nothing. Raises whatever importing its module raises."""
    name = path.rpartition(":")[0]
    if not name.endswith(".py"):
        return _resolve(None, path)
    if name not in _mains:
        _mains[name] = _run_main(name)
    return _resolve(_mains[name], path)


def _run_main(file: str) -> ModuleType:
    """Run a main file as a module, to find its classes and functions. Raises whatever running it raises."""
    spec = spec_from_file_location(MAIN, file)
    assert spec is not None
    assert spec.loader is not None
    before = sys.modules["__main__"]
    module = sys.modules["__main__"] = sys.modules[MAIN] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules["__main__"] = before
        del sys.modules[MAIN]
        raise
    module.__spec__ = None  # new processes find it by its file
    return module


def handler_at(path: str) -> Handler:
    """The handler at a path. Raises whatever importing it raises."""
    found = object_at(path)
    make: Callable[[], Handler] | None = getattr(found, _MAKE, None)
    handler: Any = found if make is None else make()
    if not callable(handler):
        raise TypeError(f"there is no handler at {path}")
    return with_typed_data(handler)


def imported(paths: list[str]) -> dict[str, Handler]:
    """The handlers at these paths."""
    global importing
    importing = True
    try:
        return {path: handler_at(path) for path in paths}
    finally:
        importing = False

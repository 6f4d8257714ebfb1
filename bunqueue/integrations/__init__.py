"""Connects bunqueue with other libraries: see docs/integrations.md.

Each module needs the extra of its name.
"""

from __future__ import annotations


def missing(extra: str, error: ImportError) -> ImportError:
    """The error to raise when a library is missing. It says what to install."""
    return ImportError(
        f"bunqueue.integrations.{extra} needs {error.name}; install it: pip install 'bunqueue[{extra}]'",
        name=error.name,
    )

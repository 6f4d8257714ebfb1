"""Errors for mistakes of tests."""

from __future__ import annotations

from bunqueue.errors import BunqueueError


class SandboxError(BunqueueError):
    """The test asks for something impossible: a wait or a drain that never ends, or time that goes back."""

    code = "sandbox"

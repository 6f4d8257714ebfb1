"""Errors for tests that use the test kit wrongly."""

from __future__ import annotations

from bunqueue.errors import BunqueueError


class SandboxError(BunqueueError):
    """The test asks for something impossible: a wait or a drain that never ends, or moving the clock back."""

    code = "sandbox"

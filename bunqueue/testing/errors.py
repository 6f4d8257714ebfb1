"""What a test did wrong."""

from __future__ import annotations

from bunqueue.errors import BunqueueError


class SandboxError(BunqueueError):
    """The test asks for what cannot be: a wait or a drain that would never end, time that goes back."""

    code = "sandbox"

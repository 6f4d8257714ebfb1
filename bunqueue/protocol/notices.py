"""Notices that the server pushes to a worker's connection: a job must stop, or need not wait any more."""

from __future__ import annotations

from typing import Annotated

from msgspec import MsgspecError, Struct
from msgspec.msgpack import Encoder

from bunqueue.model.decoders import decoder
from bunqueue.model.marks import Mark
from bunqueue.protocol.framing import frame

CANCEL = "cancel"  # the type of the frame
WAKE = "wake"

_encode = Encoder().encode


class CancelNotice(Struct, gc=False):
    """The job must stop within ``grace`` ms; after that, the server ends it as cancelled."""

    id: Annotated[str, Mark.ID]
    token: str  # of the attempt concerned
    reason: str | None
    grace: int


class WakeNotice(Struct, gc=False):
    """A step of the job has ended, and the worker may be waiting for it.  RecordSteps returns the outcome."""

    id: Annotated[str, Mark.ID]
    token: str
    number: int  # of the step


class _Noted(Struct, gc=False):
    type: str
    cancel: CancelNotice


class _Woken(Struct, gc=False):
    type: str
    wake: WakeNotice


_decode = decoder(_Noted).decode
_decode_wake = decoder(_Woken).decode


def read_notice(payload: bytes) -> CancelNotice | None:
    """The cancel notice in a frame (without its length); None for any other frame."""
    try:
        return _decode(payload).cancel
    except MsgspecError:
        return None


def read_wake(payload: bytes) -> WakeNotice | None:
    """The wake notice in a frame (without its length); None for any other frame."""
    try:
        return _decode_wake(payload).wake
    except MsgspecError:
        return None


def wake_frame(notice: WakeNotice) -> bytes:
    """A notice as a frame, ready to send."""
    return frame(_encode(_Woken(WAKE, notice)))


def cancel_frame(notice: CancelNotice) -> bytes:
    """A notice as a frame, ready to send."""
    return frame(_encode(_Noted(CANCEL, notice)))

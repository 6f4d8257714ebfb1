"""What a worker's connection receives unasked: one of its jobs is to stop, or need not wait any more."""

from __future__ import annotations

from msgspec import MsgspecError, Struct
from msgspec.msgpack import Decoder, Encoder

from bunqueue.protocol.framing import frame

CANCEL = "cancel"  # the type of the frame
WAKE = "wake"

_encode = Encoder().encode


class CancelNotice(Struct, gc=False):
    """The job is to stop within ``grace`` ms; then it ends as cancelled without its worker."""

    id: str
    token: str  # of the attempt that is meant
    reason: str | None
    grace: int


class WakeNotice(Struct, gc=False):
    """A step of the job, for which its worker may wait, has ended: RecordSteps tells how."""

    id: str
    token: str
    number: int  # of the step


class _Noted(Struct, gc=False):
    type: str
    cancel: CancelNotice


class _Woken(Struct, gc=False):
    type: str
    wake: WakeNotice


_decode = Decoder(_Noted).decode
_decode_wake = Decoder(_Woken).decode


def read_notice(payload: bytes) -> CancelNotice | None:
    """What a frame (without its length) says; None if it is not that a job is to stop."""
    try:
        return _decode(payload).cancel
    except MsgspecError:
        return None


def read_wake(payload: bytes) -> WakeNotice | None:
    """What a frame (without its length) says; None if it is not that a step has ended."""
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

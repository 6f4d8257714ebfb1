"""What a worker's connection receives unasked: one of its jobs is to stop."""

from __future__ import annotations

from msgspec import MsgspecError, Struct
from msgspec.msgpack import Decoder, Encoder

from bunqueue.protocol.framing import frame

CANCEL = "cancel"  # the type of the frame

_encode = Encoder().encode


class CancelNotice(Struct, gc=False):
    """The job is to stop within ``grace`` ms; then it ends as cancelled without its worker."""

    id: str
    token: str  # of the attempt that is meant
    reason: str | None
    grace: int


class _Noted(Struct, gc=False):
    type: str
    cancel: CancelNotice


_decode = Decoder(_Noted).decode


def read_notice(payload: bytes) -> CancelNotice | None:
    """What a frame (without its length) says; None if it is not a notice."""
    try:
        return _decode(payload).cancel
    except MsgspecError:
        return None


def cancel_frame(notice: CancelNotice) -> bytes:
    """A notice as a frame, ready to send."""
    return frame(_encode(_Noted(CANCEL, notice)))

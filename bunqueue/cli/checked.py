"""Commands that are checked by their declarations before they are sent, so that bad input is bad usage."""

from __future__ import annotations

from typing import TypeVar

from msgspec import Raw, Struct
from msgspec.msgpack import Decoder, Encoder

from bunqueue.client import checks
from bunqueue.client.blocking.queue import Queue
from bunqueue.client.caller import Caller
from bunqueue.client.connection_options import shown
from bunqueue.errors import OptionError
from bunqueue.model.dead_letters import DlqConfig
from bunqueue.model.stall import StallConfig
from bunqueue.protocol.commands import Reply
from bunqueue.protocol.commands.base import CommandError
from bunqueue.protocol.commands.core import Push, PushBatch
from bunqueue.protocol.commands.dlq import SetDlqConfig
from bunqueue.protocol.commands.stall import SetStallConfig
from bunqueue.protocol.lenient import clean

R = TypeVar("R", bound=Reply)

_CHECKED_ALREADY = (Push, PushBatch)  # option by option, as they are made
_CONFIGS: dict[type[Struct], type[Struct]] = {SetStallConfig: StallConfig, SetDlqConfig: DlqConfig}
_encode = Encoder().encode
_decode_fields = Decoder(dict[str, Raw]).decode


class CheckedCaller(Caller):
    """Raises OptionError, which names field, value and bound, for what the server would refuse unread."""

    def call(self, command: Struct, reply: type[R]) -> R:
        if not isinstance(command, _CHECKED_ALREADY):
            check(command)
        return super().call(command, reply)


class CheckedQueue(Queue):
    """A queue over a connection that is there."""

    def __init__(self, name: str, caller: Caller) -> None:
        self.name = checks.queue_name(name)
        self._caller = caller
        self._defaults = {}
        self._around = None


def check(command: Struct) -> None:
    """Raise OptionError for a command that its declaration does not allow."""
    kind = type(command)
    if isinstance(queue := getattr(command, "queue", None), str):
        checks.queue_name(queue)
    try:
        payload = _encode(command)
    except ValueError:  # texts that are not Unicode, say: the client tells when it encodes them
        return
    try:
        fields = _decode_fields(payload)
        fields.pop("cmd", None)
        clean(kind, fields)
        if kind in _CONFIGS:  # whose bounds the server looks at when it has put all of it together
            kind, command = _CONFIGS[kind], command.config  # type: ignore[attr-defined]
            clean(kind, _decode_fields(_encode(command)))
    except CommandError as error:
        raise OptionError(_in_python(kind, str(error), command)) from None


def _in_python(kind: type[Struct], problem: str, command: Struct) -> str:
    """What is wrong, with the field's name in Python, and its value."""
    names = dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
    first, _, rest = problem.partition(" ")
    name = names.get(first)
    if name is None:
        return problem
    return f"{name} {rest}, not {shown(getattr(command, name))}"

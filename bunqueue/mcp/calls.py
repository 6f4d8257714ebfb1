"""Calls of tools: from JSON to a command, and from its reply to JSON.

A refusal is an ordinary answer, with `ok` false, a text and a code, so that an assistant can do better.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bunqueue.client.connection.caller import AsyncCaller
from bunqueue.client.connection.transport import Endpoint
from bunqueue.errors import BunqueueError
from bunqueue.gateway.http.transcode import NotJson, plain, read_json, read_packed, write_json
from bunqueue.model.addresses import without_secrets
from bunqueue.protocol.codec import decode_command, encode_reply
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Spec, refused
from bunqueue.protocol.commands.server import Ping
from bunqueue.protocol.encoded import for_people
from bunqueue.protocol.unknown_fields import check_fields

from .tools import with_defaults

MAX_ANSWER = 256 * 1024
"""The maximum size, in bytes of JSON, of an answer to a reading command: some 60,000 tokens.  More would fill
a conversation."""

Answer = dict[str, Any]


class Calls:
    """A client of one server, with one token."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._caller = AsyncCaller(endpoint)

    async def check(self) -> Answer:
        """The answer to a Ping: whether the server is up and accepts the token.  Raises BunqueueError."""
        answer: Answer = read_packed(await self._caller.raw(Ping()))
        return answer

    async def close(self) -> None:
        """Close the connections."""
        await self._caller.close()

    async def call(self, spec: Spec, fields: Mapping[str, Any]) -> Answer:
        """The answer to a command, which may be a refusal."""
        try:
            check_fields(spec.request, fields)
            payload = encode_reply({"cmd": spec.name, **with_defaults(spec.name, fields)})
            answer: Answer = read_packed(await self._caller.raw(decode_command(payload)))
        except CommandError as error:
            return _plain(read_packed(encode_reply(refused(error))))
        except BunqueueError as error:
            return {"ok": False, "error": str(error), "code": error.code}
        except (NotJson, TypeError, ValueError, OverflowError, RecursionError) as error:
            return {"ok": False, "error": f"a value cannot be sent: {error}", "code": Code.INVALID_FIELD}
        return _shown(spec, answer)


def _shown(spec: Spec, answer: Answer) -> Answer:
    """An answer for assistants: JSON types only, without secrets and noise, and not too large."""
    answer.pop("reqId", None)
    answer = for_people(answer)
    if spec.name == "ListWebhooks" and answer["ok"]:
        for hook in answer["data"]["webhooks"]:
            hook["url"] = without_secrets(hook["url"])
    size = len(write_json(answer))
    if size > MAX_ANSWER and not spec.writes:
        text = (
            f"the answer has {size} bytes of JSON, and a tool's answer at most {MAX_ANSWER}; "
            "ask for less, such as a smaller limit, or only what you need of one job"
        )
        return {"ok": False, "error": text, "code": Code.ANSWER_TOO_LARGE, "bound": MAX_ANSWER}
    return _plain(answer)


def _plain(answer: Answer) -> Answer:
    """The answer in JSON types: bytes as Base64, and so on.  Its depth is limited, because the SDK refuses
    deeper values."""
    found: Answer = read_json(write_json(plain(answer)))
    return found

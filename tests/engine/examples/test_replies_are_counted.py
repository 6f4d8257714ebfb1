"""What is counted of replies is counted in one place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

from msgspec import Raw, Struct
from support.table import table

from bunqueue.protocol.commands import COMMANDS, Route
from shardproc.engine import dispatch

SHARD = Path(dispatch.__file__).parents[1]
COUNTS = re.compile(r"\.slow \+= |out\.size \+= |out\.replies\.append\(")


def test_no_other_module_enters_replies_or_counts_them() -> None:
    found = {path.name for path in SHARD.rglob("*.py") if COUNTS.search(path.read_text())}
    assert found == {"dispatch.py", "core.py", "pull.py"}, "core.py gives replies to other shards"


def mentioned(hint: Any) -> Iterator[Any]:
    yield hint
    for part in get_args(hint):
        yield from mentioned(part)
    if isinstance(hint, type) and issubclass(hint, Struct):
        for name, field in get_type_hints(hint).items():
            if name != "req_id":
                yield from mentioned(field)


@table("name", COMMANDS)
def test_every_reply_with_payloads_has_a_size(name: str) -> None:
    spec = COMMANDS[name]
    if spec.route is not Route.ROUTER and Raw in mentioned(spec.reply):
        assert spec.reply in dispatch._SIZES or spec.name in ("PULL", "PULLB")

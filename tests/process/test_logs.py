"""Log lines: their two forms, one record a line, nothing secret in them."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from bunqueue.logs import (
    MAX_TRACEBACK_CHARS,
    MAX_VALUE_CHARS,
    TracebackText,
    configure_logging,
    get_logger,
)

Configure = Callable[..., io.StringIO]


@pytest.fixture
def configure() -> Iterator[Configure]:
    """``configure_logging`` to a buffer; what pytest had set up comes back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []

    def to_buffer(level: Any = "info", form: Any = "text", **context: Any) -> io.StringIO:
        buffer = io.StringIO()
        configure_logging(level, form, stream=buffer, **context)
        return buffer

    yield to_buffer
    root.handlers = handlers
    root.setLevel(level)


def test_text_line(configure: Configure) -> None:
    out = configure(pid=12)
    get_logger("router").info("shard ready", shard=0, took_ms=1.5, ok=True, why=None)
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z "
        r"INFO router shard ready pid=12 shard=0 took_ms=1\.5 ok=true why=null\n",
        out.getvalue(),
    )


def test_json_line(configure: Configure) -> None:
    out = configure(form="json", shard=3)
    get_logger("shardproc").warning("disk slow", took_ms=120, level="x")
    line = orjson.loads(out.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "shardproc",
        "message": "disk slow",
        "shard": 3,
        "took_ms": 120,
        "level_": "x",
    }


def test_level_is_the_least_that_is_logged(configure: Configure) -> None:
    out = configure(level="warning")
    log = get_logger("router")
    log.debug("a")
    log.info("b")
    log.warning("c")
    log.error("d")
    assert [line.split()[1] for line in out.getvalue().splitlines()] == ["WARNING", "ERROR"]


def test_configuring_again_replaces_the_first(configure: Configure) -> None:
    first, second = configure(), configure(form="json")
    get_logger("router").info("once")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


def test_records_of_other_libraries_have_the_same_form(configure: Configure) -> None:
    out = configure(shard=1)
    logging.getLogger("asyncio").warning("slow %s", "callback")
    assert out.getvalue().endswith("WARNING asyncio slow callback shard=1\n")


@pytest.mark.parametrize("form", ["text", "json"])
def test_tokens_and_payloads_never_appear(configure: Configure, form: str) -> None:
    out = configure(form=form, auth_token="hush")
    wrong: Any = {
        "frame": b"hush",
        "raw": b"hush",
        "thing": {"a": "hush"},
    }  # types that the signature forbids
    get_logger("router").info("x", token="hush", lockToken="hush", data="hush", Authorization="hush", **wrong)
    assert "hush" not in out.getvalue()
    assert "<4 bytes>" in out.getvalue()
    assert "<dict>" in out.getvalue()


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("name", ["a\nb", "a\r\x1b[2Jb", "\u2028", "\ud800", 'q"uo te', "", "a=b", "ü"])
def test_hostile_text_stays_one_line(configure: Configure, form: str, name: str) -> None:
    out = configure(form=form)
    get_logger("router").info(f"queue {name}", queue=name)
    assert out.getvalue().encode().count(b"\n") == 1
    if form == "text":
        assert out.getvalue().rstrip("\n").isprintable()


def test_text_values_that_would_be_ambiguous_are_quoted(configure: Configure) -> None:
    out = configure()
    get_logger("router").info("x", a="one two", b="", c="k=v", d='"', e="plain:1")
    assert out.getvalue().endswith(r'x a="one two" b="" c="k=v" d="\"" e=plain:1' + "\n")


def test_long_values_and_large_numbers(configure: Configure) -> None:
    out = configure(form="json")
    get_logger("router").info("x", long="y" * 5000, large=2**70)
    line = orjson.loads(out.getvalue())
    assert len(line["long"]) == MAX_VALUE_CHARS + 3
    assert line["large"] == str(2**70)


@pytest.mark.parametrize("form", ["text", "json"])
def test_traceback_is_bounded_and_keeps_its_end(configure: Configure, form: str) -> None:
    out = configure(form=form)
    try:
        raise RuntimeError("x" * 20_000 + " the cause")
    except RuntimeError:
        get_logger("router").exception("command failed", cmd="PUSH")
    assert len(out.getvalue()) < MAX_TRACEBACK_CHARS + 500
    assert "the cause" in out.getvalue()
    if form == "json":
        assert orjson.loads(out.getvalue())["traceback"].endswith("the cause")
    else:
        first, *rest = out.getvalue().splitlines()
        assert first.endswith("command failed cmd=PUSH")
        assert all(line.startswith("  ") for line in rest)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_name_cannot_move_the_cursor_or_turn_the_line_around(configure: Configure, form: str) -> None:
    name = "\x1b[31mred\x9b2Jgone\u202etxt.exe\u2066\u2028next é"
    out = configure(form=form)
    get_logger("router").info("a worker", worker=name)
    said = out.getvalue()
    assert not set(said) & set("\x1b\x9b\u202e\u2066\u2028")
    if form == "json":
        assert orjson.loads(said)["worker"] == name


def test_a_traceback_from_elsewhere_is_shown_as_it_is(configure: Configure) -> None:
    text = 'Traceback (most recent call last):\n  File "shop.py", line 21, in charge\nValueError: boom'
    error = TracebackText(text)
    out = configure(form="json")
    logging.getLogger("worker").error("failed", exc_info=(type(error), error, None))
    assert orjson.loads(out.getvalue())["traceback"] == text

"""Conditions: as people write them, what they say of a value, and cursors."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from bunqueue.protocol.commands.base import CommandError
from bunqueue.protocol.commands.find import FindJobs
from bunqueue.protocol.search import cursor as cursors
from bunqueue.protocol.search.conditions import MISSING, Condition, at_path, comparer, matches, value_at
from bunqueue.protocol.search.text import parsed, path_of
from bunqueue.protocol.search.wanted import conditions_of

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "conditions"),
    [
        ("state = failed", [Condition("state", "=", ("failed",))]),
        (
            "STATE=Failed AND Name != x",
            [Condition("state", "=", ("failed",)), Condition("name", "!=", ("x",))],
        ),
        ("state in (failed, cancelled)", [Condition("state", "=", ("failed", "cancelled"))]),
        ('state != ("failed","active")', [Condition("state", "!=", ("failed", "active"))]),
        ("data.order.id = 7", [Condition("data", "=", (7,), ("order", "id"))]),
        ('data.order.id = "7"', [Condition("data", "=", ("7",), ("order", "id"))]),
        ("data.paid = true", [Condition("data", "=", (True,), ("paid",))]),
        ("data.note = null", [Condition("data", "=", (None,), ("note",))]),
        ("data.status = open", [Condition("data", "=", ("open",), ("status",))]),
        ("data.zip = 0123", [Condition("data", "=", ("0123",), ("zip",))]),
        ("data.total >= -1.5e2", [Condition("data", ">=", (-150.0,), ("total",))]),
        ("data = 5", [Condition("data", "=", (5,))]),
        ('data."order id"."a.b" ~ x', [Condition("data", "~", ("x",), ("order id", "a.b"))]),
        ("data.items.0.sku = a", [Condition("data", "=", ("a",), ("items", "0", "sku"))]),
        ("name = 7", [Condition("name", "=", ("7",))]),
        ("error ~ no such mailbox", [Condition("error", "~", ("no such mailbox",))]),
        ('error ~ "this and that (or = so)"', [Condition("error", "~", ("this and that (or = so)",))]),
        ("error ~ 'this and that'", [Condition("error", "~", ("this and that",))]),
        ("data.a = ('7', 'b\"\\', c)", [Condition("data", "=", ("7", 'b"\\', "c"), ("a",))]),
        (
            "error ~ rock 'n' roll and name = ''",
            [Condition("error", "~", ("rock 'n' roll",)), Condition("name", "=", ("",))],
        ),
        ("error ~ can't and tag = 'x", [Condition("error", "~", ("can't",)), Condition("tag", "=", ("'x",))]),
        ("created > 2h ago", [Condition("created", ">", (NOW - 7_200_000,))]),
        ("finished <= 1h30m ago", [Condition("finished", "<=", (NOW - 5_400_000,))]),
        ("created < 1970-01-01T00:00:01Z", [Condition("created", "<", (1000.0,))]),
        ("created < 1970-01-01 02:00:01+02:00", [Condition("created", "<", (1000.0,))]),
        ("created >= 1700000000000", [Condition("created", ">=", (NOW,))]),
        (
            "priority > 5 and attempts = 0",
            [Condition("priority", ">", (5,)), Condition("attempts", "=", (0,))],
        ),
        ("workflow = True", [Condition("workflow", "=", (True,))]),
        ('tag = "\\u00fc\\n"', [Condition("tag", "=", ("ü\n",))]),
    ],
)
def test_a_query_is_read(text: str, conditions: list[Condition]) -> None:
    assert parsed(text, NOW) == conditions


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "state",
            "where: state is no condition: write a field, a comparison and a value, as in state = failed",
        ),
        ("state =", "where: state = is no condition"),
        ("state = failed and", "where: a condition is missing: write"),
        ("and state = failed", "where: a condition is missing"),
        ("colour = red", "where: colour is no field; there are queue, state, name, tag"),
        ("order.id = 7", "where: order.id is no field"),
        ("name.first = x", "where: name.first: only data has fields of its own; write data.name.first"),
        ("state = odd", "state 'odd' is unknown; there are waiting, prioritized"),
        ("state ~ fail", "where: state cannot be compared with ~; it takes = !="),
        ("created = 5", "where: created cannot be compared with =; it takes < <= > >="),
        ("tag > a", "where: tag cannot be compared with >; it takes = !="),
        (
            "created > 2h",
            "where: 2h is no moment; give a moment such as 2026-01-31T12:00Z, epoch ms, or a span",
        ),
        ("created > 2026-01-31", "where: 2026-01-31 has no time zone"),
        ("priority > high", "where: priority is compared with numbers, and high is not one"),
        ("priority = true", "where: priority is compared with numbers, and true is not one"),
        ("workflow = yes", "where: workflow is true or false, not yes"),
        ('name = "open', 'where: "open cannot be read; is a quote missing?'),
        ("name = a=b", "where: name = a = b: put quotes around a value with such signs in it"),
        ("name = (a, b", "where: name = ( a , b: a closing parenthesis is missing"),
        ("name = (a,,b)", "give one to 100 values with commas between them"),
        ("name = ()", "give one to 100 values with commas between them"),
        ("name ~ (a, b)", "only = and != take several values"),
        ("data..x = 1", "where: data..x is no path"),
        ("data. = 1", "where: data. is no path"),
        ("created > 1" + "0" * 400 + "h ago", "is too far away; give a moment such as 2026-01-31T12:00Z"),
        ("finished < 999999999999w ago", "is too far away"),
        ("attempts > " + "[" * 4000, "attempts is compared with numbers"),
        (" and ".join(["tag = a"] * 33), "where: it has 33 conditions, at most 32 are allowed"),
    ],
)
def test_a_query_that_is_wrong_is_refused_with_a_reason(text: str, problem: str) -> None:
    with pytest.raises(CommandError) as refused:
        parsed(text, NOW)
    assert problem in str(refused.value)
    assert refused.value.field in ("where", "state")


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(CommandError):  # and nothing else
        parsed(text, NOW)


@pytest.mark.parametrize("value", ["[" * 4000, '{"a":1}', "1e999"])
def test_what_is_no_scalar_of_json_is_a_text(value: str) -> None:
    assert parsed(f"data.a = {value}", NOW) == [Condition("data", "=", (value,), ("a",))]


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4), st.text(max_size=20))
def test_quoted_names_and_values_may_hold_anything(path: list[str], value: str) -> None:
    import json

    names = ".".join(json.dumps(name) for name in path)
    found = parsed(f"data.{names} = {json.dumps(value)}", NOW)
    assert found == [Condition("data", "=", (value,), tuple(path))]
    assert path_of(names) == path


VALUES = [0, 1, 1.0, 7, "7", "a", "A b", "", True, False, None, MISSING, [1, "a"], {"a": 1}, b"a"]


@pytest.mark.parametrize("value", [1, 7.0, "a", True, None])
def test_values_are_compared_only_with_their_kind(value: Any) -> None:
    def kind(one: Any) -> type:
        return float if isinstance(one, int | float) and not isinstance(one, bool) else type(one)

    for actual in VALUES:
        same = kind(actual) is kind(value) and actual == value
        assert matches(Condition("data", "=", (value,)), actual) == same
        assert matches(Condition("data", "!=", (value,)), actual) != same
        assert comparer(Condition("data", "=", (value,)))(actual) == same
        for comparison, expected in (("<", False), ("<=", True), (">", False), (">=", True)):
            ordered = kind(actual) is kind(value) and kind(value) in (float, str)
            if not ordered:
                assert not matches(Condition("data", comparison, (value,)), actual)
            elif same:
                assert matches(Condition("data", comparison, (value,)), actual) == expected


def test_text_contains_regardless_of_case_and_a_list_contains_values() -> None:
    contains = Condition("data", "~", ("WORLD",))
    assert matches(contains, "hello world")
    assert not matches(contains, "hello")
    assert not matches(contains, 5)
    assert matches(Condition("data", "~", (7,)), [1, 7])
    assert not matches(Condition("data", "~", (1,)), [True, "1"])


def test_tags_meet_a_condition_if_one_of_them_does() -> None:
    assert matches(Condition("tag", "=", ("a", "x")), ("b", "a"))
    assert not matches(Condition("tag", "!=", ("a",)), ("b", "a"))
    assert matches(Condition("tag", "!=", ("a",)), ())


def test_paths_lead_through_maps_and_lists() -> None:
    data = {"order": {"id": 7, "items": [{"sku": "a"}]}, "0": "zero"}
    assert at_path(data, ("order", "id")) == 7
    assert at_path(data, ("order", "items", "0", "sku")) == "a"
    assert at_path(data, ("0",)) == "zero"
    for path in (("x",), ("order", "items", "1"), ("order", "id", "y"), ("order", "items", "-1")):
        assert at_path(data, path) is MISSING
    assert at_path(data, ()) is data


def test_fields_of_a_command_are_conditions() -> None:
    command = FindJobs(
        state="failed",
        name=["a", "b"],
        tag=["x", "y"],
        worker="w",
        error="boom",
        created_after=5,
        finished_before=9,
        data={"order.id": 7},
        where="priority > 1",
    )
    assert conditions_of(command, NOW) == [
        Condition("state", "=", ("failed",)),
        Condition("name", "=", ("a", "b")),
        Condition("tag", "=", ("x",)),
        Condition("tag", "=", ("y",)),
        Condition("worker", "=", ("w",)),
        Condition("error", "~", ("boom",)),
        Condition("created", ">=", (5,)),
        Condition("finished", "<", (9,)),
        Condition("data", "=", (7,), ("order", "id")),
        Condition("priority", ">", (1,)),
    ]
    with pytest.raises(CommandError, match=r"data.order must be a text, a number, true, false or null"):
        conditions_of(FindJobs(data={"order": [1]}), NOW)


def test_a_cursor_belongs_to_one_search() -> None:
    command = FindJobs(name="a", limit=5)
    first = cursors.of(command, None, 2, NOW)
    first.places = [17, cursors.BEGIN]
    text = cursors.written(first)
    assert text is not None
    assert cursors.of(FindJobs(name="a", limit=9, scan=7), text, 2, NOW + 5).places == [17, cursors.BEGIN]
    assert cursors.of(FindJobs(name="a"), text, 2, NOW + 5).at == NOW
    with pytest.raises(CommandError, match="belongs to another search"):
        cursors.of(FindJobs(name="b"), text, 2, NOW)
    with pytest.raises(CommandError, match="number of shards changed"):
        cursors.of(FindJobs(name="a"), text, 4, NOW)
    first.places = [cursors.DONE, cursors.DONE]
    assert cursors.written(first) is None


@given(st.text(max_size=50) | st.binary(max_size=30).map(lambda raw: raw.hex()))
def test_any_other_text_is_no_cursor(text: str) -> None:
    with pytest.raises(CommandError) as refused:
        cursors.read(text)
    assert refused.value.field == "cursor"


@pytest.mark.parametrize(
    ("at", "place", "until"), [(-1, 5, 0), (NOW, -3, 0), (NOW, 2**63, 0), (NOW, 5, 2**63)]
)
def test_a_cursor_with_impossible_numbers_is_refused(at: int, place: int, until: int) -> None:
    text = cursors.encoded(cursors.Cursor(cursors.VERSION, 0, at, [place, 5], until))
    with pytest.raises(CommandError, match="was not given by a search"):
        cursors.read(text)


def test_a_value_within_large_data_is_found_as_in_small() -> None:
    """Without decoding what stands beside it."""
    much = [{}] * 70_000
    data = {"a": {"b": [1, {"c": None}], "much": much}, "list": [*much, {"d": 5}], "name": "x", "é": 1.5}
    packed = msgpack.encode(data)
    for path in (
        "name",
        "é",
        "a.b.1.c",
        "a.b.0",
        "list.70000.d",
        "nowhere",
        "a.nowhere",
        "name.x",
        "a.b.7",
        "",
    ):
        names = path.split(".")
        assert value_at(packed, names) == at_path(data, names), path
    mixed = msgpack.encode({5: much, "name": "x"})
    assert value_at(mixed, ["name"]) == "x"
    tracemalloc.start()
    assert value_at(packed, ["name"]) == "x"
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()

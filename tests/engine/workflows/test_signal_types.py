"""Which data the signals of workflows may have: refused where it is sent, or set aside, and never lost."""

from __future__ import annotations

from typing import Any

import pytest
from engine.workflow_world import ALPHA, Workflows

NUMBER, TEXT = {"type": "integer"}, {"type": "string"}


def waiting(flows: Workflows, schema: dict[str, Any] | None = NUMBER, **fields: Any) -> dict[str, Any]:
    """A workflow that waits for signal s; the answer to its wait."""
    flows.start("w")
    flows.run("w")
    return again(flows, schema=schema, **fields)


def again(flows: Workflows, name: str = "s", **fields: Any) -> dict[str, Any]:
    return flows.wait("w", name, "s", **fields)


def declare(flows: Workflows, by: str, **signals: Any) -> None:
    flows.ok("SetSignalTypes", queue=ALPHA, workflows={"order": signals}, by=by)


def kept(flows: Workflows) -> list[tuple[Any, str | None]]:
    return [(signal.get("data"), signal.get("problem")) for signal in flows.view("w")["signals"]]


def unfit(found: str) -> str:
    return f"the data of signal s is {found}, and an integer is expected"


def test_a_signal_that_does_not_fit_is_refused(flows: Workflows) -> None:
    waiting(flows)
    flows.suspend("w", ["s"])
    before = flows.view("w")
    refused = flows.refused("SendSignal", id="w", name="s", data="five", signalId="x")
    assert refused == unfit("'five'") + ": workflow w was not sent it"
    assert flows.view("w") == before, "a mistake changes nothing"
    assert before["waits"] == [{"step": "s", "signal": "s", "schema": NUMBER}]
    assert flows.signal("w", "s", 5, signalId="x") is True
    assert flows.view("w")["waits"] == []


def test_the_oldest_wait_that_the_data_fits_takes_it(flows: Workflows) -> None:
    waiting(flows)
    again(flows, "text", schema=TEXT)
    assert flows.signal("w", "s", "five") is True
    assert flows.steps("w") == {"s": "waiting", "text": "completed"}
    assert "an integer is expected" in flows.refused("SendSignal", id="w", name="s", data=[])


def test_what_came_before_is_set_aside(flows: Workflows) -> None:
    flows.start("w")
    flows.run("w")
    for data in ("one", 2, "three"):
        flows.signal("w", "s", data)
    assert again(flows, schema=NUMBER)["result"] == 2
    assert kept(flows) == [("one", unfit("'one'")), ("three", None)]
    flows.wait("w", "t", "s", schema=NUMBER)
    numbers = [signal["number"] for signal in flows.view("w")["signals"]]
    assert kept(flows) == [("one", unfit("'one'")), ("three", unfit("'three'"))]
    flows.ok("DropSignal", id="w", number=numbers[0])
    assert kept(flows) == [("three", unfit("'three'"))]
    assert "keeps no signal of the number" in flows.refused("DropSignal", id="w", number=numbers[0])
    assert "keeps no signal of the number" in flows.refused("DropSignal", id="w", number=2), "it was taken"
    flows.ack("w")
    flows.ok("DropSignal", id="w", number=numbers[1])
    assert kept(flows) == []


def test_a_signal_that_nobody_has_waited_for_can_be_dropped(flows: Workflows) -> None:
    flows.start("w")
    flows.signal("w", "other", 1)
    flows.ok("DropSignal", id="w", number=1)
    assert flows.view("w")["signals"] == []


def test_what_the_worker_finds_unfit_is_set_aside_once(flows: Workflows) -> None:
    """The command may be repeated as its answer was lost; what came meanwhile is not set aside for that."""
    waiting(flows)
    flows.signal("w", "s", 1, signalId="one")
    rejected = {"kind": "signal", "status": "waiting", "unfit": "it is odd", "schema": NUMBER}
    answer = flows.record("w", "s", **rejected)
    assert (answer["status"], answer["attempts"]) == ("waiting", 2)
    assert flows.signal("w", "s", 2) is True
    answer = flows.record("w", "s", **rejected)
    assert (answer["status"], answer["result"], answer["attempts"]) == ("completed", 2, 2)
    assert kept(flows) == [(1, "it is odd")]
    flows.record("w", "s", **rejected, attempts=2)
    assert kept(flows) == [(1, "it is odd"), (2, "it is odd")]
    assert flows.signal("w", "s", 1, signalId="one") is False, "it counts once, though it was set aside"
    assert "an integer is expected" in flows.refused("SendSignal", id="w", name="s", data="x")
    flows.signal("w", "s", 4)
    assert flows.step("w", "s")["result"] == 4


def test_a_broadcast_that_was_set_aside_is_not_taken_again(flows: Workflows) -> None:
    waiting(flows, key="k")
    assert flows.broadcast("s", "k", "no") == 0, "it does not fit"
    assert flows.broadcast("s", "k", 1) == 1
    answer = flows.record("w", "s", kind="signal", status="waiting", unfit="it is odd", schema=NUMBER)
    assert answer["status"] == "waiting"
    assert kept(flows) == [(1, "it is odd")]
    assert flows.broadcast("s", "k", 2) == 1
    assert flows.step("w", "s")["result"] == 2


def test_signals_that_are_set_aside_are_bounded(flows: Workflows, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in (("MAX_SET_ASIDE", 3), ("TRIED", 2)):
        monkeypatch.setattr(f"shardproc.engine.handlers.workflows.signals.{name}", most)
    flows.start("w")
    flows.run("w")
    for number in range(5):
        flows.signal("w", "s", str(number))
    for _ in range(3):  # some at a time
        again(flows, schema=NUMBER)
    assert [data for data, _ in kept(flows)] == ["2", "3", "4"]


def test_a_wait_with_another_type_says_so(flows: Workflows) -> None:
    waiting(flows)
    again(flows, schema=TEXT)
    assert "a text is expected" in flows.refused("SendSignal", id="w", name="s", data=5)
    assert flows.step("w", "s")["schema"] == TEXT
    again(flows, schema={})
    assert flows.signal("w", "s", [5]) is True


@pytest.mark.parametrize("taken", [True, False])
def test_a_wait_takes_the_place_of_one_that_is_not_in_the_code(flows: Workflows, taken: bool) -> None:
    waiting(flows, None)
    if taken:
        flows.signal("w", "s", 5, signalId="x")
    again(flows, "other", schema=NUMBER)
    answer = again(flows, "other", instead="s")
    assert answer.get("result") == (5 if taken else None)
    if taken:
        assert flows.steps("w") == {"s": "cancelled", "other": "completed"}
        assert flows.step("w", "s")["error"] == "the code does not wait for it any more"
        assert flows.signal("w", "s", 5, signalId="x") is False, "the same signal"
        flows.record("w", "other", kind="signal", status="waiting", unfit="no")
        assert kept(flows) == [(5, "no")]
    else:
        assert flows.record("w", "s", kind="signal", status="cancelled", error="gone") == {}
        assert flows.signal("w", "s", 6) is True
        assert flows.steps("w") == {"s": "cancelled", "other": "completed"}


def test_what_is_declared_holds_for_all_waits(flows: Workflows) -> None:
    declare(flows, "one", s=NUMBER)
    flows.start("w")
    assert "an integer is expected" in flows.refused("SendSignal", id="w", name="s", data="x")
    assert flows.signal("w", "other", "x") is False
    flows.run("w")
    again(flows, schema=TEXT)
    assert flows.view("w")["waits"][0]["schema"] == NUMBER
    assert "an integer is expected" in flows.refused("SendSignal", id="w", name="s", data="x")
    declare(flows, "two", s=TEXT)
    assert flows.signal("w", "s", "x") is True


def test_what_a_wait_has_said_holds_until_other_code_may_be_there(flows: Workflows) -> None:
    declare(flows, "one")
    waiting(flows)
    flows.suspend("w", ["s"])
    flows.pass_time(1_000)
    declare(flows, "one")
    assert "an integer is expected" in flows.refused("SendSignal", id="w", name="s", data="x")
    declare(flows, "two")
    assert "schema" not in flows.view("w")["waits"][0]
    assert flows.signal("w", "s", "x") is True, "the code may have changed"
    flows.run("w")
    flows.record("w", "s", kind="signal", status="waiting", unfit="no", schema=NUMBER)
    assert "an integer is expected" in flows.refused("SendSignal", id="w", name="s", data="x")


def test_schemas_that_are_refused(flows: Workflows, monkeypatch: pytest.MonkeyPatch) -> None:
    flows.start("w")
    flows.run("w")
    for schema, text in (
        ([1], "schema must be a JSON Schema: an object"),
        ({"title": "x" * 20_000}, "at most 16384 are allowed"),
    ):
        refusal = flows.record("w", "s", kind="signal", status="waiting", signal="s", schema=schema)[
            "refused"
        ]
        assert (refusal["code"], refusal["field"]) == ("INVALID_FIELD", "schema")
        assert text in refusal["error"]
    refused = flows.refused("SetSignalTypes", queue=ALPHA, workflows={"order": {"s": 5}})
    assert refused == "workflows.order.s must be a JSON Schema: an object"
    monkeypatch.setattr("shardproc.engine.handlers.workflows.types.MAX_TYPES_BYTES", 100)
    large = {"order": {"s": {"title": "x" * 200}}}
    assert "at most 100 are allowed" in flows.refused("SetSignalTypes", queue=ALPHA, workflows=large)
    assert flows.signal("w", "s", "anything") is False
    assert flows.steps("w") == {}


def test_what_was_encoded_is_left_to_the_worker(flows: Workflows) -> None:
    waiting(flows)
    sealed = {"$encoded": "encrypted", "v": 1, "body": b"..."}
    assert flows.signal("w", "s", sealed) is True


def test_signals_that_were_set_aside_stay_when_the_workflow_begins_again(flows: Workflows) -> None:
    flows.start("w")
    flows.run("w")
    flows.signal("w", "s", "x")
    again(flows, schema=NUMBER)
    flows.pass_time(3_600_000)
    flows.ok("ContinueAsNew", queue=ALPHA, **flows.held("w"))
    assert kept(flows) == [("x", unfit("'x'"))]

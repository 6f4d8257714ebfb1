"""Workflows on the command line, run by an app in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future
from threading import Thread
from typing import Any

import pytest
from support.cli import Cli
from support.server import Server
from support.waiting import wait_until

from bunqueue import Bunqueue, Flow
from bunqueue.cli.framework import exits

undone: list[str] = []
refusing: list[bool] = []


def undo(what: str) -> None:
    if refusing and what != "edited":
        raise ConnectionError("the bank is away")
    undone.append(what)


@pytest.fixture(scope="module")
def cli(shared_server: Server) -> Iterator[Cli]:
    from bunqueue import Undo

    app = Bunqueue("wf", host=shared_server.host, port=shared_server.port)

    @app.workflow(max_attempts=1)
    async def order(flow: Flow, number: int = 0) -> str:
        flow.state = {"number": number}
        await flow.step("charge", lambda: f"charge-{number}", undo=Undo(undo, retry=1))
        if not await flow.wait_for("approval", bool):
            raise ValueError("not approved")
        return await flow.step("ship", lambda: f"shipped {number}")

    import asyncio

    ready: Future[Any] = Future()

    async def work() -> None:
        async with app:
            stop = asyncio.Event()
            ready.set_result((asyncio.get_running_loop(), stop))
            await stop.wait()

    thread = Thread(target=lambda: asyncio.run(work()))
    thread.start()
    loop, stop = ready.result(30)
    yield Cli(shared_server)
    loop.call_soon_threadsafe(stop.set)
    thread.join(60)


def started(cli: Cli, number: int, *more: str) -> str:
    """The id of a workflow that waits for its approval."""
    found = cli(
        "workflow", "start", "order", f'{{"number": {number}}}', "--queue", "wf", "--max-attempts", "1", *more
    ).value
    wait_until(lambda: state(cli, found) == "waiting-signal", "the workflow waits")
    return found


def state(cli: Cli, workflow_id: str) -> str:
    return cli("job", "state", workflow_id).value


def test_a_workflow_is_started_shown_and_signalled(cli: Cli) -> None:
    first = started(cli, 7, "--job-id", "order-7")
    again = cli("workflow", "start", "order", "--queue", "wf", "--job-id", "order-7")
    assert (first, again.value) == ("order-7", "order-7")
    assert "is there already" in again.err
    rows = [line.split("\t") for line in cli("workflow", "show", "order-7").out.splitlines()]
    shown = {row[0]: row[1] for row in rows if len(row) == 2}
    assert (shown["state"], shown["value"]) == ("waiting-signal", '{"number":7}')
    assert [(row[1], row[3]) for row in rows if len(row) > 5] == [
        ("charge", "completed"),
        ("approval", "waiting"),
    ]
    cli("workflow", "signal", "order-7", "approval", "true")
    assert cli("job", "wait", "order-7", "--timeout", "60s").value == '"shipped 7"'
    whole = cli("workflow", "show", "order-7", "--json").json
    assert (whole["state"], whole["returnvalue"], whole["failedReason"]) == ("completed", "shipped 7", None)
    assert [(step["name"], step["value"]) for step in whole["steps"]] == [
        ("charge", "charge-7"),
        ("approval", True),
        ("ship", "shipped 7"),
    ]


def test_workflows_are_listed(cli: Cli) -> None:
    one = started(cli, 8)
    cli("push", "wf-plain", "--name", "no-workflow")
    listed = cli("workflow", "list", "--state", "waiting-signal", "--json").json
    assert one in [each["id"] for each in listed]
    assert {each["name"] for each in cli("workflow", "list", "--json").json} == {"order"}
    assert cli("workflow", "list", "data.number = 8", "--queue", "wf").out.startswith(f"{one}\twf\torder")


def test_a_workflow_is_cancelled_and_undone(cli: Cli) -> None:
    one = started(cli, 9)
    cli("workflow", "cancel", one, "--reason", "withdrawn")
    wait_until(lambda: state(cli, one) == "cancelled", "it has ended")
    assert undone[-1] == "charge-9"
    assert "withdrawn" in cli("workflow", "show", one, "--json").json["failedReason"]


def test_a_stuck_workflow_is_edited_or_skipped(cli: Cli) -> None:
    refusing.append(True)
    ids = [started(cli, number) for number in (10, 11, 12)]
    for each in ids:
        cli("workflow", "signal", each, "approval", "false")
        wait_until(lambda each=each: state(cli, each) == "stuck", "it is stuck")
    cli("workflow", "undo", ids[0], "--edit", "charge", "--data", '"edited"')
    cli("workflow", "undo", ids[1], "--skip", "charge")
    for each in ids[:2]:
        wait_until(lambda each=each: state(cli, each) == "failed", "it has ended")
    refusing.clear()
    cli("workflow", "undo", ids[2], "--resume")
    wait_until(lambda: state(cli, ids[2]) == "failed", "it has ended")
    assert undone[-2:] == ["edited", "charge-12"]


def test_a_completed_workflow_runs_again_from_a_step_or_is_undone(cli: Cli) -> None:
    one = started(cli, 13)
    cli("workflow", "signal", one, "approval", "true")
    cli("job", "wait", one, "--timeout", "60s")
    cli("workflow", "retry", one, "--from", "approval")
    wait_until(lambda: state(cli, one) == "waiting-signal", "it waits again")
    cli("workflow", "signal", one, "approval", "true")
    cli("job", "wait", one, "--timeout", "60s")
    cli("workflow", "undo", one, "--yes")
    wait_until(lambda: undone[-1] == "charge-13", "it is undone")


def test_what_is_refused(cli: Cli) -> None:
    job = cli("push", "wf-plain").value
    for words, status, text in (
        (("signal", "nobody", "go"), exits.NOT_FOUND, "nobody"),
        (("signal", job, "go"), exits.WRONG_STATE, "is no workflow"),
        (("undo", job, "--skip", "a", "--resume"), exits.USAGE, "--resume: give one"),
        (("undo", job, "--data", "1"), exits.USAGE, "--data: it is for --edit"),
    ):
        done = cli("workflow", *words, status=status)
        assert text in done.err


def test_arguments_without_names_are_refused(cli: Cli) -> None:
    refused = cli("workflow", "start", "order", "[1]", "--queue", "wf", "--json", status=exits.FAILED)
    said = json.loads(refused.err)
    assert (said["field"], said["value"], said["bound"]) == ("data", "a list", "an object")


def test_a_signal_without_a_name_is_called_as_the_command_calls_it(cli: Cli) -> None:
    some = started(cli, 17)
    for words in (("signal", some, ""), ("broadcast", "", "k")):
        refused = cli("workflow", *words, status=exits.USAGE)
        assert "SIGNAL must be a non-empty string" in refused.err

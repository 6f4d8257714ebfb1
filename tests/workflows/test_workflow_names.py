"""Names and keys that could be mistaken for each other: of jobs, of steps, and of what is no step."""

from __future__ import annotations

from datetime import timedelta
from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.promises import promises

from bunqueue import Bunqueue, Flow, Queue, current_job, current_step
from bunqueue.client.models.workflows import Step
from bunqueue.errors import OptionError
from bunqueue.model.workflow import COMPLETED, SIGNAL, SLEEP, STEP
from bunqueue.testing import Sandbox
from bunqueue.workflow.run_log import Claim, RunLog, base_of, checked_name, key_of

DAY = timedelta(days=1)
AWKWARD = st.text(":%#32Aa1٣\n ", min_size=1, max_size=6)
PARTS = st.lists(AWKWARD, min_size=2, max_size=5)


@given(parts=PARTS, other=PARTS, generation=st.integers(0, 2), another=st.integers(0, 2))
def test_no_two_steps_of_any_jobs_have_the_same_key(
    parts: list[str], other: list[str], generation: int, another: int
) -> None:
    """However their ids and names are cut out of the same text, and whatever numbers these end with."""
    steps = {
        (":".join(some[:at]), ":".join(some[at:]), number)
        for some in (parts, other)
        for at in range(1, len(some))
        for number in (generation, another)
    }
    keys = {key_of(own, name, number, unambiguous=True) for own, name, number in steps}
    assert len(keys) == len(steps)


def test_keys_as_they_were() -> None:
    """Of jobs that began with them: a service that knows one of these must find it again."""
    assert key_of("order-7", "charge", 0, unambiguous=True) == "order-7:charge"
    assert key_of("order-7", "charge:1", 2, unambiguous=True) == "order-7:charge:1:2"
    assert key_of("order:7", "charge", 0, unambiguous=False) == "order:7:charge"
    assert key_of("order:7", "charge", 0, unambiguous=True) == "order%3A7:charge"


Asked = tuple[str, str]
ASKED = st.lists(st.tuples(st.sampled_from([STEP, SLEEP, SIGNAL]), AWKWARD), max_size=12)


@given(asked=ASKED, data=st.data())
def test_what_is_asked_for_is_found_again_in_any_order(asked: list[Asked], data: st.DataObject) -> None:
    """By its kind and its name, and never twice; steps of one run have different names."""
    first = RunLog()
    recorded: list[tuple[Asked, str]] = []
    for kind, name in asked:
        try:
            claim = first.claim(checked_name(name), kind, None)
        except OptionError:
            continue
        assert isinstance(claim, Claim)
        assert base_of(claim.name) == name
        recorded.append(((kind, name), claim.name))
    assert all(one != other for one, other in combinations([name for _, name in recorded], 2))
    again = RunLog(
        Step(number=number, name=name, kind=kind, status=COMPLETED, started_at_ms=0)
        for number, ((kind, _), name) in enumerate(recorded, 1)
    )
    found = []
    for kind, name in data.draw(st.permutations([each for each, _ in recorded])):
        claim = again.claim(name, kind, None)
        assert isinstance(claim, Claim)
        assert claim.known is not None
        found.append(((kind, name), claim.name))
    assert sorted(found) == sorted(recorded)
    assert again.at_end


@promises("`flow.key` is the same in each")
def test_keys_of_jobs_whose_ids_have_colons(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    keys: list[str] = []

    @app.workflow(max_attempts=1)
    async def order(flow: Flow, name: str) -> None:
        await flow.step(name, lambda: keys.append(flow.key))

    @app.job
    async def plain() -> None:
        job = current_job()
        await job.step("first", lambda: None)
        await job.step("c", lambda: keys.append(current_step().key))

    Queue("q").add("plain", {}, job_id="a:b:d")
    order.start("b:c", id="a")
    order.start("c", id="a:b")
    sandbox.drain(app)
    assert sorted(keys) == ["a%3Ab%3Ad:c", "a%3Ab:c", "a:b:c"]


def test_a_workflow_that_began_with_other_keys_keeps_them(sandbox: Sandbox) -> None:
    app = Bunqueue("q")
    keys: list[str] = []

    @app.workflow(max_attempts=1)
    async def order(flow: Flow) -> None:
        await flow.wait_for("go")
        await flow.step("c", lambda: keys.append(flow.key))

    handle = order.start(id="a:b")
    sandbox.drain(app)
    (job,) = sandbox._engine._shard.engine.state.jobs.values()
    assert job.run is not None
    job.run.keys = 0  # as jobs have it that were stored before there was this field
    handle.signal("go")
    sandbox.drain(app)
    assert keys == ["a:b:c"]


def test_values_and_races_of_one_name(sandbox: Sandbox) -> None:
    """A time that is called like a race, or like a patch, is not taken for it, whichever comes first."""
    app = Bunqueue("q")
    seen: list[Any] = []

    @app.workflow(max_attempts=1)
    async def order(flow: Flow, turned: bool) -> None:
        async def race() -> Any:
            return await flow.race(a=flow.sleep("short", 1), b=flow.sleep("long", days=1))

        async def decide() -> Any:
            found = flow.now("race"), flow.patched("new"), flow.now("patched:new")
            await flow.step("with them", lambda: None)
            return found

        first = [await race(), await decide()] if not seen else [await decide(), await race()][::-1]
        seen.append(first)
        await flow.sleep("night", days=1)

    order.start(True)
    sandbox.drain(app, within=2 * DAY)
    assert len(seen) == 2
    assert seen[0] == seen[1]


def test_waits_of_one_name_for_several_signals(sandbox: Sandbox) -> None:
    """Each gets its own signal, also when the code asks in another order in the next run."""
    app = Bunqueue("q")
    runs: list[int] = []

    @app.workflow(max_attempts=1)
    async def order(flow: Flow) -> list[Any]:
        runs.append(1)
        waits = [("a", "answer"), ("b", "answer")]
        if len(runs) > 1:
            waits.reverse()
        found = await flow.gather(*(flow.wait_for(signal, name=name) for signal, name in waits))
        return sorted(found)

    handle = order.start()
    sandbox.drain(app)
    handle.signal("a", "of a")
    handle.signal("b", "of b")
    sandbox.drain(app)
    assert handle.result() == ["of a", "of b"]
    assert {step.name: step.signal for step in handle.history()} == {"answer": "a", "answer#2": "b"}
    assert Queue("q").counts().failed == 0

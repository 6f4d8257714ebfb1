"""Workflows: what they wait for, their steps in time and as a graph, and every action on them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from support.browser import DESK, PHONE, Api, Visit, act, toast
from support.budget import budget
from support.server import Server, StartServer, quiet_port
from support.web import fresh_queue

TOKEN, READER = "writer-token", "reader-token"
HOUR = 3_600_000


class Run:
    """A workflow, worked by hand through the HTTP gateway."""

    def __init__(self, api: Api, number: int = 0, **fields: object) -> None:
        self.api, self.queue = api, fresh_queue(number)
        self.id = api.push(self.queue, name="order", workflow=True, data={"order": 7}, **fields)
        self.token = ""

    def take(self) -> None:
        self.token = str(self.api("PULL", queue=self.queue, owner="worker-1")["token"])

    def record(self, *steps: Mapping[str, object]) -> None:
        some = [{"id": self.id, "token": self.token, **step} for step in steps]
        found: Any = self.api("RecordSteps", queue=self.queue, steps=some)["results"]
        assert all("refused" not in (answer or {}) for answer in found), found

    def suspend(self, *names: str) -> None:
        groups = [{"steps": list(names)}]
        self.api("SuspendJob", queue=self.queue, id=self.id, token=self.token, groups=groups)

    def fail(self, error: str = "no more") -> None:
        self.api("FAIL", id=self.id, token=self.token, error=error)

    def view(self) -> dict[str, Any]:
        found: Any = self.api("GetWorkflow", id=self.id)["data"]
        return dict(found)

    @property
    def path(self) -> str:
        return f"/workflows/{self.id}"


@pytest.fixture
def waiting(api: Api) -> Run:
    """Two steps beside each other, one after them, and a wait for a signal."""
    run = Run(api)
    run.take()
    run.record({"name": "stock", "took": 40}, {"name": "address", "took": 40})
    run.record({"name": "charge", "result": {"charge": "ch_81"}, "undo": True, "attempts": 3})
    run.record(
        {
            "name": "approval",
            "kind": "signal",
            "status": "waiting",
            "signal": "approval",
            "key": "7",
            "delay": HOUR,
        }
    )
    run.suspend("approval")
    return run


def undo_of(page: Page, name: str) -> Locator:
    return page.locator('.steps > li[data-kind-of="undo"]').filter(has_text=name)


def test_the_steps_stand_below_each_other_and_open(visit: Visit, shop: Server, waiting: Run) -> None:
    page = visit(shop).go(waiting.path)
    rows = page.locator(".steps > li")
    expect(rows).to_have_count(4)
    assert [text.split("\n")[0] for text in page.locator(".step-name b").all_inner_texts()] == [
        "stock", "address", "charge", "approval",
    ]  # fmt: skip
    expect(rows.nth(2)).to_contain_text("attempt 3")
    expect(rows.nth(3)).to_contain_text("waiting")
    rows.nth(2).locator("summary").click()
    expect(rows.nth(2).get_by_label("Result of charge")).to_contain_text('"charge": "ch_81"')
    expect(rows.nth(2)).to_contain_text("worker-1")
    expect(rows.nth(2)).to_contain_text("it can be undone")
    expect(page).to_have_url(re.compile("step=charge"))
    there = visit(shop).go(page.url.removeprefix(shop.url))  # a colleague, who got the address
    expect(there.get_by_label("Result of charge")).to_contain_text("ch_81")
    expect(there.get_by_label("Data", exact=True)).to_contain_text('"order": 7')


def boxes(nodes: Locator) -> dict[str, dict[str, float]]:
    """Where the nodes of a graph are, by their labels; all at one moment, as it is drawn again and again."""
    place = "[node.getAttribute('aria-label'), node.getBoundingClientRect().toJSON()]"
    return dict(nodes.evaluate_all(f"nodes => nodes.map((node) => {place})"))


def test_the_graph_says_what_came_after_what(visit: Visit, shop: Server, waiting: Run) -> None:
    page = visit(shop).go(waiting.path)
    page.get_by_role("button", name="Graph").click()
    expect(page).to_have_url(re.compile("view=graph"))
    nodes = page.locator(".graph .node")
    expect(nodes).to_have_count(5)  # and the beginning
    expect(page.locator(".graph .edge")).to_have_count(5)  # two from the beginning, two to the charge, one on
    places = boxes(nodes)
    stock, address, charge, approval = (
        next(box for label, box in places.items() if label.startswith(name))
        for name in ("stock", "address", "charge", "approval")
    )
    assert stock["x"] == address["x"], "beside each other"
    assert stock["y"] != address["y"]
    assert address["x"] + address["width"] < charge["x"] < approval["x"]
    charged = page.get_by_role("button", name=re.compile("^charge"))
    charged.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Result of charge")).to_contain_text("ch_81")
    expect(charged).to_be_focused()
    phone = visit(shop, PHONE).go(f"{waiting.path}?view=graph")
    expect(phone.locator(".graph .node")).to_have_count(5)
    first, *_, last = boxes(phone.locator(".graph .node")).values()
    assert first["y"] + first["height"] < last["y"], "from top to bottom"


def test_steps_appear_while_it_runs(visit: Visit, shop: Server, api: Api) -> None:
    run = Run(api)
    page = visit(shop).go(run.path)
    expect(page.get_by_role("region", name="What it waits for")).to_contain_text("No worker is connected")
    expect(page.get_by_text("It has recorded no steps")).to_be_visible()
    run.take()
    run.record({"name": "import", "status": "running", "cursor": 7})
    rows = page.locator(".steps > li")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("runs")
    rows.locator("summary").click()
    expect(rows.get_by_label("Cursor of import")).to_contain_text("7")
    run.record({"name": "import", "result": 1000})
    expect(rows.locator(".state")).to_contain_text("completed")
    expect(rows.get_by_label("Result of import")).to_contain_text("1000")  # it stays open
    run.record({"name": "", "kind": "state", "result": {"page": 7}})
    api("ACK", id=run.id, token=run.token, result="done")
    expect(page.locator(".page-head .badge")).to_have_text("completed")
    expect(page.get_by_label("State set by its code")).to_contain_text('"page": 7')
    expect(page.get_by_label("Result", exact=True)).to_contain_text("done")


def test_a_signal_is_sent_with_data(visit: Visit, shop: Server, waiting: Run) -> None:
    page = visit(shop).go(waiting.path)
    why = page.get_by_role("region", name="What it waits for")
    expect(why).to_contain_text("The signal approval with the key 7, at the latest in 59 min")
    act(page, "Send")
    expect(page.get_by_label("Name")).to_have_value("approval")
    page.get_by_label("Data, as JSON").fill("{yes")
    page.get_by_role("dialog").get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert").filter(has_text="data is not JSON")).to_be_visible()
    page.get_by_label("Data, as JSON").fill('{"by": "ada"}')
    page.get_by_role("dialog").get_by_role("button", name="Send").click()
    toast(page, "The workflow took the signal approval")
    expect(why).not_to_contain_text("The signal approval")
    assert waiting.view()["steps"][3]["result"] == {"by": "ada"}
    act(page, "Signal")
    page.get_by_label("Name").fill("paid")
    page.get_by_role("dialog").get_by_role("button", name="Send").click()
    toast(page, "does not wait for paid yet: the signal is kept")
    expect(page.locator(".card").filter(has_text="Kept signals")).to_contain_text("paid")


APPROVAL = {
    "$ref": "#/$defs/Approval",
    "$defs": {
        "Approval": {
            "type": "object",
            "properties": {
                "by": {"type": "string"},
                "cents": {"type": "integer", "default": 100},
                "how": {"enum": ["card", "cash"]},
                "paid": {"type": "boolean"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
            "required": ["by", "paid"],
        }
    },
}


def test_a_signal_has_a_form_of_its_type(visit: Visit, shop: Server, api: Api) -> None:
    run = Run(api)
    run.take()
    wait = {"kind": "signal", "status": "waiting"}
    run.record(
        {**wait, "name": "ok", "signal": "ok", "schema": {"type": "boolean"}},
        {**wait, "name": "approval", "signal": "approval", "schema": APPROVAL},
        {**wait, "name": "lines", "signal": "lines", "schema": {"type": "array"}},
    )
    run.suspend("ok", "approval", "lines")
    visitor = visit(shop)
    page = visitor.go(run.path)
    why, dialog = page.get_by_role("region", name="What it waits for"), page.get_by_role("dialog")

    def send(signal: str) -> None:
        why.get_by_role("listitem").filter(has_text=f"The signal {signal}").get_by_role("button").click()

    send("ok")
    dialog.get_by_label("Data").select_option("Yes")
    dialog.get_by_role("button", name="Send").click()
    toast(page, "The workflow took the signal ok")
    send("approval")
    expect(dialog.get_by_label("cents")).to_have_value("100")
    dialog.get_by_label("by").fill("ada")
    dialog.get_by_label("cents").fill("1.5")
    dialog.get_by_label("paid").select_option("No")
    visitor.expect_refusal(422)
    dialog.get_by_role("button", name="Send").click()
    expect(
        page.get_by_role("alert").filter(has_text="1.5 at cents, and an integer is expected")
    ).to_be_visible()
    dialog.get_by_label("cents").fill("")
    dialog.get_by_label("how").select_option("cash")
    dialog.get_by_role("button", name="Send").click()
    toast(page, "The workflow took the signal approval")
    send("lines")
    dialog.get_by_label("Data, as JSON").fill("[1]")
    dialog.get_by_role("button", name="Send").click()
    toast(page, "The workflow took the signal lines")
    results = {step["name"]: step["result"] for step in run.view()["steps"]}
    assert results == {"ok": True, "approval": {"by": "ada", "how": "cash", "paid": False}, "lines": [1]}


def test_signals_that_were_set_aside_are_shown_and_dropped(visit: Visit, shop: Server, api: Api) -> None:
    run = Run(api)
    run.take()
    api("SendSignal", id=run.id, name="ok", data="yes")
    wait = {"kind": "signal", "status": "waiting", "name": "ok", "signal": "ok"}
    run.record({**wait, "schema": {"type": "boolean"}})
    run.suspend("ok")
    page = visit(shop).go(run.path)
    kept = page.locator(".card").filter(has_text="Kept signals")
    expect(kept).to_contain_text("Set aside: the data of signal ok is 'yes', and true or false is expected")
    act(page, "Drop", "Drop it")
    toast(page, "The signal is gone")
    expect(kept).to_have_count(0)
    act(page, "Signal")
    page.get_by_label("Name").fill("okay")
    page.get_by_role("dialog").get_by_role("button", name="Send").click()
    toast(page, "does not wait for okay yet: the signal is kept. It waits for ok")


def test_a_workflow_is_retried_from_a_step(visit: Visit, shop: Server, waiting: Run) -> None:
    page = visit(shop).go(f"{waiting.path}?step=charge")
    act(page, "Retry from here")
    expect(page.get_by_role("dialog")).to_contain_text("with 1 step recorded after it")
    page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    toast(page, "It runs again from charge")
    expect(page.locator(".steps > li")).to_have_count(2)
    assert [step["name"] for step in waiting.view()["steps"]] == ["stock", "address"]
    act(page, "Retry from a step")
    page.get_by_label("Step", exact=True).select_option("stock (completed)")
    page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    toast(page, "It runs again from stock")
    expect(page.get_by_text("It has recorded no steps")).to_be_visible()


def test_a_workflow_that_waits_is_cancelled_and_undone(visit: Visit, shop: Server, waiting: Run) -> None:
    page = visit(shop).go(waiting.path)
    act(page, "Cancel")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Its steps that can be undone are undone")
    page.get_by_label("Reason").fill("the order was withdrawn")
    dialog.get_by_role("button", name="Cancel the workflow").click()
    toast(page, "It is being stopped")
    expect(page.locator(".page-head .badge")).to_have_text("undoing")
    expect(page.get_by_role("region", name="Undo")).to_contain_text("It is being undone")
    waiting.take()
    waiting.record({"name": "undo:charge", "kind": "undo"})
    waiting.api("FAIL", id=waiting.id, token=waiting.token, error="undone", unrecoverable=True)
    expect(page.locator(".page-head .badge")).to_have_text("cancelled")
    expect(undo_of(page, "charge")).to_contain_text("undo")


@pytest.fixture
def stuck(api: Api) -> Run:
    """A workflow whose undo of the charge has failed for good."""
    run = Run(api, maxAttempts=1)
    run.take()
    run.record({"name": "reserve", "undo": True}, {"name": "charge", "undo": True, "result": {"charge": 1}})
    run.fail("the carrier is down")
    run.take()
    run.record({"name": "undo:charge", "kind": "undo", "status": "failed", "error": "503 from the bank"})
    run.api("FAIL", id=run.id, token=run.token, error="UndoFailed: 503", unrecoverable=True)
    assert run.view()["state"] == "stuck"
    return run


def test_an_undo_that_is_stuck_is_edited_and_skipped(visit: Visit, shop: Server, stuck: Run) -> None:
    page = visit(shop).go(stuck.path)
    undo = page.get_by_role("region", name="Undo")
    expect(undo).to_contain_text("charge: 503 from the bank")
    expect(undo).to_contain_text("reserve has not been undone yet")
    act(page, "Edit")
    page.get_by_label("As JSON").fill('{"charge": 2}')
    page.get_by_role("dialog").get_by_role("button", name="Save and try again").click()
    toast(page, "The undo is tried again")
    expect(page.locator(".page-head .badge")).to_have_text("undoing")
    assert stuck.view()["steps"][1]["result"] == {"charge": 2}
    stuck.take()
    stuck.api("FAIL", id=stuck.id, token=stuck.token, error="again", unrecoverable=True)
    act(page, "Try again")
    expect(page.locator(".page-head .badge")).to_have_text("undoing")
    stuck.take()
    stuck.api("FAIL", id=stuck.id, token=stuck.token, error="again", unrecoverable=True)
    act(page, "Skip", "Skip")
    toast(page, "charge is not undone")
    expect(undo_of(page, "charge")).to_contain_text("skipped")


def test_a_workflow_that_has_ended_is_undone(visit: Visit, shop: Server, api: Api) -> None:
    run = Run(api)
    run.take()
    run.record({"name": "charge", "undo": True})
    api("ACK", id=run.id, token=run.token)
    page = visit(shop).go(run.path)
    act(page, "Undo")
    expect(page.get_by_role("dialog")).to_contain_text("1 step will be undone")
    page.get_by_role("dialog").get_by_role("button", name="Undo it").click()
    toast(page, "It is being undone")
    expect(page.get_by_role("button", name="Undo")).to_have_count(0)
    assert run.view()["undoing"] is not None


def test_workflows_by_state_page_by_page(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    jobs = [{"name": "order", "workflow": True, "data": {"number": number}} for number in range(60)]
    api(
        "PUSHB",
        queue=queue,
        jobs=[*jobs, {"name": "plain"}, {"name": "late", "workflow": True, "delay": HOUR}],
    )
    visitor = visit(shop)
    page = visitor.go(f"/workflows?queue={queue}")
    rows = page.get_by_label("Workflows", exact=True).locator("tbody tr")
    expect(rows).to_have_count(50)
    expect(rows.first).to_contain_text("late")
    page.get_by_role("button", name="Next").click()
    expect(rows).to_have_count(11)
    expect(page).to_have_url(re.compile("page=1"))
    page = visitor.go(page.url.removeprefix(shop.url))
    expect(rows).to_have_count(11)
    page.get_by_role("link", name="Sleeping").click()
    expect(rows).to_have_count(1)
    page.get_by_role("link", name="All").click()
    page.get_by_label("Conditions", exact=True).fill("data.number = 7")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(1)
    expect(page).to_have_url(re.compile("q=data"))
    rows.first.locator("a").first.click()
    expect(page.locator("h1")).to_have_text("order")
    visitor.expect_refusal(422)
    page = visitor.go("/workflows?q=colour+%3D+red")
    expect(page.get_by_role("alert").first).to_contain_text("no field")


def test_a_broadcast_from_the_list(visit: Visit, shop: Server, waiting: Run) -> None:
    page = visit(shop).go("/workflows")
    act(page, "Broadcast a signal")
    page.get_by_label("Name").fill("approval")
    page.get_by_label("Key", exact=True).fill("7")
    page.get_by_role("dialog").get_by_role("button", name="Send").click()
    toast(page, "took the signal approval")
    assert waiting.view()["steps"][3]["status"] == "completed"


def test_many_children_are_one_row(visit: Visit, shop: Server, api: Api) -> None:
    run = Run(api)
    run.take()
    packing = fresh_queue(1)
    child = {"queue": packing, "input": {"name": "pack"}}
    names = ["pack", *(f"pack#{number}" for number in range(2, 41))]
    run.record(*({"name": name, "kind": "child", "status": "waiting", "child": child} for name in names))
    run.suspend(*names)
    page = visit(shop).go(run.path)
    rows = page.locator(".steps > li")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("\N{MULTIPLICATION SIGN} 40")
    expect(page.get_by_role("region", name="What it waits for")).to_contain_text(
        "40 jobs that it has started"
    )
    packed: Any = api("PULL", queue=packing, timeout=60_000, owner="packer")
    api("FAIL", id=packed["job"]["id"], token=packed["token"], error="no box", unrecoverable=True)
    rows.locator("summary").click()
    expect(rows).to_contain_text("1 failed")
    expect(rows.locator(".many li").first).to_contain_text("no box")
    page.get_by_role("button", name="Graph").click()
    expect(page.locator(".graph .node")).to_have_count(2)


def test_real_workflows_flow_through(visit: Visit, busy_shop: Server) -> None:
    page = visit(busy_shop).go("/workflows?queue=orders")
    rows = page.get_by_label("Workflows", exact=True).locator("tbody tr")
    expect(rows.first).to_contain_text("order")
    rows.last.locator("a").first.click()
    expect(page.locator(".step-name").filter(has_text="charge").first).to_be_visible()
    expect(page.locator(".step-name").filter(has_text="cooling-off")).to_be_visible()


@pytest.mark.parametrize(
    ("size", "dark"),
    budget(
        [(DESK, False), (PHONE, True)],
        list(itertools.product((DESK, PHONE, (1400, 900), (400, 800)), (False, True))),
    ),
)
def test_no_page_is_wider_than_its_window(
    visit: Visit, shop: Server, waiting: Run, size: tuple[int, int], dark: bool
) -> None:
    visitor = visit(shop, size, dark=dark)
    for path in (waiting.path, f"{waiting.path}?view=graph&step=charge", "/workflows"):
        page = visitor.go(path)
        expect(page.locator(".steps > li, .graph .node, tbody tr").first).to_be_visible()
        assert visitor.overflow() <= 0, path


def test_a_reader_sees_no_buttons_that_act(visit: Visit, make_server: StartServer) -> None:
    flags = ("--auth-token", TOKEN, "--read-only-token", READER)
    server = make_server(*flags, shards=1, http_port=quiet_port())
    server.start()
    api = Api(server, TOKEN)
    run = Run(api)
    run.take()
    run.record({"name": "charge", "undo": True})
    run.record({"name": "approval", "kind": "signal", "status": "waiting", "signal": "approval"})
    run.suspend("approval")
    visitor = visit(server)
    page = visitor.go(run.path)
    page.get_by_label("Token").fill(READER)
    page.get_by_label("Token").press("Enter")
    expect(page.get_by_role("region", name="What it waits for")).to_contain_text("The signal approval")
    for summary in page.locator(".steps summary").all():
        summary.click()
    expect(page.locator(".steps")).to_contain_text("it can be undone")
    shown = set(page.locator("main button").all_inner_texts()) - {"Copy"}
    assert shown == {"Timeline", "Graph"}
    page.get_by_role("link", name="Workflows").first.click()
    expect(page.get_by_label("Workflows", exact=True).locator("tbody tr")).to_have_count(1)
    assert page.locator("main .page-head button").count() == 0

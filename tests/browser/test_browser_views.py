"""Every view with more than fits a page: each row can be reached, and nothing goes wrong on the way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Page, expect
from support.browser import Api, Visit
from support.server import ROOT, Server, dispose, quiet_port

MANY = 130
"""Of everything: three pages in all views, of 50 rows or 25 each."""
QUEUE = "crowded"
HARM = '"><img src=x onerror=alert(1)><svg onload=alert(1)>'
"""Names, errors and data may come from strangers: whoever looks at them shall see text, and nothing else."""
MAIN = ROOT / "bunqueue/gateway/dashboard/assets/main.js"


@dataclass(frozen=True)
class View:
    """Where a view is, the table that it fills, and how many rows all its pages have; None without pages."""

    path: str
    table: str | None = None
    rows: int | None = None


CLOSES_ITSELF = "/signed-in"  # the window in which somebody has signed in elsewhere
VIEWS = {
    "/": View("/", "Queues", MANY + 2),
    "/queues/:name": View(f"/queues/{QUEUE}", f"Jobs of {QUEUE}", 3 * MANY),
    "/jobs/:id": View("/jobs/crowded-job"),
    "/search": View("/search", "Jobs found", 7 * MANY + 1),
    "/dlq": View("/dlq", "Dead letters", 50),  # of many queues only the newest are shown
    "/dlq/:name": View(f"/dlq/{QUEUE}", "Dead letters", MANY),
    "/cron": View("/cron", "Schedules", MANY),
    "/functions": View("/functions", "Functions", MANY),
    "/workers": View("/workers", "Workers", MANY),
    "/hosts": View("/hosts"),
    "/workflows": View("/workflows", "Workflows", MANY + 1),
    "/workflows/:id": View("/workflows/crowded-workflow"),
    "/flows": View("/flows", "Flows", MANY + 1),
    "/flows/:id": View("/flows/crowded-flow", "Jobs of the flow", MANY),
    "/webhooks": View("/webhooks", "Webhooks", MANY),
    "/events": View("/events", "Events", MANY),
    "/audit": View("/audit"),
    "/sessions": View("/sessions"),
}


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that has many of everything, and in which nothing moves."""
    flags = ("--webhook-addresses", "any")
    server = Server(tmp_path_factory.mktemp("crowd") / "data", *flags, http_port=quiet_port())
    try:
        server.start()
        crowded(Api(server))
        yield server
    finally:
        dispose(server)


def crowded(api: Api) -> None:
    dead = api(
        "PUSHB", queue=QUEUE, jobs=[{"name": HARM, "data": HARM, "maxAttempts": 1} for _ in range(MANY)]
    )
    pulled = api("PULLB", queue=QUEUE, count=MANY)["jobs"]
    assert isinstance(pulled, list)
    assert len(pulled) == len(dead["ids"])
    for job in pulled:
        api("FAIL", id=job["id"], error=HARM)
    api(
        "PUSHB", queue=QUEUE, jobs=[{"data": number, "groupId": f"g{number}{HARM}"} for number in range(MANY)]
    )
    api("PUSHB", queue=QUEUE, jobs=[{"data": number, "delay": 9_000_000} for number in range(MANY - 1)])
    api.push(QUEUE, customId="crowded-job", delay=9_000_000, name=HARM, tags=[HARM])
    api("AddLog", id="crowded-job", message=HARM)
    flows = [{"name": HARM, "data": {HARM: number}, "workflow": True} for number in range(MANY)]
    api("PUSHB", queue="elsewhere", jobs=flows)
    api.push("elsewhere", workflow=True, customId="crowded-workflow")
    named = [{"name": f"n{number}", "queue": "elsewhere", "input": {"data": {}}} for number in range(MANY)]
    api("AddFlow", flow="crowded-flow", nodes=named)
    for number in range(MANY):
        api("AddFlow", flow=f"flow-{number}", nodes=named[:1])
        api.push(f"queue-{number}")
        api("Cron", name=f"cron-{number}{HARM}", queue=QUEUE, schedule="0 2 1 1 *")
        api(
            "AddWebhook",
            url=f"http://127.0.0.1:9/{number}?{HARM.replace(' ', '/')}",
            events=["job.progress"],
            queue="elsewhere",
        )
        api("RegisterWorker", name=f"worker-{number}{HARM}", queues=["elsewhere"], workerId=f"w-{number}")
    functions = [{"name": f"f{number}{HARM}", "description": HARM} for number in range(MANY)]
    api("DeclareFunctions", queue="elsewhere", app=HARM, version=HARM, functions=functions)


def rows_of(page: Page, table: str) -> list[str]:
    """What the rows of a table show first: a link or a name."""
    rows = page.get_by_label(table, exact=True).locator("tbody tr")
    return rows.evaluate_all(
        "rows => rows.map((row) => row.querySelector('a[title]')?.title || row.innerText)"
    )


def walked(page: Page, table: str) -> set[str]:
    """All rows of all pages, by pressing Next until there is no other page."""
    expect(page.get_by_label(table, exact=True).locator("tbody tr").first).to_be_visible()
    section = page.locator("section", has=page.get_by_label(table, exact=True))
    following = section.get_by_role("button", name="Next", exact=True)
    where = section.locator(".pager span")
    found = set(rows_of(page, table))
    while following.is_visible() and following.get_attribute("aria-disabled") != "true":
        before, first = where.inner_text(), rows_of(page, table)[0]
        following.click()
        expect(where).not_to_have_text(before)
        assert rows_of(page, table)[0] != first
        found |= set(rows_of(page, table))
    return found


def test_every_view_is_in_this_list() -> None:
    assert set(re.findall(r'^route\("(.+?)"', MAIN.read_text(), re.MULTILINE)) == {*VIEWS, CLOSES_ITSELF}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_every_row_can_be_reached(visit: Visit, crowd: Server, view: View) -> None:
    page = visit(crowd).go(view.path)
    expect(page.locator("h1")).to_be_visible()
    if view.path == "/events":
        expect(page.locator(".dot.good")).to_be_visible()
        Api(crowd)("PUSHB", queue="noise", jobs=[{"data": number} for number in range(MANY)])
        expect(page.locator("tbody tr")).to_have_count(MANY)
        Api(crowd)("Obliterate", queue="noise")
    if view.table:
        assert len(walked(page, view.table)) == view.rows
    expect(page.locator(".skeleton")).to_have_count(0)
    expect(page.locator("img[src=x], svg[onload]")).to_have_count(0)
    assert [text for text in page.locator(".problem").all_inner_texts() if text] == []


def test_groups_are_paged_too(visit: Visit, crowd: Server) -> None:
    page = visit(crowd).go(f"/queues/{QUEUE}")
    assert len(walked(page, "Groups")) == MANY


def test_a_page_of_dead_letters_past_the_end_is_the_last_one(visit: Visit, crowd: Server) -> None:
    page = visit(crowd).go(f"/dlq/{QUEUE}?page=99")
    expect(page.get_by_text(f"101\N{EN DASH}{MANY} of {MANY}")).to_be_visible()
    expect(page.get_by_label("Dead letters", exact=True).locator("tbody tr")).to_have_count(MANY - 100)


@pytest.mark.parametrize(
    "mistake",
    [
        "setTimeout(() => { throw new Error('oops'); })",
        "Promise.reject(new Error('oops')); 0",
        "console.error('oops')",
        "import('/assets/api.js').then(({ explain }) => explain(new TypeError('oops'))); 0",
    ],
)
def test_a_mistake_on_a_page_fails_its_test(visit: Visit, crowd: Server, mistake: str) -> None:
    visitor = visit(crowd)
    page = visitor.go("/events")
    expect(page.locator("h1")).to_be_visible()
    page.evaluate(mistake)
    with pytest.raises(AssertionError, match="oops"):
        visitor.wait_for_a_problem()
    visitor.forgive()


def test_bars_are_as_long_as_their_shares(visit: Visit, crowd: Server) -> None:
    api = Api(crowd)
    api.fail("mostly-well", "once")
    for _ in range(5):
        api("PUSHB", queue="mostly-well", jobs=[{"data": number} for number in range(200)])
    api("PULLB", queue="mostly-well", count=999)
    page = visit(crowd).go("/?find=mostly-well")
    bar = page.get_by_role("img", name=re.compile("active.*1 failed"))
    expect(bar).to_be_visible()
    share = "bar => bar.querySelector('[data-kind=failed]').getBBox().width / bar.viewBox.baseVal.width"
    assert 0.005 < bar.evaluate(share) < 0.03
    done = Api(crowd)("PULL", queue="queue-7")["job"]
    api("ACK", id=done["id"])  # type: ignore[index]
    api.fail("queue-7", "once")
    page.get_by_label("Find a queue").fill("queue-7")
    bar = page.get_by_role("img", name="1 completed, 1 failed")
    expect(bar).to_be_visible()
    assert bar.evaluate(share) == pytest.approx(0.05)  # of a bar for 20 jobs
    api("Obliterate", queue="mostly-well")

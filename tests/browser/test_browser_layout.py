"""Every view in two widths, light and dark, with names and errors of all lengths: no text is cut, broken in
the middle of a word, above another one, or outside of its box.

BROWSER_SHOTS=folder keeps a picture of each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from support.browser import Api, Visit
from support.server import ROOT, Server, dispose, quiet_port
from test_browser_views import VIEWS

WIDE, PHONE = (1280, 900), (390, 844)
LAYOUT = Path(__file__).with_name("layout.js").read_text()
SHOTS = os.environ.get("BROWSER_SHOTS")
LONG_NAME = "download-the-catalogue-of-the-supplier-in-northern-germany"
LONG_ERROR = (
    "ConnectionResetError: the tax service of country IT closed the connection to invoices-7.example.com:443 "
    * 2
)
QUEUE = "invoices"


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with some of everything, in which nothing moves."""
    server = Server(
        tmp_path_factory.mktemp("office") / "data", "--webhook-addresses", "any", http_port=quiet_port()
    )
    try:
        server.start()
        furnish(Api(server))
        yield server
    finally:
        dispose(server)


def furnish(api: Api) -> None:
    data = {"customer": "customer-4711", "address": "1, Rue de la Paix, Paris " * 5, "total": 17.5}
    names = ["send-invoice", "remind", LONG_NAME]
    api(
        "PUSHB", queue=QUEUE, jobs=[{"name": names[n % 3], "data": data, "maxAttempts": 1} for n in range(12)]
    )
    for n, job in enumerate(api("PULLB", queue=QUEUE, count=8)["jobs"]):
        if n % 2:
            api(
                "FAIL",
                id=job["id"],
                error=LONG_ERROR,
                stack="Traceback (most recent call last):\n" + LONG_ERROR,
            )
        else:
            api("ACK", id=job["id"], result={"sent": True})
    api.push(
        QUEUE, customId="office-job", name=LONG_NAME, delay=9_000_000, tags=["vip", "eu"], groupId="tenant-7"
    )
    api("AddLog", id="office-job", message=LONG_ERROR)
    api.push("warehouse-of-northern-germany-and-denmark", name="pack", data=data)
    nodes = [
        {"name": LONG_NAME, "queue": "images", "input": {"data": {}}},
        {"name": "resize", "queue": "images", "input": {"data": {}}, "after": [LONG_NAME]},
    ]
    api("AddFlow", flow="office-flow", nodes=nodes)
    api.push("orders", workflow=True, name="order", customId="office-workflow")
    run = api("PULL", queue="orders", owner="office")
    steps = [
        {"name": "check stock", "took": 40},
        {"name": LONG_NAME, "took": 400, "attempts": 3},
        {"name": "charge", "undo": True, "result": {"charge": "ch_81"}},
    ]
    job, token = run["job"]["id"], run["token"]
    api("RecordSteps", queue="orders", steps=[{"id": job, "token": token, **step} for step in steps])
    api(
        "Cron",
        name="nightly-report-for-the-tax-office",
        queue=QUEUE,
        schedule="0 2 * * *",
        timezone="Europe/Rome",
    )
    api(
        "DeclareFunctions",
        queue=QUEUE,
        app="office-of-the-warehouse",
        version="2026.11.29-rc1",
        by="worker-of-the-warehouse:4711",
        invalidJobs="refuse",
        functions=[
            {"name": LONG_NAME, "description": LONG_ERROR, "options": {"maxAttempts": 9, "tags": ["eu"]}},
            {"name": "remind", "schema": {"type": "object", "properties": {"to": {"type": "string"}}}},
        ],
    )
    api("AddWebhook", url="http://127.0.0.1:9/hooks/failed-invoices-of-all-countries", events=["job.failed"])
    api(
        "RegisterWorker",
        name="worker-of-the-warehouse:4711",
        queues=[QUEUE, "orders"],
        workerId="office-worker",
    )


def path_of(view: str) -> str:
    """Where a view is on this server."""
    names = {
        "/queues/:name": QUEUE,
        "/dlq/:name": QUEUE,
        "/jobs/:id": "office-job",
        "/workflows/:id": "office-workflow",
    }
    base, _, parameter = view.partition("/:")
    return f"{base}/{names.get(view, 'office-flow')}" if parameter else view


PAGES = [
    *map(path_of, VIEWS),
    "/workflows/office-workflow?view=graph",
    "/search?q=nonsense",
    f"/dlq/{QUEUE}?error=tax",
]


@pytest.mark.parametrize(
    ("size", "dark"),
    [
        pytest.param(WIDE, False, id="wide-light"),
        pytest.param(PHONE, True, id="phone-dark"),
        pytest.param(WIDE, True, id="wide-dark", marks=pytest.mark.nightly),
        pytest.param(PHONE, False, id="phone-light", marks=pytest.mark.nightly),
    ],
)
def test_no_text_is_cut_or_overlaps(visit: Visit, office: Server, size: tuple[int, int], dark: bool) -> None:
    visitor = visit(office, size, dark=dark)
    wrong = {}
    for path in PAGES:
        if path == "/search?q=nonsense":
            visitor.expect_refusal(422)
        page = visitor.go(path)
        expect(page.locator("h1")).to_be_visible()
        expect(page.locator(".skeleton")).to_have_count(0)
        if problems := page.evaluate(LAYOUT):
            wrong[path] = problems
        keep(page, path, f"{'phone' if size == PHONE else 'wide'}.{'dark' if dark else 'light'}")
    assert wrong == {}


def keep(page: Page, path: str, how: str) -> None:
    if SHOTS:
        name = path.strip("/").replace("/", "-").replace("?", "-") or "overview"
        page.screenshot(path=ROOT / SHOTS / f"{name}.{how}.png", full_page=True)


def test_menus_are_within_the_window(visit: Visit, office: Server) -> None:
    for size in (WIDE, PHONE):
        page = visit(office, size).go(f"/queues/{QUEUE}")
        page.get_by_role("button", name="More", exact=True).click()
        entries = page.locator(".menu .entry")
        expect(entries.first).to_be_visible()
        place = page.locator(".menu:popover-open").bounding_box()
        assert place
        assert 0 <= place["x"] <= size[0] - place["width"]
        assert 0 <= place["y"] <= size[1] - place["height"]


def test_a_text_that_is_cut_fails_its_test(visit: Visit, office: Server) -> None:
    """The checks see what they are for."""
    page = visit(office, WIDE).go("/")
    expect(page.get_by_label("Queues", exact=True).locator("tbody tr").first).to_be_visible()
    assert page.evaluate(LAYOUT) == []
    for style, seen in (
        ("td.name { display: block; width: 60px; min-width: 0; overflow-wrap: anywhere }", "is broken"),
        ("h2 { width: 20px; overflow: hidden; white-space: nowrap }", "is cut"),
        ("h2 { position: absolute; top: 200px; left: 60px }", "overlap"),
        (".find { width: 60px }", "the hint"),
        ("main { width: 1400px; max-width: none }", "wider than its window"),
    ):
        page.evaluate(
            "rule => { const [sheet] = document.styleSheets; sheet.insertRule(rule, sheet.cssRules.length) }",
            style,
        )
        assert any(seen in problem for problem in page.evaluate(LAYOUT)), style
        page.evaluate(
            "() => { const [sheet] = document.styleSheets; sheet.deleteRule(sheet.cssRules.length - 1) }"
        )

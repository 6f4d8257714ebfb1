"""The front page, the frame around all pages, and pages that look on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from support.browser import PHONE, Api, Visit, act, toast
from support.budget import budget
from support.server import Server, StartServer, quiet_port
from support.web import fresh_queue

PATHS = (
    "/",
    "/queues/invoices",
    "/search?q=state+%3D+completed",
    "/dlq",
    "/cron",
    "/workers",
    "/hosts",
    "/webhooks",
    "/events",
    "/audit",
)


def heading(page: Page) -> str:
    return page.locator("h1").inner_text()


def test_the_overview_shows_what_flows(visit: Visit, busy_shop: Server) -> None:
    page = visit(busy_shop).go("/")
    rows = page.locator("tbody tr")
    expect(rows.filter(has_text="emails")).to_have_count(1)
    completed = page.locator(".tiles [data-kind=rate] dd")
    expect(completed).not_to_have_text(re.compile(r"^\D?$|^0$"))
    expect(page.locator(".tiles [data-kind=workers] dd")).to_have_text("7")
    expect(page.locator(".shard")).to_have_count(2)
    expect(page.locator(".shard .dot.good")).to_have_count(2)
    # Two answers make a line, and rates are told beside it.
    for kind in ("added", "completed"):
        expect(page.locator(f".chart .line[data-kind={kind}]").first).to_have_attribute("d", re.compile("L"))
    expect(page.get_by_role("img", name=re.compile("Throughput: added [1-9]"))).to_be_visible()


def test_the_overview_says_how_far_what_changes_is_stored(
    visit: Visit, make_server: StartServer, tmp_path: Path
) -> None:
    target = str(tmp_path / "target")
    primary = make_server("--backup", target, shards=1, http_port=quiet_port())
    primary.start()
    lines = visit(primary).go("/").locator(".shard")
    expect(lines.filter(has_text="Changes")).to_contain_text(
        re.compile("is stored.* · last whole backup .* ago")
    )
    standby = make_server("--follow", target, data_dir=tmp_path / "standby", shards=1, http_port=quiet_port())
    standby.start()
    lines = visit(standby).go("/").locator(".shard")
    expect(lines.filter(has_text="Standby")).to_contain_text(f"follows 127.0.0.1:{primary.port}")


def test_queues_are_found_and_sorted(visit: Visit, busy_shop: Server, api: Api) -> None:
    queue = fresh_queue()
    for _ in range(3):
        api.push(queue)
    page = visit(busy_shop).go("/")
    page.get_by_role("button", name="Waiting").click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Waiting")
    page.keyboard.press("/")
    page.keyboard.type(queue)
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr td.number").first).to_have_text("3")
    page.get_by_role("link", name=queue).click()
    expect(page.locator("h1")).to_contain_text(queue)
    page.go_back()
    expect(page.locator("h1")).to_have_text("Overview")


def test_keyboard_alone_is_enough(visit: Visit, busy_shop: Server) -> None:
    page = visit(busy_shop).go("/")
    expect(page.locator("tbody tr").first).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Dead letters")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("link", name="emails")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("link", name="exports")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("exports")
    for key, title in (("d", "Dead letters"), ("c", "Schedules"), ("w", "Workers"), ("o", "Overview")):
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page.locator("h1")).to_have_text(title)


@pytest.mark.parametrize("dark", budget([True], [False, True]))
def test_every_page_fits_a_phone(visit: Visit, busy_shop: Server, dark: bool) -> None:
    visitor = visit(busy_shop, PHONE, dark=dark)
    for path in PATHS:
        page = visitor.go(path)
        expect(page.locator("h1")).to_be_visible()
        expect(page.locator(".skeleton")).to_have_count(0)
        assert visitor.overflow() <= 0, path
        assert page.evaluate("document.documentElement.dataset.theme") == ("dark" if dark else "light")


def test_the_page_about_http_fits_a_phone(visit: Visit, busy_shop: Server) -> None:
    visitor = visit(busy_shop, PHONE)
    page = visitor.go("/docs")
    assert visitor.overflow() <= 0
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    assert visitor.overflow() <= 0


def test_the_theme_is_kept(visit: Visit, busy_shop: Server) -> None:
    page = visit(busy_shop).go("/cron")
    page.get_by_role("button", name="Switch between light and dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_a_hidden_tab_asks_for_nothing(visit: Visit, busy_shop: Server) -> None:
    page = visit(busy_shop).go("/")
    expect(page.locator("tbody tr").first).to_be_visible()
    show = "(hidden) => { Object.defineProperty(document, 'hidden', {configurable: true, get: () => hidden});"
    show += "document.dispatchEvent(new Event('visibilitychange')); }"
    page.evaluate(show, True)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for _ in range(10):  # what was under way comes to its end
        asked.clear()
        page.wait_for_timeout(3000)  # longer than between two refreshes
        if not asked:
            break
    assert asked == []
    with page.expect_request("**/commands/DashboardOverview"):
        page.evaluate(show, False)


def test_an_unknown_address_says_so(visit: Visit, busy_shop: Server) -> None:
    page = visit(busy_shop).go("/nothing/here")
    expect(page.get_by_text("There is no such page")).to_be_visible()


def test_workers_are_listed(visit: Visit, busy_shop: Server) -> None:
    page = visit(busy_shop).go("/workers")
    expect(page.locator("tbody tr")).to_have_count(7)
    page.get_by_role("searchbox").fill("invoices")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("of 4")


def test_what_a_worker_runs_is_said_of_each_of_its_queues(visit: Visit, busy_shop: Server, api: Api) -> None:
    names = {"one": ["mail"], "two": ["call", "post"]}
    api("RegisterWorker", name="of-both", queues=list(names), workerId="of-both", namesByQueue=names)
    page = visit(busy_shop).go("/workers")
    page.get_by_role("searchbox").fill("of-both")
    expect(page.get_by_title("runs in one mail; in two call, post")).to_have_text("of-both")
    api("UnregisterWorker", workerId="of-both")


def test_a_worker_is_paused_and_resumed(visit: Visit, busy_shop: Server) -> None:
    page = visit(busy_shop).go("/workers")
    page.get_by_role("searchbox").fill("invoices")
    row = page.locator("tbody tr")
    badge = row.locator('.badge:not([data-state="stale"])')  # the worker beats no more: it is old after 30 s
    row.get_by_role("button", name="Pause").click()
    expect(badge).to_have_text("paused")
    row.get_by_role("button", name="Resume").click()
    expect(badge).to_have_count(0)
    row.get_by_role("button", name="Places").click()
    page.get_by_label("Jobs at a time").fill("5")
    page.get_by_role("button", name="Change").click()
    expect(row).to_contain_text("of 5")


def test_a_worker_is_drained_or_stopped(visit: Visit, busy_shop: Server, api: Api) -> None:
    page = visit(busy_shop).go("/workers?find=to-end")
    for button, stop in (("Drain", "drain"), ("Stop", "grace")):
        api("RegisterWorker", name="to-end", queues=["one"], workerId="to-end")
        act(page, button, button)
        toast(page, "with its next heartbeat")
        assert api("Heartbeat", id="to-end")["data"]["stop"] == stop
    api("UnregisterWorker", workerId="to-end")


def test_events_come_as_they_happen(visit: Visit, busy_shop: Server, api: Api) -> None:
    page = visit(busy_shop).go("/events")
    expect(page.locator("tbody tr").first).to_be_visible()
    queue = fresh_queue()
    page.get_by_label("Only of this queue").fill(queue)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"queue={queue}"))
    expect(page.locator(".dot.good")).to_be_visible()
    job = api.push(queue)
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("pushed")
    page.get_by_role("button", name="Pause").click()
    api("Discard", id=job)
    expect(page.get_by_text(re.compile(r"[1-9]\d* held back"))).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Go on").click()
    expect(page.locator("tbody")).to_contain_text("discarded")
    page.get_by_role("button", name="Clear").click()
    expect(page.get_by_text("Nothing has happened yet")).to_be_visible()

"""The bounds of a queue: how full it is, and every one of them set."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect
from support.browser import DESK, PHONE, Api, Visit, act
from support.server import Server
from support.web import fresh_queue

HOUR = 3_600_000


def test_bounds_are_set_and_shown(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    visitor = visit(shop)
    page = visitor.go(f"/queues/{queue}")
    card = page.locator(".card").filter(has=page.get_by_role("heading", name="Bounds"))
    expect(card).to_contain_text("any number may wait")
    expect(card).to_contain_text("as the server says")
    card.get_by_role("button", name="Set bounds").click()
    page.get_by_label("Jobs that may wait").fill("10")
    page.get_by_label("Bytes of data that may wait").fill("1000")
    page.get_by_label("When it is full").select_option("the oldest jobs are dropped")
    page.get_by_label("Hours that completed jobs are kept").fill("1.5")
    page.get_by_label("Completed jobs that are kept").fill("7")
    page.get_by_label("Hours that dead letters are kept").fill("48")
    page.get_by_label("Dead letters that are kept").fill("500")
    act(page, "Save")
    expect(card).to_contain_text("0 of 10")
    expect(card).to_contain_text("of 1.0 KB")
    expect(card).to_contain_text("for 1 h 30 min, at most 7")
    expect(card).to_contain_text("for 2 d, at most 500")
    dead = api("GetDlqConfig", queue=queue)["config"]
    assert (dead["maxAge"], dead["maxEntries"], dead["autoRetry"]) == (48 * HOUR, 500, False)
    assert api("GetBounds", queue=queue)["config"] == {
        "maxWaiting": 10,
        "maxWaitingBytes": 1000,
        "whenFull": "drop-oldest",
        "keepAge": 1.5 * HOUR,
        "keepCount": 7,
    }
    api("PUSHB", queue=queue, jobs=[{"data": number} for number in range(8)])
    expect(card).to_contain_text("nearly full")
    api("PUSHB", queue=queue, jobs=[{"data": number} for number in range(4)])
    expect(card).to_contain_text("10 of 10")
    expect(card.get_by_text("full", exact=True)).to_be_visible()
    expect(card).to_contain_text("2 dropped")
    card.get_by_role("button", name="Set bounds").click()
    for name in (
        "Jobs that may wait",
        "Bytes of data that may wait",
        "Hours that completed jobs are kept",
        "Hours that dead letters are kept",
    ):
        page.get_by_label(name).fill("")
    act(page, "Save")
    expect(card).to_contain_text("any number may wait")
    expect(card).to_contain_text("whatever their age, at most 500")


@pytest.mark.parametrize("size", [DESK, PHONE])
def test_the_page_is_no_wider_than_its_window(
    visit: Visit, shop: Server, api: Api, size: tuple[int, int]
) -> None:
    queue = fresh_queue()
    api("SetBounds", queue=queue, config={"maxWaiting": 1_000_000_000, "maxWaitingBytes": 10**15})
    visitor = visit(shop, size)
    page = visitor.go(f"/queues/{queue}")
    expect(page.get_by_text("0 of 1,000,000,000")).to_be_visible()
    assert visitor.overflow() <= 0

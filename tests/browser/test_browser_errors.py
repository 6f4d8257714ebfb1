"""Errors in groups: on the page of a queue and above the dead letters, with what one can do about them."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect
from support.browser import Api, Visit
from support.server import Server

from bunqueue.model.errors_alike import kind_of

GROUP = kind_of("KeyError", "KeyError: 'customer 1'")


@pytest.fixture
def api(web_server: Server) -> Api:
    return Api(web_server)


def failed(api: Api, queue: str) -> None:
    api("PUSHB", queue=queue, jobs=[{"name": f"n{number % 2}", "maxAttempts": 1} for number in range(5)])
    for number, job in enumerate(api("PULLB", queue=queue, count=5)["jobs"]):
        if number < 4:
            text, kind = f"KeyError: 'customer {number}'", "KeyError"
        else:
            text, kind = "disk full", "OSError"
        api("FAIL", id=job["id"], error=text, errorTypes=[kind], stack="Traceback:\n  in charge")


def test_from_the_queue_to_the_cause_and_back(visit: Visit, web_server: Server, api: Api) -> None:
    failed(api, "sad")
    api("SetDlqConfig", queue="sad", config={"maxEntries": 6})
    page = visit(web_server).go("/queues/sad")
    note = page.get_by_role("status").filter(has_text="5 dead letters, and at most 6 are kept")
    expect(note).to_contain_text("bunqueue dlq config sad --max-entries 0")
    rows = page.get_by_role("table", name="Groups of errors").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("KeyError: #")
    rows.first.locator("summary").click()
    expect(rows.first).to_contain_text("n0 (2), n1 (2)")
    expect(rows.first.locator("pre")).to_contain_text("in charge")
    rows.first.get_by_role("button", name="Watch").click()
    expect(rows.first).to_contain_text("watched")
    rows.first.get_by_role("button", name="Mute").click()
    expect(rows.first).to_contain_text("muted")
    page.get_by_role("table", name="Groups of errors").get_by_role("link", name="4").click()
    expect(page.get_by_role("table", name="Dead letters").locator("tbody tr")).to_have_count(4)
    group = page.get_by_role("table", name="Groups of errors").locator("tbody tr").first
    group.get_by_role("button", name="Retry").click()
    page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    expect(group).not_to_contain_text("KeyError")
    assert api("CountDlq", queue="sad")["count"] == 1
    assert api("GetJobCounts", queue="sad")["counts"]["waiting"] == 4
    assert api("GetErrorGroup", queue="sad", group=GROUP)["data"]["resolved"] is not None

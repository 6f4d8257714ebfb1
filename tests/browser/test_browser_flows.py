"""The graph of a flow: what waits for what, how it changes, and a retry from one of its jobs."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect
from support.browser import DESK, PHONE, Api, Visit, act, toast
from support.server import Server
from support.web import fresh_queue


@pytest.fixture
def flow(api: Api) -> dict[str, str]:
    """A diamond: ids by name.  The report waits for two conversions, and these for one download."""
    queue = fresh_queue()
    download = api.push(queue, name="download", maxAttempts=1)
    ids = {"queue": queue, "download": download}
    for name in ("left", "right"):
        ids[name] = api.push(queue, name=name, dependsOn=[download], childrenIds=[download])
    both = [ids["left"], ids["right"]]
    ids["report"] = api.push(queue, name="report", dependsOn=both, childrenIds=both)
    return ids


def node(page: Page, name: str) -> Locator:
    return page.locator(".graph .node").filter(has_text=name)


def test_a_flow_is_drawn_and_follows_what_happens(
    visit: Visit, shop: Server, api: Api, flow: dict[str, str]
) -> None:
    page = visit(shop).go(f"/jobs/{flow['report']}")
    expect(page.locator(".graph .node")).to_have_count(4)
    expect(page.locator(".graph .edge")).to_have_count(4)
    boxes = [node(page, name).bounding_box() for name in ("download", "left", "right", "report")]
    x, y = ([box[side] for box in boxes if box is not None] for side in ("x", "y"))
    assert x[0] < x[1] == x[2] < x[3]
    assert y[1] != y[2]
    api("PULL", queue=flow["queue"])
    expect(node(page, "download")).to_have_attribute("data-state", "running")
    api("ACK", id=flow["download"])
    expect(node(page, "download")).to_have_attribute("data-state", "completed")
    expect(node(page, "left")).to_have_attribute("data-state", "waiting")
    expect(page.get_by_text("1 of 4 completed")).to_be_visible()


def test_a_flow_goes_on_from_a_job_that_has_failed(
    visit: Visit, shop: Server, api: Api, flow: dict[str, str]
) -> None:
    api("PULL", queue=flow["queue"])
    api("FAIL", id=flow["download"], error="no route", unrecoverable=True)
    page = visit(shop).go(f"/jobs/{flow['report']}")
    failed = node(page, "download")
    expect(failed).to_have_attribute("data-state", "failed")
    failed.click()
    expect(page.locator(".graph + div")).to_contain_text("no route")
    act(page, "Retry from here")
    toast(page, "download runs again")
    expect(node(page, "download")).to_have_attribute("data-state", "waiting")
    assert api.state(flow["download"]) == "waiting"
    node(page, "left").press("Enter")
    act(page, "Open")
    expect(page).to_have_url(re.compile(flow["left"]))
    expect(page.locator("h1")).to_have_text("left")


def test_a_job_without_others_has_no_graph(visit: Visit, shop: Server, api: Api) -> None:
    page = visit(shop).go(f"/jobs/{api.push(fresh_queue(), name='alone')}")
    expect(page.locator("h1")).to_have_text("alone")
    expect(page.locator(".timeline")).to_be_visible()
    expect(page.locator(".graph")).to_have_count(0)


@pytest.mark.parametrize("size", [DESK, PHONE])
def test_the_page_is_no_wider_than_its_window(
    visit: Visit, shop: Server, flow: dict[str, str], size: tuple[int, int]
) -> None:
    visitor = visit(shop, size)
    page = visitor.go(f"/jobs/{flow['report']}")
    expect(page.locator(".graph .node")).to_have_count(4)
    assert visitor.overflow() <= 0


def named(name: str, queue: str, *after: str, **fields: object) -> dict[str, object]:
    return {
        "name": name,
        "queue": queue,
        "after": list(after),
        "input": {"data": {}, "maxAttempts": 1},
        **fields,
    }


def test_the_page_of_a_flow_with_names(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    jobs = [named("a", queue), named("b", queue, "a"), named("c", queue, "a"), named("d", queue, "b", "c")]
    api("AddFlow", flow=f"{queue}-flow", nodes=jobs)
    page = visit(shop).go(f"/flows?queue={queue}")
    expect(page.get_by_label("Flows", exact=True).locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name=f"{queue}-flow").click()
    expect(page.locator("h1")).to_have_text(f"{queue}-flow")
    expect(page.locator(".graph .node")).to_have_count(4)
    expect(page.locator(".graph .edge")).to_have_count(4)
    expect(page.get_by_label("Jobs of the flow").locator("tbody tr")).to_have_count(4)
    job = api("PULL", queue=queue)["job"]
    api("FAIL", id=job["id"], error="no route", unrecoverable=True)  # type: ignore[index]
    expect(page.locator('.graph .node[data-id="a"]')).to_have_attribute("data-state", "failed")
    act(page, "Cancel", "Cancel the flow")
    expect(page.locator('.graph .node[data-id="d"]')).to_have_attribute("data-state", "cancelled")
    page.locator('.graph .node[data-id="a"]').click()
    act(page, "Retry from here")
    toast(page, "4 jobs will run again")
    expect(page.locator('.graph .node[data-id="a"]')).to_have_attribute("data-state", "waiting")
    page.get_by_role("link", name="Open", exact=True).click()
    expect(page.locator("h1")).to_have_text("default")
    page.get_by_role("link", name=f"{queue}-flow").click()
    expect(page.locator("h1")).to_have_text(f"{queue}-flow")


@pytest.mark.parametrize("size", [DESK, PHONE])
def test_a_batch_is_closed_on_its_page(visit: Visit, shop: Server, api: Api, size: tuple[int, int]) -> None:
    queue = fresh_queue()
    jobs = [named("on-complete", queue, gathers="complete"), named("send", queue)]
    api("AddFlow", flow=f"{queue}-mails", nodes=jobs)
    visitor = visit(shop, size)
    page = visitor.go(f"/flows/{queue}-mails")
    text = "0 completed and 0 failed of 1 job; on-complete to come"
    expect(page.get_by_text(f"Batch, open: {text}")).to_be_visible()
    act(page, "Close", "Close the batch")
    expect(page.get_by_text(f"Batch, closed: {text}")).to_be_visible()
    assert visitor.overflow() <= 0

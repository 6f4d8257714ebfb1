"""Functions that apps have declared: what they run, and a form made from the schema of their arguments."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect
from support.browser import Api, Visit, act, toast
from support.server import Server
from support.web import fresh_queue

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "to": {"type": "string"},
        "copies": {"type": "integer", "default": 1},
        "kind": {"$ref": "#/$defs/Kind"},
        "urgent": {"type": "boolean", "default": False},
    },
    "required": ["to", "kind"],
    "additionalProperties": False,
    "$defs": {"Kind": {"enum": ["plain", "html"]}},
}


def declare(api: Api, queue: str, *functions: dict[str, Any], **more: Any) -> None:
    api("DeclareFunctions", queue=queue, functions=list(functions), app="mailer", version="1.4", **more)


def test_a_job_is_added_with_a_form(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    send = {"name": "send", "description": "Send a mail.\nAt once.", "schema": SCHEMA, "aliases": ["mail"]}
    declare(api, queue, {**send, "options": {"priority": 7}}, invalidJobs="refuse")
    visitor = visit(shop)
    page = visitor.go(f"/functions?find={queue}")
    row = page.get_by_role("table", name="Functions").locator("tbody tr")
    expect(row).to_contain_text("Send a mail.")
    expect(row).to_contain_text("mailer 1.4")
    row.locator("summary").click()
    for text in ("to: a text, copies: an integer (optional)", "priority 7", "are refused", "At once."):
        expect(row).to_contain_text(text)
    act(page, "Add a job")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Send a mail.")
    dialog.get_by_label("to", exact=True).fill("ada@example.com")
    dialog.get_by_label("kind").select_option("html")
    dialog.get_by_label("copies").fill("many")
    dialog.get_by_role("button", name="Add job").click()
    expect(dialog.get_by_role("alert")).to_contain_text("copies is not JSON")
    dialog.get_by_label("copies").fill("1.5")
    visitor.expect_refusal(422)
    dialog.get_by_role("button", name="Add job").click()
    expect(dialog.get_by_role("alert")).to_contain_text("an integer is expected")
    dialog.get_by_label("copies").fill("3")
    dialog.get_by_role("button", name="Add job").click()
    toast(page, "Added")
    job = api("PULL", queue=queue)["job"]
    assert job["data"] == {"to": "ada@example.com", "copies": 3, "kind": "html", "urgent": False}
    assert job["priority"] == 7
    act(page, "Forget", "Forget")
    expect(page.get_by_text("No app has declared functions")).to_be_visible()


def test_other_data_is_typed_as_json(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    nested = {"type": "object", "properties": {"order": {"type": "object"}}, "required": ["order"]}
    declare(api, queue, {"name": "ship", "schema": nested}, invalidJobs="warn")
    declare(api, queue, {"name": "ship", "schema": nested}, {"name": "ping", "schema": {"properties": {}}})
    page = visit(shop).go(f"/functions?find={queue}")
    rows = page.get_by_role("table", name="Functions").locator("tbody tr")
    rows.nth(1).get_by_role("button", name="Add a job").click()
    page.get_by_role("dialog").get_by_label("Data, as JSON").fill('{"order": {"id": 7}}')
    page.get_by_role("dialog").get_by_label("Delay, ms").fill("0")
    act(page, "Add job")
    toast(page, "Added")
    assert api("PULL", queue=queue)["job"]["data"] == {"order": {"id": 7}}
    rows.nth(0).get_by_role("button", name="Add a job").click()
    expect(page.get_by_role("dialog").get_by_label("Data, as JSON")).to_have_count(0)
    act(page, "Add job")
    toast(page, "Added")
    assert api("PULL", queue=queue)["job"]["name"] == "ping"

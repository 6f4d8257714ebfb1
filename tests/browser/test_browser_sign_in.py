"""Signing in: what a page keeps of a token, what a role sees, a session that ends in the middle of work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Page, expect
from support.browser import DESK, PHONE, Api, Visit, Visitor, act, toast
from support.provider import Provider
from support.server import Server, StartServer, dispose, quiet_port

from bunqueue.server.identities import edit
from bunqueue.server.identities.identity_file import IdentityRow

ROLES = {"boss": "admin", "anna": "operator", "pia": "producer", "guest": "reader"}
NARROW = (390, 844)


class House:
    """A server with people in its file."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "identities.toml")
        self.tokens: dict[str, str] = {}
        for name, role in ROLES.items():
            made = edit.make_token()
            edit.change(self.path, name, lambda _, role=role, made=made: IdentityRow(role, tokens=[made.row]))  # type: ignore[misc]
            self.tokens[name] = made.text
        flags = ("--identities", self.path, "--host", "0.0.0.0", "--plaintext")
        self.server = Server(folder / "data", *flags, http_port=quiet_port(), shards=1)

    def end_sessions(self, of: str) -> None:
        """As an administrator does it."""
        headers = {"Authorization": f"Bearer {self.tokens['boss']}"}
        with httpx2.Client(base_url=self.server.url, headers=headers, trust_env=False) as web:
            for session in web.get("/sessions").json()["data"]["sessions"]:
                if session["identity"] == of:
                    assert web.delete(f"/sessions/{session['id']}").status_code == 200

    @property
    def api(self) -> Api:
        return Api(self.server, self.tokens["boss"])


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory.mktemp("house"))
    try:
        made.server.start()
        yield made
    finally:
        dispose(made.server)


def sign_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("dialog")).to_have_count(0)


def enter(visit: Visit, house: House, name: str, path: str, size: tuple[int, int] = DESK) -> Visitor:
    visitor = visit(house.server, size)
    sign_in(visitor.go(path), house.tokens[name])
    return visitor


def test_a_token_is_sent_once_and_kept_nowhere(visit: Visit, house: House) -> None:
    visitor = visit(house.server)
    sent: list[str] = []
    visitor.page.on("request", lambda request: sent.append(request.headers.get("authorization", "")))
    page = visitor.go("/queues/emails")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.get_by_label("Token")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    visitor.expect_refusal(401)
    page.get_by_label("Token").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("does not know this token")
    sent.clear()
    sign_in(page, house.tokens["anna"])
    expect(page.get_by_text("This queue has no jobs")).to_be_visible()
    assert len([each for each in sent if each]) == 1
    kept = page.evaluate("JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}])")
    assert kept == '["",{},{}]'
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Strict", False)  # type: ignore[typeddict-item]
    page = visitor.go("/workers")  # another page load
    expect(page.get_by_text("No worker is connected")).to_be_visible()
    act(page, "Sign out")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert page.context.cookies() == []


def test_everybody_sees_what_they_may_do(visit: Visit, house: House) -> None:
    api = house.api
    api("DeclareFunctions", queue="other", functions=[{"name": "f"}])
    api("RegisterWorker", name="w", queues=["other"], workerId="w")
    api("Pause", queue="mails")
    dead = api.fail("broken", "no")
    asked = {
        "/queues/mails": {"Add job", "Resume", "More", "Change", "Set bounds", "by whom?"},
        "/dlq": {"Retry all 1", "Purge"},
        "/functions": {"Add a job", "Forget"},
        "/workers": {"Drain", "Stop"},
        "/webhooks": {"Add webhook"},
        f"/jobs/{dead}": {"Retry", "Remove"},
    }
    lacks: dict[str, set[str]] = {
        "boss": set(),
        "anna": {"Add job", "Purge", "Add a job", "Add webhook", "Remove", "by whom?"},
        "guest": set().union(*asked.values()),
    }
    for name, missing in lacks.items():
        visitor = enter(visit, house, name, "/")
        for path, buttons in asked.items():
            page = visitor.go(path)
            expect(page.locator("h1")).to_be_visible()
            expect(page.locator(".skeleton")).to_have_count(0)
            for button in buttons:
                there = page.get_by_role("button", name=button, exact=True)
                expect(there, f"{button} of {name}").to_have_count(0 if button in missing else 1)
        views = page.locator("#nav a").all_inner_texts()
        assert ("Trail" in views) is ("Sessions" in views) is (name == "boss")
        expect(page.get_by_text("read only")).to_have_count(1 if name == "guest" else 0)
        visitor.page.close()


def test_a_session_that_ends_in_the_middle_loses_nothing(visit: Visit, house: House) -> None:
    for size in (DESK, NARROW):
        house.api("CronDelete", name="nightly") if size is NARROW else None
        visitor = enter(visit, house, "anna", "/cron", size)
        page = visitor.page
        act(page, "Add schedule")
        page.get_by_label("Name", exact=True).fill("nightly")
        page.get_by_label("Queue", exact=True).fill("reports")
        page.get_by_label("Expression").fill("0 3 * * *")
        house.end_sessions("anna")
        visitor.expect_refusal(401)
        page.get_by_role("dialog").get_by_role("button", name="Add schedule").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        assert visitor.overflow() <= 0
        page.get_by_label("Token").fill(house.tokens["anna"])
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_label("Schedules", exact=True)).to_contain_text("nightly")
        expect(page.get_by_role("dialog")).to_have_count(0)
        visitor.forgive()  # further requests of the page may have been refused as well
        page.close()


def test_the_trail_and_who_paused_a_queue(visit: Visit, house: House) -> None:
    for number in range(60):
        house.api("Pause" if number % 2 else "Resume", queue="flips")
    house.api("Pause", queue="held")
    visitor = enter(visit, house, "boss", "/queues/held")
    page = visitor.page
    act(page, "by whom?")
    toast(page, "held was paused by boss from 127.0.0.1")
    page = visitor.go("/audit?what=flips")
    rows = page.get_by_label("Entries", exact=True).locator("tbody tr")
    expect(rows).to_have_count(50)
    expect(rows.first).to_contain_text("Pause")
    page.get_by_role("button", name="Older").click()
    expect(rows).to_have_count(10)
    page.get_by_role("button", name="Newest").click()
    expect(rows).to_have_count(50)
    page.get_by_label("Only with these words").fill("flips Resume")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(30)
    page.get_by_label("Only of this identity").fill("anna")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No entries")).to_be_visible()


def test_who_retried_and_removed_a_job(visit: Visit, house: House) -> None:
    api = house.api
    retried, bulk = api.fail("again", "no"), api.fail("again", "no")
    api("RetryDlq", queue="again", jobId=retried)
    api("RetryDlq", queue="again")
    removed = api("PUSH", queue="again", data={}, delay=10**7)["id"]
    visitor = enter(visit, house, "boss", f"/jobs/{removed}")
    page, said = visitor.page, visitor.page.locator("#toasts")
    for job, words in (
        (retried, "The job was revived by boss from 127.0.0.1"),
        (bulk, "The job was revived, with RetryDlq for jobs of again, by boss from 127.0.0.1"),
    ):
        visitor.go(f"/jobs/{job}")
        act(page, "by whom?")
        expect(said).to_contain_text(words)
    visitor.go("/events")
    expect(page.locator(".dot.good").first).to_be_visible()
    api("RemoveJob", id=removed)
    row = page.locator("tbody tr", has_text="removed")
    row.get_by_role("button", name="by whom?").click()
    expect(said).to_contain_text("The job was removed by boss from 127.0.0.1")
    visitor.go(f"/jobs/{removed}")
    expect(page.get_by_text("Job not found")).to_be_visible()
    act(page, "by whom?")
    expect(said).to_contain_text("The job was removed by boss from 127.0.0.1")
    page.get_by_role("link", name="what else happened to it").last.click()
    expect(page.get_by_label("Entries", exact=True)).to_contain_text("RemoveJob")


def test_signing_in_at_a_provider(visit: Visit, make_server: StartServer, tmp_path: Path) -> None:
    provider, http = Provider(), quiet_port()
    file = tmp_path / "identities.toml"
    file.write_text(provider.tables(f"http://127.0.0.1:{http}", tmp_path))
    provider.start()
    try:
        server = make_server("--identities", str(file), "--auth-token", "all", http_port=http, shards=1)
        server.start()
        visitor = visit(server)
        page = visitor.go("/cron?find=night")
        page.get_by_role("button", name=f"Sign in at 127.0.0.1:{provider.port}").click()
        page.get_by_role("button", name="anna").click()
        expect(page.locator("h1")).to_have_text("Schedules")
        assert page.url.endswith("/cron?find=night")
        act(page, "Add schedule")
        page.get_by_label("Name", exact=True).fill("nightly")
        page.get_by_label("Queue", exact=True).fill("reports")
        page.get_by_label("Expression").fill("0 3 * * *")
        page.evaluate("fetch('/session', { method: 'DELETE', headers: { 'X-Bunqueue-Session': '1' } })")
        visitor.expect_refusal(401)
        page.get_by_role("dialog").get_by_role("button", name="Add schedule").click()
        with page.expect_popup() as opened:
            page.get_by_role("button", name="Sign in at").click()
        opened.value.get_by_role("button", name="anna").click()
        expect(page.get_by_label("Schedules", exact=True)).to_contain_text("nightly")
        expect(page.get_by_role("dialog")).to_have_count(0)
        visitor.forgive()
    finally:
        provider.stop()


def test_sessions_are_listed_and_ended(visit: Visit, house: House) -> None:
    guest = enter(visit, house, "guest", "/workers")
    boss = enter(visit, house, "boss", "/sessions").page
    row = boss.get_by_label("Sessions", exact=True).locator("tbody tr").filter(has_text="guest").first
    row.get_by_role("button", name="End").click()
    boss.get_by_role("dialog").get_by_role("button", name="End it").click()
    toast(boss, "The session has ended")
    guest.page.reload()
    expect(guest.page.get_by_role("heading", name="Sign in")).to_be_visible()
    guest.forgive()  # its stream of events may have been refused before


def test_a_server_that_is_overheard_says_so(visit: Visit, house: House) -> None:
    for size in (DESK, PHONE):
        visitor = visit(house.server, size)
        page = visitor.go("/")
        sign_in(page, house.tokens["guest"])
        expect(page.get_by_role("note")).to_contain_text("plaintext")
        assert visitor.overflow() <= 0

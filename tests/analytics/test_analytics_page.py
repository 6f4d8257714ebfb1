"""The commands, and the page that they write: in a real browser, wide and narrow, light and dark."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest
from history import at_another_time, begin_of
from playwright.sync_api import Browser, Page, Request, sync_playwright
from pyarrow import csv, parquet
from support.browser import DESK, launch, open_context
from support.made_up_history import bad_week
from support.server import ROOT

from bunqueue.analytics import files, numbers, pipeline
from bunqueue.analytics.engines.duck import Duck
from bunqueue.analytics.page.document import document
from bunqueue.analytics.pipeline import wanted
from bunqueue.cli import main
from bunqueue.protocol.search.text import parsed

LAYOUT = (ROOT / "tests" / "browser" / "layout.js").read_text(encoding="utf-8")
SHOTS = os.environ.get("BROWSER_SHOTS")
NARROW = (390, 844)
BEGIN = 1_774_000_000_000  # in March 2026

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command."""

    def run(*arguments: object) -> tuple[int, str, str]:
        status = main(["analytics", *map(str, arguments)])
        return status, *capsys.readouterr()

    return run


class Written(NamedTuple):
    """What ``report`` has written, and said."""

    folder: Path
    out: str
    err: str


@pytest.fixture(scope="module")
def written(past: Path, tmp_path_factory: pytest.TempPathFactory) -> Written:
    place = tmp_path_factory.mktemp("report")
    hosts = [at_another_time(past, place / name, BEGIN, 600) for name in ("web", "api")]
    folders = [part for host in hosts for part in ("--data-dir", str(host))]
    with pytest.MonkeyPatch.context() as patch:
        said: dict[str, list[str]] = {"out": [], "err": []}
        for name, texts in said.items():
            patch.setattr(f"sys.std{name}.write", texts.append)
        status = main(
            ["analytics", "report", *folders, "--out", str(place / "out"), "--tz", "Europe/Rome", "--csv"]
        )
    assert status == 0, said
    return Written(place / "out", "".join(said["out"]), "".join(said["err"]))


def test_the_files(written: Written) -> None:
    assert written.out == f"{written.folder / 'report.html'}\n"
    assert re.search(r"^ +[\d.]+ s  counting, and percentiles$", written.err, re.MULTILINE)
    names = {table.name for table in numbers.TABLES}
    there = {path.name for path in written.folder.iterdir()}
    assert there == {f"{name}.{kind}" for name in names for kind in ("csv", "parquet")} | {
        "about.json",
        "report.html",
    }
    for table in numbers.TABLES:
        whole = parquet.read_table(written.folder / f"{table.name}.parquet")
        assert tuple(whole.column_names) == table.columns
        if whole.num_rows:
            assert csv.read_csv(written.folder / f"{table.name}.csv").num_rows == whole.num_rows
    assert json.loads((written.folder / "about.json").read_text())["hosts"] == ["api", "web"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = launch(playwright)
        yield found
        found.close()


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of the last day of a week, on which three things went wrong."""
    engine, folder = Duck(), tmp_path_factory.mktemp("week")
    asked = wanted(since="2026-12-04", until="2026-12-05", zone="Europe/Rome")
    result = pipeline.aggregate(engine, bad_week().give_to(engine), asked)
    engine.close()
    about = result.about._replace(dashboard="https://{host}.example.com")
    page = folder / "report.html"
    page.write_text(document(files.figures_of(about, result.tables)), encoding="utf-8")
    return page


@contextmanager
def opened(browser: Browser, place: Path, size: tuple[int, int], *, dark: bool = False) -> Iterator[Page]:
    """The page as it is opened from a folder: it asks for nothing else, and nothing goes wrong."""
    with open_context(browser, size, dark=dark) as context:
        page = context.new_page()
        asked: list[Request] = []
        problems: list[object] = []
        page.on("request", lambda request: asked.append(request))
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(error))
        page.goto(place.as_uri())
        yield page
        assert [each.url for each in asked] == [place.as_uri()]
        assert not problems


LOOKS = {"wide": (DESK, False), "dark": (DESK, True), "phone": (NARROW, False)}


@pytest.mark.parametrize("looks", LOOKS)
def test_no_text_is_cut_or_overlaps(browser: Browser, written: Written, week: Path, looks: str) -> None:
    """Like the dashboard's; BROWSER_SHOTS=folder keeps a picture of each."""
    size, dark = LOOKS[looks]
    for name, place in (("report", written.folder / "report.html"), ("week", week)):
        with opened(browser, place, size, dark=dark) as page:
            page.get_by_text("How the numbers are made").click()
            if SHOTS:
                page.screenshot(path=ROOT / SHOTS / f"{name}.{looks}.png", full_page=True)
            assert page.evaluate(LAYOUT) == []
            wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert wide <= 0, f"{wide} pixels too wide"


def test_the_page(browser: Browser, written: Written) -> None:
    (totals,) = parquet.read_table(written.folder / "totals.parquet").to_pylist()
    with opened(browser, written.folder / "report.html", DESK) as page:
        assert page.locator(".tiles dd").first.inner_text() == str(totals["completed"])
        headings = page.locator("h2").all_inner_texts()
        assert headings == [
            "What stood out",
            "Over time",
            "Queues",
            "Why attempts failed",
            "Where the time went",
            "Workers",
            "The slowest jobs",
        ]
        assert page.get_by_role("img").count() > 20
        assert all(image.get_attribute("aria-label") for image in page.get_by_role("img").all())
        page.get_by_text("How the numbers are made").click()
        assert page.get_by_text("failed / (completed + failed)").is_visible()


def test_what_went_wrong(browser: Browser, week: Path) -> None:
    """A storm of failures that kept another queue waiting is one finding, slower jobs are the next."""
    with opened(browser, week, DESK) as page:
        storm, slower, still = page.locator(".stood > li").all_inner_texts()
        assert storm.startswith("1Fri 4 Dec 2026, 15:00 to 17:00")
        assert "pay failed more than usual" in storm
        assert "Most often: HTTPError: 503 Service Unavailable for order #" in storm
        assert "mail kept jobs waiting" in storm
        assert "images ran slower than usual" in slower
        assert re.search(r"ran 17\d ms or longer; usually that is 2\d ms", slower)
        assert "forgotten stands still: 9 jobs waiting" in still
        command = page.locator(".stood code", has_text="bunqueue job find --queue pay").inner_text()
        conditions = "attempts > 0 and finished >= 2026-12-04T14:00Z and finished < 2026-12-04T16:00Z"
        assert shlex.split(command) == ["bunqueue", "job", "find", "--queue", "pay", conditions]
        assert parsed(conditions, 0)
        link = urlsplit(page.locator(".stood a").first.get_attribute("href") or "")
        assert (link.netloc, link.path) == ("web.example.com", "/search")
        assert parse_qs(link.query) == {"queue": ["pay"], "q": [conditions]}
        kinds = page.locator("a[href*='/dlq/pay?group=']")
        assert kinds.count() == 2, "sixty errors that differ in numbers are one kind, and Boom is another"


def test_charts_say_what_they_show(browser: Browser, week: Path) -> None:
    """Failures have a chart of their own; axes have dates and the zone; a band says what it is about."""
    with opened(browser, week, DESK) as page:
        cards = {card.locator("h3").inner_text(): card for card in page.locator(".card:has(h3)").all()}
        assert list(cards) == ["Jobs that ended", "Failures", "Backlog", "Waiting", "Running"]
        for title, card in cards.items():
            assert card.locator(".axis").inner_text().endswith("Sat 5 Dec 2026, 00:00, Europe/Rome"), title
            assert card.locator(".foot span").first.inner_text() == "00:00\n4 Dec", title
        legend = cards["Failures"].locator(".legend span").all_inner_texts()
        assert legend == ["HTTPError: 503 Service Unavailable for order #", "Boom"]
        bands = {title: card.locator(".bands li").all_inner_texts() for title, card in cards.items()}
        assert bands == {
            "Jobs that ended": ["1 pay failed more than usual"],
            "Failures": ["1 pay failed more than usual"],
            "Backlog": ["1 mail kept jobs waiting"],
            "Waiting": ["1 mail kept jobs waiting"],
            "Running": ["2 images ran slower than usual"],
        }
        assert all(card.locator(".tags span").count() == 1 for card in cards.values())


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["report", "--out", "o"], "--data-dir: give data folders, or a lake, and not both"),
        (
            ["report", "--data-dir", "none", "--out", "o"],
            "there is no folder none; give the --data-dir of a server",
        ),
        (["report", "--data-dir", "x/a", "--data-dir", "y/a", "--out", "o"], "'a' names two paths"),
        (["report", "--data-dir", "a", "--out", "o", "--tz", "Rome"], "--tz: there is no time zone 'Rome'"),
        (["aggregate", "--data-dir", "a", "--out", "o", "--since", "soon"], "--since: 'soon' is no time"),
        (["aggregate", "--data-dir", "a", "--out", "o", "--since", "9" * 12 + "d"], "is before the year 1"),
        (
            ["aggregate", "--data-dir", "a", "--out", "o", "--bucket", "week"],
            "--bucket: 'week' is not allowed",
        ),
        (["aggregate", "--lake", "none", "--out", "o"], "none is no lake"),
        (["export", "--out", "o"], "Missing option"),
    ],
)
def test_refusals(
    run: Run, arguments: list[str], error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, err = run(*arguments)
    assert status == 2
    assert error in err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_how_finely_time_is_cut(run: Run, past: Path, tmp_path: Path) -> None:
    """A page has no room for what tables have; what range the jobs make of it is known from them only."""
    folder, out = at_another_time(past, tmp_path / "data", BEGIN, 40_000), tmp_path / "out"
    asked = ("--data-dir", folder, "--out", out, "--bucket", "minute")
    status, _, err = run("report", *asked)
    assert status == 2
    refused = r"bucket: minute cuts Fri 20 Mar 2026, .* into (\d,\d{3}) stretches of time, and 2,000 are"
    found = re.search(refused + r" the most; give hour or day, or a shorter range \(since, until\)", err)
    assert found, err
    assert not out.exists()
    status, _, err = run("aggregate", *asked, "--since", "2026-03-01", "--until", "2026-03-31")
    assert status == 2
    assert "minute cuts Sun 1 Mar 2026, 00:00 to Tue 31 Mar 2026, 00:00 into 43,200" in err
    assert "and 20,000 are the most; give hour or day" in err
    status, _, err = run("aggregate", *asked)
    assert status == 0, err
    about = json.loads((out / "about.json").read_text())
    since, until = (datetime.fromisoformat(about[name]) for name in ("since", "until"))
    assert (until - since) // timedelta(minutes=1) + 1 == int(found[1].replace(",", ""))


def test_nothing_in_the_range(run: Run, past: Path, tmp_path: Path) -> None:
    """That is what is told; not what was before it."""
    folder, out = at_another_time(past, tmp_path / "data", BEGIN), tmp_path / "out"
    status, _, err = run(
        "report", "--data-dir", folder, "--host", "web", "--out", out, "--since", "2026-06-01"
    )
    assert status == 0, err
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<p class=lead>No job has ended in this time." in page
    about = json.loads((out / "about.json").read_text())
    assert (about["since"], about["hosts"]) == ("2026-06-01T00:00:00Z", ["web"])
    made_at, until = (datetime.fromisoformat(about[name]) for name in ("made_at", "until"))
    assert abs(until - made_at) < timedelta(seconds=1)


def test_an_unreadable_shard(run: Run, past: Path, tmp_path: Path) -> None:
    folder = at_another_time(past, tmp_path / "data", begin_of(past))
    (folder / "shard-01.db").write_bytes(b"SQLite format 3\0" + b"nonsense" * 1000)
    status, _, err = run("report", "--data-dir", folder, "--out", tmp_path / "out")
    assert status != 0
    assert "shard-01.db" in err.splitlines()[-1]
    assert not (tmp_path / "out").exists()
    status, _, err = run("aggregate", "--data-dir", folder, "--out", tmp_path / "out", "--skip-unreadable")
    assert status == 0, err


def test_export(run: Run, past: Path, tmp_path: Path) -> None:
    arguments = ("export", "--data-dir", past, "--host", "web", "--out", tmp_path / "lake")
    status, out, err = run(*arguments)
    assert status == 0, err
    assert re.fullmatch(r"\d+ jobs, \d+ attempts, \d+ events added to .*lake\n", out)
    assert run(*arguments)[1] == f"0 jobs, 0 attempts, 0 events added to {tmp_path / 'lake'}\n"

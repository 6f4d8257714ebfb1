"""The commands, and the page that they write: in a real browser, wide and narrow, light and dark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from history import at_another_time, begin_of
from playwright.sync_api import Browser, Page, Request, sync_playwright
from pyarrow import csv, parquet
from pyspark.sql import SparkSession
from support.browser import DESK, PHONE, launch, open_context

from bunqueue.analytics import numbers
from bunqueue.cli import main

BEGIN = 1_774_000_000_000  # in March 2026

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in the session of the tests."""

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
def written(spark: SparkSession, past: Path, tmp_path_factory: pytest.TempPathFactory) -> Written:
    place = tmp_path_factory.mktemp("report")
    hosts = [at_another_time(past, place / name, BEGIN, 600) for name in ("web", "api")]
    folders = [part for host in hosts for part in ("--data-dir", str(host))]
    with pytest.MonkeyPatch.context() as patch:
        said: dict[str, list[str]] = {"out": [], "err": []}
        for name, texts in said.items():
            patch.setattr(f"sys.std{name}.write", texts.append)
        status = main(["analytics", "report", *folders, "--out", str(place / "out"), "--tz", "Europe/Rome"])
    assert status == 0, said
    return Written(place / "out", "".join(said["out"]), "".join(said["err"]))


def test_the_files(written: Written) -> None:
    assert written.out == f"{written.folder / 'report.html'}\n"
    assert re.search(r"^ +[\d.]+ s  counting, and percentiles$", written.err, re.MULTILINE)
    names = {table.name for table in numbers.TABLES}
    files = {path.name for path in written.folder.iterdir()}
    assert files == {f"{name}.{kind}" for name in names for kind in ("csv", "parquet")} | {
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


@pytest.fixture(params=[(DESK, False), (DESK, True), (PHONE, False)], ids=["wide", "dark", "phone"])
def page(request: pytest.FixtureRequest, browser: Browser, written: Written) -> Iterator[Page]:
    """The page as it is opened from a folder."""
    size, dark = request.param
    with open_context(browser, size, dark=dark) as context:
        page = context.new_page()
        asked: list[Request] = []
        problems: list[object] = []
        page.on("request", lambda request: asked.append(request))
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(error))
        page.goto((written.folder / "report.html").as_uri())
        yield page
        assert [each.url for each in asked] == [(written.folder / "report.html").as_uri()]
        assert not problems


def test_the_page(page: Page, written: Written) -> None:
    (totals,) = parquet.read_table(written.folder / "totals.parquet").to_pylist()
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
    wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0, f"{wide} pixels too wide"
    page.get_by_text("How the numbers are made").click()
    assert page.get_by_text("failed / (completed + failed)").is_visible()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["report", "--out", "o"], "--data-dir: give data folders, or a lake, and not both"),
        (
            ["report", "--data-dir", "none", "--out", "o"],
            "there is no folder none; give the --data-dir of a server",
        ),
        (["report", "--data-dir", "x/a", "--data-dir", "y/a", "--out", "o"], "'a' names two data folders"),
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
    assert (about["since"], about["hosts"]) == ("2026-06-01T00:00:00+00:00", ["web"])
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

"""``bunqueue doctor --repair``: what can be read of damaged files becomes new ones."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from support.budget import budget
from support.mixed_folder import JOBS, LIVE, QUEUE
from support.pages import SIZE, damage, leaf_of_row, leaves
from support.server import ROOT, StartServer
from support.wire import Wire

REPAIR = [
    sys.executable,
    "-c",
    "import sys; from bunqueue.cli import main; sys.exit(main())",
    "doctor",
    "--json",
]


def doctor(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*REPAIR, "--data-dir", str(folder), *flags], cwd=ROOT, capture_output=True, text=True, check=False
    )


def live_in(file: Path) -> set[str]:
    query = """select id from jobs where not exists (select 1 from dead_letters d where d.seq = jobs.seq)
               and not exists (select 1 from completed c where c.seq = jobs.seq)"""
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as db:
        return {row[0] for row in db.execute(query)}


def cut(file: Path) -> None:
    """The end of the file is missing."""
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size - 20 * SIZE)


# What is damaged, whether unfinished jobs may be lost by it, and the least share of jobs that is kept.
KINDS: dict[str, tuple[Callable[[Path], None], bool, float]] = {
    "finished jobs": (lambda file: damage(file, leaves(file, "jobs")[5:25]), False, 0.5),
    "live jobs": (lambda file: damage(file, [leaf_of_row(file, "jobs", JOBS + LIVE // 2)]), True, 0.9),
    "outcomes": (lambda file: damage(file, leaves(file, "completed")[:3]), False, 1.0),
    "dead letters": (lambda file: damage(file, leaves(file, "dead_letters")[:1]), False, 1.0),
    "an index": (lambda file: damage(file, leaves(file, "dead_letters_by_age")), False, 1.0),
    "the event log": (lambda file: damage(file, leaves(file, "events")[2:-2]), False, 1.0),
    "the first page": (lambda file: damage(file, [1]), False, 1.0),
    "the end": (cut, True, 0.3),
}


@pytest.mark.parametrize("kind", budget(list(KINDS)[1::2], list(KINDS)))
async def test_repair(
    kind: str, template: tuple[Path, list[str]], make_server: StartServer, tmp_path: Path
) -> None:
    folder, ids = tmp_path / "data", template[1]
    shutil.copytree(template[0], folder)
    file = folder / "shard-00.db"
    harm, may_lose, least = KINDS[kind]
    harm(file)
    before = file.read_bytes()
    assert doctor(folder).returncode == 1, "the damage is found"

    done = doctor(folder, "--repair")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "shard 0: " in done.stderr
    (kept_as,) = (path for path in folder.glob("shard-00.db.damaged-*") if path.suffix[-4:] != "-wal")
    assert kept_as.read_bytes() == before
    assert not (folder / ".repair").exists()
    with closing(sqlite3.connect(file)) as db:
        (kept,) = db.execute("select count(*) from jobs").fetchone()
    assert kept >= least * (JOBS + LIVE + 1000)
    if "lost (" in done.stderr:  # by name
        named = done.stderr.partition("lost (")[2].partition(")")[0].removesuffix(" ...").split(", ")
        assert set(named) <= set(ids)
    live = set(ids[JOBS:])
    if kind != "the end":  # with that the event log is gone, too, which says what has ended
        assert live_in(file) <= live, "nothing that has ended runs again"
    if not may_lose:
        assert live_in(file) == live

    server = make_server(data_dir=folder, shards=2)
    server.start()
    assert "damaged=" not in server.ready
    wire = await Wire.open(server.address)
    pulled = await wire.ok("PULLB", queue=QUEUE, count=1000, owner="w")
    assert {job["id"] for job in pulled["jobs"]} == live_in(file) & live
    await wire.ok("ACKB", ids=[job["id"] for job in pulled["jobs"]], tokens=pulled["tokens"])
    await wire.close()
    server.stop()
    assert doctor(folder).returncode == 0


def test_a_repair_that_is_killed_is_done_by_the_next_one(
    template: tuple[Path, list[str]], tmp_path: Path
) -> None:
    chance = random.Random(1)
    folder = tmp_path / "data"
    shutil.copytree(template[0], folder)
    file = folder / "shard-00.db"
    damage(file, leaves(file, "jobs")[5:25])
    begun = time.monotonic()
    undisturbed = tmp_path / "other"
    shutil.copytree(folder, undisturbed)
    assert doctor(undisturbed, "--repair").returncode == 0
    took = time.monotonic() - begun
    for _ in range(6):
        command = [sys.executable, "-P", "-m", "shardproc.repair", str(folder)]
        process = subprocess.Popen(
            command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL
        )
        try:
            process.wait(chance.uniform(0.1, took))
        except subprocess.TimeoutExpired:  # the moment is what the test is about
            process.send_signal(signal.SIGKILL)
            process.wait()
    assert doctor(folder, "--repair").returncode == 0
    rows = []
    for each in (folder, undisturbed):
        with closing(sqlite3.connect(each / "shard-00.db")) as db:
            rows.append(db.execute("select seq, id from jobs order by seq").fetchall())
    assert rows[0] == rows[1]
    assert list(folder.glob("shard-00.db.damaged-*"))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(30))
def test_random_damage_is_repaired(seed: int, template: tuple[Path, list[str]], tmp_path: Path) -> None:
    chance = random.Random(seed)
    folder = tmp_path / "data"
    shutil.copytree(template[0], folder)
    file = folder / "shard-00.db"
    size = file.stat().st_size // SIZE
    damage(
        file,
        chance.sample(range(1, size + 1), chance.choice([1, 5, 20])),
        garbage=chance if seed % 2 else None,
    )
    done = doctor(folder, "--repair")
    assert done.returncode == 0, done.stderr + done.stdout
    assert doctor(folder).returncode == 0, doctor(folder).stdout


def test_contradictions_in_a_whole_file_are_fixed(template: tuple[Path, list[str]], tmp_path: Path) -> None:
    """The file stays; only what contradicts the rest of it goes."""
    wrong = {
        "one state a job": """insert into locks select seq, 't', 'w', 1, 1, 1, 0, null, 0, 1 from
            (select seq from dead_letters limit 3) union all
            select seq, 't', 'w', 1, 1, 1, 0, null, 0, 1 from (select seq from completed limit 2)""",
        "states have jobs": "insert into locks values (99999999, 't', 'w', 1, 1, 1, 0, null, 0, 1)",
        "completed jobs": "update queues set completed = completed + 7",
        "unfinished jobs": """insert or replace into meta values
            ('live_from', (select cast(max(seq) + 1 as text) from jobs))""",
        "ids": "update jobs set id = 'twice', own_id = 1 where seq in (select seq from jobs limit 2)",
    }
    folder = tmp_path / "data"
    shutil.copytree(template[0], folder)
    file = folder / "shard-00.db"
    with closing(sqlite3.connect(file)) as db:
        for statement in wrong.values():
            assert db.execute(statement).rowcount
        db.commit()
    live = live_in(file)
    found = {row["check"]: row for row in json.loads(doctor(folder).stdout)}
    assert {name for name, row in found.items() if row["status"] == "problem"} == wrong.keys()
    assert "doctor --repair" in found["one state a job"]["finding"]

    done = doctor(folder, "--repair")
    left = {row["check"] for row in json.loads(done.stdout) if row["status"] == "problem"}
    assert left == {"ids"}, "nobody knows which of the two is right"
    assert "fixed: 5 jobs are in two states at once" in done.stderr
    assert "cannot be fixed: 1 ids that clients chose" in done.stderr
    assert live_in(file) == live
    assert not list(folder.glob("*.damaged-*"))

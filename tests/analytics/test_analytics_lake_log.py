"""The commits of a lake: what interrupts them, and what is found missing afterwards."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from bunqueue.analytics.lake import notes_of
from bunqueue.analytics.lake_log import Commit, Gap, LakeLog, Reached
from bunqueue.spark import NotReadable

FILES = [f"{table}/date=2026-11-21/queue=mail/part-0.parquet" for table in ("attempts", "events", "jobs")]


def new_commit(number: int) -> Commit:
    return Commit(number, 0, {"jobs": 1}, {"web": {0: Reached(7, 0)}})


def stage(log: LakeLog) -> None:
    """Write files aside, as a run does."""
    for name in FILES:
        path = log.staging / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def run(log: LakeLog, number: int, *, replaces: bool = False) -> None:
    with log.opened():
        stage(log)
        log.commit(msgspec.structs.replace(new_commit(number), replaces=replaces))


def placed(folder: Path) -> list[str]:
    """What is in the lake's files."""
    return sorted(path.read_text() for path in folder.glob("[!_]*/*/*/*.parquet"))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_interrupted_while_files_are_placed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """The next run places the rest; a report does not pass over it."""
    log, replace = LakeLog(tmp_path), Path.replace

    def interrupted(path: Path, target: Path) -> Path:
        if path.name == "part-0.parquet" and placed(tmp_path):
            raise error
        return replace(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", interrupted)
        with pytest.raises(type(error)):
            run(log, 1)
    assert len(placed(tmp_path)) == 1
    with pytest.raises(NotReadable, match=r"the last export into .* is not complete"):
        log.check_placed()
    with log.opened() as last:
        assert last is not None
        assert placed(tmp_path) == sorted(FILES)
    log.check_placed()
    assert not log.staging.exists()


def test_what_was_not_committed_is_forgotten(tmp_path: Path) -> None:
    log = LakeLog(tmp_path)

    def killed() -> None:
        with log.opened():
            stage(log)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed()
    with log.opened() as last:
        assert last is None
        assert not log.staging.exists()
    assert placed(tmp_path) == []


def test_a_commit_follows_what_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files, and it itself, are on disk before it counts; what was moved is, before the run is over."""
    log, fsync, replace = LakeLog(tmp_path), os.fsync, Path.replace
    steps: list[int | str] = []  # numbers of what was synced, names of what was moved

    def synced(descriptor: int) -> None:
        steps.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def moved(path: Path, target: Path) -> Path:
        steps.append(path.name)
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", moved)
    run(log, 1)
    before = steps[: steps.index(".000001.json.new")]
    files = [path for path in tmp_path.rglob("000001*") if path.is_file()]
    assert len(files) == len(FILES) + 1
    assert {path.stat().st_ino for path in files} <= set(before)
    after = steps[len(before) :]
    assert (tmp_path / "_log").stat().st_ino in after[: after.index("part-0.parquet")]
    last = len(after) - after[::-1].index("part-0.parquet")
    assert {path.stat().st_ino for path in tmp_path.glob("[!_]*/**")} <= set(after[last:])


@pytest.mark.parametrize("moment", ["replace", "unlink"])
def test_interrupted_while_files_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Nothing is ever gone; what is there twice is told, until the next run has mended it."""
    log, act = LakeLog(tmp_path), getattr(Path, moment)
    for number in (1, 2):
        run(log, number)
    done: list[Path] = []

    def interrupted(path: Path, *target: Path) -> object:
        if path.suffix == ".parquet":
            done.append(path)
            if len(done) == 2:
                raise KeyboardInterrupt
        return act(path, *target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, moment, interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(log, 3, replaces=True)
    assert len(placed(tmp_path)) > len(FILES)
    with pytest.raises(NotReadable, match="is not complete"):
        log.check_placed()
    with log.opened():
        assert placed(tmp_path) == sorted(FILES)
    log.check_placed()
    (next(tmp_path.glob("jobs/*/*")) / "theirs.parquet").write_text("not ours to remove")
    run(log, 4)
    assert len(placed(tmp_path)) == 2 * len(FILES) + 1


def test_a_file_that_is_nowhere(tmp_path: Path) -> None:
    log = LakeLog(tmp_path)
    run(log, 1)
    next(tmp_path.glob("jobs/*/*/*.parquet")).unlink()
    with pytest.raises(NotReadable, match=r"jobs/.*000001-part-0.parquet is missing"), log.opened():
        pass


def test_a_day_that_was_removed(tmp_path: Path) -> None:
    """Before its file was moved there is no folder either; that is no removed day."""
    log = LakeLog(tmp_path)
    run(log, 1)
    shutil.rmtree(tmp_path / "jobs" / "date=2026-11-21")
    log.check_placed()
    with log.opened():
        stage(log)
    (log.staging / FILES[2]).parent.mkdir(parents=True)
    (log.staging / FILES[2]).touch()
    with pytest.raises(NotReadable, match="is not complete"):
        log.check_placed()


def test_notes_are_those_of_a_range(tmp_path: Path) -> None:
    """Of all runs together, so that they do not become more with each."""
    log = LakeLog(tmp_path)
    for number, (missing, gap) in enumerate(
        [(1, Gap("web", 0, 11, 20, 900, 950)), (2, Gap("web", 0, 51, 70, 1900, 1950)), (4, None)], 1
    ):
        with log.opened():
            gaps = [] if gap is None else [gap]
            log.commit(Commit(number, number * 1000, {}, {}, gaps, {"mail": missing}))

    with log.opened():
        log.commit(Commit(4, 3500, {}, {}, replaces=True))
        log.commit(Commit(5, 4000, {}, {}, missing={"mail": 8}))

    def told(since: int | None, until: int | None) -> list[int]:
        return [int(note.split()[0]) for note in notes_of(tmp_path, since, until)[1:]]

    assert told(None, None) == [30, 15]
    assert told(1500, None) == [20, 14]
    assert told(1960, 2500) == [6]
    assert told(None, 900) == [1]
    assert told(3001, 3200) == [8]
    assert told(4001, None) == []

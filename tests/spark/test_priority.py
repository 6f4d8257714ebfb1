"""Whoever stands back gives way to others, and is never left stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.waiting import wait_until

from bunqueue.spark.sessions import governor
from bunqueue.spark.sessions.governor import LEAST, MOST, descendants, share_for, signal_all

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no such class")

# Starts a process and tells its number; both wait until their input ends.
CHILD = "import sys; sys.stdin.read()"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.read()
"""


def state(pid: int) -> str:
    """T: it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextmanager
def family() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process, and the number of one that it has started."""
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        yield parent, int(parent.stdout.readline())
        with_all = [parent.pid, *descendants(parent.pid)]
        signal_all(with_all, signal.SIGCONT)
        signal_all(reversed(with_all), signal.SIGKILL)


def test_what_it_has_started() -> None:
    with family() as (parent, child):
        assert descendants(parent.pid) == [child]
        mine = descendants(os.getpid())
        assert mine.index(parent.pid) < mine.index(child)


@pytest.mark.parametrize(
    ("load", "share"),
    [(0.0, MOST), (0.25, MOST), (0.425, (LEAST + MOST) / 2), (0.6, LEAST), (1.0, LEAST)],
)
def test_the_busier_the_others_the_less(load: float, share: float) -> None:
    assert share_for(load) == pytest.approx(share)


def test_children_are_stopped_and_go_on_when_it_ends() -> None:
    with family() as (parent, child):
        command = [sys.executable, "-m", governor.__name__, str(parent.pid)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            wait_until(lambda: state(child) == "T", "it is stopped")
            assert state(parent.pid) != "T"
            wait_until(lambda: state(child) != "T", "it goes on for a while")
            wait_until(lambda: state(child) == "T", "it is stopped again")
            assert process.stdin is not None
            process.stdin.close()
        assert process.returncode == 0
        assert state(child) != "T"


def test_nobody_stays_stopped_when_who_stood_back_is_killed() -> None:
    """Its Java would stay for ever."""
    program = f"""
import subprocess, sys
from bunqueue.spark import standing_back
with standing_back():
    child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE)
    print(child.pid, flush=True)
    sys.stdin.read()
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        wait_until(lambda: state(child) == "T", "it is stopped")
        process.kill()
    wait_until(lambda: not Path(f"/proc/{child}").exists(), "it went on, and found that its input had ended")


def test_what_is_started_gets_only_what_nobody_wants() -> None:
    program = """
import subprocess, sys
from bunqueue.spark import standing_back
with standing_back():
    subprocess.run([sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"], check=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == os.SCHED_IDLE

"""The checker sees what it is there for: a history that is right has no problem, and each bug has one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from chaos.history import Ack, Delivery, Entry, Final, Flow, History, Push


def good() -> tuple[History, dict[str, Final], list[Entry]]:
    """Two jobs and a flow, all done."""
    pushes = [Push("q/0", "q", ["1", "1"]), Push("q/1", "q", ["2"])]
    held = [Delivery(job, f"q/{n}", "q", "w", f"t{job}", 1.0 + n, 21.0 + n) for n, job in enumerate("12")]
    history = History(pushes, [Flow(["f", "g"], True)], held, [Ack("1", "t1", "r1"), Ack("2", "t2", "r2")])
    final = {job: Final("completed", f"r{job}") for job in "12fg"}
    return history, final, [Entry(0, 7, 1), Entry(0, 8, 3), Entry(1, 1, 1)]


def again(history: History, at: float) -> None:
    """The first job is given to somebody else."""
    history.deliveries.append(Delivery("1", "q/0", "q", "v", "other", at, at + 20))


def delayed(history: History) -> None:
    """The first job was to wait for two seconds more than it did."""
    history.pushes[0].delayed_from, history.pushes[0].due = 0.5, 3.0


def twins(history: History) -> None:
    """The first key has made two jobs, while it was sent again and again."""
    history.pushes[0].first_sent, history.pushes[0].last_sent = 0.5, 0.9
    history.deliveries.append(Delivery("2", "q/0", "q", "v", "other", 500.0, 520.0))


Bug = Callable[[History, dict[str, Final], list[Entry]], object]
BUGS: dict[str, tuple[Bug, str]] = {
    "a clock that was right again makes two of a key": (
        lambda history, final, log: (twins(history), history.wrong_clocks.append((9.0, 10.0))),
        "was delivered as the jobs",
    ),
    "an acknowledged push is lost": (lambda history, final, log: final.pop("1"), "which is gone"),
    "a job never runs": (
        lambda history, final, log: final.update({"2": Final("waiting", "r2")}),
        "is waiting",
    ),
    "a key makes two jobs": (lambda history, final, log: history.pushes[0].ids.append("9"), "made the jobs"),
    "a push makes two jobs": (
        lambda history, final, log: history.deliveries.append(Delivery("9", "q/0", "q", "v", "t", 30, 50)),
        "was delivered as the jobs",
    ),
    "a job completes twice": (lambda history, final, log: history.acks.append(history.acks[0]), "2 times"),
    "a result is lost": (
        lambda history, final, log: final.update({"1": Final("completed", None)}),
        "and has None",
    ),
    "two hold a job": (lambda history, final, log: again(history, 5.0), "and given to v"),
    "a completed job comes back": (lambda history, final, log: again(history, 500.0), "and given to v"),
    "the order is wrong": (lambda history, final, log: history.deliveries.reverse(), "added later"),
    "a delay ends early": (lambda history, final, log: delayed(history), "2.00 s before it was due"),
    "a clock ends a delay that began later": (
        lambda history, final, log: (delayed(history), history.wrong_clocks.append((9.0, 10.0))),
        "2.00 s before it was due",
    ),
    "a disk is called full that is not": (
        lambda history, final, log: (
            history.without_room.append((8.0, "no room")),
            history.full_disks.append((1.0, 7.0)),
        ),
        "no room",
    ),
    "half a flow": (lambda history, final, log: final.pop("g"), "there are only"),
    "a flow is lost": (lambda history, final, log: (final.pop("g"), final.pop("f")), "is gone"),
    "a flow never ends": (lambda history, final, log: final.update(f=Final("active", None)), "never ran"),
    "a record is missing": (
        lambda history, final, log: log.pop(0) and log.append(Entry(0, 10, 3)),
        "from 8 to 10",
    ),
    "a position is used twice": (lambda history, final, log: log.append(Entry(0, 8, 3)), "from 8 to 8"),
    "a zombie writes": (lambda history, final, log: log.append(Entry(0, 9, 2)), "back from epoch 3"),
    "a refusal": (lambda history, final, log: history.refused.append("refused"), "refused"),
}


def test_a_history_that_is_right() -> None:
    history, final, log = good()
    assert history.problems(final, log) == []


@pytest.mark.parametrize("bug", BUGS)
def test_each_bug_is_found(bug: str) -> None:
    history, final, log = good()
    seed, text = BUGS[bug]
    seed(history, final, log)
    problems = history.problems(final, log)
    assert any(text in problem for problem in problems), problems


def test_a_lock_that_has_run_out_is_no_problem() -> None:
    history, final, log = good()
    history.acks.pop(0)
    again(history, 22.0)
    assert history.problems(final, log) == []


def test_a_wrong_clock_may_end_a_delay_and_a_full_disk_refuse() -> None:
    history, final, log = good()
    delayed(history)
    history.wrong_clocks.append((0.7, 0.8))
    history.without_room.append((8.0, "no room"))
    history.full_disks.append((7.0, 9.0))
    assert history.problems(final, log) == []


def test_a_wrong_clock_may_end_a_key() -> None:
    history, _, _ = good()
    twins(history)
    history.wrong_clocks.append((0.7, 0.8))
    assert history._twice() == []


@pytest.mark.parametrize(("begun", "is_allowed"), [(-9.0, True), (0.5, False)])
def test_completed_jobs_give_way_to_new_ones_when_a_disk_is_full_for_long(
    begun: float, is_allowed: bool
) -> None:
    history, final, log = good()
    history.full_disks.append((begun, 1.5))
    final.pop("1")
    assert bool(history.problems(final, log)) != is_allowed
    final.pop("2")  # which was delivered after that
    assert history.problems(final, log)

"""Replays the recorded conversations of the wire protocol against a real server.

    python scripts/conformance.py              what tests/conformance/passing.txt lists must pass
    python scripts/conformance.py --all        all of v2, listed or not
    python scripts/conformance.py --update     the same, then write what passed into the list

Starts each server that it needs, on a free port and in a folder of its own, and stops it afterwards. The
transcripts and `replay.py` are outside this repository (`--suite`); without them there is nothing to do,
which is not a failure. The last line is `N passed, N failed`.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "conformance" / "passing.txt"
HEADER = (
    "# Transcripts that pass, one folder/topic/case per line. Written by scripts/conformance.py --update.\n"
)

READY = re.compile(r"bunqueue ready tcp=\S+:(\d+) ")  # how the server's readiness line begins
START_SECONDS = 120  # far beyond any start with an empty folder
STOP_SECONDS = 15  # a server's time to finish its running work
LOG_LINES = 40  # of a server's output, shown when it fails
PASSED = re.compile(r"ok   (\S+)  \(")  # replay.py's line for a transcript that passed
SUMMARY = re.compile(r"\d+ (skipped|passed, \d+ failed)\n")


@dataclass(frozen=True)
class Setup:
    """One way of starting the server, for the transcripts that `need` it (None: for all others)."""

    need: str | None
    server: tuple[str, ...] = ()
    replay: tuple[str, ...] = ()


OPEN = Setup(None)
SPECIAL = (
    Setup("token", ("--auth-token", "secret"), ("--token", "secret")),
    Setup("default-rate-limit", ("--rate-limit", "10000"), ("--have", "default-rate-limit")),
)


class ConformanceError(Exception):
    """The run itself cannot continue; the text says why."""


# Which transcripts


def catalogue(suite: Path, folder: str) -> dict[str, Setup]:
    """Every transcript of one folder (`folder/topic/case`) with the setup it runs on."""
    found: dict[str, Setup] = {}
    for file in sorted((suite / folder).glob("*.json")):
        topic = json.loads(file.read_text(encoding="utf-8"))
        for case in topic["cases"]:
            needs = case.get("needs", [])
            setup = next((special for special in SPECIAL if special.need in needs), OPEN)
            found[f"{folder}/{topic['topic']}/{case['name']}"] = setup
    return found


def listed() -> list[str]:
    """The ids in the list of passing transcripts; none when there is no list yet."""
    lines = LIST.read_text(encoding="utf-8").splitlines() if LIST.exists() else []
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def exactly(case_id: str) -> str:
    """A pattern for replay.py's `--only` that matches only this id.

    A plain id also selects every longer id that contains it; a pattern with a bracket is contained in none.
    """
    return f"[{case_id[0]}]{glob.escape(case_id[1:])}"


# A server


class Output(threading.Thread):
    """Reads what a server prints, so that it never blocks, and knows when it is ready."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(daemon=True)
        self.process = process
        self.tail: deque[str] = deque(maxlen=LOG_LINES)
        self.port = 0
        """The server's, once it is ready."""
        self.settled = threading.Event()  # the server is ready or has closed its output

    def run(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.tail.append(line)
            if ready := READY.match(line):
                self.port = int(ready[1])
                self.settled.set()
        self.settled.set()


def stop(process: subprocess.Popen[str]) -> None:
    """Ask the server to stop; after `STOP_SECONDS`, kill it and its shards."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"the server did not stop within {STOP_SECONDS} s and was killed", file=sys.stderr)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own
    process.wait()


@contextmanager
def server(options: Sequence[str], shards: int) -> Iterator[int]:
    """A running server with an empty data folder; yields its port."""
    with tempfile.TemporaryDirectory(prefix="bunqueue-", ignore_cleanup_errors=True) as folder:
        command = [str(Path(sys.executable).with_name("bunqueue")), "start", "--tcp-port", "0"]
        command += ["--http-port", "0", "--data-dir", folder, "--shards", str(shards), *options]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        output = Output(process)
        output.start()
        try:
            output.settled.wait(START_SECONDS)
            if not output.port:
                raise ConformanceError(f"the server did not become ready:\n{''.join(output.tail)}")
            yield output.port
            if process.poll() is not None:
                raise ConformanceError(f"the server ended by itself:\n{''.join(output.tail)}")
        finally:
            stop(process)


# A run


def replay(suite: Path, port: int, options: Sequence[str], ids: Sequence[str]) -> set[str]:
    """Play these transcripts, show those that fail, and return those that passed."""
    folders = sorted({case_id.split("/")[0] for case_id in ids})
    command = [sys.executable, str(suite / "replay.py"), "--port", str(port), *options]
    command += [f"--only={exactly(case_id)}" for case_id in ids]
    command += [str(suite / folder) for folder in folders]
    passed = set()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if found := PASSED.match(line):
                    passed.add(found[1])
                elif not SUMMARY.fullmatch(line):
                    print(line, end="", flush=True)
        finally:
            process.terminate()  # still there only if we are being stopped
    return passed & set(ids)


def run(suite: Path, shards: int, chosen: dict[str, Setup]) -> set[str]:
    """Play the chosen transcripts, each on the server it needs, and return those that passed."""
    passed: set[str] = set()
    for setup in (OPEN, *SPECIAL):
        ids = [case_id for case_id, its_setup in chosen.items() if its_setup is setup]
        if ids:
            print(f"{len(ids)} transcripts on: bunqueue start {' '.join(setup.server)}".rstrip(), flush=True)
            with server(setup.server, shards) as port:
                passed |= replay(suite, port, setup.replay, ids)
    return passed


def update(folder: str, passed: set[str]) -> None:
    """Write what passed into the list; the entries of other folders stay."""
    others = {case_id for case_id in listed() if not case_id.startswith(f"{folder}/")}
    LIST.parent.mkdir(parents=True, exist_ok=True)
    LIST.write_text(HEADER + "".join(f"{case_id}\n" for case_id in sorted(others | passed)), encoding="utf-8")


def choose(options: argparse.Namespace) -> dict[str, Setup]:
    """The transcripts to play, with their setups."""
    if options.all or options.update:
        return catalogue(options.suite, options.folder)
    ids = listed()
    known: dict[str, Setup] = {}
    for folder in sorted({case_id.split("/")[0] for case_id in ids}):
        known |= catalogue(options.suite, folder)
    if unknown := [case_id for case_id in ids if case_id not in known]:
        raise ConformanceError(f"listed, but in no transcript file: {', '.join(unknown)}")
    return {case_id: known[case_id] for case_id in ids}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", type=int, default=2, help="shard processes of each server (default 2)")
    parser.add_argument("--all", action="store_true", help="play a whole folder, whatever the list says")
    parser.add_argument("--update", action="store_true", help="play a whole folder, then rewrite the list")
    parser.add_argument("--folder", default="v2", help="the folder of --all and --update (default v2)")
    parser.add_argument("--suite", type=Path, default=ROOT.parent / "shared" / "conformance")
    options = parser.parse_args()
    if not (options.suite / "replay.py").exists():
        print(f"Skipped: there are no transcripts in {os.path.relpath(options.suite)}.\n0 passed, 0 failed")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit that stops the servers
    try:
        chosen = choose(options)
        passed = run(options.suite, options.shards, chosen)
    except ConformanceError as error:
        print(error, file=sys.stderr)
        return 1
    if options.update:
        update(options.folder, passed)
    print(f"{len(passed)} passed, {len(chosen) - len(passed)} failed")
    return 0 if options.update or len(passed) == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Installs the wheel into an empty environment of each Python that it is for, and uses it there.

    python scripts/smoke.py          all of 3.11 to 3.14 that this machine has
    python scripts/smoke.py 3.13     this one, which must be there
    python scripts/smoke.py --tests  `make test` with each of them, in a copy of the tree, instead

A newcomer's first minutes: the command line, a server, a worker, a job and its result, a workflow, a queue
embedded.  What the environment has is what run.txt pins, so a module that only tests need is missed here.
Exits with 1 if anything fails, and says what.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")
PATIENCE_S = 120
READY = re.compile(r"bunqueue ready tcp=(\S+:\d+)")

APP = """
import os

from bunqueue import Bunqueue, Flow

app = Bunqueue("smoke", url=os.environ["BUNQUEUE_URL"])


@app.job
async def double(number: int) -> int:
    return 2 * number


@app.workflow
async def order(flow: Flow, number: int) -> int:
    return await flow.step("first", half, number) + await flow.run(double, number)


def half(number: int) -> int:
    return number // 2


if __name__ == "__main__":
    assert double.add(21).result(timeout=60_000) == 42
    assert order.start(10).result(timeout=60_000) == 25
"""

EMBEDDED = """
import asyncio

from bunqueue import ActiveJob, AsyncQueue, Worker

PLACE = {"embedded": True, "data_path": "jobs.db"}


async def welcome(job: ActiveJob) -> str:
    return job.data["to"]


async def main() -> None:
    async with AsyncQueue("emails", **PLACE) as queue, Worker("emails", welcome, **PLACE):
        job = await queue.add("welcome", {"to": "ada"})
        assert await job.result(timeout=60_000) == "ada"


asyncio.run(main())
"""


def main(arguments: list[str]) -> int:
    """The exit status."""
    tests = "--tests" in arguments
    wanted = [argument for argument in arguments if argument != "--tests"]
    found = {version: python for version in wanted or VERSIONS if (python := find(version))}
    missing = [version for version in wanted if version not in found]
    if missing or not found:
        print(f"smoke: there is no Python {', '.join(missing or VERSIONS)} on this machine", file=sys.stderr)
        return 1
    failed = []
    with tempfile.TemporaryDirectory(prefix="bunqueue-smoke-") as folder:
        wheel = None if tests else build(Path(folder))
        for version, python in found.items():
            try:
                if wheel:
                    use(python, wheel, Path(folder, version))
                else:
                    run("make", "test", f"PYTHON={python}", cwd=copy(Path(folder, version)))
                print(f"smoke: Python {version} works")
            except (subprocess.SubprocessError, OSError, RuntimeError) as error:
                failed.append(version)
                log = Path(folder, version, "log")
                print(f"smoke: Python {version} fails: {error}", file=sys.stderr)
                print(log.read_text() if log.exists() else "", end="", file=sys.stderr)
    return 1 if failed else 0


def find(version: str) -> str | None:
    """The interpreter of a version, also one of pyenv that is not chosen here."""
    pyenv = sorted(
        Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions").glob(f"{version}.*")
    )
    for candidate in (shutil.which(f"python{version}"), *(str(path / "bin" / "python") for path in pyenv)):
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return candidate
    return None


def copy(target: Path) -> Path:
    """A copy of the tree as git knows it, in which a build and tests may write."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in listed.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    return target


def build(folder: Path) -> Path:
    """The wheel."""
    source = copy(folder / "source")
    run(sys.executable, *PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source)
    return next(folder.glob("*.whl"))


def use(python: str, wheel: Path, home: Path) -> None:
    """Install, then do what a newcomer does."""
    run(python, "-m", "venv", home)
    ours = home / "bin" / "python"
    run(ours, *PIP, "install", "--require-hashes", "-r", ROOT / "requirements" / "run.txt")
    run(ours, *PIP, "install", "--no-deps", wheel)
    bunqueue = home / "bin" / "bunqueue"
    run(bunqueue, "--help")
    Path(home, "app.py").write_text(APP)
    Path(home, "embedded.py").write_text(EMBEDDED)
    run(ours, "-X", "dev", "-W", "error::SyntaxWarning", "embedded.py", cwd=home)
    with server(bunqueue, home) as url:
        environ = {"BUNQUEUE_URL": url}
        worker = start(home, bunqueue, "worker", "app:app", environ=environ)
        try:
            run(ours, "app.py", cwd=home, environ=environ)
            run(bunqueue, "push", "smoke", '{"number": 1}', "--name", "double", cwd=home, environ=environ)
            run(bunqueue, "health", cwd=home, environ=environ)
        finally:
            worker.terminate()
            worker.communicate(timeout=PATIENCE_S)
    if worker.returncode:
        raise RuntimeError(f"the worker exits with {worker.returncode}")


@contextmanager
def server(bunqueue: Path, home: Path) -> Iterator[str]:
    """A server on a port that the system chooses; its URL."""
    process = start(home, bunqueue, "start", "--data-dir", "data", "--tcp-port", "0", "--http-port", "0")
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if ready := READY.match(line):
                yield f"bunqueue://{ready[1]}"
                break
        else:
            raise RuntimeError("the server does not start")
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    if process.returncode:
        raise RuntimeError(f"the server exits with {process.returncode}")


def start(home: Path, *command: object, environ: dict[str, str] | None = None) -> subprocess.Popen[str]:
    with Path(home, "log").open("a") as log:
        return subprocess.Popen(
            [str(part) for part in command],
            cwd=home,
            env=clean(environ),
            text=True,
            stdout=subprocess.PIPE,
            stderr=log,
        )


def run(*command: object, cwd: Path | None = None, environ: dict[str, str] | None = None) -> None:
    """Run a program to its end. RuntimeError with what it wrote if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean(environ),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}")


def clean(more: dict[str, str] | None) -> dict[str, str]:
    """This environment without what would let a program find this tree or another server."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "BUNQUEUE"))}
    return ours | (more or {})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

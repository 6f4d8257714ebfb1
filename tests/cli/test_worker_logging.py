"""`bunqueue worker` logs for its program, unless that has said itself how it wants to log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import logging, logging.config, sys
from bunqueue import Bunqueue
logging.getLogger("mine").warning("while it is imported")
{configuration}
app = Bunqueue("q")

@app.job
def work() -> None: ...

@app.on("startup")
def start() -> None:
    logging.getLogger("mine").info("an info")
    logging.getLogger("mine").debug("a debug")
    print(f"level {{logging.getLogger().level}}", file=sys.stderr)
    raise SystemExit(7)
"""
BY_DICT = """logging.config.dictConfig({
    "version": 1, "disable_existing_loggers": False,
    "formatters": {"f": {"format": "MINE %(message)s"}},
    "handlers": {"h": {"class": "logging.StreamHandler", "formatter": "f"}},
    "root": {"level": "DEBUG", "handlers": ["h"]},
})"""
CONFIGURED = {
    'logging.basicConfig(level="DEBUG", format="MINE %(message)s")': [
        "MINE an info",
        "MINE a debug",
        "level 10",
    ],
    'logging.basicConfig(level="ERROR", format="MINE %(message)s")': ["level 40"],
    BY_DICT: ["MINE an info", "MINE a debug", "level 10"],
    "logging.getLogger().setLevel(logging.DEBUG)": ["INFO mine an info", "DEBUG mine a debug", "level 10"],
    "logging.getLogger().addHandler(logging.NullHandler())": ["level 30"],
    "": ["INFO mine an info", "level 20"],
}


def test_how_the_program_configures_logging_holds(tmp_path: Path) -> None:
    wrong = {}
    for number, (configuration, expected) in enumerate(CONFIGURED.items()):
        (tmp_path / f"tasks{number}.py").write_text(PROGRAM.format(configuration=configuration))
        command = [sys.executable, "-m", "bunqueue", "worker", f"tasks{number}:app", "--log-level", "info"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        lines = [line.partition("Z ")[2] or line for line in done.stderr.splitlines()]
        found = [line for line in lines if " an " in line or " a debug" in line or line.startswith("level")]
        if found != expected or "WARNING mine while it is imported" not in lines or done.returncode != 7:
            wrong[configuration] = (done.returncode, done.stderr)
    assert not wrong

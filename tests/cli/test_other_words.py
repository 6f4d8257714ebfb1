"""Words of other programs lead to the commands that are meant, and the help has every command once."""

from __future__ import annotations

import re

import pytest
from support.cli import Cli
from support.server import Server

from bunqueue.cli.framework.other_words import OTHER_WORDS
from bunqueue.cli.program import COMMANDS, SECTIONS, load


@pytest.fixture
def cli(shared_server: Server) -> Cli:
    return Cli(shared_server)


def test_each_command_is_in_one_section_of_the_help() -> None:
    names = [name for section in SECTIONS.values() for name in section]
    assert sorted(names) == sorted(COMMANDS)


def test_what_is_meant_exists_and_no_word_hides_a_command() -> None:
    for group, words in OTHER_WORDS.items():
        verbs = load(group).commands if group else COMMANDS
        for other, meant in words.items():
            assert not set(other.split()) & set(verbs), (group, other)
            for command in re.split(r"[,;] ", meant):
                noun, *rest = command.split()
                if noun in ("a", "which"):
                    continue
                found = load(noun)
                verb = rest[0] if rest else ""
                if verb.islower() and getattr(found, "commands", None):
                    assert verb in found.commands, command


def test_the_answer_names_them(cli: Cli) -> None:
    for command, meant in (
        ("queue delete x", "queue obliterate QUEUE"),
        ("job list", "queue jobs QUEUE, job find"),
        ("retry 5", "job retry ID, dlq retry QUEUE"),
        ("worker kill x", "worker stop WORKER"),
        ("cron trigger x", "cron run NAME"),
    ):
        assert f"Did you mean: {meant}" in cli(*command.split(), status=2).err, command

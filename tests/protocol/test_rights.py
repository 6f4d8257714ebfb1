"""The verbs of each command, and what the roles may do with them."""

from __future__ import annotations

from typing import get_args

import pytest
from support.table import table

from bunqueue.model.rights import (
    ALL,
    CHANGING,
    EVERYBODY,
    ROLES,
    Identity,
    Verb,
    may,
    names_of,
    refusal,
    verbs_named,
)
from bunqueue.model.scope import read_scope, scope_of
from bunqueue.protocol.commands import COMMANDS
from bunqueue.protocol.commands.find import Action
from bunqueue.server.identities.directory import ADMIN, READER


def allowed(role: str) -> set[str]:
    identity = Identity(role, ROLES[role])
    return {name for name, spec in COMMANDS.items() if may(identity, spec.verbs)}


@table("name", COMMANDS)
def test_what_changes_something_needs_a_verb_that_changes(name: str) -> None:
    spec = COMMANDS[name]
    assert not spec.writes or (spec.verbs and not spec.verbs & ~CHANGING)
    assert spec.verbs or name in {"Hello", "Auth", "ActFor", "Ping", "UnsubscribeEvents"}


def test_what_each_role_may_do() -> None:
    assert allowed("admin") == set(COMMANDS)
    assert {name for name in allowed("operator") if COMMANDS[name].verbs & Verb.DESTROY} == {"ChangeJobs"}
    assert allowed("scraper") - {"Hello", "Auth", "ActFor", "Ping", "UnsubscribeEvents"} == {"Prometheus"}
    assert allowed("viewer") < allowed("reader") < allowed("operator") < allowed("admin")
    assert not {"GetResult", "SubscribeEvents", "GetChildrenValues"} & allowed("viewer")
    assert {"GetJob", "GetEvents", "FindJobs", "Dlq"} <= allowed("viewer"), "with what they hold hidden"
    assert "PULL" not in allowed("producer")
    assert "PUSH" not in allowed("worker")
    assert not {"ListWebhooks", "AddWebhook", "ClusterForget"} & allowed("operator")


def test_the_verb_of_a_bulk_change_is_that_of_its_action() -> None:
    spec = COMMANDS["ChangeJobs"]
    needed = {action: names_of(spec.verbs_of(action)) for action in get_args(Action)}
    assert needed == {action: ["destroy" if action == "remove" else "operate"] for action in needed}
    assert spec.verbs_of(None) == spec.verbs_of("none of these") == Verb.OPERATE | Verb.DESTROY


def test_verbs_by_name() -> None:
    assert verbs_named(["add", "run"]) == Verb.ADD | Verb.RUN
    assert verbs_named(["see"]) == Verb.SEE | Verb.SCRAPE
    assert verbs_named(names_of(ALL)) == ALL
    with pytest.raises(KeyError):
        verbs_named(["obliterate"])


def test_a_refusal_says_what_is_missing() -> None:
    viewer = Identity("grafana", ROLES["viewer"])
    text = refusal(viewer, "Update", COMMANDS["Update"].verbs)
    assert text == "grafana may not use Update: it needs the verb 'run' or 'operate', and has scrape, see"


@table(
    "pattern, queue, matches",
    [
        ("billing.*", "billing.mail", True),
        ("billing.*", "billing.mail.urgent", True),
        ("billing.*", "billing", False),
        ("billing.*", "billingXmail", False),
        ("billing.*", "my.billing.mail", False),
        ("*.mail", "billing.mail", True),
        ("a*c*", "abcd", True),
        ("mail", "mail", True),
        ("mail", "mails", False),
        ("*", "anything", True),
    ],
)
def test_a_pattern_is_for_queues(pattern: str, queue: str, matches: bool) -> None:
    scope = scope_of(Identity("a", ROLES["worker"], ("none", pattern)))
    assert scope is not None
    assert scope.allows(queue) is scope.allows(queue) is matches  # decided, and remembered
    assert read_scope(scope.wire).allows(queue) is matches
    assert not scope.allows("x" * 257)


def test_only_who_has_less_than_the_verbs_say_is_limited() -> None:
    scopes = {role: scope_of(Identity(role, verbs)) for role, verbs in ROLES.items()}
    limited = {role for role, scope in scopes.items() if scope is None or scope.limits}
    assert limited == {"viewer"}, "nothing is asked of the others for each command"
    for nameless in (ADMIN, READER, EVERYBODY):
        assert scope_of(nameless) is None
    viewer, worker = (scope_of(Identity(role, ROLES[role], ("a",))) for role in ("viewer", "worker"))
    assert viewer is not None
    assert worker is not None
    assert not viewer.shows(Verb.SEE | Verb.READ)
    assert worker.shows(Verb.RUN | Verb.READ), "who runs a job has what it needs for it"

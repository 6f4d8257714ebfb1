"""What a reader of the router can rely on: no module needs another one that needs it, types included; and
objects stand for what differs between one host, several routers and a cluster."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import router
from router.cluster.cluster import Cluster
from router.core.hosts import Hosts
from router.core.siblings import Siblings
from router.secondary.first_router import FirstRouter
from router.secondary.supervisor import SecondaryRouters
from router.standby import Standby

ROOT = Path(router.__file__).parent
MAX_ATTRIBUTES = 15  # of one class; with more, there is another object in it
MODES = r"\b_?(cluster|further|first|holds|pending|table|siblings|hosts) is (not )?None\b"


def modules() -> dict[str, Path]:
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = ("router", *path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Those of ``known`` that a module imports, for types alone or not."""
    package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom):
            continue
        base = package[: len(package) - node.level + 1] if node.level else []
        whole = ".".join([*base, *([node.module] if node.module else [])])
        for alias in node.names:
            inner = f"{whole}.{alias.name}"
            if (target := inner if inner in known else whole) in known and target != name:
                yield target


def room(module: str) -> str:
    """The first name below ``router``."""
    return module.split(".")[1] if "." in module else ""


def test_no_module_is_in_a_circle() -> None:
    known = modules()
    graph = {name: set(imported(name, path, known)) for name, path in known.items()}
    needs = {"router.clients.tickets", "router.core.shard_map"}
    assert graph["router.clients.hub"] >= needs, "the imports are seen"
    TopologicalSorter(graph).prepare()  # CycleError names one


def test_no_room_is_in_a_circle() -> None:
    known = modules()
    rooms: dict[str, set[str]] = {}
    for name, path in known.items():
        others = rooms.setdefault(room(name), set())
        others |= {room(other) for other in imported(name, path, known)} - {room(name)}
    assert rooms["clients"] >= {"core", "processes"}, "the imports are seen"
    TopologicalSorter(rooms).prepare()  # CycleError names one


def attributes(kind: ast.ClassDef) -> set[str]:
    """What the methods of a class set on ``self``, and its slots."""
    found = set()
    for node in ast.walk(kind):
        match node:
            case ast.Attribute(value=ast.Name("self"), attr=name, ctx=ast.Store()):
                found.add(name)
            case ast.Assign(targets=[ast.Name("__slots__")], value=slots):
                found |= set(ast.literal_eval(slots))
    return found


def test_no_class_is_about_too_much() -> None:
    sizes = {
        f"{name}.{kind.name}": len(attributes(kind))
        for name, path in modules().items()
        for kind in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(kind, ast.ClassDef)
    }
    assert sizes["router.clients.connection.ClientConnection"] > 10, "attributes are seen"
    assert {name: size for name, size in sizes.items() if size > MAX_ATTRIBUTES} == {}


def test_nobody_asks_which_mode_the_server_is_in() -> None:
    asked = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in modules().values()
        if path.name != "process.py"
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(MODES, line)
    ]
    assert asked == []


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_what_stands_for_nobody_is_overridden_where_there_is_somebody() -> None:
    """A method that is forgotten would quietly do nothing."""
    standby_alone = {"standby", "view_refusal"}
    assert public(Hosts) - public(Cluster) == standby_alone
    assert public(Hosts) & public(Standby) >= standby_alone
    first_one_alone = {"answers", "ask"}  # it answers itself
    assert public(Siblings) - public(SecondaryRouters) == first_one_alone
    others_alone = {"all_connections", "joined", "left", "answers", "ask"}
    assert public(Siblings) & public(FirstRouter) == others_alone

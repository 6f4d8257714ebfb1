"""``bunqueue flow``: adds jobs that wait for each other, and shows them as a tree."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bunqueue.settings import SettingsError

from ...readable import plural, printable
from ..framework.session import Session
from ..framework.shared import noun, verb
from ..framework.values import JobId, argument, option
from ..output.output import Column, Kind, plain

if TYPE_CHECKING:
    from bunqueue.client.flow_plan import FlowJob, FlowNode, FlowTree

app = noun("Flows, jobs that wait for each other: add one, and show its state.")

FLOW = (
    Column("depth", Kind.NUMBER),
    Column("id", Kind.ID),
    Column("queue"),
    Column("name"),
    Column("state", Kind.STATE),
    Column("error"),
)
ADDED = FLOW[:4]
_OWN = ("name", "queue", "data", "children", "on_failure")

File = Annotated[str, argument("FILE", "JSON: a flow, or a list of them; - is standard input.")]
Depth = Annotated[int | None, option("--depth", about="The maximum number of levels, from 1.", metavar="N")]


@verb(
    app,
    "bunqueue flow add report.json",
    """echo '{"name": "a", "queue": "q", "children": [{"name": "b", "queue": "q"}]}' | bunqueue flow add -""",
)
def add(session: Session, file: File) -> None:
    """Add a flow, entirely or not at all. A job runs when its children have completed.

    A job is {"name", "queue", "data", "children": [jobs]}, with "on_failure" ("fail", "ignore", "continue",
    "remove" or "wait": what its failure means for its parent), and options such as "max_attempts" or "delay".
    A list holds several flows. Prints the jobs, each parent before its children; a pipe gets their depth, id,
    queue and name.
    """
    value = _read(file)
    flows = [_job(each, place) for each, place in _roots(value)]
    nodes = session.flows().add_bulk(flows)
    rows = [row for node, job in zip(nodes, flows, strict=True) for row in _rows(node, job)]
    session.out.rows(rows, ADDED, none="there was nothing to add")


@verb(app, "bunqueue flow show 01980f2e-...", "bunqueue flow show 01980f2e-... --depth 2 --json")
def show(session: Session, job_id: JobId, depth: Depth = None) -> None:
    """Print a job and all jobs that it waits for, with their states.

    A pipe gets depth, id, queue, name, state and error. JSON has the complete jobs, each with its "depth".
    """
    from bunqueue.client.options import checks
    from bunqueue.errors import JobNotFound

    if depth is not None:
        checks.whole("depth", depth)
    tree = session.flows().get_flow(job_id, depth=depth)
    if tree is None:
        raise JobNotFound(f"there is no job {job_id!r}; it was removed, or never added to this server")
    if session.out.is_terminal:
        _draw(tree)
        return
    rows = [{"depth": level, **plain(node.job), "error": node.job.error} for node, level in _walk(tree)]
    session.out.rows(rows, FLOW, none="")


# -- reading


def _read(file: str) -> Any:
    import msgspec

    try:
        source = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise SettingsError(f"FILE: {file!r} cannot be read: {error.strerror}") from None
    try:
        return msgspec.json.decode(source)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"FILE: {file} is no JSON ({error})") from None


def _roots(value: Any) -> list[tuple[Any, str]]:
    """Flows, each with its name for error messages."""
    if isinstance(value, list):
        return [(each, f"flow {number}") for number, each in enumerate(value, 1)]
    return [(value, "the flow")]


def _job(value: Any, place: str) -> FlowJob[Any]:
    """A job and its children. Raises SettingsError, with the place of the mistake."""
    from bunqueue.client.flow_plan import FlowJob
    from bunqueue.client.options.job import JobOptions
    from bunqueue.errors import OptionError

    if not isinstance(value, dict):
        raise SettingsError(f'{place} is no object; give {{"name": ..., "queue": ..., "children": [...]}}')
    known = {*_OWN, *JobOptions.__annotations__}
    for name in value.keys() - known:
        raise SettingsError(
            f"{place}: there is no {name!r}; there are {', '.join([*_OWN, *sorted(known - {*_OWN})])}"
        )
    for name in ("name", "queue"):
        if name not in value:
            raise SettingsError(f"{place} has no {name!r}")
    children = value.get("children", [])
    if not isinstance(children, list):
        raise SettingsError(f"{place}: children must be a list")
    made = [_job(child, f"{place}, child {number}") for number, child in enumerate(children, 1)]
    rest = {name: item for name, item in value.items() if name not in ("name", "data", "children")}
    try:
        return FlowJob(value["name"], value.get("data"), children=made, **rest)
    except OptionError as error:
        raise SettingsError(f"{place}: {error}") from None


# -- showing


def _rows(node: FlowNode[Any], job: FlowJob[Any]) -> list[dict[str, Any]]:
    """The rows of an added flow; ``job`` has the same shape as ``node``."""
    pairs = zip(_walk(node), _walk(job), strict=True)
    return [
        {"depth": depth, "id": each.job.id, "queue": made.queue, "name": made.name}
        for (each, depth), (made, _) in pairs
    ]


def _walk(node: Any) -> list[tuple[Any, int]]:
    """A node and all below it, with their depths, a parent before its children."""
    found: list[tuple[Any, int]] = []
    left = [(node, 0)]
    while left:
        each, level = left.pop()
        found.append((each, level))
        left += [(child, level + 1) for child in reversed(each.children)]
    return found


def _draw(tree: FlowTree) -> None:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    from ..output.tables import STATES

    def label(job: Any) -> Text:
        text = Text.assemble((printable(job.name), "bold"))
        text.append(f"  {job.state}", style=STATES.get(job.state, ""))
        text.append(f"  {printable(job.queue)}  {printable(job.id)}", style="dim")
        return text.append(f"  {printable(job.error)}", style="red") if job.error else text

    nodes = _walk(tree)
    branches = [Tree(label(tree.job))]  # from the root to the last job
    for node, level in nodes[1:]:
        del branches[level:]
        branches.append(branches[-1].add(label(node.job)))
    Console(highlight=False).print(branches[0])
    done = sum(node.job.state == "completed" for node, _ in nodes)
    print(f"{done:,} of {plural(len(nodes))} completed")

"""``bunqueue flow``: adds jobs that wait for each other, lists and shows them, and ends or retries flows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bunqueue.server.settings import SettingsError
from bunqueue.text import json_problem, plural, printable

from ..framework.session import Session
from ..framework.shared import noun, verb
from ..framework.values import SPAN, JobId, argument, option, span
from ..output import terminal
from ..output.output import Column, Kind, plain

if TYPE_CHECKING:
    from bunqueue.client.flow_plan import FlowJob, FlowNode, FlowTree
    from bunqueue.client.models.flows import BatchInfo, FlowLine

app = noun("Flows, jobs that wait for each other: list, add, show, close, cancel or retry.")

FLOW = (
    Column("depth", Kind.NUMBER),
    Column("id", Kind.ID),
    Column("queue"),
    Column("name"),
    Column("state", Kind.STATE),
    Column("error"),
)
ADDED = FLOW[:4]
NODES = (
    Column("name"),
    Column("id", Kind.ID),
    Column("queue"),
    Column("state", Kind.STATE),
    Column("after"),
    Column("error"),
)
NAMED = NODES[:3]
LIST = (
    Column("id", Kind.ID),
    Column("state", Kind.STATE),
    Column("jobs", Kind.NUMBER),
    Column("completed", Kind.NUMBER),
    Column("failed", Kind.NUMBER),
    Column("batch"),
    Column("created", Kind.TIME),
)
_ENDS = ("on_complete", "on_success")  # the jobs that run at the end of a batch
_GRAPH = {"jobs", *_ENDS}
_OWN = ("name", "queue", "data", "children", "on_failure")

File = Annotated[str, argument("FILE", "JSON: a flow, or a list of them; - is standard input.")]
Id = Annotated[str | None, option("--id", about="The id of a flow whose jobs have names.", metavar="ID")]
Grow = Annotated[bool, option("--grow", about="Add the jobs to the flow with that id, which is there.")]
FlowId = Annotated[str, argument("ID", "The id of a flow whose jobs have names.")]
Node = Annotated[str | None, argument("[NODE]", "The name of a job: it runs again, and all that follow it.")]
Reason = Annotated[str | None, option("--reason", about="The reason that workers see.", metavar="TEXT")]
Grace = Annotated[
    float | None,
    option(
        "--grace", about="How long running jobs may take to stop. Default: 10s.", metavar=SPAN, parser=span
    ),
]
Prefix = Annotated[str, option("--prefix", about="Only flows whose ids begin like this.", metavar="TEXT")]
Queue = Annotated[str | None, option("--queue", about="Only flows with a job in it.", metavar="QUEUE")]
Limit = Annotated[int, option("--limit", about="The maximum number of flows. Default: 20.", metavar="N")]
Depth = Annotated[int | None, option("--depth", about="The maximum number of levels, from 1.", metavar="N")]


@verb(
    app,
    "bunqueue flow add report.json",
    """echo '{"name": "a", "queue": "q", "children": [{"name": "b", "queue": "q"}]}' | bunqueue flow add -""",
)
def add(session: Session, file: File, id: Id = None, grow: Grow = False) -> None:
    """Add a flow, entirely or not at all. A job runs when its children have completed.

    A job is {"name", "queue", "data", "children": [jobs]}, with "on_failure" ("fail", "ignore", "continue",
    "remove" or "wait": what its failure means for its parent), and options such as "max_attempts" or "delay".
    A list holds several flows. Prints the jobs, each parent before its children; a pipe gets their depth, id,
    queue and name.

    {"jobs": {name: job}} is a flow whose jobs have names, and any graph: a job has "after", the names of
    those that it waits for, instead of "children". With "on_complete": job or "on_success": job beside them
    it is a batch, which grows until it is closed. A pipe gets name, id and queue.
    """
    value = _read(file)
    if isinstance(value, dict) and value.keys() & _GRAPH:
        session.out.rows(_add_graph(session, value, id, grow), NAMED, none="")
        return
    if id is not None or grow:
        raise SettingsError('--id and --grow are for a flow whose jobs have names: {"jobs": {name: job}}')
    flows = [_job(each, place) for each, place in _roots(value)]
    nodes = session.flows().add_bulk(flows)
    rows = [row for node, job in zip(nodes, flows, strict=True) for row in _rows(node, job)]
    session.out.rows(rows, ADDED, none="there was nothing to add")


@verb(app, "bunqueue flow show 01980f2e-... --depth 2 --json", "bunqueue flow show order-7")
def show(session: Session, job_id: JobId, depth: Depth = None) -> None:
    """Print a job and all jobs that it waits for, with their states; or a flow whose jobs have names.

    A pipe gets depth, id, queue, name, state and error. JSON has the complete jobs, each with its "depth". Of
    a flow with names a pipe gets name, id, queue, state, names that it waits for, and error.
    """
    from bunqueue.client.options import checks
    from bunqueue.errors import JobNotFound

    if depth is not None:
        checks.whole("depth", depth)
    tree = session.flows().get_flow(job_id, depth=depth)
    if tree is None and depth is None and _show_graph(session, job_id):
        return
    if tree is None:
        text = f"there is no job {job_id!r}; it was removed, or never added to this server"
        raise JobNotFound(text, job_id=job_id)
    if session.out.is_terminal:
        _draw(tree)
        return
    rows = [{"depth": level, **plain(node.job), "error": node.job.error} for node, level in _walk(tree)]
    session.out.rows(rows, FLOW, none="")


@verb(app, "bunqueue flow list --queue mails", "bunqueue flow list --prefix order- --json", name="list")
def list_(session: Session, prefix: Prefix = "", queue: Queue = None, limit: Limit = 20) -> None:
    """List flows whose jobs have names, and batches, in alphabetical order.

    A pipe gets id, state, the numbers of jobs, completed and failed ones, whether a batch is open or closed,
    and when the flow was added. Of flows with many jobs only the first 1,000 or so are counted.
    """
    from bunqueue.client.options import checks

    left, after, rows = checks.whole("limit", limit), None, []
    while left > 0:
        page = session.flows().list_flows(prefix=prefix, queue=queue, after=after, limit=min(left, 100))
        rows += [_line(flow) for flow in page.flows]
        left, after = left - len(page.flows), page.cursor
        if after is None:
            break
    session.out.rows(rows, LIST, none="there are no such flows")


@verb(app, "bunqueue flow close newsletter-12")
def close(session: Session, id: FlowId) -> None:
    """Close a batch: it takes no more jobs, and what it ends with runs when all of these have ended."""
    jobs = session.flows().batch(id).close()
    session.out.done(f"closed with {plural(jobs)}", {"jobs": jobs}, "jobs")


@verb(app, "bunqueue flow cancel order-7 --reason 'the order was withdrawn'")
def cancel(session: Session, id: FlowId, reason: Reason = None, grace: Grace = None) -> None:
    """Cancel all jobs of a flow that have not ended. They stay, as dead letters, and can be retried."""
    more = {} if grace is None else {"grace": grace}
    stopped = session.flows().graph(id).cancel(reason, **more)
    session.out.done(f"{plural(stopped)} cancelled", {"cancelled": stopped}, "cancelled")


@verb(app, "bunqueue flow retry order-7", "bunqueue flow retry order-7 fetch")
def retry(session: Session, id: FlowId, node: Node = None) -> None:
    """Run the dead jobs of a flow again, each when those that it waits for have completed.

    With NODE, run that job and all that follow it again, including those that have completed.
    """
    names = session.flows().graph(id).retry(node)
    session.out.done(f"{plural(len(names))} will run again", {"retried": names}, "retried")


# -- flows with names


def _add_graph(session: Session, value: dict[str, Any], flow_id: str | None, grow: bool) -> list[Any]:
    from bunqueue.client.flow_names import new_id

    jobs, ends = value.get("jobs", {}), [name for name in _ENDS if name in value]
    if unknown := value.keys() - _GRAPH:
        known, id_ = ", ".join(sorted(_GRAPH)), "; give its id as --id" if "id" in unknown else ""
        raise SettingsError(f"a flow whose jobs have names has no {min(unknown)!r}; there are {known}{id_}")
    if not isinstance(jobs, dict):
        raise SettingsError('jobs: they have names here; give {"jobs": {name: job}}')
    if grow and flow_id is None:
        raise SettingsError("--grow: which flow? give its --id")
    if grow and ends:
        raise SettingsError(f"--grow: {ends[0]} is said when the batch is added")
    made = {name: _job(job, f"job {name!r}", names=True) for name, job in jobs.items()}
    graph = session.flows().batch(flow_id or new_id())
    if ends:
        last = {name: _job(value[name], name, names=True) for name in ends}
        graph.open(jobs=made, **last)
    else:
        (graph.add if grow else graph.start)(made)
    return [{"name": name, "id": job.id, "queue": job.queue} for name, job in graph.jobs.items()]


def _show_graph(session: Session, flow_id: str) -> bool:
    """Print a flow with names. Return whether there is one."""
    from bunqueue.errors import NotFound, OptionError

    try:
        info = session.flows().graph(flow_id).info()
    except (NotFound, OptionError):
        return False
    rows = [{**plain(node), "after": ", ".join(node.after)} for node in info.nodes]
    session.out.rows(rows, NODES, none="")
    if session.out.is_terminal:
        print(f"{info.state}: {info.counts.get('completed', 0):,} of {plural(len(info.nodes))} completed")
        if info.batch is not None:
            print(_batch(info.batch))
    return True


def _batch(batch: BatchInfo) -> str:
    """The progress of a batch, in a sentence."""
    ended = f"{batch.completed:,} completed and {batch.failed:,} failed of {plural(batch.jobs)}"
    waiting = f"; {' and '.join(batch.waiting)} to come" if batch.waiting else ""
    return f"batch, {'open' if batch.open else 'closed'}: {ended}{waiting}"


def _line(flow: FlowLine) -> dict[str, Any]:
    counts = flow.counts
    return {
        "id": flow.id,
        "state": flow.state,
        "jobs": sum(counts.values()),
        "completed": counts.get("completed", 0),
        "failed": counts.get("failed", 0) + counts.get("cancelled", 0),
        "batch": None if flow.open is None else "open" if flow.open else "closed",
        "created": flow.created_at_ms,
        "more": flow.more,
    }


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
        raise SettingsError(f"FILE: {file} is no JSON ({json_problem(source, error)})") from None


def _roots(value: Any) -> list[tuple[Any, str]]:
    """Flows, each with its name for error messages."""
    if isinstance(value, list):
        return [(each, f"flow {number}") for number, each in enumerate(value, 1)]
    return [(value, "the flow")]


def _job(value: Any, place: str, *, names: bool = False) -> FlowJob[Any]:
    """A job and its children, or, with ``names``, the jobs that it runs after. Raises SettingsError with the
    place of the mistake."""
    from bunqueue.client.flow_plan import FlowJob
    from bunqueue.client.options.job import JobOptions
    from bunqueue.errors import OptionError

    if not isinstance(value, dict):
        raise SettingsError(f'{place} is no object; give {{"name": ..., "queue": ..., "children": [...]}}')
    own = [name if name != "children" or not names else "after" for name in _OWN]
    known = {*own, *JobOptions.__annotations__}
    for name in value.keys() - known:
        raise SettingsError(
            f"{place}: there is no {name!r}; there are {', '.join([*own, *sorted(known - {*own})])}"
        )
    for name in ("name", "queue"):
        if name not in value:
            raise SettingsError(f"{place} has no {name!r}")
    children = value.get("children", [])
    if not isinstance(children, list):
        raise SettingsError(f"{place}: children must be a list")
    made = [_job(child, f"{place}, child {number}") for number, child in enumerate(children, 1)]
    after = value.get("after", [])
    if not isinstance(after, list) or not all(isinstance(name, str) for name in after):
        raise SettingsError(f"{place}: after must be a list of names")
    rest = {name: item for name, item in value.items() if name not in ("name", "data", "children", "after")}
    try:
        return FlowJob(value["name"], value.get("data"), children=made, **rest).after(*after)
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
    """A node and all nodes below it, each once, with their depths. A parent comes before its children."""
    found: list[tuple[Any, int]] = []
    met: set[int] = set()
    left = [(node, 0)]
    while left:
        each, level = left.pop()
        if id(each) in met:
            continue
        met.add(id(each))
        found.append((each, level))
        left += [(child, level + 1) for child in reversed(each.children)]
    return found


def _draw(tree: FlowTree) -> None:
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
    terminal.console().print(branches[0])
    done = sum(node.job.state == "completed" for node, _ in nodes)
    print(f"{done:,} of {plural(len(nodes))} completed")

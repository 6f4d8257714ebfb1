"""Commands that need other shards, written as if these answered at once.

Such a handler is a generator: it yields questions, ``[(shard, message), ...]``, receives their answers in
that order, and returns the reply.  Before its last answer it must not change anything that could not stay
that way, because any shard may die in the meantime.  Then the whole task is lost with the shard that ran it,
or the question is asked again when the other shard is back.

Questions to the own shard are answered on the spot, so a server with one shard never waits.

A read-only command runs slice by slice, as described in `slices`.  The questions that it asks other shards
are answered there in slices of its connection's turn as well: no client waits for everything another one asks
for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import COMMANDS, Command, CommandError, Reply, refused
from bunqueue.server.links import peers as messages

from . import slices
from .dispatch import answer
from .registry import ANSWERS, LATE_ANSWERS, Deliver
from .state import RELAYED, Client

if TYPE_CHECKING:
    from .state import State

MAX_ASKED = 256 << 20  # bytes of unanswered questions: the most that shards which are down keep waiting here
LONG = (messages.Values, messages.Members, messages.Flows)  # questions that may take long to answer
FEW = 5  # questions to the own shard that a read-only command may ask per slice
COST = 1000  # approximate overhead of a question, in bytes

_READS = (messages.Forward, messages.Where, messages.Values, messages.Members, messages.Flows)

Questions = list[tuple[int, messages.Message]]
Steps = Generator[Questions, list[Any], Any]
C = TypeVar("C", bound=Struct)


def too_much() -> CommandError:
    """The refusal of a command that would have to wait for other shards, when too many do already."""
    text = "Shard unavailable: too many commands wait for other shards already, try again"
    return CommandError(text, Code.SHARD_UNAVAILABLE)


class Task(Struct, eq=False):
    """Work that waits for answers."""

    steps: Steps
    deliver: Deliver
    command: Command | None = None  # the command it carries out
    client: Client | None = None  # the client it works for
    reads: bool = False  # it is read-only
    question: messages.Message | None = None  # the question of another shard that it answers
    answered: int = 0  # questions to the own shard in this slice
    answers: list[Any] = []
    missing: int = 0
    asking: bool = False  # the own shard may answer while questions are still being asked


class Asked(Struct, eq=False):
    """A question to another shard."""

    shard: int
    message: messages.Message
    task: Task
    place: int
    size: int


def has_room(state: State) -> bool:
    """Whether one more command may wait for other shards: questions are kept in memory, and nothing else
    counts that."""
    return state.asked_size < MAX_ASKED


def across(steps_of: Callable[[State, Client, C], Steps]) -> Callable[[State, Client, C], Reply | None]:
    """Turn a generator of questions into the handler of a command."""

    def handler(state: State, client: Client, command: Any) -> Reply | None:
        if not has_room(state):
            raise too_much()
        results: list[Any] = []
        reads = not COMMANDS[str(command.__struct_config__.tag)].writes
        steps = steps_of(state, client, command)
        work = start(state, steps, results.append, command, client, reads=reads)
        if not results:
            work.deliver = partial(_reply, state, client, command)
            return None
        if isinstance(results[0], CommandError):
            raise results[0]
        reply: Reply = results[0]
        return reply

    return handler


def _nobody(result: Any) -> None:
    """Ignore the result."""


def start(
    state: State,
    steps: Steps,
    deliver: Deliver = _nobody,
    command: Command | None = None,
    client: Client | None = None,
    *,
    reads: bool = False,
) -> Task:
    """Start a task, which may carry out a command, or work for a client; its result may be delivered at
    once."""
    task = Task(steps, deliver, command, client, reads)
    _advance(state, task, None)
    return task


def _reply(state: State, client: Client, command: Command, result: Any) -> None:
    if not client.closed:
        answer(state, client, command, refused(result) if isinstance(result, CommandError) else result)


def _advance(state: State, task: Task, answers: list[Any] | None) -> None:
    while True:
        try:
            questions = _go_on(task.steps, answers)
        except StopIteration as done:
            task.deliver(done.value)
            return
        except CommandError as error:
            task.deliver(error)
            return
        except Exception as error:
            if task.command is not None:
                task.deliver(state.on_command_error(task.command, error))
            elif task.question is not None:
                task.deliver(state.on_question_error(task.question, error))
            else:
                raise
            return
        task.answers = [None] * len(questions)
        task.missing = len(questions)
        task.asking = True
        for place, (shard, message) in enumerate(questions):
            _ask(state, task, place, shard, message)
        task.asking = False
        if task.missing:
            return
        answers = task.answers


def _in_turn(state: State, task: Task, work: Callable[[], None]) -> None:
    """Continue a task; a read-only one in another slice if this one has been long enough."""
    task.answered += 1
    if not task.reads or task.client is None or task.answered <= FEW:
        work()
        return

    def begin() -> None:
        task.answered = 0
        work()

    slices.later(state, task.client, begin, task.command)


def _go_on(steps: Steps, answers: list[Any] | None) -> Questions:
    """Resume the steps with their answers; a failed answer is raised where they asked."""
    failed = next((each for each in answers or () if isinstance(each, messages.Failed)), None)
    if failed is not None:
        return steps.throw(CommandError(failed.error, Code.INTERNAL_ERROR))
    return steps.send(answers)  # type: ignore[arg-type]  # None at the beginning


def _ask(state: State, task: Task, place: int, shard: int, message: messages.Message) -> None:
    if shard == state.shard:
        fill = partial(_fill, state, task, place)
        _in_turn(state, task, partial(_answer, state, shard, message, fill))
        return
    state.questions += 1
    turn = 0 if task.client is None else task.client.turn
    size = COST + _send(state, shard, messages.ASKS, state.questions, message, turn)
    state.asked[state.questions] = Asked(shard, message, task, place, size)
    state.asked_size += size


def _forget(state: State, number: int) -> Asked | None:
    """Drop a question."""
    asked = state.asked.pop(number, None)
    if asked is not None:
        state.asked_size -= asked.size
    return asked


def _fill(state: State, task: Task, place: int, answer: Any) -> None:
    task.answers[place] = answer
    task.missing -= 1
    if not task.missing and not task.asking:
        _in_turn(state, task, partial(_advance, state, task, task.answers))


def _answer(state: State, source: int, message: messages.Message, deliver: Deliver) -> None:
    later = LATE_ANSWERS.get(type(message))
    if later is not None:
        later(state, source, message, deliver)
        return
    try:
        answer = ANSWERS[type(message)](state, source, message)
    except Exception as error:
        answer = state.on_question_error(message, error)
    if isinstance(answer, Generator):
        _advance(state, Task(answer, deliver, question=message), None)
    else:
        deliver(answer)


def notify(state: State, shard: int, message: messages.Message) -> None:
    """Send a message that needs no answer; it is lost if the other shard is unavailable."""
    if shard == state.shard:
        state.unfinished += 1
        ANSWERS[type(message)](state, shard, message)
        state.unfinished -= 1
    else:
        _send(state, shard, messages.NOTIFIES, 0, message)


def _send(state: State, shard: int, kind: int, number: int, message: Any, turn: int = 0) -> int:
    """Send a message; returns its length in bytes."""
    packet = messages.encode(messages.PeerMessage(kind, number, message, turn))
    state.out.peer_messages.append((shard, packet))
    return len(packet)


def receive(state: State, source: int, body: bytes) -> None:
    """Handle a message from another shard."""
    packet = messages.decode(body)
    if not isinstance(packet.message, _READS):
        state.check_lock()
    if packet.kind == messages.ASKS:
        question = source, packet.number
        if question not in state.answering:  # else it was asked again, and gets a single answer
            state.answering.add(question)
            deliver = partial(_answered, state, question)
            if _waits_for_turn(state, packet):
                asker = Client(RELAYED, 0, packet.turn)
                slices.later(state, asker, partial(_answer, state, source, packet.message, deliver))
            else:
                _answer(state, source, packet.message, deliver)
    elif packet.kind == messages.NOTIFIES:
        ANSWERS[type(packet.message)](state, source, packet.message)
    else:
        asked = _forget(state, packet.number)
        if asked is not None and asked.shard == source:
            asked.task.answered = FEW  # so it continues in another slice
            _fill(state, asked.task, asked.place, packet.message)


def is_read(body: bytes, since: int) -> bool:
    """Whether a message concerns only reads: a question about existing data, a forwarded command of a client
    (refused if it writes), or the answer to a read-only command.  ``since``: the number of the last question
    asked for anything else."""
    packet = messages.decode(body)
    if packet.kind == messages.ASKS:
        return isinstance(packet.message, _READS)
    return packet.kind == messages.ANSWERS and packet.number > since


def _waits_for_turn(state: State, packet: messages.PeerMessage) -> bool:
    """Whether a question is answered in the turn of the connection that it was asked for.  Questions that
    change something are answered at once, like all messages between shards, unless the connection has other
    work waiting: its commands stay in order."""
    message = packet.message
    if not packet.turn:
        return False
    if isinstance(message, messages.Forward) and message.writes:
        return packet.turn in state.long_works
    return isinstance(message, (messages.Forward, *LONG))


def _answered(state: State, question: tuple[int, int], answer: Any) -> None:
    state.answering.discard(question)
    _send(state, question[0], messages.ANSWERS, question[1], answer)


def repeat(state: State, shard: int) -> None:
    """A shard is ready, perhaps after a restart: ask it again the questions that it has not answered.

    Questions that must not be answered twice are not repeated; their answer is None.
    """
    for number, asked in list(state.asked.items()):
        if asked.shard != shard:
            continue
        if isinstance(asked.message, messages.Forward) and asked.message.once:
            _forget(state, number)
            _fill(state, asked.task, asked.place, None)
        else:
            turn = 0 if asked.task.client is None else asked.task.client.turn
            _send(state, shard, messages.ASKS, number, asked.message, turn)


def grouped(shard_of: dict[str, int]) -> dict[int, list[str]]:
    """Group ids by their shards."""
    groups: dict[int, list[str]] = {}
    for key, shard in shard_of.items():
        groups.setdefault(shard, []).append(key)
    return groups

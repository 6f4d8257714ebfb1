"""The entries of the directory: see `directory`."""

from __future__ import annotations

from msgspec import Struct, json

from bunqueue.model.ids import slot_of_id

from ..registry import Apart, recovers
from ..state import State

KIND = "home"


class Home(Struct):
    """A record: the shard that has the job with this id."""

    shard: int


_decode_home = json.Decoder(Home).decode


@recovers(KIND, Apart.DERIVED)
def recover(state: State, key: str, value: str) -> None:
    state.directory[key] = _decode_home(value).shard


def pointer(state: State, job_id: str) -> int:
    """The shard to which an id points: where the router sends commands that name it."""
    return slot_of_id(job_id) & (state.shards - 1)


def enter(state: State, job_id: str, home: int) -> None:
    """Record the shard of the job with this id.  Waiting claims are informed, even if the id was on that
    shard before: it is another job."""
    for ids in state.given_away:
        ids.add(job_id)
    if home != state.shard:
        state.directory[job_id] = home
        state.out.keep(KIND, job_id, Home(home))
    elif state.directory.pop(job_id, None) is not None:
        state.out.keep(KIND, job_id, None)

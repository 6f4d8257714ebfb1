"""Several calls at a time, where there is a way to do that."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


class AsyncGather:
    """For coroutines: all are on their way at once, as far as the connections have room."""

    @staticmethod
    async def all(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """What each gives, in their order."""
        return await asyncio.gather(*calls)


class Gather:
    """The blocking twin: what it is given are results already, made one after the other."""

    @staticmethod
    def all(calls: Iterable[T]) -> list[T]:
        """What each gives, in their order."""
        return list(calls)

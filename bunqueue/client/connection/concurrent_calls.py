"""Runs several calls at a time, where that is possible."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


class AsyncGather:
    """For coroutines: sends all calls at once, as far as the connections have room."""

    @staticmethod
    async def all(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """The result of each call, in order."""
        return await asyncio.gather(*calls)


class Gather:
    """The blocking twin: it receives results, as the calls were made one after the other."""

    @staticmethod
    def all(calls: Iterable[T]) -> list[T]:
        """The results, in order."""
        return list(calls)

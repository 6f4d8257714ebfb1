"""The functions that apps have declared for a queue."""

from __future__ import annotations

from bunqueue.client.connection.caller import AsyncCaller
from bunqueue.client.options import checks
from bunqueue.protocol.commands import functions
from bunqueue.protocol.commands.functions import FunctionView


class AsyncFunctions:
    """A part of `Queue`. An app declares its functions when it starts to work, or with `Bunqueue.declare`.
    Their options then apply to all jobs of their names, and what they say of their arguments can be checked
    when a job is added.
    """

    name: str
    _caller: AsyncCaller

    async def functions(self) -> list[FunctionView]:
        """The functions by name, without the schemas of their arguments."""
        return (await self._caller.call(functions.ListFunctions(queue=self.name))).functions

    async def function(self, name: str) -> FunctionView:
        """A function by its name or an alias, with the JSON Schema of its arguments. Raises NotFound."""
        command = checks.checked(functions.GetFunction(queue=self.name, name=name))
        return (await self._caller.call(command)).function

    async def remove_function(self, name: str) -> None:
        """Forget a function. Its app declares it again when it starts. Raises NotFound."""
        await self._caller.call(checks.checked(functions.RemoveFunction(queue=self.name, name=name)))

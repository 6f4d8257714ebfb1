"""Options of a job that are computed from its arguments: `group=lambda order: order.tenant`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from bunqueue.client.connection.options import shown
from bunqueue.client.options import checks
from bunqueue.errors import OptionError


class Computed:
    """A function of a job's arguments, which it names as the job's function does.

    TypeError when it wants an argument that the job does not have.
    """

    def __init__(self, function: Callable[..., Any], of: Callable[..., Any], what: str) -> None:
        self._function, self._what = function, what
        self._signature = inspect.signature(of)
        wanted = inspect.signature(function).parameters.values()
        self._takes_all = any(each.kind is each.VAR_KEYWORD for each in wanted)
        named = [each for each in wanted if each.kind is not each.VAR_KEYWORD]
        self._names = [each.name for each in named]
        for each in named:
            is_optional = each.default is not each.empty or each.kind is each.VAR_POSITIONAL
            if each.name not in self._signature.parameters and not is_optional:
                known = ", ".join(self._signature.parameters) or "no arguments"
                raise TypeError(f"{what}: its function asks for {each.name!r}; the job has {known}")

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What the function says of these arguments, which have been checked."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if not self._takes_all:
            given = {name: given[name] for name in self._names if name in given}
        try:
            return self._function(**given)
        except Exception as error:
            raise OptionError(
                f"{self._what}: its function failed: {type(error).__name__}: {error}"
            ) from error


def group_of(value: Any) -> str | None:
    """The group that a function has named: a text; a number or a UUID will do. OptionError."""
    if value is None:
        return None
    if isinstance(value, bool) or not (isinstance(value, str | int) or hasattr(value, "hex")):
        raise OptionError(f"group: {shown(value)} is not allowed; give a text, or None for no group")
    return checks.group_id(str(value))

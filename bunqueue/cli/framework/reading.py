"""Convert the texts of a command line to values without pydantic. Typer would load pydantic for every
command, which takes as long as everything else combined.

Our options are texts, switches, lists of texts, and types with a parser in `values`. If Typer stops asking
for these readers, its own readers give the same values.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


class _Reader:
    """Typer's runtime parameter: gives the value of a parameter."""

    def __init__(self, info: Any, is_list: bool) -> None:
        self._parser = info.parser
        self._least = info.min
        self._is_list = is_list

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if self._is_list else None
        return tuple(map(self._read, value)) if self._is_list else self._read(value)

    def _read(self, value: Any) -> Any:
        read = value if self._parser is None else self._parser(value)
        if self._least is not None and read < self._least:
            raise typer.BadParameter(f"{read} is not allowed; give a number from {self._least} on.")
        return read


def plainly_read(params: list[Any]) -> list[Any]:
    """These parameters, prepared for `_Reader`."""
    for param in params:
        reader = _Reader(param.type_descriptor.parameter_info, param.multiple or param.nargs == -1)
        param.get_runtime_param = lambda reader=reader: reader
    return params


class PlainCommand(TyperCommand):
    """A command whose values are read so."""

    def get_params(self, ctx: Any) -> Any:
        return plainly_read(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """A group whose own values are read so."""

    def get_params(self, ctx: Any) -> Any:
        return plainly_read(super().get_params(ctx))

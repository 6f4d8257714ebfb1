"""From the texts of a command line to values, without pydantic: Typer would load it for every command, which
takes as long as all else together.

Our options are texts, switches, lists of texts, and what a parser of `values` reads. Should Typer stop asking
for these readers, it does the same with its own.
"""

from __future__ import annotations

from typing import Any

import typer


class _Reader:
    """What Typer asks for the value of a parameter."""

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
    """These parameters, which Typer will read so."""
    for param in params:
        reader = _Reader(param.type_descriptor.parameter_info, param.multiple or param.nargs == -1)
        param.get_runtime_param = lambda reader=reader: reader
    return params

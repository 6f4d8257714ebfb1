"""Commands as tests compare them."""

from __future__ import annotations

from typing import Any

import msgspec


def said(command: Any) -> Any:
    """What a command says beyond the defaults, whether it came in its plain or its full form."""
    if isinstance(command, list):
        return [said(entry) for entry in command]
    if not isinstance(command, msgspec.Struct):
        return bytes(command) if isinstance(command, msgspec.Raw) else command
    fields = {field.name: field for field in msgspec.structs.fields(command)}
    values = {name: said(getattr(command, name)) for name in fields}
    return {name: value for name, value in values.items() if value != said(fields[name].default)}

"""What values an option of the server takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bunqueue.model.ids import is_power_of_two


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What values an option takes.

    ``read`` turns the text of a flag or variable into a value, or hands it back as it is if it is none;
    ``allows`` decides about that, and about what a file holds; ``settle`` makes a path absolute.
    """

    bound: str
    allows: Callable[[object], bool]
    read: Callable[[str], object] = lambda text: text
    settle: Callable[[object, Mapping[str, str]], object] = lambda value, environ: value
    choices: tuple[str, ...] = ()
    repeatable: bool = False
    secret: bool = False


def whole(low: int, high: int, *, power_of_two: bool = False) -> Kind:
    def read(text: str) -> object:
        return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text

    def allows(value: object) -> bool:
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return low <= value <= high and (not power_of_two or is_power_of_two(value))

    words = "power of two" if power_of_two else "whole number"
    return Kind(bound=f"a {words} from {low} to {high}", allows=allows, read=read)


def one_of(*values: str | int) -> Kind:
    def read(text: str) -> object:
        return next((value for value in values if str(value) == text), text)

    def allows(value: object) -> bool:
        return any(type(value) is type(known) and value == known for known in values)

    choices = tuple(str(value) for value in values)
    bound = f"{', '.join(choices[:-1])} or {choices[-1]}"
    return Kind(bound=bound, allows=allows, read=read, choices=choices)

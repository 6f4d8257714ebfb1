"""Conversion of plain data to the type of an annotation: of a parameter, a result, or the data of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, get_origin

import msgspec
from msgspec import Raw

from bunqueue.client.conversion.carriable import (
    check_carriable,
    has_bounds_of_both,
    is_model,
    needs_pydantic,
    records_of,
)
from bunqueue.client.conversion.encoding import is_text
from bunqueue.client.conversion.mismatch import mismatch
from bunqueue.model.decoders import decoder

EXTRA = "pip install 'bunqueue[pydantic]'"


class Converter:
    """Converts to one annotation. Raises TypeError, beginning with `where`, if jobs cannot carry it."""

    def __init__(self, hint: Any, where: str) -> None:
        self.hint = hint
        self.by_pydantic = needs_pydantic(hint) and _prepare_pydantic(hint, where)
        """Whether Pydantic converts, and not msgspec."""
        self.decode: Callable[[Raw], Any] = self._decode_by_pydantic
        """Decodes MessagePack to a value. Raises the classes in `WRONG`."""
        self.hook: Callable[[Any, Any], Any] | None = None
        """The hook that msgspec needs; None: it needs none."""
        if not self.by_pydantic:
            self.hook = from_plain if check_carriable(hint, where) else None
            try:
                self.decode = decoder(hint, self.hook).decode
            except TypeError as error:
                raise TypeError(f"{where} cannot be carried by jobs: {error}") from None
        self.records = tuple(records_of(hint))
        """The classes with declared fields that its values consist of."""

    def _decode_by_pydantic(self, encoded: Raw) -> Any:
        return self.convert(msgspec.msgpack.decode(encoded))

    def convert(self, plain: Any) -> Any:
        """Plain data as a value. Raises Mismatch."""
        if self.by_pydantic:
            from bunqueue.client.conversion import models

            return models.validated(self.hint, plain)
        try:
            return msgspec.convert(plain, self.hint, dec_hook=self.hook)
        except msgspec.ValidationError as error:
            raise mismatch(error) from None

    @property
    def may_change(self) -> bool:
        """Whether a value could arrive as an object of another class: a declared class has subclasses, or
        Pydantic may choose among several classes.
        """
        for kind in self.records:
            if kind.__subclasses__():
                return True
        return self.by_pydantic and len(self.records) > 1


def _prepare_pydantic(hint: Any, where: str) -> bool:
    """Whether Pydantic handles the annotation. If not, its types are mixed with msgspec's, which
    handles it.
    """
    if has_bounds_of_both(hint):
        raise TypeError(f"{where} has bounds of Pydantic and of msgspec, which do not go together; use one")
    try:
        from bunqueue.client.conversion import models
    except ImportError as error:
        raise TypeError(f"{where} needs Pydantic ({EXTRA}): {error}") from None
    try:
        models.adapter(hint)
    except TypeError as error:
        if can_be_msgspecs(hint):
            return False
        raise TypeError(f"{where} cannot be carried by jobs: {error}") from None
    return True


def can_be_msgspecs(hint: Any) -> bool:
    """Whether msgspec handles an annotation, apart from the Pydantic models in it."""
    try:
        check_carriable(hint, "")
        decoder(hint, from_plain)
    except TypeError:
        return False
    return get_origin(hint) is not None


def from_plain(kind: Any, plain: Any) -> Any:
    """Plain data as an object of a class that msgspec does not know. Data that does not fit is returned
    unchanged, and msgspec refuses it.
    """
    if isinstance(kind, type):
        if is_model(kind):
            if isinstance(plain, kind):
                return plain
            from bunqueue.client.conversion import models

            return models.validated(kind, plain)
        if is_text(kind) and isinstance(plain, str):
            return kind(plain)
    return plain


@lru_cache(maxsize=1000)
def _known(hint: Any) -> Converter:
    return Converter(hint, "it")


def converted(plain: Any, hint: Any) -> Any:
    """Plain data as a value of an annotation. Converters are cached. Raises Mismatch or TypeError."""
    try:
        converter = _known(hint)
    except TypeError:
        converter = Converter(hint, f"the type {hint!r}")  # not hashable, or raises why it cannot be used
    return converter.convert(plain)


def changed(given: Any, arrived: Any) -> tuple[str, Any, Any] | None:
    """The first object of a class with declared fields that arrived as another class: its path, the object,
    and what it became; None if all kept their class.
    """
    if type(given) is not type(arrived):
        return ("", given, arrived) if _fields(given) is not None and _fields(arrived) is not None else None
    for step, before, after in _pairs(given, arrived):
        if (found := changed(before, after)) is not None:
            return f"{step}{found[0]}", found[1], found[2]
    return None


def _pairs(given: Any, arrived: Any) -> list[tuple[str, Any, Any]]:
    """The parts of two values of one class, with the path to each."""
    if isinstance(given, list | tuple) and len(given) == len(arrived):
        return [(f"[{place}]", *pair) for place, pair in enumerate(zip(given, arrived, strict=True))]
    if isinstance(given, Mapping):
        return [(f"[{key!r}]", value, arrived[key]) for key, value in given.items() if key in arrived]
    names = _fields(given) or ()
    return [(f".{name}", getattr(given, name, None), getattr(arrived, name, None)) for name in names]


def _fields(value: Any) -> tuple[str, ...] | None:
    """The names of an object's declared fields; None if its class declares none."""
    kind = type(value)
    for name in ("__struct_fields__", "__dataclass_fields__", "model_fields"):
        if (found := getattr(kind, name, None)) is not None:
            return tuple(found)
    if (found := getattr(kind, "__attrs_attrs__", None)) is not None:
        return tuple(each.name for each in found)
    return None

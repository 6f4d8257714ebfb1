"""Options of a job that depend on its arguments: `group=lambda order: order.tenant`, `unique=True`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from bunqueue.client.codecs.codec import Codec, in_use, secret_of
from bunqueue.client.connection.options import refused
from bunqueue.client.options import checks
from bunqueue.client.options.job import encode_data
from bunqueue.client.options.types import Unique
from bunqueue.client.options.unique import decode, dedup_of, digest, names_of, unique
from bunqueue.errors import OptionError


class PerCall:
    """The options of a function's jobs that depend on the arguments of each."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        options: Mapping[str, Any],
        codec: Codec | None = None,
    ) -> None:
        """Raises OptionError or TypeError for a mistake in the options."""
        self._codec = codec
        self._name = name
        self._signature = inspect.signature(function)
        group, what = options.get("group"), f"job {name!r}: "
        self._group = Computed(group, self._signature, f"{what}group") if callable(group) else None
        wanted = options.get("unique")
        self._unique = None if wanted is None else unique(wanted, "unique")
        self._key: Computed | tuple[str, ...] | None = None
        if self._unique is not None:
            self._key = self._key_by(self._unique, f"{what}unique: by")

    def _key_by(self, wanted: Unique, what: str) -> Computed | tuple[str, ...] | None:
        """The arguments that make the key; None: all of them."""
        if callable(wanted.by):
            return Computed(wanted.by, self._signature, what)
        names = names_of(wanted)
        for each in names or ():
            if each not in self._signature.parameters:
                raise TypeError(f"{what} names {each!r}; {_known(self._signature)}")
        return names

    @property
    def computed(self) -> dict[str, Any]:
        """Options that differ between jobs, as they were given."""
        return {
            name: value
            for name, value in (("group", self._group and self._group.function), ("unique", self._unique))
            if value is not None
        }

    @property
    def sample(self) -> dict[str, Any]:
        """Examples of the computed options, to be checked before there is a job."""
        return {} if self._unique is None else {"unique": replace(self._unique, by=None)}

    def options(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a job with these arguments, which have been checked. Raises OptionError."""
        found: dict[str, Any] = {}
        if self._group is None and self._unique is None:
            return found
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if self._group is not None:
            found["group"] = self._hidden(group_of(self._group.of(given)))
        if self._unique is not None:
            found |= {"unique_key": self._key_of(given), "dedup": dedup_of(self._unique)}
        return found

    def _hidden(self, group: str | None) -> str | None:
        """Hide a group that is made of arguments which travel encrypted."""
        codec = in_use(self._codec)
        if group is None or codec is None or codec.encryption is None:
            return group
        return codec.encryption.hidden(group)

    def _key_of(self, given: Mapping[str, Any]) -> str:
        key = self._key
        value: Any = {**given} if key is None else key.of(given) if isinstance(key, Computed) else None
        if isinstance(key, tuple):
            value = [given[name] for name in key]
        data = decode(encode_data(value, f"an argument of job {self._name!r}"))
        return digest(self._name, data, secret_of(self._codec))


class Computed:
    """A function of a job's arguments. Its parameters have the names of the job's arguments.

    Raises TypeError when it wants an argument that the job does not have.
    """

    def __init__(self, function: Callable[..., Any], of: inspect.Signature, what: str) -> None:
        self.function, self._what = function, what
        wanted = inspect.signature(function).parameters.values()
        self._takes_all = any(each.kind is each.VAR_KEYWORD for each in wanted)
        named = [each for each in wanted if each.kind is not each.VAR_KEYWORD]
        self._names = [each.name for each in named]
        for each in named:
            is_optional = each.default is not each.empty or each.kind is each.VAR_POSITIONAL
            if each.name not in of.parameters and not is_optional:
                raise TypeError(f"{what}: its function asks for {each.name!r}; {_known(of)}")

    def of(self, given: Mapping[str, Any]) -> Any:
        """The value that the function returns for the arguments of a job. Raises OptionError."""
        if not self._takes_all:
            given = {name: given[name] for name in self._names if name in given}
        try:
            return self.function(**given)
        except Exception as error:
            raise OptionError(
                f"{self._what}: its function failed: {type(error).__name__}: {error}"
            ) from error


def _known(signature: inspect.Signature) -> str:
    return f"the job has {', '.join(signature.parameters) or 'no arguments'}"


def group_of(value: Any) -> str | None:
    """The group that a function has returned: a text, a number or a UUID. Raises OptionError."""
    if value is None:
        return None
    if isinstance(value, bool) or not (isinstance(value, str | int) or hasattr(value, "hex")):
        raise refused("group", value, "is not allowed; give a text, or None for no group")
    return checks.group_id(str(value))

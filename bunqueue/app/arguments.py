"""What a function takes and gives, as the data and the result of a job: a map by the names of its parameters.

Any language can write such a map. Values are checked by the function's annotations: when a job is added, so
that whoever made the mistake hears of it, and again before it runs, as it may come from elsewhere.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NoReturn, get_type_hints

import msgspec
from msgspec import UNSET, Struct
from msgspec.msgpack import Decoder, Encoder

from bunqueue.app.carriable import check_carriable
from bunqueue.client.connection.options import shown
from bunqueue.client.options.job import encode_data
from bunqueue.client.options.plain_data import Declared
from bunqueue.client.worker.results import encode_result
from bunqueue.errors import ArgumentsError, ResultError

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_WHERE = re.compile(r"^(?P<problem>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_encode = Encoder().encode


class Arguments:
    """The parameters of a function. TypeError for a function whose arguments cannot be given by name."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.name = name
        self._function = function
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters
        self._required = {name for name, each in parameters.items() if each.default is each.empty}
        self._positional = [name for name, each in parameters.items() if each.kind is not each.KEYWORD_ONLY]
        for parameter in parameters.values():
            if parameter.kind in _VARIABLE or parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                raise TypeError(
                    f"job {name!r}: the parameter {str(parameter)!r} has no name that data could carry; "
                    f"give every parameter one, and no / behind it"
                )

    @property
    def shown(self) -> str:
        """The parameters as they are written, for messages."""
        return f"({', '.join(map(_shown, self._signature.parameters.values()))})"

    # -- types

    @cached_property
    def _hints(self) -> dict[str, Any]:
        """The annotations; late, so that they may name what is defined further down in a module."""
        try:
            hints = get_type_hints(self._function, include_extras=True)
        except NameError as error:
            raise TypeError(
                f"job {self.name!r}: an annotation names {error.name!r}, which the module of "
                f"{self._function.__qualname__} does not know when jobs run; import it outside TYPE_CHECKING"
            ) from None
        for parameter, hint in hints.items():
            what = "its result" if parameter == "return" else f"its parameter {parameter!r}"
            check_carriable(hint, f"job {self.name!r}: {what}")
        return hints

    @cached_property
    def _shape(self) -> type[Struct]:
        """A struct with the parameters as fields; those with a default may be left out."""
        fields: list[Any] = []
        for name, parameter in self._signature.parameters.items():
            kind = self._hints.get(name, Any)
            fields.append((name, kind) if parameter.default is parameter.empty else (name, kind, UNSET))
        try:
            shape = msgspec.defstruct(f"Arguments of {self.name}", fields, kw_only=True)
            Decoder(shape)
        except TypeError as error:
            raise TypeError(f"job {self.name!r}: its annotations cannot be checked: {error}") from None
        return shape

    @cached_property
    def result_type(self) -> Any:
        """What the function gives back, as far as it is known."""
        kind = self._hints.get("return", Any)
        return type(None) if kind is NoReturn else kind

    def check_known(self) -> None:
        """As `check_annotations`, unless they name what is defined further down: that is looked at later."""
        try:
            get_type_hints(self._function, include_extras=True)
            self.check_annotations()
        except (NameError, AttributeError):
            return

    def check_annotations(self) -> None:
        """TypeError if one cannot be used; else that would be found out with the first job."""
        self._shape  # noqa: B018  # made when it is first looked at
        self._result_decoder  # noqa: B018

    # -- adding

    def data(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The data of a job that calls the function so. Raises ArgumentsError or PayloadError."""
        given = Declared(zip(self._positional, args, strict=False), **kwargs)
        known = self._required <= given.keys() <= self._signature.parameters.keys()
        if not known or len(given) < len(args) + len(kwargs):
            self._bind(args, kwargs)
        self.check(given)
        return given

    def check_names(self, data: Mapping[str, Any]) -> None:
        """Whether `data` has all that is required and nothing else, whatever it is. Raises ArgumentsError."""
        self._bind((), data)

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        try:
            self._signature.bind(*args, **kwargs)  # is slow, and knows what is wrong
        except TypeError as error:
            raise ArgumentsError(f"job {self.name!r}: {error}; it takes {self.shown}") from None

    def check(self, data: object) -> None:
        """Whether a job with this data could run. Raises ArgumentsError or PayloadError."""
        payload = encode_data(data, f"an argument of job {self.name!r}")
        try:
            self._decoder.decode(payload)
        except msgspec.ValidationError as error:
            raise self._wrong(error, data) from None

    @cached_property
    def _decoder(self) -> Decoder[Struct]:
        return Decoder(self._shape)

    # -- running

    def of(self, data: object) -> dict[str, Any]:
        """The arguments for a run, from the data of a job. Raises ArgumentsError."""
        try:
            values = msgspec.convert({} if data is None else data, self._shape)
        except msgspec.ValidationError as error:
            raise self._wrong(error, data) from None
        return {
            name: value
            for name in self._shape.__struct_fields__
            if (value := getattr(values, name)) is not UNSET
        }

    def _wrong(self, error: msgspec.ValidationError, data: object) -> ArgumentsError:
        problem, path = _parts(error)
        if not path:
            missing = _MISSING.fullmatch(problem)
            what = f"missing a required argument: {missing[1]!r}" if missing else f"its data: {problem}"
            return ArgumentsError(f"job {self.name!r}: {what}; it takes {self.shown}")
        value = shown(_at(data, path))
        return ArgumentsError(
            f"job {self.name!r}: argument {path}: {value} is not allowed: {problem}", argument=path
        )

    # -- results

    @cached_property
    def _result_decoder(self) -> Decoder[Any] | None:
        if self.result_type is Any:
            return None
        try:
            return Decoder(self.result_type)
        except TypeError as error:
            raise TypeError(f"job {self.name!r}: its result cannot be checked: {error}") from None

    def check_result(self, result: object) -> None:
        """Whether a result is what the function says it gives. Raises ResultError."""
        if self._result_decoder is None or (result is None and self.result_type is type(None)):
            return
        try:
            self._result_decoder.decode(encode_result(result, f"the result of job {self.name!r}"))
        except msgspec.ValidationError as error:
            problem, path = _parts(error)
            place = f" at {path}" if path else ""
            value = shown(_at(result, path))
            raise ResultError(
                f"job {self.name!r}: its result{place} is {value}, its annotation says otherwise: {problem}"
            ) from None


def _shown(parameter: inspect.Parameter) -> str:
    text, kind = parameter.name, parameter.annotation
    if kind is not parameter.empty:
        text += f": {kind if isinstance(kind, str) else inspect.formatannotation(kind)}"
    return text if parameter.default is parameter.empty else f"{text} = {shown(parameter.default)}"


def _parts(error: msgspec.ValidationError) -> tuple[str, str]:
    """What is wrong, and where: `to`, or `items[0].name`."""
    match = _WHERE.match(str(error))
    assert match is not None
    return match["problem"], (match["path"] or "").removeprefix(".")


def _at(value: Any, path: str) -> Any:
    """What stands at a path; as far as it can be followed."""
    for name, index in _STEP.findall(f".{path}" if path and path[0] != "[" else path):
        try:
            if index:
                value = value[int(index)]
            else:
                value = value[name] if isinstance(value, Mapping) else getattr(value, name)
        except (LookupError, TypeError, AttributeError):
            return value
    return value

"""The arguments and the result of a function as the data and the result of a job: a map by parameter name.

Any language can write such a map. Values are checked against the function's annotations twice: when a job is
added, so that the program with the mistake gets the error, and again before the job runs, because the data
may come from elsewhere.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any, NoReturn, get_type_hints

import msgspec
from msgspec import UNSET, Struct
from msgspec.msgpack import Decoder

from bunqueue.client.callables import name_of, signed
from bunqueue.client.connection.options import shown
from bunqueue.client.conversion.converter import Converter, changed
from bunqueue.client.conversion.mismatch import WRONG, Mismatch, below, mismatch
from bunqueue.client.options.job import encode_data
from bunqueue.client.options.plain_data import Declared, check_plain
from bunqueue.errors import ArgumentsError, ResultError
from bunqueue.model.decoders import decoder
from bunqueue.worker.reporting.results import encode_result

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_NAMED = re.compile(r"'(\w+)'$")  # the argument that Python reports as missing or unexpected
_MISSING = re.compile(r"Object missing required field `(.*)`")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


class Arguments:
    """The parameters of a function. Raises TypeError for a function whose arguments cannot be given by
    name."""

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
    def names(self) -> Collection[str]:
        """The names of the parameters."""
        return self._signature.parameters

    @property
    def declared(self) -> tuple[Mapping[str, inspect.Parameter], Mapping[str, Converter]]:
        """The parameters, and the converters of those with annotations."""
        return self._signature.parameters, self._converters

    @property
    def shown(self) -> str:
        """The parameters as they are written, for messages."""
        return f"({', '.join(map(_shown, self._signature.parameters.values()))})"

    # -- types

    @cached_property
    def _hints(self) -> dict[str, Any]:
        """The annotations, read late, so they may name something that is defined further down in a module."""
        try:
            return get_type_hints(signed(self._function), include_extras=True)
        except NameError as error:
            raise TypeError(
                f"job {self.name!r}: an annotation names {error.name!r}, which the module of "
                f"{name_of(self._function)} does not know when jobs run; import it outside TYPE_CHECKING"
            ) from None

    @cached_property
    def _converters(self) -> dict[str, Converter]:
        """The converters of the annotated parameters."""
        return {
            name: Converter(self._hints[name], f"job {self.name!r}: its parameter {name!r}")
            for name in self._signature.parameters
            if self._hints.get(name, Any) is not Any
        }

    @cached_property
    def _pydantics(self) -> dict[str, Converter]:
        """The converters whose values Pydantic checks."""
        return {name: each for name, each in self._converters.items() if each.by_pydantic}

    @cached_property
    def _records(self) -> dict[str, Converter]:
        """The converters whose values have declared fields."""
        return {name: each for name, each in self._converters.items() if each.records}

    @cached_property
    def _untyped(self) -> tuple[str, ...]:
        """Parameters whose values may be anything."""
        return tuple(
            name for name in self._signature.parameters if self._hints.get(name, Any) in (Any, object)
        )

    @cached_property
    def _shape(self) -> type[Struct]:
        """A struct with the parameters as fields. Those with a default may be left out."""
        fields: list[Any] = []
        for name, parameter in self._signature.parameters.items():
            converter = self._converters.get(name)
            kind = Any if converter is None or converter.by_pydantic else converter.hint
            fields.append((name, kind) if parameter.default is parameter.empty else (name, kind, UNSET))
        return msgspec.defstruct(f"Arguments of {self.name}", fields, kw_only=True)

    @cached_property
    def result_type(self) -> Any:
        """The type that the function returns, as far as it is known."""
        kind = self._hints.get("return", Any)
        return type(None) if kind is NoReturn else kind

    def check_known(self) -> None:
        """Like `check_annotations`, but skip annotations that name something defined further down: they are
        checked later."""
        try:
            get_type_hints(signed(self._function), include_extras=True)
            self.check_annotations()
        except (NameError, AttributeError):
            return

    def check_annotations(self) -> None:
        """Raise TypeError if an annotation cannot be used. Otherwise the first job would reveal it."""
        self._decoder  # noqa: B018  # made when it is first looked at
        self._result_converter  # noqa: B018

    # -- adding

    def data(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The data of a job that calls the function with these arguments. Raises ArgumentsError or
        PayloadError."""
        given = Declared(zip(self._positional, args, strict=False), **kwargs)
        known = self._required <= given.keys() <= self._signature.parameters.keys()
        if not known or len(given) < len(args) + len(kwargs):
            self._bind(args, kwargs)
        self.check(given)
        return given

    def check_names(self, data: Mapping[str, Any]) -> None:
        """Check that `data` has every required argument and no unknown one, whatever the values. Raises
        ArgumentsError."""
        self._bind((), data)

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        try:
            self._signature.bind(*args, **kwargs)  # slow, but its error says what is wrong
        except TypeError as error:
            text = f"job {self.name!r}: {error}; it takes {self.shown}"
            named = _NAMED.search(str(error))
            raise ArgumentsError(text, argument=named and named[1], bound=self.shown) from None

    def check(self, data: Mapping[str, Any]) -> None:
        """Check that a job with this data could run. Raises ArgumentsError or PayloadError."""
        payload = encode_data(data, f"an argument of job {self.name!r}")
        for name in self._untyped:
            if name in data:
                check_plain(data[name], f"the argument {name!r} of job {self.name!r}")
        try:
            found = self._decoder.decode(payload)
            if self._pydantics:
                self._convert(found)
            if self._records:
                self._check_records(data, found)
        except WRONG as error:
            raise self._wrong(mismatch(error), data) from None

    def _check_records(self, data: Mapping[str, Any], found: Struct) -> None:
        for name, converter in self._records.items():
            if converter.may_change and name in data:
                self._check_unchanged(name, data[name], getattr(found, name))

    def _check_unchanged(self, name: str, given: Any, arrived: Any) -> None:
        if (found := changed(given, arrived)) is not None:
            path, before, after = found
            raise ArgumentsError(
                f"job {self.name!r}: argument {name}{path}: {shown(before)} would arrive as a "
                f"{type(after).__qualname__}: declare {type(before).__qualname__}, or give the classes "
                f"something that tells them apart (a tag of msgspec, a discriminator of Pydantic)",
                argument=f"{name}{path}",
            )

    @cached_property
    def _decoder(self) -> Decoder[Struct]:
        return decoder(self._shape, self._hook)

    @cached_property
    def _hook(self) -> Callable[[Any, Any], Any] | None:
        """The hook with which msgspec decodes types that it does not know."""
        return next((each.hook for each in self._converters.values() if each.hook is not None), None)

    # -- running

    def of(self, data: object) -> dict[str, Any]:
        """The arguments for a run, from the data of a job. Raises ArgumentsError."""
        try:
            plain = {} if data is None else data
            found = (
                msgspec.convert(plain, self._shape)
                if self._hook is None  # passing a hook costs as much as everything else
                else msgspec.convert(plain, self._shape, dec_hook=self._hook)
            )
            if self._pydantics:
                self._convert(found)
        except WRONG as error:
            raise self._wrong(mismatch(error), data) from None
        return {
            name: value
            for name in self._shape.__struct_fields__
            if (value := getattr(found, name)) is not UNSET
        }

    def _convert(self, found: Struct) -> None:
        """Let Pydantic build its objects. Raises Mismatch."""
        for name, converter in self._pydantics.items():
            if (value := getattr(found, name)) is not UNSET:
                try:
                    setattr(found, name, converter.convert(value))
                except Mismatch as error:
                    raise below(name, error) from None

    def _wrong(self, error: Mismatch, data: object) -> ArgumentsError:
        problem, path = error.problem, error.path
        if not path:
            missing = _MISSING.fullmatch(problem)
            what = f"missing a required argument: {missing[1]!r}" if missing else f"its data: {problem}"
            argument = missing[1] if missing else None
            return ArgumentsError(f"job {self.name!r}: {what}; it takes {self.shown}", argument=argument)
        value = shown(_at(data, path))
        text = f"job {self.name!r}: argument {path}: {value} is not allowed: {problem}"
        return ArgumentsError(text, argument=path, value=value, bound=problem)

    # -- results

    @cached_property
    def _result_converter(self) -> Converter | None:
        if self.result_type is Any:
            return None
        return Converter(self.result_type, f"job {self.name!r}: its result")

    def check_result(self, result: object) -> None:
        """Check that a result matches the function's annotation. Raises ResultError."""
        converter = self._result_converter
        if converter is None or (result is None and self.result_type is type(None)):
            return
        try:
            arrived = converter.decode(encode_result(result, f"the result of job {self.name!r}"))
        except WRONG as error:
            raise self._wrong_result(result, mismatch(error)) from None
        if converter.records and converter.may_change and (found := changed(result, arrived)) is not None:
            path, before, after = found
            raise ResultError(
                f"job {self.name!r}: its result{path} is {shown(before)}, and would arrive as a "
                f"{type(after).__qualname__}; declare {type(before).__qualname__}",
                field=f"result{path}",
                value=shown(before),
                bound=type(after).__qualname__,
            )

    def _wrong_result(self, result: object, error: Mismatch) -> ResultError:
        place = f" at {error.path}" if error.path else ""
        value = shown(_at(result, error.path))
        where = f"result.{error.path}" if error.path else "result"
        text = (
            f"job {self.name!r}: its result{place} is {value}, its annotation says otherwise: {error.problem}"
        )
        return ResultError(text, field=where, value=value, bound=error.problem)


def _shown(parameter: inspect.Parameter) -> str:
    text, kind = parameter.name, parameter.annotation
    if kind is not parameter.empty:
        text += f": {kind if isinstance(kind, str) else inspect.formatannotation(kind)}"
    return text if parameter.default is parameter.empty else f"{text} = {shown(parameter.default)}"


def _at(value: Any, path: str) -> Any:
    """The value at a path, or the last one that could be reached."""
    for name, index in _STEP.findall(f".{path}" if path and path[0] != "[" else path):
        try:
            if index:
                value = value[int(index)]
            else:
                value = value[name] if isinstance(value, Mapping) else getattr(value, name)
        except (LookupError, TypeError, AttributeError):
            return value
    return value

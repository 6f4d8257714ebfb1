"""What an app declares about its functions to the server: their options, arguments and descriptions."""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Raw
from msgspec.msgpack import Decoder, Encoder

from bunqueue.app.queue_config import QueueConfig
from bunqueue.app.task import Task
from bunqueue.client.conversion.converter import Converter
from bunqueue.client.conversion.schema import MOST, schema_of
from bunqueue.client.options.job import default_fields, wire_fields
from bunqueue.model.functions import ACCEPT, MAX_DESCRIPTION
from bunqueue.protocol.commands.functions import DeclareFunctions, FunctionFields, FunctionOptions
from bunqueue.worker.reporting.failures import app_version
from bunqueue.worker.routes import ANY

if TYPE_CHECKING:
    from bunqueue.client.options.job import JobOptions

_DEFINITIONS = "#/$defs/"
_PLAIN = (type(None), bool, int, float, str)
_FIELDS = frozenset(FunctionOptions.__struct_fields__)
_encode, _decode = Encoder().encode, Decoder().decode


def declaration(app: str, defaults: JobOptions | None, config: QueueConfig) -> DeclareFunctions:
    """The command that declares the functions of a queue; `defaults` are those of the app. Raises OptionError
    or TypeError."""
    tasks = [task for name, task in config.tasks.items() if name == task.name]
    others = [name for name in (*config.routes, *config.batches) if name != ANY]
    return DeclareFunctions(
        queue=config.queue,
        functions=[
            *(_function(task, config, defaults) for task in tasks),
            *(FunctionFields(name=name) for name in others),
        ],
        app=app,
        version=app_version(),
        by=f"{socket.gethostname()}:{os.getpid()}"[-256:],
        invalid_jobs=config.settings.get("invalid_jobs", ACCEPT),
        any_name=ANY in config.routes,
    )


def _function(task: Task[..., Any], config: QueueConfig, defaults: JobOptions | None) -> FunctionFields:
    own = {name: value for name, value in task.own_options.items() if not isinstance(value, datetime)}
    found = wire_fields(own, default_fields(defaults))
    options = {name: value for name, value in found.items() if name in _FIELDS}
    return FunctionFields(
        name=task.name,
        aliases=[alias for alias in task.aliases if config.tasks.get(alias) is task],
        description=(inspect.getdoc(task.__wrapped__) or "")[:MAX_DESCRIPTION],
        options=FunctionOptions(**options) if options else None,
        schema=_schema(*task.arguments),
    )


def _schema(parameters: Mapping[str, inspect.Parameter], converters: Mapping[str, Converter]) -> Raw:
    """The JSON Schema of the data of a job that calls a function with these parameters."""
    properties: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    for name, parameter in parameters.items():
        converter = converters.get(name)
        found = None if converter is None else schema_of(converter)
        schema: dict[str, Any] = {} if found is None else _decode(found)
        properties[name] = _merged(schema, definitions, name)
        if type(parameter.default) in _PLAIN:
            properties[name]["default"] = parameter.default
    whole = {
        "type": "object",
        "properties": properties,
        "required": [name for name, each in parameters.items() if each.default is each.empty],
        "additionalProperties": False,
    }
    if definitions:
        whole["$defs"] = definitions
    encoded = _encode(whole)
    if len(encoded) > MOST:  # then at least the names
        encoded = _encode({**whole, "properties": {name: {} for name in parameters}, "$defs": {}})
    return Raw(encoded)


def _merged(schema: dict[str, Any], definitions: dict[str, Any], name: str) -> dict[str, Any]:
    """A schema without its definitions, which are added to those of the others. One that has the name of
    another gets a new name."""
    own: dict[str, Any] = schema.pop("$defs", {})
    renamed = {
        f"{_DEFINITIONS}{key}": f"{_DEFINITIONS}{name}.{key}"
        for key, each in own.items()
        if definitions.get(key, each) != each
    }
    for key, each in own.items():
        new = renamed.get(f"{_DEFINITIONS}{key}", f"{_DEFINITIONS}{key}").removeprefix(_DEFINITIONS)
        definitions[new] = _renamed(each, renamed)
    found: dict[str, Any] = _renamed(schema, renamed)
    return found


def _renamed(schema: Any, names: Mapping[str, str]) -> Any:
    if isinstance(schema, list):
        return [_renamed(each, names) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: names.get(each, each) if key == "$ref" and isinstance(each, str) else _renamed(each, names)
        for key, each in schema.items()
    }

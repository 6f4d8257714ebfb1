"""Filters that Spark offers to a source, as `Condition` objects.

Spark applies all of them again, so filters without an equivalent are left out.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from .conditions import Condition, Operator

_COMPARISONS: tuple[tuple[type[Filter], Operator], ...] = (
    (EqualTo, "="),
    (LessThan, "<"),
    (LessThanOrEqual, "<="),
    (GreaterThan, ">"),
    (GreaterThanOrEqual, ">="),
    (StringStartsWith, "starts"),
)


def conditions(filters: Iterable[Filter]) -> list[Condition]:
    """The conditions of those filters that have an equivalent."""
    return [condition for one in filters if (condition := _condition(one)) is not None]


def _condition(one: Filter) -> Condition | None:
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    if len(attribute) != 1:  # a `Not`, which contains another filter, or a field of a struct
        return None
    column = attribute[0]
    if isinstance(one, IsNull):
        return Condition(column, "null")
    if isinstance(one, IsNotNull):
        return Condition(column, "not null")
    if isinstance(one, In):
        return Condition(column, "in", list(one.value))
    for kind, operator in _COMPARISONS:
        if isinstance(one, kind):
            return Condition(column, operator, getattr(one, "value", None))
    return None

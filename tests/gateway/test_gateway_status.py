"""The status of a refusal is that of its code."""

from __future__ import annotations

from support.table import table

from bunqueue.gateway.http.status import INVALID, status_of
from bunqueue.protocol.codes import TABLE, Code


@table("code", Code)
def test_status(code: Code) -> None:
    assert status_of(code) == TABLE[code].status


def test_a_code_of_a_newer_server_is_about_the_request() -> None:
    assert status_of("OF_A_NEWER_SERVER") == INVALID

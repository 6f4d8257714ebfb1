"""Changes of the file of identities by command: one table is written anew, everything else stays as it is.

Each change is checked by reading its result, and replaces the file at once, so no server sees half of it.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from .directory import KEY_BYTES, MADE, hashed
from .identity_file import IdentitiesError, IdentityFile, IdentityRow, TokenRow, parse, read

ID_BYTES = 4
SECRET_BYTES = 32
MODE = 0o600  # of a new file; it holds no secret, but says who may do what

FIRST_LINES = "# Who may use the server, and for what. See docs/security.md and bunqueue identity --help.\n"

Rows = dict[str, IdentityRow]


class MadeToken(NamedTuple):
    """A new token, which is shown once, and what is kept of it."""

    text: str
    row: TokenRow


def make_token() -> MadeToken:
    """A token of 256 random bits."""
    number, salt = secrets.token_hex(ID_BYTES), secrets.token_bytes(KEY_BYTES)
    text = f"{MADE}_{number}_{secrets.token_urlsafe(SECRET_BYTES)}"
    return MadeToken(text, TokenRow(number, f"{salt.hex()}${hashed(text, salt).hex()}"))


def load(path: str) -> IdentityFile:
    """What the file says; nothing if there is no file yet. Raises IdentitiesError."""
    return parse(read(path) if os.path.exists(path) else "", path)


def change(path: str, name: str, new_row: Callable[[IdentityFile], IdentityRow | None]) -> None:
    """Write the table of one identity anew. ``new_row`` gets what the file says, and returns the table, or
    None to remove it. Raises IdentitiesError, and OSError if the file cannot be written."""
    with _alone(path):
        text = read(path) if os.path.exists(path) else FIRST_LINES
        before = parse(text, path)
        row = new_row(before)
        after = with_table(text, name, "" if row is None else table(name, row))
        expected = {**before.rows, name: row} if row is not None else dict(before.rows)
        if row is None:
            expected.pop(name)
        if not _means(after, expected):
            text = f"the table of {name} is written in an unusual way: change it by hand"
            raise IdentitiesError(f"{path}: {text}")
        _replace(path, after)


def _means(text: str, rows: Rows) -> bool:
    try:
        return parse(text, "").rows == rows
    except IdentitiesError:
        return False


def table(name: str, row: IdentityRow) -> str:
    """The table of an identity, as TOML."""
    lines = [f"[identities.{name}]", f"role = {_text(row.role)}"]
    if row.namespace:
        lines.append(f"namespace = {_text(row.namespace)}")
    if row.queues:
        lines.append(f"queues = [{', '.join(map(_text, row.queues))}]")
    if row.expires is not None:
        lines.append(f"expires = {_moment(row.expires)}")
    if row.names:
        lines.append(f"certificate = [{', '.join(map(_text, row.names))}]")
    if row.token_file:
        lines.append(f"token_file = {_text(row.token_file)}")
    if row.tokens:
        lines += ["tokens = [", *(f"    {_token(token)}," for token in row.tokens), "]"]
    return "\n".join(lines) + "\n"


def with_table(text: str, name: str, new: str) -> str:
    """The file with another table of an identity; without it if ``new`` is empty."""
    lines = text.splitlines(keepends=True)
    header = re.compile(rf"\s*\[\s*identities\s*\.\s*{re.escape(name)}\s*\]")
    start = next((number for number, line in enumerate(lines) if header.match(line)), None)
    if start is None:
        gap = "" if not text or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
        return text + gap + new
    rest = range(start + 1, len(lines))
    end = next((number for number in rest if re.match(r"\s*\[+\s*[A-Za-z]", lines[number])), len(lines))
    while end > start + 1 and re.match(r"\s*(#.*)?$", lines[end - 1]):  # comments belong to the next table
        end -= 1
    return "".join([*lines[:start], new, *lines[end:]])


def _token(token: TokenRow) -> str:
    until = "" if token.until is None else f", until = {_moment(token.until)}"
    return f"{{ id = {_text(token.id)}, hash = {_text(token.hash)}{until} }}"


def _text(value: str) -> str:
    """A TOML string. Its escapes are those of JSON."""
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


def _moment(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")


@contextmanager
def _alone(path: str) -> Iterator[None]:
    """Of several commands at the same time, one changes the file: they lock its folder."""
    descriptor = os.open(Path(path).parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: str, text: str) -> None:
    target = os.path.realpath(path)  # a link stays one
    mode = MODE
    with suppress(FileNotFoundError):
        mode = os.stat(target).st_mode & 0o777
    new = f"{target}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    os.chmod(new, mode)
    os.replace(new, target)

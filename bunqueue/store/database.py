"""Connecting to the store, and reading the one row that describes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import psycopg

FORMAT = 1  # of the tables
TABLES = Path(__file__).with_name("tables.sql")
ADOPTING, LEFT = "adopting", "left"  # see `Use`

_DEFAULTS = {
    "application_name": "bunqueue",
    "connect_timeout": "5",
    # A host that disappears silently is noticed within about ten seconds.
    "keepalives_idle": "3",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
    # If the URL has several hosts: use the one that accepts writes.
    "target_session_attrs": "read-write",
}

# Several hosts are tried one after the other, and one that hangs must not delay the rest.  2 s is libpq's
# minimum.
_SEVERAL = {"connect_timeout": "2"}

SESSION = """
    set synchronous_commit = on;
    set client_min_messages = warning;
    set statement_timeout = 0;
    set lock_timeout = 0;
    set idle_session_timeout = 0
"""
"""Overrides the role's settings: commits wait for the standby, and warnings about that are sent."""


class StoreError(Exception):
    """The store cannot be used in this way; the text says what to do."""


class StoreUnavailable(StoreError):
    """The store does not answer, at least not now."""


class StoreNotReady(StoreError):
    """The database has no tables for this server, or not those that it expects."""


class Use(NamedTuple):
    """Why no server may use a store: it is taking over a data folder, or its jobs have moved to a folder."""

    kind: str
    folder: str  # its id
    where: str  # for people: host and path

    @classmethod
    def parse(cls, text: str) -> Use:
        """Parse the `use` column of a store's row; if it is empty, so are the fields."""
        kind, _, rest = text.partition(" ")
        folder, _, where = rest.partition(" ")
        return cls(kind, folder, where)

    def __str__(self) -> str:
        return " ".join(self)


class Store(NamedTuple):
    """The row that describes the store."""

    format: int
    id: str
    shards: int
    gen: int
    cluster: str
    replicates: bool
    use: str


def conninfo(url: str) -> str:
    """The URL with our defaults for everything that it does not set.  StoreError if libpq cannot read it."""
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict, make_conninfo
    except ImportError:
        raise StoreError("a store needs psycopg: pip install 'bunqueue[store]'") from None
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error as error:
        raise StoreError(
            f"store: {_line(error)}; give a URL such as postgresql://user@host/database"
        ) from None
    several = _SEVERAL if "," in f"{given.get('host') or ''}{given.get('hostaddr') or ''}" else {}
    return make_conninfo(**{**_DEFAULTS, **several, **{key: str(value) for key, value in given.items()}})


def shown(url: str) -> str:
    """The URL's host and database as a text for people, without the password."""
    from psycopg.conninfo import conninfo_to_dict

    given = conninfo_to_dict(url)
    hosts, ports = (str(given.get(name) or "").split(",") for name in ("host", "port"))
    ports += [""] * len(hosts)
    where = ",".join(f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False))
    return f"{where or 'the local socket'}/{given.get('dbname') or given.get('user') or ''}"


@contextmanager
def connected(url: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A connection in autocommit mode.  StoreUnavailable if it cannot be made or breaks in the block;
    StoreError if PostgreSQL refuses a statement in the block."""
    info = conninfo(url)
    import psycopg

    try:
        with psycopg.connect(info, autocommit=True) as connection:
            connection.execute(SESSION)
            yield connection
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"the store at {shown(url)} does not answer: {_line(error)}") from error
    except psycopg.Error as error:
        raise StoreError(f"the store at {shown(url)} refuses: {_line(error)}") from error


@contextmanager
def certain(connection: psycopg.Connection[tuple[Any, ...]]) -> Iterator[None]:
    """Make sure that commits in the block are replicated.  StoreUnavailable if PostgreSQL sends a notice:
    when its wait for a standby is cancelled, it only sends a warning and still reports success."""
    notices: list[str] = []

    def note(notice: psycopg.errors.Diagnostic) -> None:
        notices.append(notice.message_primary or "a notice")

    connection.add_notice_handler(note)
    try:
        yield
    finally:
        connection.remove_notice_handler(note)
    if notices:
        raise StoreUnavailable(f"the store may not have replicated it: {_line(notices[0])}; run it again")


def read(connection: psycopg.Connection[tuple[Any, ...]]) -> Store:
    """Read the store's row.  StoreNotReady if the database has no store, or one of another format."""
    import psycopg

    try:
        row = connection.execute("select format from bunqueue.store").fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        row = None
    except psycopg.errors.InsufficientPrivilege as error:
        raise StoreNotReady(f"the role may not read the store's tables: {_line(error)}") from None
    if row is None:
        raise StoreNotReady("the database has no store of bunqueue yet: run 'bunqueue store init'")
    if row[0] != FORMAT:
        raise StoreNotReady(f"the store has format {row[0]}, and this version knows {FORMAT}: upgrade it")
    columns = ", ".join(Store._fields)
    (found,) = connection.execute(f"select {columns} from bunqueue.store").fetchall()
    return Store(*found)


def usable(connection: psycopg.Connection[tuple[Any, ...]], shards: int | None = None) -> Store:
    """Read the store's row.  StoreNotReady if a server with this number of shards may not use the store."""
    store = read(connection)
    if shards is not None and store.shards != shards:
        raise StoreNotReady(
            f"the store was made for {store.shards} shards, not {shards}: start with --shards {store.shards}"
        )
    if store.use:
        raise StoreNotReady(why_unusable(store.use))
    return store


def why_unusable(use: str) -> str:
    """Why no server may use a store whose row has this ``use``, and what to do."""
    kind, _, where = Use.parse(use)
    if kind == ADOPTING:
        return (
            f"the store is taking over the data folder {where}, which was interrupted: run 'bunqueue store "
            "adopt' there again"
        )
    return (
        f"the jobs of the store were taken out of it into the data folder {where}: start that one "
        "without --store, or make another store"
    )


def _line(error: object) -> str:
    """PostgreSQL's error text on one line."""
    return " ".join(str(error).split())

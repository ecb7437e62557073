"""Installs, upgrades and removes the schema; every start may call it."""

from .errors import JobQueueError
from .sql import SCHEMA_VERSION, SQL, migrations, text


def install(conn, *, virtual: bool, roles: bool) -> None:
    """One transaction under an advisory lock (with IF NOT EXISTS alone, 15 of 16 concurrent installs fail)."""
    with conn.transaction():
        conn.execute(SQL.install_lock)
        if conn.execute(SQL.installed).fetchone()[0]:
            _upgrade(conn, virtual)
        else:
            _create(conn, virtual)
        if roles:
            conn.execute(text("roles.sql"))


def uninstall(conn) -> None:
    with conn.transaction():
        conn.execute(SQL.install_lock)
        conn.execute(SQL.uninstall)


def _create(conn, virtual: bool) -> None:
    if conn.execute(SQL.schema_exists).fetchone()[0]:
        raise JobQueueError("a schema named jobqueue exists here that this package did not make: nothing was changed")
    conn.execute(text("schema.sql"))
    conn.execute(text("views.sql"))
    if virtual:
        conn.execute(text("virtual.sql"))
    conn.execute(SQL.set_meta, {"version": SCHEMA_VERSION, "virtual": virtual})


def _upgrade(conn, virtual: bool) -> None:
    version, installed_virtual = conn.execute(SQL.meta).fetchone()
    if installed_virtual != virtual:
        modes = {True: "virtual", False: "real"}
        raise JobQueueError(
            f"this database runs on {modes[installed_virtual]} time and is never changed to {modes[virtual]} time: "
            "rows of the one clock would lie in the other's future"
        )
    if version > SCHEMA_VERSION:
        raise JobQueueError(
            f"the schema here has version {version}, this package knows {SCHEMA_VERSION}: upgrade the package"
        )
    for number, statement in sorted(migrations().items()):
        if number > version:
            conn.execute(statement)
    if version < SCHEMA_VERSION:
        conn.execute(SQL.set_meta, {"version": SCHEMA_VERSION, "virtual": virtual})

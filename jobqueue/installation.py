"""Installs, upgrades, fences and removes the schema; every start may call install."""

import re
from typing import Any, NamedTuple

import psycopg

from . import limits
from .errors import JobQueueError
from .sql import SCHEMA_VERSION, SQL, migrations, text
from .transactions import together, value

_VIEW = re.compile(r"^create view jobqueue\.(\w+)", re.MULTILINE)


def install(conn: psycopg.Connection[Any], *, virtual: bool, roles: bool) -> None:
    """One transaction under an advisory lock (with IF NOT EXISTS alone, 15 of 16 concurrent installs fail)."""
    with together(conn):
        conn.execute(SQL.install_lock)
        if value(conn, SQL.installed):
            _upgrade(conn, virtual)
        else:
            _create(conn, virtual)
        if roles:
            _create_roles(conn)


def uninstall(conn: psycopg.Connection[Any]) -> None:
    with together(conn):
        conn.execute(SQL.install_lock)
        conn.execute(SQL.uninstall)


class Fenced(NamedTuple):
    """What a fence did: live jobs whose epoch was raised, leases taken away, the id after which new jobs begin."""

    jobs: int
    leases: int
    next_id: int


def fence(conn: psycopg.Connection[Any], raise_by: int) -> Fenced:
    """After a fail-over or a restore that may have lost claims, before workers start: raises every live epoch, or none.

    Live is what may still be claimed or redriven: every row that is not done. Leases that are out are reaped first, so
    that their owners are answered LOST; ids that the lost part of the database had given out are skipped.
    """
    by = limits.integer(raise_by, "raise", 1, 10**12)
    with together(conn):
        conn.execute(SQL.fence_lock)
        held = [row[0] for row in conn.execute(SQL.fence_leases).fetchall()]
        conn.execute(SQL.reap, {"ids": held, "delays": [0.0] * len(held)})
        jobs = conn.execute(SQL.fence, {"by": by}).rowcount
        return Fenced(jobs, len(held), value(conn, SQL.fence_ids))


def _create_roles(conn: psycopg.Connection[Any]) -> None:
    try:
        conn.execute(text("roles.sql"))
    except psycopg.errors.InsufficientPrivilege as error:
        reason = str(error).strip().splitlines()[0]
        raise JobQueueError(
            f"the roles can't be set up by this user ({reason}): it needs CREATEROLE, unless the three roles exist "
            "already, and must own the schema; nothing was changed"
        ) from error


def _create(conn: psycopg.Connection[Any], virtual: bool) -> None:
    if value(conn, SQL.schema_exists):
        raise JobQueueError("a schema named jobqueue exists here that this package did not make: nothing was changed")
    if (encoding := conn.info.parameter_status("server_encoding")) != "UTF8":
        raise JobQueueError(f"this database's encoding is {encoding}, and the queue stores any text: it needs UTF8")
    conn.execute(text("schema.sql"))
    conn.execute(text("views.sql"))
    if virtual:
        conn.execute(text("virtual.sql"))
    conn.execute(SQL.set_meta, {"version": SCHEMA_VERSION, "virtual": virtual})


def _upgrade(conn: psycopg.Connection[Any], virtual: bool) -> None:
    [(version, installed_virtual)] = conn.execute(SQL.meta).fetchall()
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
    if version < SCHEMA_VERSION:
        _migrate(conn, version)
        conn.execute(SQL.set_meta, {"version": SCHEMA_VERSION, "virtual": virtual})


def _migrate(conn: psycopg.Connection[Any], version: int) -> None:
    """The numbered steps after `version`. Views are made anew: a column that one shows can't change its type."""
    granted = conn.execute(SQL.view_grants).fetchall()
    for view in reversed(_VIEW.findall(text("views.sql"))):
        conn.execute(SQL.drop_view.format(view=view))  # a view of the user's that reads one refuses it, and says so
    for number, statement in sorted(migrations().items()):
        if number > version:
            conn.execute(statement)
    conn.execute(text("views.sql"))
    for [grant] in granted:
        conn.execute(grant)
    if value(conn, SQL.has_roles):
        conn.execute(text("roles.sql"))  # what was granted on the views has gone with them

"""Candidates: files written beside, fsynced and renamed; the database decides which one is the result.

    write     bytes or a file → DIR/<job>.<epoch>.<owner>.<sha256>, whole and durable, or not there at all
    recheck   the file still has the bytes whose digest is about to be published
    verify    what a job's row names, compared with the bytes that are there
    orphans   files that no row names and whose epoch has ended
    sweep     removes these after a grace; safe while publications run

A folder belongs to one database. Names are made here, so a user's name never becomes a path and none can collide.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO

import psycopg
from psycopg.rows import dict_row

from . import limits
from .errors import InfrastructureError, InvalidInput
from .model import Lease, is_result
from .outcome import Sight
from .sql import SQL
from .transactions import translated, value

Folder = str | os.PathLike[str]
Source = Folder | bytes | bytearray | memoryview  # the path of a file, or what it would hold

CHUNK_BYTES = 1 << 20
FILES_A_STEP = 1_000
_NAME = re.compile(r"(-?\d+)\.(\d+)\.([0-9a-f]{16})\.([0-9a-f]{64}|[0-9a-f]{16}\.part)")


@dataclass(frozen=True)
class Candidate:
    """A whole, durable file; its digest is the lower-case hex sha256 of its bytes."""

    path: Path
    digest: str
    size: int


@dataclass(frozen=True)
class Published:
    """What a job's row names, and what was found in the folder.

    state: available (the bytes have the digest), unavailable (missing or altered, see `reason`), earlier (published by
    an epoch that is not the job's last: no result), nothing, unknown job. `path` only where the bytes are verified.
    """

    job_id: int
    state: str
    reason: str
    name: str | None = None
    digest: str | None = None
    epoch: int | None = None
    owner: str | None = None
    path: Path | None = None


@dataclass(frozen=True)
class Orphan:
    """A candidate that is nobody's result, or (digest None) the rest of one whose writer was killed."""

    path: Path
    job_id: int
    epoch: int
    digest: str | None
    age_seconds: float  # from the file's mtime to the database's now
    known: bool  # False: no row, live or archived, has this id


# ---------------------------------------------------------------- writing


def write(folder: Folder, lease: Lease, path_or_bytes: Source, *, allow_empty: bool = False) -> Candidate:
    """A candidate of this lease; a file that is given is copied, so it may lie on any file system, and is left alone.

    Raises InvalidInput for a source that can't be read or is empty (unless allow_empty), InfrastructureError where the
    folder can't take the file (disk full, read-only): no half file is left.
    """
    chunks = _chunks(path_or_bytes)
    folder = Path(folder)
    stem = f"{lease.id}.{lease.epoch}.{_mark(lease.owner)}"
    part = folder / f"{stem}.{token_hex(8)}.part"
    with _clear_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            digest, size = _filled(part, chunks)
            if not size and not allow_empty:
                raise InvalidInput("the artefact is empty: pass allow_empty=True if it is meant to be")
            path = folder / f"{stem}.{digest}"
            part.rename(path)
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise
        _sync_folder(folder)
    return Candidate(path, digest, size)


def recheck(candidate: Candidate) -> None:
    """Raises InfrastructureError unless the file still has the bytes that were written."""
    found = _digest(candidate.path)
    if found != candidate.digest:
        what = "altered since it was written" if found else "gone"
        raise InfrastructureError(f"the candidate {candidate.path.name} is {what}: nothing was published")


def _chunks(source: Source) -> Iterator[bytes | memoryview]:
    if isinstance(source, (bytes, bytearray, memoryview)):
        return iter((memoryview(source).cast("B"),))
    if not isinstance(source, (str, os.PathLike)):
        raise InvalidInput(f"an artefact is bytes or the path of a file, not {type(source).__name__}")
    try:
        if not stat.S_ISREG(os.stat(source).st_mode):
            raise InvalidInput(f"the artefact {os.fspath(source)!r} is not a regular file")
        return _read(open(source, "rb"), source)
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"the artefact {os.fspath(source)!r} can't be read: {error}") from error


def _read(file: BinaryIO, source: Folder) -> Iterator[bytes]:
    with file:
        while True:
            try:
                chunk = file.read(CHUNK_BYTES)
            except OSError as error:
                raise InvalidInput(f"the artefact {os.fspath(source)!r} can't be read: {error}") from error
            if not chunk:
                return
            yield chunk


def _filled(part: Path, chunks: Iterator[bytes | memoryview]) -> tuple[str, int]:
    digest, size = sha256(), 0
    with open(part, "xb") as file:
        for chunk in chunks:
            digest.update(chunk)
            size += file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest(), size


def _sync_folder(folder: Path) -> None:
    """Without it a crash of the machine may forget the rename, after the database has confirmed the publication."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def _clear_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InfrastructureError(
            f"the folder {str(folder)!r} can't take the candidate: {error.strerror or error}"
        ) from error


def _mark(owner: str) -> str:
    """Owners hold any characters, a file name does not; two owners of one epoch (a lost claim) need two names."""
    return sha256(owner.encode()).hexdigest()[:16]


def _digest(path: Path) -> str | None:
    try:
        with open(path, "rb") as file:
            digest = sha256()
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
            return digest.hexdigest()
    except OSError:
        return None


# ---------------------------------------------------------------- reading


def verify(conn: psycopg.Connection[Any], folder: Folder, job_id: int) -> Published:
    """What the row names, only after its bytes were compared; never a candidate that was not published."""
    row = _sights(conn, [limits.job_id(job_id)]).get(job_id)
    if row is None:
        return Published(job_id, "unknown job", "there is no row with this id, live or archived")
    if row.published_digest is None or row.published_by is None:
        return Published(job_id, "nothing", "nothing was published")
    named = (row.published_name, row.published_digest, row.published_epoch, row.published_by)
    if not is_result(row):
        return Published(job_id, "earlier", f"epoch {row.epoch} has begun since and has published nothing", *named)
    path = Path(folder) / f"{job_id}.{row.published_epoch}.{_mark(row.published_by)}.{row.published_digest}"
    found = _digest(path)
    if found == row.published_digest:
        return Published(job_id, "available", "the bytes have the published digest", *named, path)
    reason = "its file is missing or can't be read" if found is None else f"its file was altered: its sha256 is {found}"
    return Published(job_id, "unavailable", reason, *named)


def orphans(conn: psycopg.Connection[Any], folder: Folder) -> list[Orphan]:
    """Files whose epoch has ended and which no row names; those of jobs without a row, too (known=False)."""
    return [orphan for step in _orphans_by_step(conn, folder) for orphan in step]


def sweep(
    conn: psycopg.Connection[Any], folder: Folder, *, grace_seconds: float, unknown_after_seconds: float | None = None
) -> int:
    """Removes orphans older than the grace; returns how many. Any number may sweep at once, while publications run.

    A file without a row stays (its database may have been restored to an older state) unless unknown_after_seconds says
    how old it must be: for an archive that is pruned after that time.
    """
    return sum(sweeping(conn, folder, grace_seconds=grace_seconds, unknown_after_seconds=unknown_after_seconds))


def sweeping(
    conn: psycopg.Connection[Any], folder: Folder, *, grace_seconds: float, unknown_after_seconds: float | None = None
) -> Iterator[int]:
    """As `sweep`, in steps of 1,000 files, so that a loop can stop in between."""
    grace = limits.delay_seconds(grace_seconds, "grace_seconds")
    unknown = unknown_after_seconds
    if unknown is not None:
        unknown = limits.delay_seconds(unknown, "unknown_after_seconds")
    for step in _orphans_by_step(conn, folder):
        yield sum(_removed(orphan.path) for orphan in step if _is_over(orphan, grace, unknown))


def _is_over(orphan: Orphan, grace: float, unknown: float | None) -> bool:
    least = grace if orphan.known else unknown
    return least is not None and (not least or orphan.age_seconds >= least)


def _removed(path: Path) -> bool:
    try:
        path.unlink()
        return True
    except FileNotFoundError:  # another janitor was faster
        return False
    except OSError as error:
        raise InfrastructureError(f"the orphan {str(path)!r} can't be removed: {error.strerror}") from error


def _orphans_by_step(conn: psycopg.Connection[Any], folder: Folder) -> Iterator[list[Orphan]]:
    """The order is the proof: a row read after its file was listed, with that epoch ended, can't name it later."""
    with _listed(folder) as entries:
        named = ((entry, _NAME.fullmatch(entry.name)) for entry in entries)
        files = ((entry, match) for entry, match in named if match and abs(_job(match)) < 2**63)
        while listed := list(islice(files, FILES_A_STEP)):
            found = _sights(conn, list({_job(match) for _, match in listed}))
            with translated(conn):
                now = value(conn, SQL.database_now).timestamp()
            step = (_orphan(entry, match, found.get(_job(match)), now) for entry, match in listed)
            yield [orphan for orphan in step if orphan]


@contextmanager
def _listed(folder: Folder) -> Iterator[Iterable[os.DirEntry[str]]]:
    entries: AbstractContextManager[Iterable[os.DirEntry[str]]]
    try:
        entries = os.scandir(folder)
    except FileNotFoundError:  # nothing was ever written
        entries = nullcontext(())
    except OSError as error:
        raise InfrastructureError(f"the folder {str(folder)!r} can't be listed: {error.strerror}") from error
    with entries as listed:
        yield listed


def _job(match: re.Match[str]) -> int:
    return int(match[1])


def _orphan(entry: os.DirEntry[str], match: re.Match[str], row: Sight | None, now: float) -> Orphan | None:
    if row is not None and not _is_orphan(match, row):
        return None
    try:
        age = now - entry.stat().st_mtime
    except FileNotFoundError:
        return None
    digest = None if match[4].endswith(".part") else match[4]
    return Orphan(Path(entry.path), _job(match), int(match[2]), digest, age, row is not None)


def _is_orphan(match: re.Match[str], row: Sight) -> bool:
    epoch, mark, digest = int(match[2]), match[3], match[4]
    if row.epoch < epoch:  # this database has lost a claim (a fail-over, a restore): it can't tell
        return False
    if row.status == "running" and row.locked_by and (row.epoch, _mark(row.locked_by)) == (epoch, mark):
        return False
    if row.published_by is None:
        return True
    return (row.published_epoch, _mark(row.published_by), row.published_digest) != (epoch, mark, digest)


def _sights(conn: psycopg.Connection[Any], ids: list[int]) -> dict[int, Sight]:
    with translated(conn), conn.cursor(row_factory=dict_row) as cursor:
        return {row.pop("id"): Sight(**row) for row in cursor.execute(SQL.look, {"ids": ids}).fetchall()}

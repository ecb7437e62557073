"""Cleans up in bounded batches: archive, idempotency keys, what is kept for a while, orphans; any number may run."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from . import limits, publication
from .errors import InvalidInput
from .loop import Loop
from .publication import Folder
from .queue import TERMINAL
from .sql import SQL
from .transactions import translated

# An idle worker writes its listener row anew every 30 s.
KEEP_SECONDS = {"incidents": 7 * 86_400, "missed_slots": 30 * 86_400, "listeners": 300}


class Janitor(Loop):
    """Archives rows that finished so long ago, forgets their keys and (archive_ttl_seconds) them, sweeps `artifacts`.

    archive_after_seconds: one age for all `statuses`, or {status: seconds}, which then says the statuses, too. Dead
    letters stay, to be redriven, unless asked for. A live job's key never expires; effects are never forgotten.
    A pass takes one batch of each kind, 1,000 rows or files at most; the next follows at once while there is more.
    """

    role = "janitor"

    def __init__(
        self,
        dsn: str,
        *,
        archive_after_seconds: float | dict[str, float] = 86_400,
        statuses: Sequence[str] = ("done",),
        key_ttl_seconds: float = 2_592_000,
        archive_ttl_seconds: float | None = None,
        artifacts: Folder | None = None,
        orphan_grace_seconds: float = 3_600,
        poll_seconds: float = 60,
        limit: int = 1_000,
        prepare_threshold: int | None = 5,
    ) -> None:
        super().__init__(dsn, poll_seconds=poll_seconds, prepare_threshold=prepare_threshold)
        self.archive_after_seconds = _ages(archive_after_seconds, statuses)
        self.key_ttl_seconds = limits.delay_seconds(key_ttl_seconds, "key_ttl_seconds")
        ttl = archive_ttl_seconds
        self.archive_ttl_seconds = ttl and limits.delay_seconds(ttl, "archive_ttl_seconds")
        self.artifacts = artifacts
        self.orphan_grace_seconds = limits.delay_seconds(orphan_grace_seconds, "orphan_grace_seconds")
        self.limit = limits.batch(limit)
        self._sweeping: Iterator[int] | None = None

    def run_once(self) -> int:
        """One batch of each kind; returns how many rows and files moved or went. `stop` ends it between batches."""
        done = 0
        for batch in self._batches():
            if self._stopping.is_set():
                break
            done += batch()
        return done

    def after_outage(self) -> None:
        """The pass over the folder holds the lost connection: begin it anew."""
        self._sweeping = None

    def _batches(self) -> Iterator[Callable[[], int]]:
        for status, age in self.archive_after_seconds.items():
            yield partial(self._archive, status, age)
        yield partial(self._delete, SQL.purge_keys, self.key_ttl_seconds)
        if self.archive_ttl_seconds is not None:
            yield partial(self._delete, SQL.prune_archive, self.archive_ttl_seconds)
        for name, age in KEEP_SECONDS.items():
            yield partial(self._delete, getattr(SQL, f"prune_{name}"), age)
        if self.artifacts is not None:
            yield partial(self._sweep, self.artifacts)

    def _archive(self, status: str, age: float) -> int:
        return self.session.queue.archive(older_than_seconds=age, statuses=[status], limit=self.limit)

    def _delete(self, statement: str, age: float) -> int:
        with translated(self.session.conn) as conn:
            return conn.execute(statement, {"age": age, "limit": self.limit}).rowcount

    def _sweep(self, folder: Folder) -> int:
        """The next step of the pass over the folder; a pass that has come to its end begins again."""
        removed = next(self._sweeping, None) if self._sweeping else None
        if removed is None:
            self._sweeping = self._pass(folder)
            removed = next(self._sweeping, 0)
        return removed

    def _pass(self, folder: Folder) -> Iterator[int]:
        unknown = None if self.archive_ttl_seconds is None else self.archive_ttl_seconds + self.orphan_grace_seconds
        grace = self.orphan_grace_seconds
        return publication.sweeping(self.session.conn, folder, grace_seconds=grace, unknown_after_seconds=unknown)


def _ages(after: float | dict[str, float], statuses: Sequence[str]) -> dict[str, float]:
    if isinstance(statuses, str) or set(statuses) - set(TERMINAL):
        raise InvalidInput(f"statuses must be some of {', '.join(TERMINAL)}, not {statuses!r}")
    ages = after if isinstance(after, dict) else dict.fromkeys(statuses, after)
    if set(ages) - set(TERMINAL):
        raise InvalidInput(f"archive_after_seconds must be by {', '.join(TERMINAL)}, not {after!r}")
    return {status: limits.delay_seconds(age, f"archive_after_seconds of {status}") for status, age in ages.items()}

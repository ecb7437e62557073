"""What a held snapshot costs: claim latency over jobs churned beside it, by how claims begin, vacuum and archive.

    found = horizon.study(jobs=20_000)           # a row a round: variant, jobs, claim_seconds, dead_tuples, …
    horizon.table(found)                         # first tenth against last tenth, by variant

One connection enqueues, claims and completes batch after batch by the shipped verbs, at an even backlog; another holds
a snapshot open from the beginning on, as a long report or a forgotten `psql` does. Nothing else runs on the database.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import psycopg
from psycopg import sql
from tqdm.auto import tqdm

from .. import limits
from ..errors import InvalidInput
from ..model import Claim
from ..queue import Queue
from ..sql import statements, text
from . import database, load

SQL = statements(text("lab/horizon.sql"))
BATCH = 100  # jobs a round
BACKLOG = 200  # due jobs that wait all the time, as in a queue that is just kept up with
LOOK_ROUNDS = 10  # between two looks at the dead rows
FULL_SCAN_SECONDS = 0.5  # a claim from the oldest due job on, so often: late commits and retries land behind the mark
TENTH = 0.1
POSTGRES_DEFAULTS = {
    "autovacuum_vacuum_scale_factor": 0.2,
    "autovacuum_vacuum_threshold": 50,
    "autovacuum_vacuum_cost_delay": 2,
}


@dataclass(frozen=True)
class Variant:
    """held: a snapshot is. watermark: a claim begins where the last one ended. archive: rounds between passes, or 0.

    autovacuum: settings of the table job in place of the shipped ones; None switches it off.
    """

    name: str
    held: bool = True
    watermark: bool = True
    archive: int = 0
    autovacuum: Mapping[str, float] | None = field(default_factory=dict)


VARIANTS = (
    Variant("no snapshot held", held=False),
    Variant("held, with watermark"),
    Variant("held, without watermark", watermark=False),
    Variant("held, with watermark and archive", archive=10),
)
VACUUMS = (
    Variant("shipped autovacuum", held=False, watermark=False),
    Variant("PostgreSQL's defaults", held=False, watermark=False, autovacuum=POSTGRES_DEFAULTS),
    Variant("no autovacuum", held=False, watermark=False, autovacuum=None),
)


def study(
    variants: Sequence[Variant] = VARIANTS,
    *,
    jobs: int = 20_000,
    naptime_seconds: int = 1,
    dsn: str | None = None,
    prefix=None,
    confirm: load.Confirm = None,
    progress: bool = True,
) -> pd.DataFrame:
    """A row a round of 100 jobs: variant, jobs (churned so far), busy_seconds, claim_seconds, dead_tuples, bytes.

    Variants take turns round by round, each in a database of its own, so that they meet the same machine. `dsn` and
    `confirm` as in `load.run`. naptime_seconds: the period of the embedded server's autovacuum, which by default looks
    once a minute whatever a table's settings say; a server of yours keeps its own.
    """
    jobs = limits.integer(jobs, "jobs", 10 * BATCH, 10_000_000)
    if not variants or len({variant.name for variant in variants}) < len(variants):
        raise InvalidInput("variants need names of their own, and there must be one at least")
    said = (
        f"The study makes {len(variants) + 1} databases of its own there, churns {jobs:,} jobs in each, and drops them."
    )
    settings = {"autovacuum_naptime": f"{limits.integer(naptime_seconds, 'naptime_seconds', 1, 3600)}s"}
    with ExitStack() as stack:
        own, _ = stack.enter_context(load.place(dsn, prefix, confirm, said, settings))
        rounds = [stack.enter_context(_variant(own, variant)) for variant in variants]
        turns = tqdm(range(BATCH, jobs + 1, BATCH), unit="round", desc="horizon", disable=not progress)
        rows = [(each.variant.name, count, *each.one()) for count in turns for each in rounds]
    found = pd.DataFrame(rows, columns=COLUMNS)
    return found.sort_values("variant", key=lambda names: names.map(_order(variants)), kind="stable", ignore_index=True)


COLUMNS = ["variant", "jobs", "busy_seconds", "claim_seconds", "dead_tuples", "vacuums", "bytes"]


def _order(variants: Sequence[Variant]) -> dict[str, int]:
    return {variant.name: place for place, variant in enumerate(variants)}


def table(found: pd.DataFrame) -> pd.DataFrame:
    """By variant: median claim of the first and the last tenth, ratio of the rates, dead rows and size at the end."""
    return pd.DataFrame([_tenths(name, rows) for name, rows in found.groupby("variant", sort=False)])


def _tenths(name: str, rows: pd.DataFrame) -> dict:
    count = max(2, int(len(rows) * TENTH))
    first, last = rows.head(count), rows.tail(count)
    rates = [BATCH * (count - 1) / np.ptp(part["busy_seconds"]) for part in (first, last)]
    return {
        "variant": name,
        "claim_first_ms": 1000 * first["claim_seconds"].median(),
        "claim_last_ms": 1000 * last["claim_seconds"].median(),
        "rate_last_to_first": rates[1] / rates[0],
        "dead_tuples": last["dead_tuples"].iloc[-1],
        "megabytes": last["bytes"].iloc[-1] / 1e6,
    }


@contextmanager
def _variant(server: str, variant: Variant) -> Iterator["_Rounds"]:
    """In a new database: its settings, the backlog, the held snapshot."""
    with database.scratch(server) as own, psycopg.connect(own, autocommit=True) as conn:
        queue = Queue(conn)
        queue.install()
        _set_autovacuum(conn, variant)
        queue.enqueue_many([{"type": "job"}] * BACKLOG)
        with _held(own) if variant.held else nullcontext():
            yield _Rounds(queue, variant)


class _Rounds:
    """Enqueue a batch, claim a batch, complete it; what the claim took."""

    def __init__(self, queue: Queue, variant: Variant):
        self.variant, self._queue = variant, queue
        self._after: tuple | None = None
        self._busy_seconds = self._scanned_at = 0.0
        self._done, self._seen = 0, (0.0, 0, 0.0)

    def one(self) -> tuple[float, float, float, int, float]:
        """busy_seconds so far, claim_seconds of this one, dead_tuples, vacuums and bytes as they were seen last."""
        began, queue = time.perf_counter(), self._queue
        queue.enqueue_many([{"type": "job"}] * BATCH)
        took, claim = self._claim()
        queue.complete_many(list(claim))
        self._done += 1
        if self.variant.archive and self._done % self.variant.archive == 0:
            queue.archive(older_than_seconds=0)
        self._busy_seconds += time.perf_counter() - began
        if self._done % LOOK_ROUNDS == 0:
            self._seen = queue.conn.execute(SQL.state).fetchone()
        return (self._busy_seconds, took, *self._seen)

    def _claim(self) -> tuple[float, Claim]:
        if not self.variant.watermark or self._busy_seconds - self._scanned_at > FULL_SCAN_SECONDS:
            self._after, self._scanned_at = None, self._busy_seconds
        began = time.perf_counter()
        _, claim = self._queue.exchange([], "churn", leases={"job": 60.0}, slots=BATCH, after=self._after)
        took = time.perf_counter() - began
        self._after = claim.last
        return took, claim


@contextmanager
def _held(dsn: str) -> Iterator[None]:
    with psycopg.connect(dsn) as conn:
        for statement in SQL.hold.split(";"):
            conn.execute(statement)
        yield
        conn.rollback()


def _set_autovacuum(conn: psycopg.Connection, variant: Variant) -> None:
    if variant.autovacuum is None:
        conn.execute(SQL.no_autovacuum)
    elif variant.autovacuum:
        pairs = [sql.SQL("{} = {}").format(sql.Identifier(k), sql.Literal(v)) for k, v in variant.autovacuum.items()]
        conn.execute(sql.SQL(SQL.autovacuum).format(settings=sql.SQL(", ").join(pairs)))

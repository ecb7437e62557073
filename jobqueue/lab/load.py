"""When is a broker needed? A ramp of real load against a real server, what it cost, and the verdict computed from it.

    result = load.run(workers=2, target_age_seconds=0.5, required_rate=800)
    print(result.text()); result.verdict.sustainable_rate; charts.load_curve(result.steps, result.verdict)
    load.vary("prefetch", (0, 10, 50, 200), rate=2000, enqueue_batch=50)     # one step for each value

By default against an embedded server of its own. Where JOBQUEUE_DSN names one of yours: in a database of its own there,
made and dropped, after it has said so and was told yes (`confirm`). Producers and workers are real processes; nothing
of it is left, also after an interrupt.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import pandas as pd
import psutil
import psycopg
from psycopg.rows import dict_row
from tqdm.auto import tqdm

from .. import limits
from ..errors import InvalidInput
from ..queue import Queue
from . import database, export, style, verdict
from .ramp import SQL, Rig, Setting, Step

FIRST_RATE, FACTOR, MOST_STEPS = 100.0, 1.6, 20
MISSES = 2  # steps beyond the target, so that the curve shows where it goes
DRAIN_SHARE, DRAIN_SECONDS = 3.0, 5.0  # of a step, and more: the time that a backlog is given to go
FRAMES = ("steps", "waits", "ages")
Confirm = bool | Callable[[str], bool] | None


@dataclass(frozen=True)
class Result:
    """What a ramp measured. steps: a row an offered rate (`ramp`); waits, ages: with `offered`; facts: where, and when.

    Rates are jobs a second, instants and quantiles seconds.
    """

    setting: Setting
    target_age_seconds: float
    required_rate: float | None
    seed: int
    facts: dict
    steps: pd.DataFrame
    waits: pd.DataFrame
    ages: pd.DataFrame

    @cached_property
    def verdict(self) -> verdict.Verdict:
        asked = {"target_age_seconds": self.target_age_seconds, "required_rate": self.required_rate}
        return verdict.judge(self.steps, **asked, enqueue_batch=self.setting.enqueue_batch)

    @property
    def sustained(self) -> bool:
        """Whether the required rate is; True where none was asked for."""
        kept = self.verdict.sustainable_rate
        return self.required_rate is None or (kept is not None and kept >= self.required_rate)

    def text(self) -> str:
        """The verdict in sentences, each computed from the run."""
        return "\n".join(_sentences(self))

    def parameters(self) -> dict:
        """All that a reader needs to make it again, as plain JSON values."""
        asked = {"target_age_seconds": self.target_age_seconds, "required_rate": self.required_rate}
        return {"seed": self.seed, **asked, **asdict(self.setting), "facts": self.facts}

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """run.json (kind, parameters, verdict, text) and a csv a frame; `read` takes them back. The folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        told = {"kind": "load", "parameters": self.parameters(), "verdict": asdict(self.verdict)}
        told |= {"text": self.text(), "frames": list(FRAMES)}
        for name in FRAMES:
            (folder / f"{name}.csv").write_bytes(export.csv(getattr(self, name)))
        (folder / "run.json").write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return folder


def read(folder: str | os.PathLike[str]) -> Result:
    """A result as `save` wrote it; the verdict is computed anew."""
    folder = Path(folder)
    try:
        told = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        frames = {name: _numbers(pd.read_csv(folder / f"{name}.csv")) for name in FRAMES}
        known = dict(told["parameters"])
        own = {name: known.pop(name) for name in ("seed", "target_age_seconds", "required_rate", "facts")}
        return Result(setting=Setting(**known), **own, **frames)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{folder.name} holds no stored load run: {error}") from None


def run(
    *,
    target_age_seconds: float = 0.5,
    required_rate: float | None = None,
    rates: Sequence[float] | None = None,
    step_seconds: float = 5.0,
    limit_seconds: float = 180.0,
    seed: int = 1,
    dsn: str | None = None,
    prefix=None,
    confirm: Confirm = None,
    progress: bool = True,
    **setting,
) -> Result:
    """Offered rates upward until two steps miss the target, the rates or the time are used up; then one in between.

    rates: by default from 100 a second, each 1.6 times the last. dsn: a server to use without a question, in a database
    of its own there. setting: fields of `Setting`. Raises JobQueueError where the server is not ours to use.
    """
    chosen = Setting(**setting)
    wanted = _checked_rates(rates)
    target = limits.seconds(target_age_seconds, "target_age_seconds", 0.001, 3600)
    step_seconds = limits.seconds(step_seconds, "step_seconds", 1, 600)
    until = time.monotonic() + limits.seconds(limit_seconds, "limit_seconds", 1, 86_400)
    required = None if required_rate is None else limits.seconds(required_rate, "required_rate", 0.001, 1e6)
    with place(dsn, prefix, confirm, warning(chosen, limit_seconds)) as (own, source):
        facts = _facts(own, source)
        with Rig(own, chosen) as rig:
            steps = _climb(rig, wanted, target, step_seconds, until, seed, progress)
    return _result(chosen, target, required, seed, facts, steps)


def vary(
    name: str,
    values: Sequence,
    *,
    rate: float,
    step_seconds: float = 4.0,
    seed: int = 1,
    dsn: str | None = None,
    prefix=None,
    confirm: Confirm = None,
    progress: bool = True,
    **setting,
) -> pd.DataFrame:
    """One step at the same offered rate for each value of a field of `Setting`: the value, then the columns of a step.

    Each in a database of its own, so that none meets what another left, with a fleet of its own.
    """
    chosen = [Setting(**{**setting, name: value}) for value in values]
    (rate,) = _checked_rates([rate])
    said, rows = warning(chosen[0], len(chosen) * (step_seconds + DRAIN_SECONDS)), []
    with place(dsn, prefix, confirm, said) as (server, _):
        for value, one in tqdm(list(zip(values, chosen, strict=True)), desc=name, disable=not progress):
            with _fresh(server) as own, Rig(own, one) as rig:
                rows.append({name: value} | rig.step(rate, step_seconds, f"{seed}").row)
    return pd.DataFrame(rows)


def warning(setting: Setting, limit_seconds: float) -> str:
    """What a load does to a server that is not ours."""
    sessions = setting.producers * setting.connections + setting.workers * (3 + setting.concurrency) + 4
    return (
        f"The load test makes a database of its own there, fills it for at most {style.duration(limit_seconds)} with "
        f"as many jobs as the server bears, over up to {sessions} sessions ({setting.workers} workers and "
        f"{setting.producers * setting.connections} producers), and drops it. It writes WAL and uses the server's "
        "processors and disk: whoever else is on that server will feel it."
    )


@contextmanager
def place(
    dsn: str | None, prefix, confirm: Confirm, said: str, settings: Mapping[str, object] | None = None
) -> Iterator[tuple[str, str]]:
    """(DSN of a database with an empty schema, where that is): on an own server, or in an own database on yours.

    settings: PostgreSQL's, of an own server.
    """
    given = dsn or os.environ.get("JOBQUEUE_DSN")
    with ExitStack() as stack:
        if prefix is None and given:
            if dsn is None:
                asked = f"JOBQUEUE_DSN names {database.redacted(given)}. {said}"
                database.agree(asked, bool(confirm(asked)) if callable(confirm) else confirm)
            server, source = database.reachable(given), "a server of yours"
        else:
            own = stack.enter_context(database.Server(prefix, settings=settings))
            server, source = own.dsn, f"an embedded server ({own.source})"
        yield stack.enter_context(_fresh(server)), source


@contextmanager
def _fresh(server: str) -> Iterator[str]:
    """DSN of a new database with an empty schema, dropped at the end."""
    with database.scratch(server) as own:
        with psycopg.connect(own, autocommit=True) as conn:
            Queue(conn).install()
        yield own


def _climb(
    rig: Rig, rates: Sequence[float], target: float, step_seconds: float, until: float, seed: int, progress: bool
) -> list[Step]:
    steps: list[Step] = []
    left = DRAIN_SECONDS + step_seconds
    with tqdm(total=len(rates), unit="step", desc="load", disable=not progress) as bar:
        for rate in rates:
            if time.monotonic() + left > until or _missed(steps, target) >= MISSES:
                break
            steps.append(rig.step(rate, step_seconds, f"{seed}"))
            bar.update()
            bar.set_postfix_str(f"{rate:,.0f}/s: age p95 {style.duration(steps[-1].row['age_p95_seconds'])}")
            if not rig.drain(_drain_seconds(step_seconds)):
                return steps
        between = _between(steps, target)
        if between and time.monotonic() + left < until:
            steps.append(rig.step(between, step_seconds, f"{seed}"))
    if not steps:
        raise InvalidInput("limit_seconds leaves no time for a single step")
    return steps


def _missed(steps: Sequence[Step], target: float) -> int:
    return int((~verdict.meets(_table(steps), target)).sum()) if steps else 0


def _between(steps: Sequence[Step], target: float) -> float | None:
    """The geometric mean of the last rate that is sustained and the first that is not."""
    if not steps:
        return None
    found = verdict.judge(_table(steps), target_age_seconds=target)
    if found.sustainable_rate is None or found.missed_rate is None:
        return None
    return float(f"{math.sqrt(found.sustainable_rate * found.missed_rate):.3g}")


def _table(steps: Sequence[Step]) -> pd.DataFrame:
    found = pd.DataFrame([step.row for step in steps]).astype(float)
    return found.sort_values("offered", kind="stable", ignore_index=True)


def _result(setting: Setting, target: float, required, seed: int, facts: dict, steps: Sequence[Step]) -> Result:
    def gathered(name: str) -> pd.DataFrame:
        parts = [getattr(step, name).assign(offered=step.row["offered"]) for step in steps]
        return pd.concat(parts, ignore_index=True).sort_values("offered", kind="stable", ignore_index=True)

    return Result(setting, target, required, seed, facts, _table(steps), gathered("waits"), gathered("ages"))


def _numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """As they were measured: a csv shows a whole float as an integer."""
    return frame.astype(dict.fromkeys(frame.select_dtypes("number"), float))


def _facts(dsn: str, source: str) -> dict:
    with psycopg.connect(dsn, autocommit=True, row_factory=dict_row) as conn:
        told = conn.execute(SQL.server).fetchone() or {}
    return {"server": source, "processors": psutil.cpu_count(), "revision": style.revision(),
            "measured": f"{datetime.now(UTC):%Y-%m-%d}", **told}  # fmt: skip


def _checked_rates(rates: Sequence[float] | None) -> list[float]:
    if rates is None:
        return [float(f"{FIRST_RATE * FACTOR**k:.2g}") for k in range(MOST_STEPS)]
    checked = [limits.seconds(rate, "a rate", 0.1, 200_000) for rate in rates]
    if not checked or sorted(set(checked)) != checked:
        raise InvalidInput(f"rates must rise, and there must be one at least, not {list(rates)!r:.200}")
    return checked


def _drain_seconds(step_seconds: float) -> float:
    return DRAIN_SECONDS + DRAIN_SHARE * step_seconds


def _sentences(result: Result) -> Iterator[str]:
    found, steps, facts = result.verdict, result.steps, result.facts
    target, setting = style.duration(result.target_age_seconds), result.setting
    yield (
        f"load: PostgreSQL {facts['version']}, {facts['server']}, {facts['processors']} processors, "
        f"synchronous_commit {facts['synchronous_commit']}"
    )
    yield (
        f"  {setting.workers} workers with {setting.concurrency} slots, prefetch {setting.prefetch}, {setting.wake}; "
        f"{setting.producers * setting.connections} producers, {setting.enqueue_batch} jobs a transaction, "
        f"{setting.arrivals}; handlers wait {style.duration(setting.service_seconds)}"
    )
    yield from (_line(row) for _, row in steps.iterrows())
    yield from filter(None, [_others(steps)])
    if found.sustainable_rate is None:
        yield f"sustainable  none of these rates: at {style.count(found.missed_rate)}/s already p95 of age > {target}"
    else:
        at = steps[steps["offered"] == found.sustainable_rate].iloc[0]
        yield (f"sustainable  {style.count(found.sustainable_rate)} jobs/s with p95 of queue age within {target} "
               f"({style.duration(at['age_p95_seconds'])}; {style.duration(at['age_p99_seconds'])} at p99)"
               + (f"; {style.count(found.missed_rate)}/s misses it" if found.missed_rate else ""))  # fmt: skip
    yield f"knee         {style.count(found.knee_rate) + '/s' if found.knee_rate else 'none in this ramp'}"
    first = f"{found.limit}, at {style.count(found.limit_rate)}/s" if found.limit else "none found"
    yield f"limit        {first}: {found.reason}"
    yield f"change first {found.change}"
    yield f"broker       {_BROKER[found.broker]}: {found.broker_reason}"
    yield f"criterion    {verdict.CRITERION}"


def _others(steps: pd.DataFrame) -> str:
    """What else ran on this machine: its processors are shared, and the rates with them."""
    others = float((steps["processors_busy"] - steps["processors_used"]).mean())
    return f"  other processes used {others:.0%} of the processors meanwhile" if others > 0.1 else ""


_BROKER = {True: "indicated", False: "not indicated", None: "open"}


def _line(row: pd.Series) -> str:
    ages = " / ".join(style.duration(row[f"age_{q}_seconds"]) for q in ("p50", "p95", "p99"))
    claim, wal = style.duration(row["claim_p95_seconds"]), f"{row['wal_bytes_per_job']:,.0f} B"
    rates = f"{row['offered']:>9,.0f}/s offered {row['completed']:>9,.0f} done"
    return f"  {rates}   age {ages:<28} claim p95 {claim}, {wal} WAL a job"

"""The runs that notebooks 06, 07, 08 and 10 show: dead letters, destinations, slots, a replay; repeatable by seed."""

import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import psycopg

from .. import Backoff, Handler, InfrastructureError, Lease, Queue, Schedules, Worker
from ..errors import InvalidInput
from . import database, faults, history, sim, theory
from .clock import BEGINNING, VirtualClock, elapsed
from .workload import Recipe, Workload

QUANTILES = (0.5, 0.95, 0.99, 1.0)
CAUSES = {"lost": "crash", "failed": "used up", "failed_permanently": "permanent"}  # how the last attempt ended
LEASE_SECONDS = 10.0
_NONE = np.array([])
NOTHING = Workload(_NONE, _NONE, _NONE, _NONE)


@contextmanager
def bench(dsn: str) -> Iterator[tuple[psycopg.Connection, VirtualClock]]:
    """A queue in virtual time, in a database of its own that is dropped at the end."""
    with database.scratch(dsn) as own, psycopg.connect(own, autocommit=True) as conn:
        Queue(conn).install(virtual=True)
        yield conn, VirtualClock(conn)


# ---- a workload of one's own -----------------------------------------------------------------------------------------


def waits(run: sim.Run) -> pd.DataFrame:
    """One row a type, and one for all: jobs, how they ended, and quantiles in seconds of the last attempt's wait."""
    parts = {**dict(list(run.jobs.groupby("type"))), "all": run.jobs}
    return pd.DataFrame.from_dict({name: _waits(jobs) for name, jobs in parts.items()}, orient="index")


def _waits(jobs: pd.DataFrame) -> dict:
    said = jobs["wait_seconds"].quantile(QUANTILES).to_list()
    ended = {state: int((jobs["status"] == state).sum()) for state in ("done", "failed", "dead")}
    names = ("wait p50", "p95", "p99", "max")
    return {"jobs": len(jobs), **ended, **dict(zip(names, said, strict=True)),
            "most attempts": int(jobs["attempts"].max())}  # fmt: skip


def age_figures(run: sim.Run) -> dict:
    """What a choice of workers is judged by; seconds, and the share of the time of the run that a worker was busy."""
    busy = (run.attempts["ended"] - run.attempts["started"]).sum() / (run.about["workers"] * run.span_seconds)
    return {"p50_age": run.age_quantile(0.5), "p99_age": run.age_quantile(0.99),
            "max_age": run.age.most, "busy": float(busy)}  # fmt: skip


def by_workers(work: Workload | Recipe, numbers: Sequence[int], *, dsn: str, seed: int = 0, **given) -> pd.DataFrame:
    """A row a number of workers, all else the same: queue age, and the p99 that M/M/c says."""
    work = work.draw(seed)
    rate, service = len(work) / work.span_seconds, float(work.service_seconds.mean())
    runs = {n: sim.run(work, dsn=dsn, seed=seed, progress=False, **given | {"workers": n}) for n in numbers}
    table = pd.DataFrame.from_dict({n: age_figures(run) for n, run in runs.items()}, orient="index")
    table["p99_by_formula"] = [theory.queue_age_quantile(0.99, rate, service, n) if n > work.offered_load else np.inf
                               for n in numbers]  # fmt: skip
    return table.rename_axis("workers")


# ---- schedules -------------------------------------------------------------------------------------------------------


def slots(puts: Sequence[Mapping], *, begin: datetime, ticks: Sequence[datetime], dsn: str) -> pd.DataFrame:
    """What became of every slot of some schedules, put at `begin`, where a scheduler looks at the instants `ticks`.

    schedule_id, slot, status (fired, missed), reason, run_at and created_at of its job; in order of schedule and slot.
    """
    with bench(dsn) as (conn, clock):
        clock.set(begin)
        schedules = Schedules(conn)
        for put in puts:
            schedules.put(**put)
        for instant in ticks:
            clock.set(instant)
            schedules.tick()
        seen = history.from_database(conn)
    fired = [(row.schedule_id, row.slot, "fired", None, row.run_at, row.created_at) for row in seen.rows]
    missed = [(one.schedule_id, one.slot, "missed", one.reason, None, None) for one in seen.missed]
    names = ["schedule_id", "slot", "status", "reason", "run_at", "created_at"]
    frame = pd.DataFrame(fired + missed, columns=names)
    for name in ("slot", "run_at", "created_at"):
        frame[name] = pd.to_datetime(frame[name], utc=True)
    return frame.sort_values(["schedule_id", "slot"], kind="stable", ignore_index=True)


def outage(cron: str, *, down_hours: float, found_seconds: float, dsn: str) -> pd.DataFrame:
    """The slots of one expression under each misfire policy: an hour of ticks, no scheduler for so many hours, and an
    hour more that begins `found_seconds` after the full minute."""
    puts = [{"id": policy, "job_type": "report", "cron": cron, "misfire": policy} for policy in ("skip", "last", "all")]
    down, back = 3600, round(3600 * (1 + down_hours)) + found_seconds
    seconds = [*range(60, down + 1, 60), back, *range(int(back // 60 + 1) * 60, int(back) + 3600, 60)]
    return slots(puts, begin=BEGINNING, ticks=[BEGINNING + timedelta(seconds=at) for at in seconds], dsn=dsn)


def policies(ledger: pd.DataFrame) -> pd.DataFrame:
    """By schedule: slots, fired on time (within a minute), fired late, missed."""
    late = (ledger["created_at"] - ledger["slot"]).dt.total_seconds() > 60
    kind = ledger["status"].where(~late, "fired late").replace("fired", "fired on time")
    counts = pd.crosstab(ledger["schedule_id"], kind).reindex(columns=["fired on time", "fired late", "missed"])
    return counts.fillna(0).astype(int).assign(slots=lambda table: table.sum(axis=1))


def across_change(crons: Mapping[str, str], day: str, timezone: str, *, hours: int = 6, dsn: str) -> pd.DataFrame:
    """The slots of some expressions ({id: cron}) in the first hours of a local day; the scheduler looks each minute."""
    begin = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(timezone)).astimezone(ZoneInfo("UTC"))
    puts = [{"id": id, "job_type": "report", "cron": cron, "timezone": timezone} for id, cron in crons.items()]
    ticks = [begin + timedelta(minutes=minute) for minute in range(1, hours * 60)]
    return slots(puts, begin=begin - timedelta(seconds=1), ticks=[begin, *ticks], dsn=dsn)


def wall_clock(ledger: pd.DataFrame, timezone: str) -> pd.DataFrame:
    """By schedule: its slots as the wall clock shows them, with the offset that tells a fold's two passes apart."""
    local = ledger["slot"].dt.tz_convert(ZoneInfo(timezone))
    said = local.dt.strftime("%H:%M%z").str.slice(0, 8)
    return said.groupby(ledger["schedule_id"], sort=False).agg(["count", ", ".join]).set_axis(["slots", "at"], axis=1)


def rivals(schedulers: int, *, schedules: int, hours: int, dsn: str) -> dict:
    """Schedulers that tick at the same instant, each on its own connection and thread: slots, jobs, doubles."""
    with bench(dsn) as (conn, clock), ExitStack() as stack:
        for n in range(schedules):
            Schedules(conn).put(f"report-{n}", "report", "*/15 * * * *")
        others = [stack.enter_context(psycopg.connect(conn.info.dsn, autocommit=True)) for _ in range(schedulers)]
        clocks, gate = [VirtualClock(other) for other in others], threading.Barrier(schedulers)
        threads = [threading.Thread(target=_rival, args=(other, own, gate, hours * 4))
                   for other, own in zip(others, clocks, strict=True)]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rows = history.from_database(conn).rows
    fired = {(row.schedule_id, row.slot) for row in rows}
    return {"schedulers": schedulers, "ticks": schedulers * hours * 4, "slots": schedules * hours * 4,
            "jobs": len(rows), "slots fired twice": len(rows) - len(fired)}  # fmt: skip


def _rival(conn, clock, gate, times) -> None:
    try:
        for _ in range(times):
            clock.advance(900)
            gate.wait(60)
            Schedules(conn).tick()
    except BaseException:
        gate.abort()
        raise


def spikes(spread_seconds: float, *, schedules: int, job_seconds: float, workers: int, hours: int, seed: int,
           dsn: str) -> sim.Run:
    """So many schedules `0 * * * *` whose jobs share a few workers; one second more, so that the last hour counts."""
    puts = [{"id": f"report-{n}", "job_type": "report", "cron": "0 * * * *", "payload": {"seconds": job_seconds},
             "spread_seconds": spread_seconds} for n in range(schedules)]  # fmt: skip
    return sim.run(NOTHING, workers=workers, schedules=puts, until_seconds=3600 * (hours + 1) - 1, sample_seconds=10,
                   seed=seed, dsn=dsn, progress=False)  # fmt: skip


# ---- effects: what destinations take in ------------------------------------------------------------------------------


@dataclass
class Destination:
    """A service that takes in effects. fence: refuses an epoch older than the newest it has seen of that job. key:
    refuses a key that it has. barrier: is told of each claim before the handler begins."""

    fence: bool = False
    key: bool = False
    barrier: bool = False
    newest: dict[int, int] = field(default_factory=dict)
    taken: dict[str, tuple] = field(default_factory=dict)  # by key, and a serial number where keys are not looked at

    def claimed(self, job_id: int, epoch: int) -> None:
        if self.barrier:
            self.newest[job_id] = max(epoch, self.newest.get(job_id, 0))

    def send(self, job_id: int, epoch: int, key: str) -> str:
        if self.fence and epoch < self.newest.get(job_id, 0):
            return "refused: an older epoch"
        if self.key and key in self.taken:
            return "refused: this key is there"
        self.newest[job_id] = max(epoch, self.newest.get(job_id, 0))
        self.taken[key if self.key else f"{len(self.taken)}"] = (job_id, epoch)
        return "taken in"


def destinations() -> dict[str, Destination]:
    return {
        "takes everything": Destination(),
        "fence": Destination(fence=True),
        "key": Destination(key=True),
        "fence and key": Destination(fence=True, key=True),
        "barrier and key": Destination(fence=True, key=True, barrier=True),
    }


# Two workers and one job: A's lease ends unseen, B adopts the job. `send new` computes a key of its own.
CASES = {
    "late: after the new owner's": "A claim, lease ends, B adopt, B send, B complete, A send, A complete",
    "early: before the takeover": "A claim, A send, lease ends, B adopt, B send, B complete, A complete",
    "late: before the new owner's": "A claim, lease ends, B adopt, A send, B send, B complete, A complete",
    "the same, each its own key": "A claim, lease ends, B adopt, A send new, B send new, B complete, A complete",
    "early, each its own key": "A claim, A send new, lease ends, B adopt, B send new, B complete, A complete",
}


def case(name: str, destination: Destination, dsn: str) -> pd.DataFrame:
    """One of `CASES`, played by the real queue: at_seconds, actor, action, answer."""
    if name not in CASES:
        raise InvalidInput(f"there is no case {name!r}: {', '.join(CASES)}")
    with bench(dsn) as (conn, clock):
        return _played(name, destination, Queue(conn), clock)


def _played(name: str, destination: Destination, queue: Queue, clock: VirtualClock) -> pd.DataFrame:
    play = _Case(queue, clock, destination)
    return pd.DataFrame(map(play.step, CASES[name].split(", ")), columns=["at_seconds", "actor", "action", "answer"])


class _Case:
    """A job, its two leases and where their effects go; each step takes a second."""

    def __init__(self, queue: Queue, clock: VirtualClock, destination: Destination):
        self.queue, self.clock, self.destination, self.begun = queue, clock, destination, clock.now
        self.id = queue.enqueue("invoice").id
        self.leases: dict[str, Lease] = {}

    def step(self, words: str) -> tuple:
        self.clock.advance(LEASE_SECONDS if words == "lease ends" else 1)
        actor, action = ("clock", words) if words == "lease ends" else words.split(" ", 1)
        answer = "" if actor == "clock" else getattr(self, f"_{action.replace(' ', '_')}")(actor)
        return (self.clock.now - self.begun).total_seconds(), actor, action, answer

    def _claim(self, actor: str) -> str:
        (lease,) = self.queue.claim(actor, lease_seconds=LEASE_SECONDS)
        return self._holds(actor, lease)

    def _adopt(self, actor: str) -> str:
        return self._holds(actor, self.queue.adopt(self.id, actor, lease_seconds=60))

    def _holds(self, actor, lease) -> str:
        self.leases[actor] = lease
        self.destination.claimed(lease.id, lease.epoch)
        told = ", the destination is told" if self.destination.barrier else ""
        return f"epoch {lease.epoch}{told}"

    def _send(self, actor: str) -> str:
        return self.destination.send(self.id, self.leases[actor].epoch, f"invoice/{self.id}")

    def _send_new(self, actor: str) -> str:
        epoch = self.leases[actor].epoch
        return self.destination.send(self.id, epoch, f"invoice/{self.id}/{epoch}")

    def _complete(self, actor: str) -> str:
        return self.queue.complete(self.leases[actor]).name


def verdicts(dsn: str) -> pd.DataFrame:
    """A row a case, a column a destination: once; twice; or once, but by the worker that had lost its lease."""
    with bench(dsn) as (conn, clock):
        queue = Queue(conn)
        rows = {name: {place: _verdict(_played(name, one, queue, clock)) for place, one in destinations().items()}
                for name in CASES}  # fmt: skip
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("an effect that lands …")


def _verdict(steps: pd.DataFrame) -> str:
    adopted = steps.index[steps["action"] == "adopt"][0]
    taken = steps[(steps["answer"] == "taken in") & steps["action"].str.startswith("send")]
    stale = ((taken["actor"] == "A") & (taken.index > adopted)).any()
    return ("once" if len(taken) == 1 else "TWICE") + (", stale" if stale else "")


def stalls(workers: int, freezes: int, cuts: int, *, span_seconds: float, freeze_seconds: tuple[float, float],
           seed: int) -> list[faults.Fault]:
    """Freezes of random length and lost replies, of random workers at random instants."""
    rng = random.Random(seed)
    frozen = [faults.freeze(rng.randrange(workers), rng.uniform(0, span_seconds), rng.uniform(*freeze_seconds))
              for _ in range(freezes)]  # fmt: skip
    return frozen + [faults.cut(rng.randrange(workers), rng.uniform(0, span_seconds)) for _ in range(cuts)]


def day_of_effects(run: sim.Run) -> pd.DataFrame:
    """A row a destination, from a run with effects=True: what it took in of all that was sent, one key a job."""
    done = run.attempts[run.attempts["outcome"] == "done"]
    late = run.refused[run.refused["verb"] == "complete"]
    times = run.effects[run.effects["destination"] == "outside"].value_counts(["job_id", "epoch"])
    ends = [*((at, job, epoch) for at, job, epoch in zip(done["ended"], done["job_id"], done["epoch"], strict=True)
              for _ in range(times[job, epoch])),  # twice: the reply was lost
            *zip(late["time_seconds"], late["job_id"], late["epoch"], strict=True)]  # fmt: skip
    sent = [(at, 1, job, epoch) for at, job, epoch in ends]
    claims = zip(run.attempts["started"], [0] * len(run.attempts), run.attempts["job_id"], run.attempts["epoch"],
                 strict=True)  # fmt: skip
    events = sorted([*sent, *claims])
    rows = {name: _sent(one, events) for name, one in destinations().items()}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("destination")


def _sent(destination: Destination, events: list[tuple]) -> dict:
    newest: dict[int, int] = {}
    stale = 0
    for _, is_effect, job_id, epoch in events:
        if is_effect:
            answer = destination.send(job_id, epoch, f"job/{job_id}")
            stale += answer == "taken in" and epoch < newest[job_id]
        else:
            newest[job_id] = max(epoch, newest.get(job_id, 0))
            destination.claimed(job_id, epoch)
    jobs = pd.Series([job for job, _ in destination.taken.values()], dtype="int64").value_counts()
    return {"sent": sum(event[1] for event in events), "taken in": len(destination.taken),
            "jobs with more than one": int((jobs > 1).sum()), "taken from a stale owner": int(stale)}  # fmt: skip


# ---- dead letters ----------------------------------------------------------------------------------------------------


def dead_letters(run: sim.Run) -> pd.DataFrame:
    """time_seconds, job_id, cause: jobs that ended dead or failed, by type and by how their last attempt ended."""
    gone = run.jobs[run.jobs["status"].isin(["dead", "failed"])]
    last = run.attempts.groupby("job_id")["outcome"].last().reindex(gone["id"]).map(CAUSES).to_numpy()
    at = elapsed(gone["finished_at"])
    frame = pd.DataFrame({"time_seconds": at, "job_id": gone["id"], "cause": gone["type"] + ": " + last})
    return frame.sort_values(["time_seconds", "job_id"], ignore_index=True)


def neighbours(run: sim.Run, poison: str = "poison") -> dict:
    """What a poison type does to the others in the same processes."""
    others, letters = run.jobs[run.jobs["type"] != poison], dead_letters(run)
    letters = letters[letters["job_id"].isin(others["id"])]
    return {"poison dead": int((run.jobs.loc[run.jobs["type"] == poison, "status"] == "dead").sum()),
            "healthy jobs": len(others), "that lost a lease": int((others["lease_losses"] > 0).sum()),
            "most lost by one": int(others["lease_losses"].max()),
            "healthy, died with it": int((letters["cause"].str.endswith(CAUSES["lost"])).sum())}  # fmt: skip


def prefetch(ahead: int, *, rule: bool, healthy: int, max_attempts: int, dsn: str) -> dict:
    """One process after the other with one slot claims `ahead` jobs more; a poison job is first in the queue, and kills
    every process whose slot it gets. rule=False: jobs that are claimed ahead are chosen as those for the slot."""
    with bench(dsn) as (conn, clock):
        queue, crashes = Queue(conn), 0
        jobs = queue.enqueue_many([{"type": "poison" if n == 0 else "mail", "max_attempts": max_attempts}
                                   for n in range(healthy + 1)])  # fmt: skip
        while leases := _claimed(queue, ahead, rule, f"worker.{crashes}"):
            if not _worked_off(queue, leases):
                crashes += 1
                clock.advance(31)
                queue.reap(backoff=Backoff(base_seconds=1, jitter="none", shape="constant"))
                clock.advance(1)
        rows = [row for job in jobs[1:] if (row := queue.get(job.id))]
    return {"claimed ahead": ahead, "rule": "on" if rule else "off", "processes killed": crashes,
            "healthy jobs": healthy, "done": sum(row.status == "done" for row in rows),
            "dead, never ran": sum(row.status == "dead" for row in rows)}  # fmt: skip


def _worked_off(queue: Queue, leases: list) -> bool:
    """One after the other, as they were claimed; False where one of them took the process with it."""
    for lease in leases:
        if lease.type == "poison":
            return False
        queue.complete(lease)
    return True


def _claimed(queue: Queue, ahead: int, rule: bool, owner: str) -> list:
    slots, beyond = (1, ahead) if rule else (1 + ahead, 0)
    return list(queue.exchange([], owner, leases={"poison": 30.0, "mail": 30.0}, slots=slots, ahead=beyond).claim)


def releases(dsn: str) -> dict:
    """A real worker whose handler says each time that infrastructure failed: how often it is believed."""
    def away(lease, context):
        raise InfrastructureError("the mail server cannot be reached")

    with database.scratch(dsn) as own, psycopg.connect(own, autocommit=True) as conn:
        queue = Queue(conn)
        queue.install()
        id, calls, most = queue.enqueue("mail", max_attempts=1).id, 0, 0
        at_once = Backoff(shape="constant", base_seconds=0.001, jitter="none")
        worker = Worker(own, {"mail": Handler(away, backoff=at_once)}, concurrency=1)
        while (job := queue.get(id)) and job.status == "ready" and calls < 100:
            calls, most = calls + worker.run_once(), max(most, job.releases)
    assert job
    return {"calls of the handler": calls, "releases": most, "attempts": job.attempts, "status": job.status}


def redrive(n: int, *, max_attempts: int, dsn: str, seed: int) -> pd.DataFrame:
    """n invoices die of a fault in their handler; it is mended, and they are given another life. The states by step."""
    with bench(dsn) as (conn, clock):
        queue, steps = Queue(conn, rng=random.Random(seed)), []
        ids = [job.id for job in queue.enqueue_many([{"type": "invoice", "max_attempts": max_attempts}] * n)]

        def note(step):
            rows = [row for id in ids if (row := queue.get(id))]
            ended = {state: sum(row.status == state for row in rows) for state in ("ready", "dead", "done")}
            most = max(row.attempts for row in rows), max(row.epoch for row in rows)
            steps.append({"step": step, **ended, "attempts": most[0], "epoch": most[1]})

        for _ in range(max_attempts):
            for lease in queue.claim("worker", limit=n):
                queue.fail(lease, "KeyError: 'vat'")
            clock.advance(3600)
        note("every attempt has failed")
        queue.redrive(type="invoice")
        note("the handler is mended; redrive(type='invoice')")
        queue.complete_many(list(queue.claim("worker", limit=n)))
        note("a worker has run")
    return pd.DataFrame(steps).set_index("step")

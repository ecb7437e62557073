"""The event loop of a simulated day: a heap drives the real Queue on one connection, and only the heap moves the clock.

    arrivals ─┐                                               ┌─ enqueue
    handlers ─┤                                               ├─ complete | fail, then claim
    faults   ─┼─▶ heap of (time, order, serial, act) ─▶ act ──┼─ heartbeat, once a third of a lease has passed
    loops    ─┤         ▲                              │      ├─ reap, tick, archive
    samples  ─┘         └──────── what follows ────────┘      └─ a look for work by whoever is idle, when some may be

Statuses, leases and order are the database's. Kept here is what a process would know (what it holds, since when, until
when its handlers run), and how many rows can be due at most, so that nobody asks where nothing can be had.
"""

import random
from bisect import bisect_right
from collections.abc import Callable
from heapq import heappop, heappush
from math import ceil, inf

from .. import Queue
from ..model import Empty
from ..outcome import Outcome
from ..sql import SQL, statements, text
from . import handlers as lab_handlers
from .clock import BEGINNING
from .simfaults import Injector
from .simworkers import CRASH, DONE, MICROSECOND, PERMANENT, SECOND, Attempts, Handlers, Held, SimWorker
from .timeline import Timeline

SIM = statements(text("lab/sim.sql"))
# At one instant: faults, arrivals, ends of handlers, heartbeats, loops, whoever looks for work, and housekeeping last.
FAULT, ARRIVE, END, BEAT, LOOP, LOOK, HOUSE = range(7)
BATCH = 1000
REAP_LIMIT = 100
VACUUM_JOBS = 500
JANITOR_SECONDS = 3600
ENDINGS = {Outcome.LOST: "lost", Outcome.CANCELLED: "cancelled"}
KNOWN = (Outcome.APPLIED, Outcome.ALREADY_APPLIED)


class Simulation:
    """One run over `line`, by a checked plan (`sim.Plan`): `play()` it, then read what it recorded."""

    def __init__(self, line: Timeline, plan, jobs: "Source", seed: int, progress: Callable[[int], None]):
        self.line, self.plan, self.jobs, self.progress = line, plan, jobs, progress
        self.queue = Queue(line, rng=random.Random(f"{seed}/backoff"))
        self.rng = random.Random(f"{seed}/processes")
        self.now = self.serial = 0
        self.heap: list[tuple] = []
        self.lasting = 0  # events that are not mere housekeeping: without them nothing can happen any more
        self.workers = [SimWorker(place, plan.concurrency) for place in range(plan.workers)]
        self.idle: dict[SimWorker, None] = dict.fromkeys(self.workers)  # the one idle longest is first
        self.handlers, self.attempts, self.injector = Handlers(), Attempts(), Injector(self)
        self.ages: list[tuple] = []
        self.refused: list[tuple] = []
        self.open = self.finished = 0  # jobs ready or running, and those that have ended
        self.vacuum_at = VACUUM_JOBS
        self.coming = sum(fault.kind in ("burst", "poison") for fault in plan.faults)
        self.lease, self.beat, self.reap, self.poll = map(_microseconds, plan.periods)
        self.leases = dict.fromkeys(jobs.types, plan.lease_seconds)
        self.due: float = 0  # rows that are due, at most
        self.unsure = False  # rows were given a run_at that nobody here knows
        self.next_id: int | None = None  # of the next job that is enqueued, where that is known
        self.alone: tuple[int, dict, int] | None = None  # a job that came when none was due, and when: the only one yet
        self.looking: int | None = None  # the instant of the look that is to come
        self.away_until = self.no_reap_until = 0  # the database is out of reach; the reaper waits
        self.dead_loops: set[str] = set()
        self.reaping: set[int] = set()
        self.reap_phase = self.rng.randrange(self.reap)
        self.poll_phases = [self.rng.randrange(self.poll) for _ in self.workers] if self.poll else []
        self.sample_every = max(1, _microseconds(plan.sample_seconds or jobs.span / plan.samples or 1))
        self._begin()

    # ------------------------------------------------------------ the heap

    def play(self) -> None:
        """Until all jobs have ended, nothing can happen any more, or `until_seconds` are over."""
        end = self.plan.until_seconds
        until = inf if end is None else _microseconds(end)
        while self.lasting and self._expected and self.heap[0][0] <= until:
            at, order, _, act, arguments = heappop(self.heap)
            self.lasting -= order != HOUSE
            if at > self.now:
                self.now = at
                self.line.at(at)
            act(*arguments)
            if self.finished >= self.vacuum_at:
                self._vacuum()
        if end is not None and self.now < until:
            self.now = _microseconds(end)
            self.line.at(self.now)
        self._sample(again=False)
        self.progress(self.finished)

    @property
    def _expected(self) -> bool:
        return self.open > 0 or self.jobs.left > 0 or self.scheduling or self.coming > 0

    def push(self, at: int, order: int, act: Callable, *arguments) -> None:
        self.serial += 1
        self.lasting += order != HOUSE
        heappush(self.heap, (at, order, self.serial, act, arguments))

    def again_at(self, at: int, act: Callable, *arguments) -> None:
        self.push(at, FAULT, act, *arguments)

    def after(self, seconds: float | None, act: Callable, *arguments) -> None:
        if seconds is not None:
            self.push(self.now + _microseconds(seconds), FAULT, act, *arguments)

    def _begin(self) -> None:
        self.line.at(0)
        for fault in self.plan.faults:
            self.push(_microseconds(fault.at), FAULT, self.injector.apply, fault)
        self._next_arrival()
        self._begin_schedules()
        self.push(0, HOUSE, self._sample)
        if self.plan.archive_after_seconds is not None:
            self.push(JANITOR_SECONDS * SECOND, HOUSE, self._archive)

    # ------------------------------------------------------------ arrivals

    def _next_arrival(self) -> None:
        if self.jobs.left:
            self.push(max(self.now, self.jobs.next_at), ARRIVE, self._arrive)

    def _arrive(self) -> None:
        """All that arrive at this instant; during an outage producers wait, and send then what has gathered."""
        if self.now < self.away_until:
            self.push(self.away_until, ARRIVE, self._arrive)
            return
        self.enqueue(self.jobs.take(self.now))
        self._next_arrival()

    def enqueue(self, jobs: list[dict]) -> None:
        if self.now < self.away_until:
            self.push(self.away_until, ARRIVE, self.enqueue, jobs)
            return
        if len(jobs) == 1:
            self._enqueue_one(jobs[0])
        else:
            self.queue.enqueue_many(jobs)
            self.next_id = self.alone = None
        self.open += len(jobs)
        self.due += len(jobs)
        self.stir()

    def _enqueue_one(self, job: dict) -> None:
        if self.next_id is None:
            self.next_id = self.queue.enqueue(**job).id
        else:
            self.line.presume([(self.next_id, False)], id=self.next_id)
            self.queue.enqueue(**job)
        self.alone = (self.next_id, job, self.now) if self.due == 0 and not self.unsure else None
        self.next_id += 1

    # ------------------------------------------------------------ claims

    def stir(self, unsure: bool = False) -> None:
        """Something may be due: whoever is idle looks, at the end of this instant."""
        self.unsure = self.unsure or unsure
        if self.idle:
            self._look_at(self.now)

    def _look_at(self, at: int) -> None:
        if self.looking is None or at < self.looking:
            self.looking = at
            self.push(at, LOOK, self._look)

    def _look(self) -> None:
        if self.looking != self.now:
            return  # an earlier look has come instead
        self.looking = None
        if self.now < self.away_until:
            self._look_at(self.away_until)
            return
        for worker in self._lookers():
            if self.due <= 0:
                break
            if self.alone and self.due == 1 and not self.unsure and not worker.cut:
                self._presume_claim(worker, *self.alone)
            self._claim(worker)
        if self.due > 0 and self.idle:
            self._look_at(min(self._can_look_at(worker, self.now + 1) for worker in self.idle))
        elif self.unsure and self.idle:
            self._ask()

    def _lookers(self):
        if self.due == 1 and not self.poll:
            first = next(iter(self.idle), None)
            if first is not None and first.back <= self.now:
                return (first,)
        return [worker for worker in self.idle if self._can_look_at(worker, self.now) == self.now]

    def _can_look_at(self, worker: SimWorker, earliest: int) -> int:
        """At once, by NOTIFY; where that is off, each at its own instants, once a period."""
        earliest = max(earliest, worker.back)
        return _on_grid(earliest, self.poll, self.poll_phases[worker.place]) if self.poll else earliest

    def _presume_claim(self, worker: SimWorker, id: int, job: dict, came: int) -> None:
        """One job is due, and which is known: nothing is chosen here. At the end of an instant, so that all that it
        made due is counted."""
        due, until = (BEGINNING + at * MICROSECOND for at in (came, self.now + self.lease))
        self.line.presume([(id, job["type"], job["payload"], worker.owner, 1, 1, 0, until, None, due)], id=id)

    def _claim(self, worker: SimWorker) -> None:
        """For the free slots. What comes back tells how much is due at most."""
        self.alone = None
        free = min(worker.free, BATCH)
        _, claim = self.queue.exchange([], worker.owner, leases=self.leases, slots=free)
        if len(claim) < min(free, self.due) < inf:
            self.unsure = True  # fewer than there should be: ask when there will be more
        self.due = self.due - len(claim) if len(claim) == free else 0
        for lease in claim:
            self.attempts.begin(worker, lease, self.now)
        if worker.cut and claim:
            self.injector.claim_reply_lost(worker, claim)
        else:
            for lease in claim:
                self._begin_attempt(worker, lease)
        self.set_idle(worker)
        if self.unsure and self.due <= 0:
            self.stir()

    def set_idle(self, worker: SimWorker) -> None:
        if worker.free:
            self.idle.setdefault(worker)
        else:
            self.idle.pop(worker, None)

    def _ask(self) -> None:
        """One look for all who are idle, at when the next row will be due."""
        found = self.queue.why_empty(list(self.leases))
        self.unsure = False
        if found.empty is Empty.LOCKED:  # nobody else is connected: rows that are due now
            self._alarm()
        elif found.next_run_at is not None:
            self.push((found.next_run_at - BEGINNING) // MICROSECOND, LOOP, self._alarm)

    def _retry_due(self) -> None:
        self.due += 1
        self.stir()

    def _alarm(self) -> None:
        """A row is due now; more may be by the time that somebody looks."""
        self.due = inf
        self.stir(unsure=True)

    # ------------------------------------------------------------ attempts

    def _begin_attempt(self, worker: SimWorker, lease) -> None:
        took, ending = self.handlers.attempt(worker, lease, self.now)
        held = Held(worker, lease, self.now, self.now + took, ending)
        worker.held[lease.id] = held
        if ending == CRASH:
            self.push(self.now, FAULT, self.injector.poisoned, worker, held)
        else:
            self.expect(held)

    def expect(self, held: Held) -> None:
        """Its end, and the heartbeats before it; what was expected earlier is void."""
        held.serial += 1
        self.push(max(self.now, held.ends), END, self._ended, held, held.serial)
        beat = max(self.now, held.renewed + self.beat)
        if beat < held.ends and not held.gone:
            self.push(beat, BEAT, self._beat, held, held.serial)

    def _ended(self, held: Held, serial: int) -> None:
        worker = held.worker
        if held.serial != serial:
            return
        if self.now < worker.back:
            self.push(worker.back, END, self._ended, held, serial)
            return
        cut = worker.cut
        self._tell(held)
        if cut:
            self.injector.reply_lost(held)
            return
        del worker.held[held.lease.id]
        if worker.state == "stopping" and not worker.held:
            worker.state = "dead"
        self.set_idle(worker)
        if worker.free and self.due > 0:
            self._claim(worker)
        elif self.unsure:
            self.stir()

    def _tell(self, held: Held) -> None:
        lease = held.lease
        if held.ending != DONE:
            self._fail(held)
        elif self.plan.effects:
            self._settle(held, "complete", self._complete_with_effects(held))
        elif self._in_force(held) and not held.worker.cut:
            self.line.presume([(lease.id,)], lambda: self._settle(held, "complete", self.queue.complete(lease)))
            self.queue.complete(lease)
            self._over(lease, "done")
        else:
            self._settle(held, "complete", self.queue.complete(lease))

    def _in_force(self, held: Held) -> bool:
        """By the worker's own reckoning: then what it says is taken as applied, and checked when the answer comes."""
        return self.now < held.renewed + self.lease and not held.gone

    def _fail(self, held: Held) -> None:
        lease, permanent = held.lease, held.ending == PERMANENT
        what = "the payload says that it fails" if permanent else f"attempt {lease.attempt} failed"
        delay = self.plan.backoff_of(lease.type).delay(lease.attempt, self.queue.rng)
        outcome, status = self.queue.fail_and_tell(lease, what, permanent=permanent, delay_seconds=delay)
        self._settle(held, "fail", outcome, held.ending, last=status in ("dead", "failed"))
        if status == "ready":
            self.push(self.now + _microseconds(delay), LOOP, self._retry_due)

    def release(self, held: Held) -> None:
        outcome = self.queue.release(held.lease, "the worker has stopped; the handler had not finished", counted=False)
        self._settle(held, "release", outcome, "released", last=False)

    def _complete_with_effects(self, held: Held) -> Outcome:
        """As `lab.handlers.record`: a row outside, whatever becomes of the attempt, and one inside, under a key."""
        lease = held.lease
        row = {"job_id": lease.id, "epoch": lease.epoch, "owner": lease.owner, "key": f"lab/{lease.id}"}
        self.line.execute(lab_handlers.SQL.record_effect, {**row, "destination": lab_handlers.OUTSIDE})
        with self.line.transaction() as block:
            if self.line.execute(SQL.effect, {"id": lease.id, **row}).fetchall():
                self.line.execute(lab_handlers.SQL.record_effect, {**row, "destination": lab_handlers.TRANSACTION})
            outcome = self.queue.complete(lease)
            block.force_rollback = outcome is not Outcome.APPLIED
        return outcome

    def _settle(self, held: Held, verb: str, outcome: Outcome, ending: str = "done", last: bool = True) -> None:
        """Writes down what the database answered."""
        if outcome in KNOWN:
            self._over(held.lease, ending, last)
        else:
            self._refuse(held, verb, outcome)

    def _refuse(self, held: Held, verb: str, outcome: Outcome) -> None:
        lease = held.lease
        self.refused.append((self.now / SECOND, held.worker.name, verb, lease.id, lease.epoch, outcome.name))
        if outcome in ENDINGS:
            self.attempts.end(lease.id, lease.epoch, ENDINGS[outcome], self.now)

    def _over(self, lease, ending: str, last: bool = True) -> None:
        if self.attempts.end(lease.id, lease.epoch, ending, self.now) and last:
            self._finished()

    def _finished(self) -> None:
        self.open -= 1
        self.finished += 1
        if not self.finished & 63:
            self.progress(self.finished)

    # ------------------------------------------------------------ heartbeats

    def _beat(self, held: Held, serial: int) -> None:
        worker = held.worker
        if held.serial != serial or worker.held.get(held.lease.id) is not held:
            return
        if self.now < worker.back:
            self.push(worker.back, BEAT, self._beat, held, serial)
            return
        if self._in_force(held):
            self.line.presume([(None,)], lambda: self._beat_refused(held, self._renew(held)))
            self._renew(held)
        elif (outcome := self._renew(held)) is not Outcome.APPLIED:
            self._beat_refused(held, outcome)
            return
        held.renewed = self.now
        if self.now + self.beat < held.ends:
            self.push(self.now + self.beat, BEAT, self._beat, held, serial)

    def _renew(self, held: Held) -> Outcome:
        return self.queue.heartbeat(held.lease, lease_seconds=self.plan.lease_seconds)

    def _beat_refused(self, held: Held, outcome: Outcome) -> None:
        """The worker hears that its authority is gone; its handler doesn't look, and goes on to its end."""
        held.gone = True
        self._refuse(held, "heartbeat", outcome)

    # ------------------------------------------------------------ loops: reaper, scheduler, janitor

    def expires(self, held: Held) -> None:
        """This lease may end unrenewed: then the reaper's next pass is one that finds something."""
        self._reap_at(held.renewed + self.lease)

    def _reap_at(self, at: int) -> None:
        at = _on_grid(max(at, self.now, self.no_reap_until), self.reap, self.reap_phase)
        if at not in self.reaping:
            self.reaping.add(at)
            self.push(at, LOOP, self._reap, at)

    def _reap(self, at: int) -> None:
        self.reaping.discard(at)
        if "reaper" in self.dead_loops:
            return
        if self.now < self.no_reap_until:
            self._reap_at(self.no_reap_until)
            return
        reaped = self.queue.reap_by_type(limit=REAP_LIMIT, backoff_of=self.plan.backoff_of)
        for one in reaped:
            self.attempts.end(one.id, one.epoch, "lost", self.now)
            if one.status == "dead":
                self._finished()
        if reaped:
            self.stir(unsure=True)
            self.push(self.now, LOOP, self._reap, at)  # a loop that did something goes on at once

    def loop_is_back(self, name: str) -> None:
        if name == "reaper":
            self._reap_at(self.now)
        elif self.scheduling:
            self.push(self.now, LOOP, self._tick)

    def _begin_schedules(self) -> None:
        self.scheduling = bool(self.plan.schedules)
        if self.scheduling:
            from ..schedules import Schedules

            self.schedules = Schedules(self.line)
            for schedule in self.plan.schedules:
                self.schedules.put(**schedule)
            self._next_tick()

    def _next_tick(self) -> None:
        """A scheduler that polls finds a slot when it has come: the event is the slot itself."""
        (at,) = self.line.execute(SIM.next_slot, {"beginning": BEGINNING}).fetchone()
        end = _microseconds(self.plan.until_seconds or self.jobs.span)
        self.scheduling = at is not None and at <= end
        if self.scheduling:
            self.push(max(at, self.now), LOOP, self._tick)

    def _tick(self) -> None:
        if "scheduler" in self.dead_loops:
            return
        if self.now < self.away_until:
            self.push(self.away_until, LOOP, self._tick)
            return
        ticked = self.schedules.tick()
        self.next_id = self.alone = None
        self.open += sum(job.created for job in ticked.jobs)
        self.stir(unsure=True)
        self._next_tick()

    def _archive(self) -> None:
        age = self.plan.archive_after_seconds
        if self.now >= max(self.away_until, _microseconds(age)):
            while self.queue.archive(older_than_seconds=age, limit=BATCH) == BATCH:
                pass
        self.push(self.now + JANITOR_SECONDS * SECOND, HOUSE, self._archive)

    def _vacuum(self) -> None:
        self.vacuum_at = self.finished + max(VACUUM_JOBS, self.finished // 16)
        self.line.alone(SIM.vacuum)

    # ------------------------------------------------------------ samples

    def _sample(self, again: bool = True) -> None:
        if self.now >= self.away_until or not again:
            *counts, dead, age = self.line.execute(SIM.sample).fetchone()
            # done: by what workers were told; `sim.run` compares it with the rows in the end. To count them a thousand
            # times would cost a fifth of a day's simulation.
            self.ages.append((self.now / SECOND, *counts, dead, self.finished - dead, age))
        if again:
            if len(self.ages) % (2 * self.plan.samples) == 0:
                self.sample_every *= 2  # a drain far beyond the arrivals: fewer and fewer
            self.push(self.now + self.sample_every, HOUSE, self._sample)


class Source:
    """The workload as jobs to enqueue, in order of time."""

    def __init__(self, workload, plan, types: list[str]):
        self.types, self.span = types, workload.span_seconds
        self._at = (workload.at_seconds * SECOND).round().astype("int64").tolist()
        self._workload, self._plan, self._next = workload, plan, 0

    @property
    def left(self) -> int:
        return len(self._at) - self._next

    @property
    def next_at(self) -> int:
        return self._at[self._next]

    def take(self, now: int) -> list[dict]:
        """What has arrived by now and was not taken before."""
        begin, self._next = self._next, bisect_right(self._at, now, self._next)
        return [self._job(place) for place in range(begin, self._next)]

    def job(self, type: str, payload: dict) -> dict:
        return {"type": type, "payload": payload, "max_attempts": self._plan.max_attempts}

    def _job(self, place: int) -> dict:
        work, type = self._workload, self._workload.type[place]
        payload: dict = {"seconds": float(work.service_seconds[place])}
        if work.outcome[place] != DONE and self._plan.outcomes:
            payload["outcome"] = work.outcome[place]
        failing = self._plan.failing_of(type)
        return self.job(type, {**payload, "failing": failing} if failing else payload)


def _microseconds(seconds: float) -> int:
    return round(seconds * SECOND)


def _on_grid(at: int, period: int, phase: int) -> int:
    """The first instant not before `at` of a loop that looks once a period."""
    return phase + ceil(max(0, at - phase) / period) * period

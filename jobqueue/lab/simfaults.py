"""What faults do to simulated processes: each kind of `faults.Fault` is a method; what ends it by itself, an event."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..sql import SQL
from .faults import Fault
from .simworkers import DONE, POISON, SECOND, Held, SimWorker

if TYPE_CHECKING:
    from .simulation import Simulation

RECONNECT_SECONDS = (0.05, 0.1)  # after a session was cut
COME_BACK_SECONDS = (0.05, 2.0)  # after an outage: the jittered pause of a loop that has tried for a while


class Injector:
    """Applies faults to a simulation, and writes down what began and what ended."""

    def __init__(self, simulation: Simulation):
        self.sim = simulation
        self.events: list[tuple] = []  # time_seconds, kind, target, until_seconds

    def apply(self, fault: Fault) -> None:
        self.events.append((fault.at, fault.kind, fault.target, fault.until_seconds))
        sim = self.sim
        sim.coming -= fault.kind in ("burst", "poison")
        getattr(self, fault.kind)(sim.workers[fault.worker] if fault.worker is not None else fault.target, fault)

    def _end(self, fault: Fault) -> int:
        return self.sim.now + round((fault.seconds or 0) * SECOND)

    def _note(self, kind: str, target: str) -> None:
        self.events.append((self.sim.now / SECOND, kind, target, None))

    # ------------------------------------------------------------ processes

    def kill(self, target, fault: Fault) -> None:
        if isinstance(target, str):
            self._still(target, fault)
            return
        self._die(target)
        self.sim.after(fault.seconds, self._revive, target, target.start)

    def start(self, target, fault: Fault) -> None:
        if isinstance(target, str):
            self._revive_loop(target)
        else:
            self._revive(target, target.start)

    def stop(self, target, fault: Fault) -> None:
        if isinstance(target, str):
            self.sim.dead_loops.add(target)
        elif target.state == "running":
            target.state = "stopping" if target.held else "dead"
            self.sim.set_idle(target)
            self.sim.after(fault.seconds, self._grace_over, target)

    def pause(self, worker, fault: Fault) -> None:
        if isinstance(worker, str):
            self._still(worker, fault)
            return
        if worker.state not in ("running", "stopping"):
            return
        worker.paused_at, worker.paused_from, worker.state = self.sim.now, worker.state, "paused"
        self.sim.set_idle(worker)
        for held in worker.held.values():
            held.serial += 1
            self.sim.expires(held)
        self.sim.after(fault.seconds, self._thaw, worker, self.sim.now)

    def resume(self, worker, fault: Fault) -> None:
        if isinstance(worker, str):
            self._revive_loop(worker, "resume")
        else:
            self._thaw(worker, worker.paused_at)

    def poisoned(self, worker: SimWorker, held: Held) -> None:
        """An attempt takes its process with it."""
        if worker.held.get(held.lease.id) is held:
            self._note("kill", worker.name)
            self._die(worker)
            self.sim.after(held.lease.payload.get("restart_seconds"), self._revive, worker, worker.start)

    def _die(self, worker: SimWorker) -> None:
        worker.state = "dead"
        self.sim.set_idle(worker)
        for held in worker.drop_all():
            self.sim.expires(held)

    def _revive(self, worker: SimWorker, start: int) -> None:
        """A new process under a new owner, unless somebody has started it meanwhile."""
        sim = self.sim
        if sim.workers[worker.place] is not worker or worker.state != "dead" or worker.start != start:
            return
        fresh = sim.workers[worker.place] = SimWorker(worker.place, worker.slots, start=start + 1, back=worker.back)
        self._note("start", fresh.name)
        sim.set_idle(fresh)
        sim.stir(unsure=True)

    def _still(self, loop: str, fault: Fault) -> None:
        """A loop has no state of its own: dead or frozen, it does nothing for a while."""
        self.sim.dead_loops.add(loop)
        self.sim.after(fault.seconds, self._revive_loop, loop, "start" if fault.kind == "kill" else "resume")

    def _revive_loop(self, name: str, kind: str = "start") -> None:
        if name in self.sim.dead_loops:
            self.sim.dead_loops.discard(name)
            self._note(kind, name)
            self.sim.loop_is_back(name)

    def _thaw(self, worker: SimWorker, paused_at: int) -> None:
        """Its handlers go on where they stood; its heartbeats are overdue."""
        if worker.state != "paused" or worker.paused_at != paused_at:
            return
        worker.state = worker.paused_from
        self._note("resume", worker.name)
        for held in worker.held.values():
            held.ends += self.sim.now - paused_at
            self.sim.expect(held)
        self.sim.set_idle(worker)
        self.sim.stir(unsure=True)

    def _grace_over(self, worker: SimWorker) -> None:
        if worker.state != "stopping":
            return
        if self.sim.now < worker.back:
            self.sim.again_at(worker.back, self._grace_over, worker)
            return
        worker.state = "dead"
        for held in worker.drop_all():
            self.sim.release(held)
        self.sim.stir(unsure=True)

    # ------------------------------------------------------------ handlers and what they depend on

    def slow(self, target, fault: Fault) -> None:
        until, factor = self._end(fault), fault.factor or 1.0
        if isinstance(target, str):
            self.sim.handlers.slow(target, until, factor)
        else:
            target.slow_until, target.factor = until, factor

    def skew(self, target, fault: Fault) -> None:
        """Nothing: nobody here has a clock of their own, and the queue would not read it."""

    def down(self, type: str, fault: Fault) -> None:
        self.sim.handlers.down(type, self._end(fault), fault.capacity)

    def burst(self, type: str, fault: Fault) -> None:
        self.sim.enqueue([self.sim.jobs.job(type, {"seconds": fault.service_seconds})] * (fault.n or 1))

    def poison(self, type: str, fault: Fault) -> None:
        payload = {POISON: True, "restart_seconds": fault.seconds}
        self.sim.enqueue([self.sim.jobs.job(type, payload)] * (fault.n or 1))

    # ------------------------------------------------------------ the database and the way to it

    def outage(self, target: str, fault: Fault) -> None:
        """Nobody is answered; back again, workers renew what they hold before the reaper takes anything away."""
        sim = self.sim
        sim.away_until = max(sim.away_until, self._end(fault))
        sim.no_reap_until = sim.away_until + round(sim.plan.outage_grace_seconds * SECOND)
        sim.again_at(sim.away_until, self._back)
        for worker in sim.workers:
            worker.back = sim.away_until + round(sim.rng.uniform(*COME_BACK_SECONDS) * SECOND)
            for held in worker.held.values():
                sim.expires(held)

    def crash(self, target: str, fault: Fault) -> None:
        self.outage(target, fault)
        for worker in self.sim.workers:
            self.cut(worker, fault)

    def cut(self, worker, fault: Fault) -> None:
        if not isinstance(worker, str):
            worker.cut = worker.state in ("running", "stopping")
        elif worker == "reaper":  # for all that it knows this was an outage
            self.sim.no_reap_until = self.sim.now + round(self.sim.plan.outage_grace_seconds * SECOND)

    def claim_reply_lost(self, worker: SimWorker, claim) -> None:
        """The rows run under its name, and it doesn't know: it gives back what it doesn't hold, once connected."""
        self._lose_connection(worker)
        self.sim.again_at(worker.back, self._recover, worker)
        for lease in claim:
            self.sim.expires(Held(worker, lease, self.sim.now, 0, DONE))

    def reply_lost(self, held: Held) -> None:
        """What it said is committed; it will hear so when it says it again."""
        self._lose_connection(held.worker)
        held.ends = held.worker.back
        self.sim.expect(held)

    def _back(self) -> None:
        if self.sim.now >= self.sim.away_until:
            self._note("restart", "database")
            self.sim.stir()

    def _lose_connection(self, worker: SimWorker) -> None:
        worker.cut = False
        worker.back = self.sim.now + round(self.sim.rng.uniform(*RECONNECT_SECONDS) * SECOND)

    def _recover(self, worker: SimWorker) -> None:
        if worker.state not in ("running", "stopping"):
            return
        if self.sim.now < worker.back:
            self.sim.again_at(worker.back, self._recover, worker)
            return
        ids, epochs = list(worker.held), [held.lease.epoch for held in worker.held.values()]
        asked = {"owner": worker.owner, "ids": ids, "epochs": epochs}
        for (job_id,) in self.sim.line.execute(SQL.release_unheld, asked).fetchall():
            self.sim.attempts.end(job_id, None, "released", self.sim.now)
        self.sim.stir(unsure=True)

"""Checkers: pure functions of a history, by identity; each returns its members: one lost and one doubled stay two.

    checks.check(history) -> list[Violation]        # empty: every promise below holds of what is in this history

A call whose answer is unknown may have happened or not: it is never the ground of a violation, and never hides one.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import pandas as pd

from .history import OK, UNKNOWN, Call, History, Policy, Row

LOOK_SECONDS = 15.0  # a scheduler may be frozen between its look and its decision, which is fenced, not timed
_ENDS = ("complete", "fail", "release")
_FINISHED = ("done", "failed", "dead", "cancelled")


@dataclass(frozen=True)
class Violation:
    """A promise that is broken for one member (a job, a key, a slot): how it shows, and what shows it."""

    check: str
    member: str
    detail: str
    evidence: tuple[str, ...] = ()


def check(history: History) -> list[Violation]:
    """What every checker finds, in the order of CHECKS, then by member."""
    return [violation for checker in CHECKS.values() for violation in checker(history)]


def table(history: History) -> pd.DataFrame:
    """One row a checker: what it holds true of every member, and how many members break it."""
    rows = [(name, _promise(checker), len(checker(history))) for name, checker in CHECKS.items()]
    return pd.DataFrame(rows, columns=["check", "promise", "violations"])


# ---------------------------------------------------------------- jobs


def lost(history: History) -> list[Violation]:
    """A job whose enqueue was answered has a row; in a settled history it has finished."""
    rows = {row.id: row for row in history.rows}
    found = []
    for call in _told(history, "enqueue"):
        row = rows.get(call.job_id)
        if row is None:
            found.append(Violation("lost", _job(call.job_id), "it was enqueued, and there is no row", (_shown(call),)))
    for row in history.rows:
        if history.settled and row.status not in _FINISHED:
            found.append(Violation("lost", _job(row.id), f"everything has ended, and it is still {row.status}"))
    return found


def duplicated_effect(history: History) -> list[Violation]:
    """A destination that promises once has taken in each key once."""
    taken = defaultdict(list)
    for effect in history.effects:
        if effect.once:
            taken[effect.destination, effect.key].append(effect)
    return [
        Violation("duplicated effect", f"{key} at {destination}", f"taken in {len(effects)} times",
                  tuple(f"job {one.job_id}, epoch {one.epoch}, {one.owner or 'owner not recorded'}" for one in effects))
        for (destination, key), effects in taken.items() if len(effects) > 1
    ]  # fmt: skip


def stale_write(history: History) -> list[Violation]:
    """No verb by an epoch is applied after a later epoch of the job was granted."""
    found = []
    for job_id, calls in _by_job(history).items():
        grants = _grants(calls)
        for call in calls:
            if not _is_applied(call) or call.invoked_at is None:
                continue
            later = [grant for grant in grants if grant.epoch > call.epoch and grant.granted_at <= call.invoked_at]
            if later:
                told = f"{call.verb} by epoch {call.epoch} was applied after epoch {later[0].epoch} had been granted"
                found.append(Violation("stale write accepted", _job(job_id), told, (_shown(later[0]), _shown(call))))
    return found + list(_done_by_another_epoch(history))


def _done_by_another_epoch(history: History) -> Iterable[Violation]:
    """A row that is done by an epoch other than its last: the epoch is the fence of the row's own columns, too."""
    for row in history.rows:
        if row.status == "done" and row.finished_epoch != row.epoch:
            told = f"done by epoch {row.finished_epoch}, but its last epoch is {row.epoch}"
            yield Violation("stale write accepted", _job(row.id), told)


def two_authorities(history: History) -> list[Violation]:
    """At no instant by the database's clock are two leases of one job in force."""
    found = []
    rows = {row.id: row for row in history.rows}
    for job_id, calls in _by_job(history).items():
        grants = _grants(calls)
        for grant, following in zip(grants, grants[1:], strict=False):
            until = _in_force_until(grant, calls, rows.get(job_id))
            if following.granted_at < until and (grant.owner, grant.epoch) != (following.owner, following.epoch):
                early = (until - following.granted_at).total_seconds()
                told = f"epoch {following.epoch} was granted {early:g} s too early"
                found.append(Violation("two valid authorities", _job(job_id), told, (_shown(grant), _shown(following))))
    return found


def _in_force_until(grant: Call, calls: tuple[Call, ...], row: Row | None):
    """At least until then: its last confirmed renewal, unless it was ended before, by its owner or by a cancellation.

    That the row says `lost` is no end: whether it was taken away too early is the question.
    """
    me = (grant.owner, grant.epoch)
    mine = [call for call in calls if (call.owner, call.epoch) == me and call.invoked_at]
    beats = [call for call in mine if call.verb == "heartbeat" and _is_applied(call)]
    until = max([grant.until, *(beat.invoked_at + timedelta(seconds=beat.lease_seconds) for beat in beats)])
    ends = [call.invoked_at for call in mine if call.verb in _ENDS and _may_have_ended(call)]
    cuts = [call.invoked_at for call in calls if call.verb == "cancel" and call.invoked_at]
    told = [end.at for end in row.history if (end.owner, end.epoch) == me and end.event != "lost"] if row else []
    return min([until, *ends, *told, *(cut for cut in cuts if cut >= grant.granted_at)])


def _may_have_ended(call: Call) -> bool:
    return call.answer == UNKNOWN or call.outcome in ("APPLIED", "ALREADY_APPLIED")


def epoch_not_increasing(history: History) -> list[Violation]:
    """Each claim or adoption of a job has an epoch of its own, greater than all before; the row knows the last."""
    found = []
    rows = {row.id: row for row in history.rows}
    for job_id, calls in _by_job(history).items():
        grants = _grants(calls)
        for grant, following in zip(grants, grants[1:], strict=False):
            if following.epoch <= grant.epoch:
                told = f"epoch {following.epoch} was granted after epoch {grant.epoch}"
                found.append(Violation("epoch not increasing", _job(job_id), told, (_shown(grant), _shown(following))))
        highest = max((grant.epoch for grant in grants), default=0)
        if job_id in rows and rows[job_id].epoch < highest:
            told = f"epoch {highest} was granted, the row says {rows[job_id].epoch}"
            found.append(Violation("epoch not increasing", _job(job_id), told))
    return found


def terminal_left(history: History) -> list[Violation]:
    """Nothing leaves done; dead, failed and cancelled are left by a redrive only."""
    rows = {row.id: row for row in history.rows}
    found = []
    for job_id, calls in _by_job(history).items():
        for call in calls:
            if call.verb != "complete" or not _is_applied(call):
                continue
            after = [grant for grant in _grants(calls) if call.answered_at and grant.granted_at > call.answered_at]
            status = rows[job_id].status if job_id in rows else "done"
            if after or status != "done":
                told = f"epoch {call.epoch} completed it, then it was {'granted again' if after else status}"
                found.append(Violation("terminal state left", _job(job_id), told, tuple(map(_shown, [call, *after]))))
    return found + [violation for row in history.rows for violation in _left_by_the_row(row)]


def _left_by_the_row(row: Row) -> Iterator[Violation]:
    ended = None
    for end in row.history:
        if ended and end.event != "redriven":
            yield Violation("terminal state left", _job(row.id), f"{ended}, then {end.event} without a redrive")
        ended = end.event if end.event in ("failed_permanently", "cancelled") else None
    if ended and row.status not in _FINISHED:
        yield Violation("terminal state left", _job(row.id), f"{ended}, and now it is {row.status}")


def over_budget(history: History) -> list[Violation]:
    """A job is begun at most max_attempts times, not counting what was released; anew after each redrive."""
    calls_of = _by_job(history)
    found = []
    for row in history.rows:
        if not 0 <= row.attempts <= row.max_attempts or not 0 <= row.lease_losses <= row.attempts:
            told = f"attempts {row.attempts} of {row.max_attempts}, of them {row.lease_losses} lost leases"
            found.append(Violation("attempts over budget", _job(row.id), told))
        grants = len(_grants(calls_of.get(row.id, ())))
        ends = [end.event for end in row.history]
        budget = row.max_attempts * (1 + ends.count("redriven")) + ends.count("released")
        if grants > budget and not row.history_trimmed:
            found.append(Violation("attempts over budget", _job(row.id), f"begun {grants} times, {budget} are allowed"))
    return found


def resurrected(history: History) -> list[Violation]:
    """After a cancellation was confirmed nothing happens to the job, unless it is redriven."""
    found = []
    redriven = {row.id for row in history.rows for end in row.history if end.event == "redriven"}
    for job_id, calls in _by_job(history).items():
        cancelled = next((call for call in calls if call.verb == "cancel" and call.created and call.answered_at), None)
        if cancelled is None or job_id in redriven or any(call.verb == "redrive" for call in calls):
            continue
        later = [call for call in calls if _happened_after(call, cancelled.answered_at)]
        if later:
            told = f"{later[0].verb} by epoch {later[0].epoch} after it was cancelled"
            found.append(
                Violation("resurrected after cancel", _job(job_id), told, (_shown(cancelled), _shown(later[0])))
            )
    return found


def _happened_after(call: Call, instant) -> bool:
    if call.granted_at and call.verb in ("claim", "adopt"):
        return call.answer == OK and call.granted_at > instant
    return _is_applied(call) and call.invoked_at is not None and call.invoked_at > instant


# ---------------------------------------------------------------- keys and slots


def one_key_two_jobs(history: History) -> list[Violation]:
    """A key belongs to one job, in every answer and in every row. (Of histories shorter than a key is kept.)"""
    jobs: dict[str, set[int]] = defaultdict(set)
    for call in _told(history, "enqueue"):
        if call.key is not None:
            jobs[call.key].add(call.job_id)
    for row in history.rows:
        if row.key is not None:
            jobs[row.key].add(row.id)
    return [
        Violation("one key two jobs", key, f"jobs {', '.join(map(str, sorted(ids)))}")
        for key, ids in jobs.items()
        if len(ids) > 1
    ]


def slot_fired_twice(history: History) -> list[Violation]:
    """A slot of a schedule has one job at most."""
    jobs = defaultdict(list)
    for row in history.rows:
        if row.schedule_id is not None:
            jobs[row.schedule_id, row.slot].append(row.id)
    return [
        Violation("slot fired twice", _slot(*slot), f"jobs {', '.join(map(str, ids))}")
        for slot, ids in jobs.items()
        if len(ids) > 1
    ]


def slot_never_fired(history: History) -> list[Violation]:
    """Every slot that was expected has its job, or is named as missed."""
    there = {(row.schedule_id, row.slot) for row in history.rows} | {
        (one.schedule_id, one.slot) for one in history.missed
    }
    return [
        Violation("slot never fired", _slot(one.schedule_id, one.slot), "neither a job nor named as missed")
        for one in history.expected if (one.schedule_id, one.slot) not in there
    ]  # fmt: skip


def slot_against_policy(history: History) -> list[Violation]:
    """A slot found late, or while the previous job had not ended, runs or is passed over as its policy says."""
    found = []
    for policy in history.policies:
        runs = {row.slot: row for row in history.rows if row.schedule_id == policy.schedule_id and row.slot}
        missed = {one.slot: one.reason for one in history.missed if one.schedule_id == policy.schedule_id}
        both = dict.fromkeys(runs.keys() & missed.keys(), "it has a job, and is named as missed")
        told = both | _against_misfire(policy, runs, missed) | _against_overlap(policy, runs, missed)
        found += [
            Violation("slot against its policy", _slot(policy.schedule_id, slot), words, (_policy(policy),))
            for slot, words in sorted(told.items())
        ]
    return found


def _against_misfire(policy: Policy, runs: dict, missed: dict) -> dict[datetime, str]:
    """Where the rows prove it; a slot that was decided before its schedule was changed is judged by the new policy."""
    known, told = sorted(runs.keys() | missed.keys()), {}
    passed = [slot for slot, reason in missed.items() if reason == "misfire"]
    late = timedelta(seconds=policy.misfire_grace_seconds + LOOK_SECONDS)
    for slot, row in runs.items():
        seen = row.created_at is not None and row.created_at > slot + late
        newer = [one for one in known if row.created_at and slot < one <= row.created_at - late]
        if seen and policy.misfire == "skip":
            told[slot] = f"it was {_seconds(row.created_at - slot)} s late and ran all the same"
        if seen and policy.misfire == "last" and newer:
            late_by = _seconds(row.created_at - slot)
            told[slot] = f"it was {late_by} s late and ran, though {newer[-1]:%H:%M:%S} was newer"
    if policy.misfire == "all" and len(known) <= policy.max_catch_up:
        told |= dict.fromkeys(passed, "it was passed over, though all are to be caught up")
    if policy.misfire == "last":
        told |= {slot: "it was passed over, though it was the newest of those that were late"
                 for slot in passed if not any(one > slot for one in known)}  # fmt: skip
    return told


def _against_overlap(policy: Policy, runs: dict, missed: dict) -> dict[datetime, str]:
    passed = [slot for slot, reason in missed.items() if reason == "overlap"]
    if policy.overlap == "allow":
        return dict.fromkeys(passed, "it was passed over for an overlap, though these are allowed")
    told, slots = {}, sorted(runs)
    for before, slot in zip(slots, slots[1:], strict=False):
        earlier, row = runs[before], runs[slot]
        begun = row.created_at and row.created_at + timedelta(seconds=1)  # one statement's look against another's clock
        if begun and (earlier.finished_at is None or earlier.finished_at > begun):
            told[slot] = f"it ran before job {earlier.id} of {before:%H:%M:%S} had ended"
    for slot in passed:
        if not any(one < slot for one in slots) and not any(one > slot for one in slots):
            told[slot] = "it was passed over for an overlap with nothing"
    return told


CHECKS: dict[str, Callable[[History], list[Violation]]] = {
    "lost": lost,
    "duplicated effect": duplicated_effect,
    "stale write accepted": stale_write,
    "two valid authorities": two_authorities,
    "epoch not increasing": epoch_not_increasing,
    "slot fired twice": slot_fired_twice,
    "slot never fired": slot_never_fired,
    "slot against its policy": slot_against_policy,
    "terminal state left": terminal_left,
    "attempts over budget": over_budget,
    "resurrected after cancel": resurrected,
    "one key two jobs": one_key_two_jobs,
}


# ---------------------------------------------------------------- reading a history


def _by_job(history: History) -> dict[int, tuple[Call, ...]]:
    found: dict[int, list[Call]] = defaultdict(list)
    for call in history.calls:
        if call.job_id is not None:
            found[call.job_id].append(call)
    return {job_id: tuple(calls) for job_id, calls in found.items()}


def _grants(calls: Iterable[Call]) -> list[Call]:
    """Claims and adoptions that a client was told of, in the order in which the database granted them."""
    told = [call for call in calls if call.verb in ("claim", "adopt") and call.answer == OK and call.until is not None]
    return sorted(told, key=lambda call: (call.granted_at, call.epoch))


def _told(history: History, verb: str) -> list[Call]:
    return [call for call in history.calls if call.verb == verb and call.answer == OK]


def _is_applied(call: Call) -> bool:
    return call.answer == OK and call.outcome == "APPLIED" and call.epoch is not None


def _promise(checker) -> str:
    return checker.__doc__.strip().splitlines()[0]


def _shown(call: Call) -> str:
    who = f"{call.owner}, epoch {call.epoch}" if call.owner else call.client
    when = call.granted_at or call.invoked_at
    return f"{call.verb} by {who}" + (f" at {when:%H:%M:%S.%f}" if when else "") + f": {call.outcome or call.answer}"


def _job(job_id: int) -> str:
    return f"job {job_id}"


def _slot(schedule_id: str, slot) -> str:
    return f"{schedule_id} at {slot:%Y-%m-%dT%H:%M:%SZ}"


def _policy(policy: Policy) -> str:
    late = f"misfire {policy.misfire}, grace {policy.misfire_grace_seconds:g} s"
    return f"{late}, catch up {policy.max_catch_up}, overlap {policy.overlap}"


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():g}"

"""Drain, enqueue, bulk and pick-up: what every contender is measured at."""

import json
from collections.abc import Callable

from . import drain, floor
from .amounts import Amounts, Found, quantile
from .contenders import SQL, Contender
from .stage import BenchError, Stage

Measure = Callable[[Stage, Contender, Amounts], Found]


def drains(workers: int) -> Measure:
    def measure(stage: Stage, contender: Contender, amounts: Amounts) -> Found:
        if contender.facts.kind == SQL:
            yield f"drain{workers}", floor.drain(stage, workers, amounts.seconds), {}
            return
        jobs = min(amounts.jobs, contender.facts.most)
        with stage.fresh(contender) as dsn:
            stage.call(contender, dsn, "fill", jobs)
            stage.sql(dsn, "analyze", "checkpoint")
            found = drain.run(stage, contender, dsn, jobs, workers, amounts.cap_seconds)
        yield f"drain{workers}", found.rate, found.facts()

    return measure


def enqueues(producers: int) -> Measure:
    name = "enqueue" if producers == 1 else f"enqueue{producers}"

    def measure(stage: Stage, contender: Contender, amounts: Amounts) -> Found:
        if contender.facts.kind == SQL:
            yield name, floor.enqueue(stage, producers, amounts.seconds), {}
            return
        with (
            stage.fresh(contender) as dsn,
            stage.producers(contender, dsn, producers, amounts.seconds) as processes,
        ):
            for process in processes:
                process.stdin.write("begin\n")
                process.stdin.flush()
            said = [_produced(contender, process) for process in processes]
        yield name, sum(each["n"] / each["seconds"] for each in said), {}

    return measure


def bulk(stage: Stage, contender: Contender, amounts: Amounts) -> Found:
    if contender.facts.kind == SQL:
        yield "bulk", floor.bulk(stage, amounts.bulk), {}
        return
    roles = {"bulk": "fill", "bulk_keyed": "fill_keyed"} if contender.name == "ours" else {"bulk": "fill"}
    jobs = min(amounts.bulk, contender.facts.most)
    for name, role in roles.items():
        with stage.fresh(contender) as dsn:
            said = stage.call(contender, dsn, role, jobs)
        yield name, said["n"] / said["seconds"], {"jobs": jobs}


def pickup(stage: Stage, contender: Contender, amounts: Amounts) -> Found:
    with stage.fresh(contender) as dsn, stage.workers(contender, dsn, 1, at_once=True) as (hand,):
        said = stage.call(contender, dsn, "probe", amounts.probes, tracker=hand.tracker)
    facts = {f"from_the_call_p{share}_ms": round(quantile(said["whole"], share / 100), 2) for share in (50, 99)}
    yield "pickup_p50", quantile(said["picked"], 0.5), facts
    yield "pickup_p99", quantile(said["picked"], 0.99), facts


def _produced(contender: Contender, process) -> dict:
    words, complaints = process.communicate()
    lines = [line for line in words.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        raise BenchError(f"{contender.name} produce: {complaints.strip()[-400:]}")
    return json.loads(lines[-1])

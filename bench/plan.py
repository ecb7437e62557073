"""Who takes part in which test, and the rounds: in each, test after test, all contenders right after one another."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import psycopg
from tqdm.auto import tqdm

from jobqueue.errors import JobQueueError

from .amounts import Amounts, Reading
from .contenders import INSTALL, NAMES, Contender, load
from .growth import growth, held
from .idle import idle
from .mixed import mixed
from .speed import Measure, bulk, drains, enqueues, pickup
from .stage import Stage

OURS, FLOORS = ("ours",), ("pgfloor", "driver")
QUEUES = tuple(name for name in NAMES if name not in FLOORS)
WITH_FLOOR, ALONE = ("pgfloor", *QUEUES), (*FLOORS, *OURS)
TESTS: dict[str, tuple[tuple[str, ...], Measure]] = {
    "drain1": (WITH_FLOOR, drains(1)),
    "drain2": (WITH_FLOOR, drains(2)),
    "enqueue": (NAMES, enqueues(1)),
    "enqueue8": (ALONE, enqueues(8)),
    "bulk": (WITH_FLOOR, bulk),
    "pickup": (QUEUES, pickup),
    "growth": (OURS, growth),
    "held": (OURS, held),
    "mixed": (OURS, mixed),
    "idle": (OURS, idle),
}
ONCE = ("mixed", "idle")  # in the first round only: they count, or take quantiles, over half a minute
TROUBLE = (JobQueueError, psycopg.Error, subprocess.SubprocessError, OSError)


@dataclass
class Run:
    """What was read, and what could not be: contender → why."""

    readings: list[Reading] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    amounts: Amounts = Amounts()
    made_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    interrupted: bool = False


def measure(names: list[str], tests: list[str], rounds: int, amounts: Amounts, *, progress: bool = True) -> Run:
    """Every round of every test. A contender that fails is noted with its words, and the others go on."""
    run = Run(amounts=amounts)
    steps = list(_steps(_present(names, run), tests, rounds))
    if not steps:
        return run
    try:
        with Stage() as stage, tqdm(steps, unit="measurement", disable=not progress) as bar:
            run.settings = stage.settings()
            for number, test, contender in bar:
                bar.set_postfix_str(f"round {number}, {test}, {contender.name}")
                _step(run, stage, number, test, contender, amounts)
    except KeyboardInterrupt:  # what was read so far is shown
        run.interrupted = True
    return run


def _present(names: list[str], run: Run) -> list[Contender]:
    contenders = [load(name) for name in names]
    for each in contenders:
        if each.version is None:
            run.missing[each.name] = f"not installed; {INSTALL[each.facts.kind]}"
    return [each for each in contenders if each.name not in run.missing]


def _steps(contenders: list[Contender], tests: list[str], rounds: int) -> Iterator[tuple[int, str, Contender]]:
    """Every other round goes the other way round: nobody always has the disk after the same neighbour."""
    for number in range(1, rounds + 1):
        for test in tests:
            if number == 1 or test not in ONCE:
                part = [each for each in contenders if each.name in TESTS[test][0]]
                yield from ((number, test, each) for each in (part if number % 2 else part[::-1]))


def _step(run: Run, stage: Stage, number: int, test: str, contender: Contender, amounts: Amounts) -> None:
    try:
        for name, value, facts in TESTS[test][1](stage, contender, amounts):
            run.readings.append(Reading(number, name, contender.name, value, facts))
    except TROUBLE as error:
        run.missing[contender.name] = f"{test}: {error}"
        tqdm.write(f"{contender.name}, {test}, round {number}: {error}")

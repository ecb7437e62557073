"""What arrives, when, and how long it runs: recipes that are drawn by seed, and files of the user's own history.

    recipe = poisson(rate=2.0, service=lognormal(3.0, cv=2), n=5000) + hourly(200, service=constant(1), hours=1)
    workload = recipe.draw(seed=7)        # arrays; the same seed draws the same workload
    workload = read("trace.swf")          # a workload is its own recipe: its draw ignores the seed

A file's instants count from its first arrival, a recipe's from its beginning.
"""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from .. import limits
from ..errors import InvalidInput
from . import traces
from .traces import DONE, FAILED, MAX_SECONDS

log = logging.getLogger(__name__)

# An office day, by hour: quiet nights, two humps around lunch, a nightly batch at 2. Scaled to a mean of 1.
OFFICE = (.2, .2, 1.2, .3, .2, .2, .3, .6, 1.4, 2.2, 2.5, 2.3, 1.5, 1.8, 2.4, 2.3, 1.9, 1.3, .8, .5, .4, .3, .2, .2)


# --- Values ---------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Arrival:
    """One job to come: seconds after the beginning, its type, how long its handler runs, how that ends."""
    at_seconds: float
    type: str
    service_seconds: float
    outcome: str = DONE


@dataclass(frozen=True, eq=False)
class Workload:
    """Arrivals in order of time, as four read-only arrays of one length; `left_out` lines of a file had no run time."""
    at_seconds: np.ndarray
    type: np.ndarray
    service_seconds: np.ndarray
    outcome: np.ndarray
    left_out: int = 0

    def __post_init__(self):
        columns = {"at_seconds": float, "type": object, "service_seconds": float, "outcome": object}
        arrays = {name: np.asarray(getattr(self, name), dtype=kind) for name, kind in columns.items()}
        if len({array.shape for array in arrays.values()}) > 1 or arrays["at_seconds"].ndim != 1:
            raise InvalidInput("a workload needs four columns of one length")
        _check_seconds("at_seconds", arrays["at_seconds"])
        _check_seconds("service_seconds", arrays["service_seconds"])
        for type in dict.fromkeys(arrays["type"]):
            limits.job_type(type)
        for outcome in dict.fromkeys(arrays["outcome"]):
            traces.check_outcome(outcome)
        order = np.argsort(arrays["at_seconds"], kind="stable")
        for name, array in arrays.items():
            array = array[order]
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    def __len__(self) -> int:
        return len(self.at_seconds)

    def __iter__(self) -> Iterator[Arrival]:
        return map(Arrival, self.at_seconds.tolist(), self.type, self.service_seconds.tolist(), self.outcome)

    def __eq__(self, other) -> bool:
        return isinstance(other, Workload) and all(map(np.array_equal, self._columns(), other._columns()))

    def __add__(self, other: "Workload") -> "Workload":
        """Both at once, from the same beginning: their offered loads add up."""
        if not isinstance(other, Workload):
            return NotImplemented
        at, types, service, outcome = map(np.concatenate, zip(self._columns(), other._columns(), strict=True))
        return Workload(at, types, service, outcome, self.left_out + other.left_out)

    def then(self, other: "Workload") -> "Workload":
        """This one, and at its last arrival the other begins."""
        return self + other.delayed(self.span_seconds)

    def delayed(self, seconds: float) -> "Workload":
        return replace(self, at_seconds=self.at_seconds + seconds)

    def head(self, n: int) -> "Workload":
        """The first n arrivals."""
        _check_count("n", n, at_least=0)
        at, types, service, outcome = (column[:n] for column in self._columns())
        return Workload(at, types, service, outcome, self.left_out)

    def scaled(self, time_scale: float) -> "Workload":
        """The same load in less time: at time_scale=60 an hour passes in a minute, a job of a minute in a second."""
        _check_positive("time_scale", time_scale)
        return replace(self, at_seconds=self.at_seconds / time_scale, service_seconds=self.service_seconds / time_scale)

    def draw(self, seed: int | None = None) -> "Workload":
        return self

    def make(self, rng: np.random.Generator) -> "Workload":
        return self

    @property
    def types(self) -> list[str]:
        return sorted(set(self.type))

    @property
    def span_seconds(self) -> float:
        """When the last job arrives, counted from the beginning."""
        return float(self.at_seconds[-1]) if len(self) else 0.0

    @property
    def offered_load(self) -> float:
        """Erlangs: seconds of service that arrive per second, so the slots busy on average; inf for one instant."""
        work = float(self.service_seconds.sum())
        return work / self.span_seconds if self.span_seconds else (math.inf if work else 0.0)

    def frame(self) -> pd.DataFrame:
        """One row a job: at_seconds, type, service_seconds, outcome."""
        names = ("at_seconds", "type", "service_seconds", "outcome")
        return pd.DataFrame(dict(zip(names, self._columns(), strict=True)))

    def describe(self) -> pd.DataFrame:
        """One row a type, and one for all: jobs, arrivals a second, service seconds, erlangs, how many failed."""
        rows = {type: self._facts(self.type == type) for type in self.types}
        return pd.DataFrame.from_dict(rows | {"all": self._facts(np.full(len(self), True))}, orient="index")

    def to_csv(self, path: str | Path) -> None:
        """Write what `read` reads; seconds keep every digit."""
        frame = self.frame().rename(columns={"at_seconds": "time", "service_seconds": "duration"})
        frame[["time", "type", "duration", "outcome"]].to_csv(path, index=False, lineterminator="\n")

    def _columns(self) -> tuple[np.ndarray, ...]:
        return self.at_seconds, self.type, self.service_seconds, self.outcome

    def _facts(self, chosen: np.ndarray) -> dict[str, float]:
        service, span = self.service_seconds[chosen], self.span_seconds or math.nan
        p50, p95, p99, longest = np.quantile(service, [.5, .95, .99, 1]) if len(service) else [math.nan] * 4
        return {"jobs": len(service), "per_second": len(service) / span,
                "mean_seconds": service.mean() if len(service) else math.nan,
                "p50_seconds": p50, "p95_seconds": p95, "p99_seconds": p99, "max_seconds": longest,
                "erlangs": service.sum() / span, "failed": int((self.outcome[chosen] == FAILED).sum())}


@dataclass(frozen=True)
class Recipe:
    """A workload that is not drawn yet; `make(rng)` draws it. Picklable: a sweep sends it to other processes."""
    make: Callable[[np.random.Generator], Workload]

    def draw(self, seed: int) -> Workload:
        return self.make(np.random.default_rng(seed))

    def __add__(self, other: "Recipe | Workload") -> "Recipe":
        return Recipe(partial(_later, "__add__", (self, other)))

    def __radd__(self, other: Workload) -> "Recipe":
        return Recipe(partial(_later, "__add__", (other, self)))

    def then(self, other: "Recipe | Workload") -> "Recipe":
        return Recipe(partial(_later, "then", (self, other)))

    def delayed(self, seconds: float) -> "Recipe":
        return Recipe(partial(_later, "delayed", (self, seconds)))

    def head(self, n: int) -> "Recipe":
        return Recipe(partial(_later, "head", (self, n)))

    def scaled(self, time_scale: float) -> "Recipe":
        return Recipe(partial(_later, "scaled", (self, time_scale)))


@dataclass(frozen=True)
class Service:
    """How long jobs run: a law, its mean in seconds, and variance / mean² (what Pollaczek-Khinchine asks for)."""
    law: str
    mean_seconds: float
    scv: float
    sample: Callable[..., np.ndarray] = field(repr=False)  # sample(rng, n) -> seconds


# --- Laws of service: seconds in, a Service out ----------------------------------------------------------------------

def constant(seconds: float) -> Service:
    _check_positive("seconds", seconds)
    return Service("constant", seconds, 0.0, partial(_constant, seconds))


def exponential(mean: float) -> Service:
    _check_positive("mean", mean)
    return Service("exponential", mean, 1.0, partial(_exponential, mean))


def lognormal(mean: float, *, sigma: float | None = None, cv: float | None = None) -> Service:
    """By sigma of the logarithm, or by the coefficient of variation cv = sqrt(exp(sigma²) − 1)."""
    _check_positive("mean", mean)
    if (sigma is None) == (cv is None):
        raise InvalidInput("lognormal takes either sigma or cv")
    if cv is not None:
        _check_positive("cv", cv)
        sigma = math.sqrt(math.log1p(cv * cv))
    assert sigma is not None
    _check_positive("sigma", sigma)
    return Service("lognormal", mean, math.expm1(sigma * sigma), partial(_lognormal, mean, sigma))


def pareto(mean: float, alpha: float) -> Service:
    """Tail P(S > s) = (s₀/s)^alpha from s₀ = mean·(alpha−1)/alpha; alpha > 1, and its variance is infinite up to 2."""
    _check_positive("mean", mean)
    _check_positive("alpha", alpha)
    if alpha <= 1:
        raise InvalidInput(f"alpha must be more than 1, or the mean is infinite: {alpha}")
    scv = 1 / (alpha * (alpha - 2)) if alpha > 2 else math.inf
    return Service("pareto", mean, scv, partial(_pareto, mean * (alpha - 1) / alpha, alpha))


def uniform(low: float, high: float) -> Service:
    _check_positive("high", high)
    if not 0 <= low <= high:
        raise InvalidInput(f"uniform needs 0 <= low <= high: {low}, {high}")
    mean = (low + high) / 2
    return Service("uniform", mean, (high - low) ** 2 / 12 / mean ** 2, partial(_uniform, low, high))


# --- Arrivals: each takes service, type and the share of jobs that fail ----------------------------------------------

def poisson(rate: float, *, service: Service, n: int | None = None, hours: float | None = None, type: str = "job",
            failed: float = 0.0) -> Recipe:
    """Independent arrivals, rate a second: n of them, or as many as come within those hours."""
    _check_positive("rate", rate)
    if n is not None and hours is None:
        _check_count("n", n)
        return _recipe(partial(_arrivals_by_number, rate, n), service, type, failed)
    if hours is not None and n is None:
        _check_positive("hours", hours)
        return _recipe(partial(_arrivals_by_hours, (rate * hours * 3600,), hours), service, type, failed)
    raise InvalidInput("poisson takes either n or hours")


def daily(rate: float, *, service: Service, profile: tuple[float, ...] = OFFICE, days: int = 1, type: str = "job",
          failed: float = 0.0) -> Recipe:
    """Poisson arrivals whose rate follows 24 hourly weights; `rate` a second is the mean over the day."""
    _check_positive("rate", rate)
    _check_count("days", days)
    weights = np.asarray(profile, dtype=float)
    if weights.shape != (24,) or not np.isfinite(weights).all() or weights.min() < 0 or not weights.any():
        raise InvalidInput("profile needs 24 weights, none negative and not all zero")
    expected = tuple(np.tile(weights / weights.mean() * rate * 3600, days))
    return _recipe(partial(_arrivals_by_hours, expected, 1), service, type, failed)


def bursts(size: int, *, every_seconds: float, n: int, service: Service, within_seconds: float = 0.0,
           type: str = "job", failed: float = 0.0) -> Recipe:
    """n bursts of `size` jobs, the first at once; each is strewn anew over `within_seconds`."""
    _check_count("size", size)
    _check_count("n", n)
    _check_positive("every_seconds", every_seconds)
    _check_seconds("within_seconds", within_seconds)
    return _recipe(partial(_arrivals_in_bursts, size, every_seconds, n, within_seconds), service, type, failed)


def hourly(schedules: int, *, service: Service, hours: int = 24, spread_seconds: float = 0.0, type: str = "job",
           failed: float = 0.0) -> Recipe:
    """What `0 * * * *` does: so many jobs at each full hour, each schedule at its own stable offset in the spread."""
    _check_count("schedules", schedules)
    _check_count("hours", hours)
    _check_seconds("spread_seconds", spread_seconds)
    return _recipe(partial(_arrivals_hourly, schedules, hours, spread_seconds), service, type, failed)


# --- Files ----------------------------------------------------------------------------------------------------------

def read(path: str | Path) -> Workload:
    """A history from a .csv (`time,type,duration[,outcome]`) or .swf file (Standard Workload Format); rules: `traces`.

    InvalidInput names the file, the line and what is wrong; lines without work to replay are counted in `left_out`.
    """
    rows = list(traces.rows(Path(path)))
    jobs = [row for row in rows if row]
    name, left_out = Path(path).name, len(rows) - len(jobs)
    if not jobs:
        raise InvalidInput(f"{name}: no job in it")
    if left_out:
        log.warning("%s: %d of %d lines left out: never ran, or a part of another", name, left_out, len(rows))
    at, types, service, outcomes = map(np.array, zip(*jobs, strict=True))
    if (at := at - at.min()).max() > MAX_SECONDS:
        raise InvalidInput(f"{name}: its arrivals span {at.max():.3g} s, more than {MAX_SECONDS:.0e}: wrong unit?")
    return Workload(at, types, service, outcomes, left_out)


# --- Checks ---------------------------------------------------------------------------------------------------------

def _check_seconds(name: str, seconds) -> None:
    seconds = np.asarray(seconds, dtype=float)
    if not np.isfinite(seconds).all() or (seconds < 0).any() or (seconds > MAX_SECONDS).any():
        raise InvalidInput(f"{name} must be from 0 to {MAX_SECONDS:.0e} seconds")


def _check_positive(name: str, number: float) -> None:
    if isinstance(number, bool) or not isinstance(number, (int, float, np.number)) or not 0 < number < math.inf:
        raise InvalidInput(f"{name} must be a number over 0: {number!r}")


def _check_count(name: str, number: int, at_least: int = 1) -> None:
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < at_least:
        raise InvalidInput(f"{name} must be a whole number from {at_least} up: {number!r}")


# --- Draws: module-level, so that a recipe can be pickled -------------------------------------------------------------

def _recipe(arrivals: Callable, service: Service, type: str, failed: float) -> Recipe:
    limits.job_type(type)
    if not 0 <= failed <= 1:
        raise InvalidInput(f"failed is a share from 0 to 1: {failed!r}")
    return Recipe(partial(_drawn, arrivals, service, type, failed))


def _drawn(arrivals: Callable, service: Service, type: str, failed: float, rng: np.random.Generator) -> Workload:
    at = np.sort(arrivals(rng))
    outcome = np.where(rng.random(len(at)) < failed, FAILED, DONE)
    return Workload(at, np.full(len(at), type, dtype=object), service.sample(rng, len(at)), outcome)


def _later(method: str, arguments: tuple, rng: np.random.Generator) -> Workload:
    first, *rest = (a.make(rng) if isinstance(a, Recipe) else a for a in arguments)
    return getattr(first, method)(*rest)


def _arrivals_by_number(rate, n, rng):
    return np.cumsum(rng.exponential(1 / rate, n))


def _arrivals_by_hours(expected, hours_each, rng):
    """Piecewise Poisson, exactly: how many come in each stretch, then where in it they fall, uniformly."""
    counts = rng.poisson(expected)
    return (np.repeat(np.arange(len(counts)), counts) + rng.random(counts.sum())) * hours_each * 3600


def _arrivals_in_bursts(size, every_seconds, n, within_seconds, rng):
    return np.repeat(np.arange(n) * every_seconds, size) + rng.random(n * size) * within_seconds


def _arrivals_hourly(schedules, hours, spread_seconds, rng):
    offsets = rng.random(schedules) * spread_seconds
    return np.add.outer(np.arange(hours) * 3600.0, offsets).ravel()


def _constant(seconds, rng, n):
    return np.full(n, float(seconds))


def _exponential(mean, rng, n):
    return rng.exponential(mean, n)


def _lognormal(mean, sigma, rng, n):
    return rng.lognormal(math.log(mean) - sigma * sigma / 2, sigma, n)


def _pareto(shortest, alpha, rng, n):
    return shortest * (1 + rng.pareto(alpha, n))


def _uniform(low, high, rng, n):
    return rng.uniform(low, high, n)

"""How long a job waits before its next attempt: a value in, seconds out; no clock and no random state of its own."""

import random
from dataclasses import dataclass

from . import limits
from .errors import InvalidInput

SHAPES = ("constant", "linear", "exponential")
JITTERS = ("none", "full", "equal", "decorrelated")
MOST_FACTOR = 1_000_000
CHAIN_LINKS = 64  # E[d] grows by 1.5 a link: after 64 it has passed any ceiling that differs from its base in earnest


@dataclass(frozen=True)
class Backoff:
    """The delay after attempt k, in seconds: max(floor, jitter(min(ceiling, shape(k)))).

    Shapes: constant d = base; linear d = base·k; exponential d = base·factor^(k−1).
    Jitters: none d (mean d); full U(0, d) (mean d/2); equal d/2 + U(0, d/2) (mean 3d/4); decorrelated
    dₖ = min(ceiling, U(base, 3·dₖ₋₁)) with d₀ = base, whatever the shape and the factor (mean, while the
    ceiling is far: base·(2·1.5ᵏ − 1)). Nothing is remembered between attempts, so its chain is redrawn from
    attempt 1, at most 64 links.

    Source of the jitters: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    Raises InvalidInput (a ValueError) for an unknown shape or jitter and for numbers out of bounds.
    """

    shape: str = "exponential"
    base_seconds: float = 1
    factor: float = 2
    floor_seconds: float = 0
    ceiling_seconds: float = 3600
    jitter: str = "full"

    def __post_init__(self) -> None:
        _one_of(self.shape, "shape", SHAPES)
        _one_of(self.jitter, "jitter", JITTERS)
        for name in ("base_seconds", "floor_seconds", "ceiling_seconds"):
            limits.delay_seconds(getattr(self, name), name)
        _growth(self.factor)
        if self.floor_seconds > self.ceiling_seconds:
            raise InvalidInput(
                f"floor_seconds ({self.floor_seconds:g}) must not exceed ceiling_seconds ({self.ceiling_seconds:g})"
            )

    def delay(self, attempt: int, rng: random.Random) -> float:
        """Seconds to wait after `attempt` (1 is the first), floor..ceiling; the same rng state gives the same delay."""
        limits.integer(attempt, "attempt", 1, 2**31 - 1)
        if not isinstance(rng, random.Random):
            raise InvalidInput(f"rng must be a random.Random, not {type(rng).__name__}")
        return float(min(self.ceiling_seconds, max(self.floor_seconds, self._jittered(attempt, rng))))

    def _jittered(self, attempt: int, rng: random.Random) -> float:
        if self.jitter == "decorrelated":
            return self._decorrelated(attempt, rng)
        d = min(self.ceiling_seconds, self._shaped(attempt))
        if self.jitter == "full":
            return rng.uniform(0, d)
        if self.jitter == "equal":
            return d / 2 + rng.uniform(0, d / 2)
        return d

    def _shaped(self, attempt: int) -> float:
        if self.shape == "constant":
            return self.base_seconds
        if self.shape == "linear":
            return self.base_seconds * attempt
        try:
            return self.base_seconds * float(self.factor) ** (attempt - 1)
        except OverflowError:  # 2.0 ** 1024: the ceiling was passed long ago, unless there is nothing to grow
            return self.ceiling_seconds if self.base_seconds else 0.0

    def _decorrelated(self, attempt: int, rng: random.Random) -> float:
        d = self.base_seconds
        for _ in range(min(attempt, CHAIN_LINKS)):
            d = min(self.ceiling_seconds, rng.uniform(self.base_seconds, 3 * d))
        return d


def _one_of(value: str, what: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidInput(f"{what} must be one of {', '.join(allowed)}, not {value!r}")


def _growth(factor: float) -> None:
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 1 <= factor <= MOST_FACTOR:
        raise InvalidInput(f"factor must be a number in 1–{MOST_FACTOR:,}, not {factor!r}")

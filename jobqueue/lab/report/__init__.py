"""The design review pack: from stored runs to one HTML file, a PDF and a zip, every sentence computed.

pack = report.make("review", trace="history.csv")      # makes what is not stored yet, writes review/
print(pack); pack.review.decisions                      # the summary; each decision with its figure

python -m jobqueue lab review --out DIR [--trace FILE] [--title …] [--target NAME=SECONDS] [--runs SET]
"""

from pathlib import Path

from ...errors import InvalidInput
from .. import planner, workload
from . import pack as packs
from . import runs
from .decisions import Decision
from .document import Review
from .making import Inputs, made, office_hour
from .pack import Pack, read, write
from .runs import Stored

__all__ = ["Decision", "Inputs", "Pack", "Review", "Stored", "inputs", "made", "make", "office_hour", "read", "runs",
           "write"]  # fmt: skip

SEED = 7
DEFAULT = "office-hour"


def inputs(trace=None, *, seed: int = SEED, targets=None) -> Inputs:
    """The load of a file, or the default one, with targets (`planner.Targets`, or those of its fields that differ).

    Raises InvalidInput for a file that cannot be replayed, and for what is no target, before anything is made.
    """
    wanted = targets if isinstance(targets, planner.Targets) else planner._targets(targets or {})
    work = workload.read(trace) if trace is not None else office_hour().draw(seed)
    if len(work) < 100:
        raise InvalidInput(f"{Path(trace).name if trace else DEFAULT}: {len(work)} jobs are too few for a review, "
                           "100 at least")  # fmt: skip
    return Inputs(work, DEFAULT if trace is None else _plain(Path(trace).stem), seed, wanted)


def make(
    out,
    *,
    trace=None,
    title: str | None = None,
    seed: int = SEED,
    targets=None,
    stored: str | None = None,
    directory=None,
    prefix=None,
    replace: bool = False,
    chromium: bool = False,
    progress: bool = True,
) -> Pack:
    """Makes the runs that are not stored yet, and the pack in the folder `out`; interrupt it at any time.

    stored: the name of a set to take as it is, instead of a load. directory: where sets are stored (data/runs).
    Raises InvalidInput before any work: a trace that cannot be read, an `out` that would be overwritten.
    """
    out = packs.checked(Path(out), replace=replace)
    if chromium:
        packs.found_browser()
    place = None if directory is None else Path(directory)
    if stored is None:
        given = inputs(trace, seed=seed, targets=targets)
        stored, name = made(given, directory=place, prefix=prefix, progress=progress), given.name
    elif trace is not None or targets:
        raise InvalidInput("a stored set has its own load and targets: give either the set, or a trace and targets")
    else:
        name = stored
    review = read(stored, title or f"Design review: job queue for {name}", directory=place, progress=progress)
    return write(review, out, replace=replace, chromium=chromium, progress=progress)


def _plain(stem: str) -> str:
    """A file's name as the name of a set: what is neither letter nor digit becomes a dash."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in stem)
    return kept.lstrip("._-") or "trace"

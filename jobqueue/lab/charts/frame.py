"""What a chart may ask of a frame: the columns it needs, in order of time, thinned where there are too many to draw."""

import numpy as np
import pandas as pd

from jobqueue.errors import InvalidInput

POINTS = 2000  # a line this long is sharper than any page; a million points make an SVG of 60 MB


def columns(frame, chart, *names):
    """`frame` (a DataFrame, a list of dicts or None) with `names`; InvalidInput says which it lacks."""
    frame = pd.DataFrame(columns=list(names)) if frame is None else pd.DataFrame(frame)
    if frame.empty and not len(frame.columns):
        frame = pd.DataFrame(columns=list(names))
    missing = [name for name in names if name not in frame.columns]
    if missing:
        has = ", ".join(map(str, frame.columns)) or "no columns"
        raise InvalidInput(f"charts.{chart}: the frame lacks {', '.join(missing)}; it has {has}")
    return frame.reset_index(drop=True)


def samples(frame, chart, *names):
    """Samples in order of `time_seconds`, all numbers, and the note that says how they were thinned."""
    frame = columns(frame, chart, "time_seconds", *names).sort_values("time_seconds", kind="stable", ignore_index=True)
    for column in ("time_seconds", *names):
        try:
            frame[column] = pd.to_numeric(frame[column]).astype(float)
        except (TypeError, ValueError) as e:
            raise InvalidInput(f"charts.{chart}: the column {column} holds something that is no number: {e}") from e
    return thinned(frame, names)


def thinned(frame, names):
    """At most POINTS rows, each the maximum of its neighbours: a peak must never vanish."""
    each = -(-len(frame) // POINTS)
    if each <= 1:
        return frame, []
    groups = np.arange(len(frame)) // each
    thin = frame[list(names)].groupby(groups).max()
    thin.insert(0, "time_seconds", frame["time_seconds"].groupby(groups).first())
    return thin, [f"each point is the maximum of {each:,} samples"]


def broken(frame):
    """The frame with a row of NaN in each gap five times the usual step: no line is drawn where nobody looked."""
    times = frame["time_seconds"].to_numpy(float)
    steps = np.diff(times)
    gaps = np.flatnonzero(steps > 5 * np.median(steps)) if len(steps) else np.array([], dtype=int)
    if not len(gaps):
        return frame
    holes = pd.DataFrame({"time_seconds": times[gaps] + steps[gaps] / 2})
    return pd.concat([frame, holes]).sort_values("time_seconds", kind="stable", ignore_index=True)


def span(*series):
    """From 0, or from the first value where 0 is far off, to the last one of all `series`; never empty."""
    values = np.concatenate(
        [pd.to_numeric(pd.Series(s), errors="coerce").dropna().to_numpy(float) for s in series] or [[]]
    )
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    low = min(low, 0.0) if low < 0.25 * high else low
    return low, high if high > low else low + 1.0

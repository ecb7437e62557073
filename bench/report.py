"""What came out: a text for the terminal, files to keep."""

import json
import os
import platform
import statistics
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from jobqueue.errors import InvalidInput
from jobqueue.lab import style

from . import bars, chart
from .amounts import Amounts, Reading
from .bars import HELD, IN_PART, MISSED, NOT_ASKED, READINGS, UNKNOWN, Verdict
from .contenders import NAMES, load
from .plan import Run

ADVICE = "Only ratios within a round mean anything: a disk's speed swings tenfold within minutes."


def frame(run: Run) -> pd.DataFrame:
    """A row a reading: round, reading, contender, value, unit, and the facts beside it as JSON."""
    rows = [
        {**asdict(each), "unit": READINGS[each.name][1], "facts": json.dumps(each.facts, sort_keys=True)}
        for each in run.readings
    ]
    columns = ["round", "name", "contender", "value", "unit", "facts"]
    return pd.DataFrame(rows, columns=columns).rename(columns={"name": "reading"})


def text(run: Run, verdicts: list[Verdict]) -> str:
    """For the terminal: figures, bars, prices, and who was not there."""
    parts = [_figures(run), _verdicts(verdicts), _prices(run), _absent(run), _machine(run), ADVICE]
    return "\n\n".join(part for part in parts if part)


def summary(verdicts: list[Verdict]) -> str:
    """One line."""
    results = (HELD, IN_PART, MISSED, UNKNOWN, NOT_ASKED)
    counts = {result: sum(each.result == result for each in verdicts) for result in results}
    return ", ".join(f"{count} {result}" for result, count in counts.items()) + f" of {len(verdicts)} bars"


def read(path: Path) -> Run:
    """A run as its bench.json tells it, to be judged, shown and drawn again."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        readings = [Reading(**each) for each in told["readings"]]
        return Run(readings, told["missing"], told["settings"], Amounts(**told["amounts"]), told["made_at"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"--again: {path} is no bench.json that could be read: {error}") from error


def write(folder: Path, run: Run, verdicts: list[Verdict]) -> list[Path]:
    """The report, the readings as csv, everything as JSON, the chart; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    everything = {
        "made_at": run.made_at,
        "revision": style.revision(),
        "machine": _machine_facts(),
        "settings": run.settings,
        "amounts": asdict(run.amounts),
        "contenders": {name: _about(name) for name in _taking_part(run)},
        "missing": run.missing,
        "bars": [asdict(each.bar) | {"text": each.bar.text} | _outcome(each) for each in verdicts],
        "readings": [asdict(each) for each in run.readings],
    }
    files = {
        "bench.json": json.dumps(everything, indent=1).encode(),
        "bench.csv": frame(run).to_csv(index=False, lineterminator="\n").encode(),
        "bench.txt": (text(run, verdicts) + "\n").encode(),
        "bench.png": chart.draw(run.readings, _about_the_run(run)).png(),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in files]


def _figures(run: Run) -> str:
    """A table a reading: the median, its spread, the ratio to the floor, and what was noted beside it."""
    return "\n\n".join(_figure(run, name) for name in READINGS if any(each.name == name for each in run.readings))


def _figure(run: Run, name: str) -> str:
    words, unit, better = READINGS[name]
    each = {one: list(bars.values(run.readings, name, one).values()) for one in NAMES}
    medians = {one: statistics.median(found) for one, found in each.items() if found}
    lines = [f"{words} ({unit})" if unit else words]
    for contender in sorted(medians, key=medians.get, reverse=better):
        found = each[contender]
        beside = [f"{_shown(min(found))}–{_shown(max(found))}"]
        if contender != bars.FLOOR and (times := list(bars.ratios(run.readings, name, contender, bars.FLOOR).values())):
            beside.append(f"{statistics.median(times):.2f} × floor")
        beside += _beside(run, name, contender)
        lines.append(f"  {load(contender).label:18}{_shown(medians[contender]):>9}   {' · '.join(beside)}")
    return "\n".join(lines)


def _beside(run: Run, name: str, contender: str) -> list[str]:
    """Medians of what was noted beside a reading."""
    noted = [each.facts for each in run.readings if (each.name, each.contender) == (name, contender)]
    words = {"lag_ms": "told {} ms after", "server_us_per_job": "server {} µs a job", "worker_us_per_job": "worker {}"}
    found = [f"back after {load(contender).facts.back_after}"] if name.startswith("drain") else []
    for key, form in words.items():
        if values := [facts[key] for facts in noted if facts.get(key) is not None]:
            found.append(form.format(_shown(statistics.median(values))))
    others = {key: value for key, value in (noted[-1] if noted else {}).items() if key not in words}
    return found + [f"{key} {_shown(value)}" for key, value in others.items() if not isinstance(value, list)]


def _verdicts(verdicts: list[Verdict]) -> str:
    lines = [f"bars: {summary(verdicts)}"]
    for each in (one for one in verdicts if one.result != NOT_ASKED):
        limit = f"{'≥' if each.bar.at_least else '≤'} {each.bar.limit:g} {each.bar.unit}".strip()
        spread = f"({_shown(each.low)}–{_shown(each.high)}, {each.rounds} rounds)"
        found = " ".join([_shown(each.median), spread, each.note]) if each.rounds else each.note
        lines.append(f"  {each.result:12} {limit:16} {each.bar.text:66} {found}".rstrip())
    return "\n".join(lines)


def _prices(run: Run) -> str:
    lines = ["at this price"]
    for name in _taking_part(run):
        one = load(name)
        lines += [f"  {one.label} {one.version}".rstrip(), f"      settings: {one.facts.settings}"]
        lines.append(f"      a dead worker's jobs come back after: {one.facts.back_after} ({one.facts.redelivery})")
        lines.append(f"      completions are told {one.facts.tells}")
    return "\n".join(lines)


def _absent(run: Run) -> str:
    lines = [f"  {load(name).label}: {why}" for name, why in run.missing.items()]
    return "\n".join(["NOT MEASURED, or only in part", *lines]) if lines else ""


def _machine(run: Run) -> str:
    return ", ".join(f"{key} {value}" for key, value in {**_machine_facts(), **run.settings}.items())


def _machine_facts() -> dict[str, str]:
    return {"cores": str(os.cpu_count()), "Python": platform.python_version()}


def _about_the_run(run: Run) -> dict:
    rounds = max((each.round for each in run.readings), default=0)
    about = {"rounds": rounds, "cores": os.cpu_count(), "synchronous_commit": run.settings.get("synchronous_commit")}
    return about | {"postgres": run.settings.get("server_version"), "date": run.made_at[:10]}


def _taking_part(run: Run) -> list[str]:
    return [name for name in NAMES if any(each.contender == name for each in run.readings)]


def _about(name: str) -> dict:
    one = load(name)
    return {"version": one.version, **asdict(one.facts)}


def _outcome(each: Verdict) -> dict:
    return {key: value for key, value in asdict(each).items() if key != "bar"}


def _shown(value) -> str:
    if isinstance(value, float | int):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)

"""A history from a file, line by line: (seconds, type, service seconds, outcome), or the line that cannot be read.

CSV: a header with time, type, duration and perhaps outcome, in any order and case; further columns are ignored. Time is
in seconds or ISO 8601 with an offset, the same in every line; outcome is done (also where empty) or failed.
SWF: 18 fields; submit time (2), run time (4), status (11: 0 and 5 failed, 1 and -1 done), executable (14; -1 is "job").
A line is left out, as None, if it holds no work of its own: a job that never ran (run time -1, unknown), a partial run
(status 2 to 4; the job's own line, before them, has the whole). Lines out of order are no error: a workload sorts them.
"""

import csv
import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from io import StringIO
from pathlib import Path

from .. import limits
from ..errors import InvalidInput

DONE, FAILED = "done", "failed"
MAX_SECONDS = 1e9  # 31 years: a longer run or span is a wrong unit (milliseconds), and would overflow a timestamp
SWF_OUTCOMES = {0: FAILED, 5: FAILED, 1: DONE, -1: DONE, 2: None, 3: None, 4: None}

Row = tuple[float, str, float, str]


def rows(path: Path) -> Iterator[Row | None]:
    readers = {".csv": _csv_rows, ".swf": _swf_rows}
    if path.suffix.lower() not in readers:
        raise InvalidInput(f"{path.name}: a workload file ends in .csv or .swf")
    return readers[path.suffix.lower()](path.name, _text(path))


def check_outcome(outcome: str) -> str:
    if outcome not in (DONE, FAILED):
        raise InvalidInput(f"outcome {outcome!r} is neither done nor failed")
    return outcome


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return raw.decode("utf-8-sig")  # spreadsheets write a BOM
    except OSError as error:
        raise InvalidInput(f"cannot read {path.name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InvalidInput(f"{path.name} line {line}: not UTF-8") from error


def _csv_rows(name: str, text: str) -> Iterator[Row | None]:
    lines = _csv_lines(name, text)
    number, header = next(lines, (1, []))
    header = [cell.strip().lower() for cell in header]
    if header and sorted(set(header)) != sorted(header) or header and not {"time", "type", "duration"} <= set(header):
        raise InvalidInput(f"{name} line {number}: the header needs time, type, duration[, outcome], each once; "
                           f"it reads {', '.join(header)}")
    clock = None
    for number, cells in lines:
        with _line(name, number):
            if len(cells) != len(header):
                raise ValueError(f"{len(cells)} fields, the header has {len(header)}")
            row = dict(zip(header, map(str.strip, cells), strict=True))
            clock = clock or (_seconds if _is_number(row["time"]) else _instant)
            yield (clock("time", row["time"]), limits.job_type(row["type"]), _run_seconds(row["duration"]),
                   check_outcome(row.get("outcome", "").lower() or DONE))


def _csv_lines(name: str, text: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(StringIO(text, newline=""), strict=True)
    try:
        yield from ((reader.line_num, cells) for cells in reader if any(map(str.strip, cells)))
    except csv.Error as error:
        raise InvalidInput(f"{name} line {reader.line_num}: {error}") from error


def _swf_rows(name: str, text: str) -> Iterator[Row | None]:
    for number, line in enumerate(StringIO(text, newline=None), 1):
        cells = line.split()
        if not cells or cells[0].startswith(";"):
            continue
        with _line(name, number):
            if len(cells) != 18:
                raise ValueError(f"{len(cells)} fields, an SWF line has 18")
            status, executable = _whole("status (field 11)", cells[10]), _whole("type (field 14)", cells[13])
            if status not in SWF_OUTCOMES:
                raise ValueError(f"status (field 11) {status} is not -1 to 5")
            at = _seconds("submit time (field 2)", cells[1])
            unknown = _is_number(cells[3]) and float(cells[3]) == -1
            run = 0.0 if unknown else _run_seconds(cells[3], "run time (field 4)")
            outcome = None if unknown else SWF_OUTCOMES[status]
            yield (at, "job" if executable == -1 else str(executable), run, outcome) if outcome else None


@contextmanager
def _line(name: str, number: int) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise InvalidInput(f"{name} line {number}: {error}") from None


def _is_number(text: str) -> bool:
    try:
        return float(text) is not None
    except ValueError:
        return False


def _seconds(name: str, text: str) -> float:
    if not _is_number(text):
        raise ValueError(f"{name} {text!r} is not a number of seconds")
    seconds = float(text)
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{name} {text} is not a number of seconds from 0 up")
    return seconds


def _run_seconds(text: str, name: str = "duration") -> float:
    seconds = _seconds(name, text)
    if seconds > MAX_SECONDS:
        raise ValueError(f"{name} {text} s is more than {MAX_SECONDS:.0e}: wrong unit?")
    return seconds


def _whole(name: str, text: str) -> int:
    if not _is_number(text) or not float(text).is_integer():
        raise ValueError(f"{name} {text!r} is not a whole number")
    return int(float(text))


def _instant(name: str, text: str) -> float:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{name} {text!r} is not ISO 8601") from None
    if instant.utcoffset() is None:
        raise ValueError(f"{name} {text!r} has no UTC offset (+01:00, or Z)")
    return instant.timestamp()

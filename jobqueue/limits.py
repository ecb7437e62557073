"""The limits of DESIGN §2, checked before any SQL is sent; schema.sql states the same ones as CHECKs."""

import json
import math
import traceback
from datetime import UTC, datetime

from .errors import InvalidInput

TYPE_BYTES = 200
OWNER_BYTES = 200
KEY_BYTES = 512
SCHEDULE_BYTES = 400
NAME_BYTES = 400
CRON_CHARACTERS = 200
PAYLOAD_BYTES = 1 << 20
PAYLOAD_DEPTH = 100  # the reader's stack must never be what refuses a payload: by then its claim is committed
ERROR_BYTES = 16 << 10
HISTORY_ENTRIES = 50
BRIEF_BYTES = 500
MAX_ATTEMPTS = 10_000
LEASE_SECONDS = (0.001, 86_400)
BATCH = 1_000
DELAY_SECONDS = 100 * 366 * 86_400  # a hundred years keep run_at inside every date type that reads it
RESERVED_PREFIX = "schedule/"


def text(value: object, what: str, most: int, *, least: int = 1) -> str:
    """A string of least..most bytes in UTF-8 that PostgreSQL can store."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be a string, not {type(value).__name__}")
    size = len(_utf8(value, what))
    if not least <= size <= most:
        raise InvalidInput(f"{what} must have {least}–{most} bytes in UTF-8, this one has {size}")
    return value


def _utf8(value: str, what: str) -> bytes:
    if "\0" in value:
        raise InvalidInput(f"{what} contains a NUL character at position {value.index(chr(0))}, which can't be stored")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{what} contains a lone surrogate at position {error.start}") from None


def job_type(value: object) -> str:
    return text(value, "type", TYPE_BYTES)


def owner(value: object) -> str:
    return text(value, "owner", OWNER_BYTES)


def key(value: str | None) -> str | None:
    """A user's idempotency key; None means that there is none."""
    if value is None:
        return None
    if text(value, "key", KEY_BYTES).startswith(RESERVED_PREFIX):
        raise InvalidInput(f"key must not begin with {RESERVED_PREFIX!r}: schedules use that prefix")
    return value


def types(value: object) -> list[str] | None:
    if value is None:
        return None
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise InvalidInput(f"types must be a list of types, not {value!r}")
    return sorted({job_type(one) for one in value})


def integer(value: object, what: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{what} must be a whole number, not {value!r}")
    if not least <= value <= most:
        raise InvalidInput(f"{what} must lie in {least:,}–{most:,}, not {_shown(value)}")
    return int(value)


def seconds(value: float, what: str, least: float, most: float) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or value != value or value in (math.inf, -math.inf):
        raise InvalidInput(f"{what} must be a finite number of seconds, not {value!r}")
    if not least <= value <= most:
        raise InvalidInput(f"{what} must lie in {least:,}–{most:,} seconds, not {_shown(value)}")
    return float(value)


def _shown(value: float) -> str:
    return f"{value:,}" if abs(value) < 10**30 else "a number of more than 30 digits"


def lease_seconds(value: float) -> float:
    return seconds(value, "lease_seconds", *LEASE_SECONDS)


def delay_seconds(value: float, what: str = "delay_seconds") -> float:
    return seconds(value, what, 0, DELAY_SECONDS)


def max_attempts(value: object) -> int:
    return integer(value, "max_attempts", 1, MAX_ATTEMPTS)


def batch(value: object) -> int:
    return integer(value, "limit", 1, BATCH)


def job_id(value: object) -> int:
    return integer(value, "job_id", -(2**63), 2**63 - 1)


def instant(value: object, what: str) -> datetime:
    """An aware datetime, in UTC; a naive one would silently mean somebody's local time."""
    if not isinstance(value, datetime):
        raise InvalidInput(f"{what} must be a datetime with a time zone, not {value!r}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidInput(f"{what} is naive ({value.isoformat()}): give it a time zone, e.g. timezone.utc")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(f"{what} lies outside the years 1–9999 in UTC") from None


def payload(value: object) -> str:
    """The payload as JSON text: what `json` accepts, without NaN, NUL or lone surrogates, in 1 MiB and 100 levels.

    Non-string keys become strings, tuples become lists, as `json` does; integers of any size stay exact.
    """
    try:
        encoded = _encode(value)
        size = len(encoded) if encoded.isascii() else len(encoded.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(_first_fault(value) or f"payload is not JSON: {error}") from None
    deep = size > PAYLOAD_DEPTH and encoded.count("[") + encoded.count("{") > PAYLOAD_DEPTH
    fault = _first_fault(value) if deep or "\\u0000" in encoded else None
    if fault:
        raise InvalidInput(fault)
    if size > PAYLOAD_BYTES:
        raise InvalidInput(f"payload has {size:,} bytes as JSON, at most {PAYLOAD_BYTES:,} are allowed")
    return encoded


# json.dumps makes a new encoder each time; a circle is found by its depth, and to look for one took half of the time.
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, check_circular=False).encode


def _first_fault(value: object, path: str = "payload", depth: int = 0) -> str | None:
    """The path and the reason of the first thing in a payload that cannot be stored."""
    if depth > PAYLOAD_DEPTH:
        return f"payload is nested deeper than {PAYLOAD_DEPTH} levels, at {path[:120]}…"
    if isinstance(value, dict):
        for name, inner in value.items():
            fault = _key_fault(name, path) or _first_fault(inner, f"{path}.{name}", depth + 1)
            if fault:
                return fault
        return None
    if isinstance(value, (list, tuple)):
        inner_faults = (_first_fault(inner, f"{path}[{i}]", depth + 1) for i, inner in enumerate(value))
        return next(filter(None, inner_faults), None)
    return _scalar_fault(value, path)


def _key_fault(name: object, path: str) -> str | None:
    if not isinstance(name, (str, int, float, bool, type(None))):
        return f"{path} has a key of type {type(name).__name__}: JSON keys are strings"
    return _scalar_fault(name, f"{path} (a key)")


def _scalar_fault(value: object, path: str) -> str | None:
    if isinstance(value, str):
        try:
            _utf8(value, ascii(path)[1:-1])
        except InvalidInput as error:
            return str(error)
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return f"{path} is {value!r}: JSON has no such number"
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        return f"{path} is a {type(value).__name__}, which JSON can't hold ({error})"
    return None


def error_text(error: str | BaseException) -> str:
    """An error (text or exception) as text that can be stored: no NUL, no surrogate, ≤ 16 KiB, head and tail kept."""
    whole = error if isinstance(error, str) else _formatted(error)
    whole = whole.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
    return clip(whole, ERROR_BYTES)


def brief(text: str) -> str:
    """The line of an error text that says what happened (a traceback's last one), for the history."""
    lines = [line for line in text.splitlines() if line.strip()]
    return clip(lines[-1].strip(), BRIEF_BYTES) if lines else ""


def _formatted(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error)).strip()
    except Exception as second:  # a traceback that can't be formatted must not lose the failure
        return f"{type(error).__name__} (its text can't be shown: {type(second).__name__})"


def clip(value: str, most: int) -> str:
    """At most `most` bytes of UTF-8, cut at character boundaries, with the head and the tail kept."""
    raw = value.encode()
    if len(raw) <= most:
        return value
    mark = f"\n… {len(raw):,} bytes in all …\n".encode()
    head = (most - len(mark)) // 2
    tail = most - len(mark) - head
    kept = raw[:head].decode(errors="ignore"), raw[len(raw) - tail :].decode(errors="ignore")
    return kept[0] + mark.decode() + kept[1]

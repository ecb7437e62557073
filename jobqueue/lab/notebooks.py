"""Executes notebooks without a browser, each in a fresh kernel; behind `./run notebooks [--write] [NAME …]`.

Several run two at a time, each by a process like this one; those that measure the machine, alone, after them.
"""
from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from jobqueue.errors import JobQueueError
from jobqueue.lab import export
from jobqueue.lab.cleaning import cleaned

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
CELL_SECONDS = 300.0
ERROR_CHARACTERS = 4000
AT_ONCE = 2  # a notebook in virtual time keeps about one core: its kernel and its server take turns
MEASURES = "snapshot"  # tag of cells whose figures are this machine's
LOOK_SECONDS = 0.2
_COLOURS = re.compile(r"\x1b\[[\d;]*m")


class NotebookFailed(JobQueueError):
    """A cell of a notebook raised, or took too long; the message names the notebook and shows the end of the trace."""


def execute(path: Path, *, parameters: Mapping[str, object] | None = None,
            cell_seconds: float = CELL_SECONDS) -> nbformat.NotebookNode:
    """The notebook with its outputs, run top to bottom in its own folder; the file is not touched.

    parameters: assigned after the cell tagged `parameters`, by name.
    """
    notebook: nbformat.NotebookNode = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    if parameters:
        _assign(notebook, path.name, parameters)
    # Coalesced: whether a print comes as one message or as two depends on the moment.
    client = NotebookClient(notebook, timeout=cell_seconds, kernel_name="python3", store_widget_state=False,
                            coalesce_streams=True, extra_arguments=["--log-level=ERROR"],
                            resources={"metadata": {"path": str(path.parent)}})
    try:
        client.execute()
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        raise NotebookFailed(f"{path.name}: {_COLOURS.sub('', str(error)).strip()[-ERROR_CHARACTERS:]}") from None
    return notebook


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    chosen = _chosen(options.names)
    if not chosen:
        print("no notebooks found", file=sys.stderr)
        return 1
    alone = [path for path in chosen if len(chosen) == 1 or _measures(path)]
    ran = _run_beside([path for path in chosen if path not in alone], options.write)
    ran += sum(_run(path, options.write) for path in alone)
    place = "/".join(export.home().parts[-2:])
    print(f"{ran} of {len(chosen)} notebooks ran; charts are in {place}/")
    return 0 if ran == len(chosen) else 1


def _run_beside(paths: Sequence[Path], write: bool) -> int:
    """How many ran. From the last on, since those take longest; interrupted, what runs is ended first."""
    waiting, running, ran = list(paths), list[subprocess.Popen[str]](), 0
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                running.append(_started(waiting.pop(), write))
            time.sleep(LOOK_SECONDS)
            for process in [each for each in running if each.poll() is not None]:
                running.remove(process)
                ran += _told(process)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.communicate()
    return ran


def _started(path: Path, write: bool) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", __spec__.name, *["--write"] * write, str(path)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")


def _told(process: subprocess.Popen[str]) -> bool:
    """Passes on what a process said, without its summary; whether its notebook ran."""
    said, error = process.communicate()
    print("\n".join(said.splitlines()[:-1]) or error.strip(), file=sys.stderr if process.returncode else sys.stdout)
    return process.returncode == 0


def _measures(path: Path) -> bool:
    notebook: nbformat.NotebookNode = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    return any(MEASURES in _tags(cell) for cell in notebook.cells)


def _run(path: Path, write: bool) -> bool:
    began, clock = time.time(), time.monotonic()
    try:
        notebook = execute(path)
    except NotebookFailed as error:
        print(f"{path.stem}: failed after {time.monotonic() - clock:.1f} s\n{error}", file=sys.stderr, flush=True)
        return False
    if write:
        nbformat.write(cleaned(notebook), path)  # type: ignore[no-untyped-call]
    own = export.home().glob(f"{path.stem.partition('-')[0]}-*")
    files = [file for each in own for file in (each, *each.rglob("*")) if file.is_file()]
    made = [file for file in files if file.stat().st_mtime >= began]
    print(f"{path.stem}: {time.monotonic() - clock:.1f} s, {len(made)} files exported", flush=True)
    return True


def _assign(notebook: nbformat.NotebookNode, name: str, parameters: Mapping[str, object]) -> None:
    place = next((index for index, cell in enumerate(notebook.cells) if "parameters" in _tags(cell)), None)
    if place is None:
        raise NotebookFailed(f"{name} has no cell tagged `parameters`")
    lines = [f"{key} = {value!r}" for key, value in parameters.items()]
    assigned = nbformat.v4.new_code_cell("\n".join(lines))  # type: ignore[no-untyped-call]
    notebook.cells.insert(place + 1, assigned)


def _tags(cell: Any) -> list[str]:
    return list(cell.metadata.get("tags", ()))


def _chosen(names: Sequence[str]) -> list[Path]:
    """By how their names begin; a name that is a file's own is that file alone."""
    given = [Path(name).resolve() for name in names if name.endswith(".ipynb") and Path(name).is_file()]
    begins = [Path(name).stem for name in names if not (name.endswith(".ipynb") and Path(name).is_file())]
    found = sorted(NOTEBOOKS.glob("*.ipynb")) if begins or not names else []
    return sorted({*given, *(path for path in found if not names or path.stem.startswith(tuple(begins)))})


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run notebooks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only those whose name begins so, e.g. 00")
    parser.add_argument("--write", action="store_true", help="keep the outputs in the notebook files")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

"""Executes notebooks without a browser, each in a fresh kernel; behind `./run notebooks [--write] [NAME …]`."""
from __future__ import annotations

import argparse
import re
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
    failures = [path for path in chosen if not _run(path, options.write)]
    place = "/".join(export.home().parts[-2:])
    print(f"{len(chosen) - len(failures)} of {len(chosen)} notebooks ran; charts are in {place}/")
    return 1 if failures else 0


def _run(path: Path, write: bool) -> bool:
    began, clock = time.time(), time.monotonic()
    try:
        notebook = execute(path)
    except NotebookFailed as error:
        print(f"{path.stem}: failed after {time.monotonic() - clock:.1f} s\n{error}", file=sys.stderr, flush=True)
        return False
    if write:
        nbformat.write(cleaned(notebook), path)  # type: ignore[no-untyped-call]
    made = sorted(file.name for file in export.home().rglob("*") if file.is_file() and file.stat().st_mtime >= began)
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
    found = sorted(NOTEBOOKS.glob("*.ipynb"))
    return [path for path in found if not names or any(path.stem.startswith(Path(name).stem) for name in names)]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run notebooks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only those whose name begins so, e.g. 00")
    parser.add_argument("--write", action="store_true", help="keep the outputs in the notebook files")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

"""Notebooks as they are committed: `python -m jobqueue.lab.cleaning FILE …`, also as a pre-commit hook."""

import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat

WIDGET = "application/vnd.jupyter.widget-view+json"


def cleaned(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Without times, versions, warnings and widgets: shown without its kernel, a page would find no model for those.

    Whatever a widget shows has a plain cell beside it.
    """
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _passing(output)]
    return notebook


def main(names: Sequence[str]) -> int:
    """Cleans each file in place; 1 if one of them was not clean, as a hook has to say."""
    changed = 0
    for path in map(Path, names):
        before = path.read_text(encoding="utf-8")
        after = nbformat.writes(cleaned(nbformat.reads(before, as_version=4))) + "\n"
        if before != after:
            path.write_text(after, encoding="utf-8")
            print(f"cleaned {path.name}")
            changed = 1
    return changed


def _passing(output: nbformat.NotebookNode) -> bool:
    return output.get("name") == "stderr" or WIDGET in output.get("data", {})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

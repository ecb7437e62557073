"""Notebooks as they are committed: `python -m jobqueue.lab.cleaning FILE …`, also as a pre-commit hook."""

import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat

WIDGET = "application/vnd.jupyter.widget-view+json"


def cleaned(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Without times, versions and warnings, and with the picture of a widget instead of the widget.

    A page that shows the notebook without its kernel would find no model for a widget, and show nothing.
    """
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [_without_widget(output) for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def main(names: Sequence[str]) -> int:
    """Cleans each file in place; 1 if one of them was not clean, as a hook has to say."""
    changed = 0
    for path in map(Path, names):
        before = path.read_text(encoding="utf-8")
        after = nbformat.writes(cleaned(nbformat.reads(before, as_version=4))) + "\n"  # type: ignore[no-untyped-call]
        if before != after:
            path.write_text(after, encoding="utf-8")
            print(f"cleaned {path.name}")
            changed = 1
    return changed


def _without_widget(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    if output.get("data", {}).pop(WIDGET, None) is not None:
        output.data["text/plain"] = "a widget; it lives as long as its kernel"
    return output


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

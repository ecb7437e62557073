"""The notebooks: each keeps to the house style, runs from a fresh kernel, and says again what is committed."""

import ast
import re
from pathlib import Path

import nbformat
import pytest

from jobqueue.lab import notebooks
from jobqueue.lab.cleaning import cleaned, main

FOLDER = Path(__file__).parents[1] / "notebooks"
ALL = sorted(FOLDER.glob("*.ipynb"))
VIRTUAL = [path for path in ALL if '"live"' not in path.read_text(encoding="utf-8")]
WIDGET = "application/vnd.jupyter.widget"


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell):
    return cell.metadata.get("tags", [])


def said(notebook):
    """What every cell that does not depend on real time says: the text of its outputs, in order."""
    return [
        (cell.id, "".join(map(_text, cell.outputs)))  # joined: what is printed may come in one piece or in several
        for cell in code_cells(notebook)
        if "live" not in tags(cell) and "parameters" not in tags(cell)
    ]


def _text(output):
    return output.get("text") or output.get("data", {}).get("text/plain") or ""


@pytest.fixture(params=ALL, ids=lambda path: path.stem)
def notebook(request):
    return nbformat.read(request.param, as_version=4)


def test_the_first_cell_is_the_question_and_its_answer_with_a_number(notebook):
    first = notebook.cells[0].source
    assert re.match(r"# \d\d · .+\?\n", first)
    answer = first.partition("**The short answer.**")[2].partition("\n\n")[0]
    assert re.search(r"\d", answer) and "**What is real, what is simulated.**" in first


def test_the_last_cell_reads_off_answers_limits_and_the_next_question(notebook):
    last = notebook.cells[-1].source
    assert last.startswith("## What was read off\n\n|") and "**Limits.**" in last and "**Next question.**" in last


def test_one_cell_holds_the_parameters_with_the_seed(notebook):
    (cell,) = (cell for cell in notebook.cells if "parameters" in tags(cell))
    assert re.search(r"^SEED = ", cell.source, re.MULTILINE)


def test_code_cells_are_few_and_short_and_hold_no_class_no_sql_and_no_matplotlib(notebook):
    cells = code_cells(notebook)
    assert len(cells) <= 15
    assert max(len(cell.source.splitlines()) for cell in cells) <= 12
    for cell in cells:
        tree = ast.parse(cell.source)
        assert not any(isinstance(node, ast.ClassDef) for node in ast.walk(tree)), cell.source
        assert not re.search(
            r"matplotlib|pyplot|\bselect\b.+\bfrom\b|\bupdate\b.+\bset\b", cell.source, re.IGNORECASE
        ), cell.source


def test_it_is_committed_with_outputs_in_order_and_without_widgets_errors_or_this_machine(notebook):
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert all(
        cell.get("attachments", {}).keys() >= set(re.findall(r"attachment:([^)]+)", cell.source))
        for cell in notebook.cells
    )
    outputs = [output for cell in cells for output in cell.outputs]
    text = nbformat.writes(notebook)
    assert not any(output.output_type == "error" or output.get("name") == "stderr" for output in outputs)
    assert WIDGET not in text and "widgets" not in notebook.metadata
    assert not re.search(r"/(home|root|tmp|work|Users|var/tmp)/", re.sub(r'"image/png": "[^"]*"', "", text))


def test_links_between_notebooks_lead_somewhere(notebook):
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([^)#:]+)\)", text)  # with a colon: elsewhere, or an attachment
    assert [link for link in links if not (FOLDER / link).exists()] == []


def test_a_cell_with_a_cockpit_cannot_be_deleted_by_a_slip_of_the_keyboard():
    notebook = nbformat.read(FOLDER / "04-kill-pause-resume.ipynb", as_version=4)
    (cell,) = (cell for cell in notebook.cells if "cockpit" in tags(cell))
    assert (cell.metadata["deletable"], cell.metadata["editable"]) == (False, False)


def test_start_here_runs_and_says_what_is_committed(monkeypatch, tmp_path):
    monkeypatch.setenv("JOBQUEUE_EXPORTS", str(tmp_path / "data" / "exports"))
    path = FOLDER / "00-start-here.ipynb"
    assert said(notebooks.execute(path)) == said(nbformat.read(path, as_version=4))
    made = {file.name.partition(".")[0]: file.stat().st_size for file in (tmp_path / "data" / "exports").iterdir()}
    assert set(made) >= {"00-life-of-a-job", "00-two-workers"} and min(made.values()) > 0


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_live_notebook_plays_its_plan_without_a_browser_and_loses_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("JOBQUEUE_EXPORTS", str(tmp_path))
    for name in ("JPY_SESSION_NAME", "VSCODE_PID", "SERVER_SOFTWARE"):
        monkeypatch.delenv(name, raising=False)
    notebook = notebooks.execute(FOLDER / "04-kill-pause-resume.ipynb", parameters={"JOBS": 240})
    text = "".join(output.get("text", "") for cell in code_cells(notebook) for output in cell.outputs)
    assert "240 done, 0 dead, 0 open" in text
    kinds = (tmp_path / "04-kill-pause-resume-faults.csv").read_text()
    assert all(f",{kind}," in kinds for kind in ("kill", "start", "pause", "resume", "cut", "crash", "restart"))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", VIRTUAL, ids=lambda path: path.stem)
def test_a_notebook_in_virtual_time_says_again_what_is_committed(path, monkeypatch, tmp_path):
    monkeypatch.setenv("JOBQUEUE_EXPORTS", str(tmp_path / "data" / "exports"))
    monkeypatch.setenv("JOBQUEUE_RUNS", str(tmp_path / "data" / "runs"))
    assert said(cleaned(notebooks.execute(path))) == said(nbformat.read(path, as_version=4))


def test_what_is_committed_is_clean(tmp_path):
    copies = [tmp_path / path.name for path in ALL]
    for path, copy in zip(ALL, copies, strict=True):
        copy.write_bytes(path.read_bytes())
    assert main([str(copy) for copy in copies]) == 0


def test_a_cleaned_notebook_has_no_widgets_times_and_versions():
    output = {"output_type": "display_data", "metadata": {}, "data": {f"{WIDGET}-view+json": {}, "image/png": "x"}}
    cell = nbformat.v4.new_code_cell("panel", outputs=[nbformat.from_dict(output)], metadata={"execution": {"a": "b"}})
    metadata = {"widgets": {}, "language_info": {"name": "python", "version": "3.11.7"}}
    clean = cleaned(nbformat.v4.new_notebook(cells=[cell], metadata=metadata))
    assert (clean.cells[0].outputs, clean.cells[0].metadata) == ([], {})
    assert clean.metadata == {"language_info": {"name": "python"}}

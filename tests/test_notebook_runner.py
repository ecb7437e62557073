"""A notebook runs without a browser, from a fresh kernel; it is the runner that is tested here, on small notebooks."""
import os
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import psutil
import pytest

from helpers import wait_until
from jobqueue.lab import notebooks
from jobqueue.lab.notebooks import NotebookFailed, execute


@pytest.fixture
def write(tmp_path):
    """Writes a notebook of these cells; the first is tagged `parameters`."""
    def written(*sources, tags=("parameters",), name="01-one"):
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        cells[0].metadata.tags = list(tags)
        path = tmp_path / f"{name}.ipynb"
        nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
        return path
    return written


def printed(executed):
    outputs = [output for cell in executed.cells for output in cell.outputs]
    return "".join(output.text for output in outputs if output.get("name") == "stdout")


def test_parameters_are_assigned_after_their_cell(write):
    path = write("SEED = 1; NAME = 'a'", "print(SEED, NAME)")
    assert printed(execute(path, parameters={"SEED": 7, "NAME": "o'brien"})) == "7 o'brien\n"


def test_it_runs_in_its_own_folder_and_the_file_is_not_touched(write, tmp_path):
    path = write("import os", "print(os.getcwd())")
    before = path.read_bytes()
    assert (printed(execute(path)), path.read_bytes()) == (f"{tmp_path}\n", before)


def test_a_cell_that_raises_is_named_with_its_error(write):
    with pytest.raises(NotebookFailed, match=r"(?s)^01-one\.ipynb: .*1 / 0.*ZeroDivisionError: division by zero"):
        execute(write("1 / 0"))


def test_a_cell_that_takes_too_long_is_named(write):
    with pytest.raises(NotebookFailed, match=r"(?s)^01-one\.ipynb: .*timed out .* after 1 seconds"):
        execute(write("import signal; signal.pause()"), cell_seconds=1)


def test_parameters_need_a_cell_for_them(write):
    with pytest.raises(NotebookFailed, match="01-one.ipynb has no cell tagged `parameters`"):
        execute(write("SEED = 1", tags=()), parameters={"SEED": 7})


def test_a_name_that_no_notebook_has_fails(capsys):
    assert (notebooks.main(["99"]), "no notebook" in capsys.readouterr().err) == (1, True)


@pytest.mark.parametrize("names, chosen", [
    ([], ["00-a", "04-b"]), (["04"], ["04-b"]), (["notebooks/00-a.ipynb"], ["00-a"])])
def test_notebooks_are_chosen_by_how_their_names_begin(names, chosen, tmp_path, monkeypatch):
    for name in ("04-b", "00-a"):
        (tmp_path / f"{name}.ipynb").touch()
    monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path)
    assert [path.stem for path in notebooks._chosen(names)] == chosen


def test_several_run_beside_each_other_and_one_that_measures_alone_after_them(write, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path)
    meet = f"""import pathlib, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from helpers import wait_until
pathlib.Path({{0!r}}).touch()
wait_until(pathlib.Path({{1!r}}).exists, 120)"""
    write(meet.format("a", "b"), name="01-a")
    write(meet.format("b", "a"), name="02-b")
    write("import pathlib; pathlib.Path('alone').touch()", tags=("parameters", "snapshot"), name="03-alone")
    write("import pathlib; assert not pathlib.Path('alone').exists()", name="04-before")
    write("1 / 0", name="05-fails")
    said = (notebooks.main([]), capsys.readouterr())
    assert (said[0], said[1].out.splitlines()[-1].partition(";")[0]) == (1, "4 of 5 notebooks ran")
    assert "05-fails.ipynb: " in said[1].err and "ZeroDivisionError: division by zero" in said[1].err


def test_interrupted_it_leaves_no_kernel(write, tmp_path):
    paths = [write(f"import os, pathlib, signal; pathlib.Path('{name}').write_text(str(os.getpid())); signal.pause()",
                   name=name) for name in ("01-a", "02-b")]  # fmt: skip
    process = subprocess.Popen([sys.executable, "-m", "jobqueue.lab.notebooks", *map(str, paths)])
    pids = [tmp_path / name for name in ("01-a", "02-b")]
    try:
        wait_until(lambda: all(file.exists() and file.read_text() for file in pids), 60, "both kernels at work")
        os.kill(process.pid, signal.SIGINT)
        process.wait(30)
    finally:
        process.kill()
    wait_until(lambda: not any(psutil.pid_exists(int(file.read_text())) for file in pids), what="their end")

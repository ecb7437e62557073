"""The review pack as its reader meets it: what it rests on is what it says, and older runs are never taken for new."""

import dataclasses

import pytest

from jobqueue.errors import InvalidInput
from jobqueue.lab import report
from jobqueue.lab.report import making, pack, runs
from test_report import SET, STORED, load

# ---- runs of other code --------------------------------------------------------------------------------------------


def test_runs_that_other_code_has_made_are_another_set(monkeypatch):
    given = report.Inputs(load(), "x", 7, report.planner.Targets())
    ours = given.set_name
    monkeypatch.setattr(making, "code", lambda: "other")
    assert given.set_name != ours and given.set_name.startswith("x-")


def test_a_named_set_of_another_version_is_refused_in_a_sentence(tmp_path):
    for run in runs.load_set(STORED / SET).values():
        figures = {name: value for name, value in run.figures.items() if name != "herd_scale"}
        runs.save(dataclasses.replace(run, figures=figures), tmp_path / SET)
    with pytest.raises(InvalidInput, match=r"^the stored set 'morning' \(made by git 0123456789\) has no 'herd_scale'"):
        pack.read(SET, "old", directory=tmp_path, progress=False)

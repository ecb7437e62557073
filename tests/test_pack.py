"""The review pack as its reader meets it: what it rests on is what it says, and older runs are never taken for new."""

import dataclasses
import json
import re

import pytest
from test_report import SET, STORED, load, said

from jobqueue.errors import InvalidInput
from jobqueue.lab import cli, labels, report
from jobqueue.lab.report import decisions, document, evidence, making, markup, pack, runs
from jobqueue.lab.report.blocks import Table

# ---- runs of other code --------------------------------------------------------------------------------------------


def test_runs_that_other_code_has_made_are_another_set(monkeypatch):
    given = report.Inputs(load(), "x", 7, report.planner.Targets())
    ours = given.set_name
    monkeypatch.setattr(making, "code", lambda: "other")
    assert given.set_name != ours and given.set_name.startswith("x-")


def test_a_named_set_of_another_version_is_refused_in_a_sentence(tmp_path):
    for run in runs.load_set(STORED / SET).values():
        figures = {name: value for name, value in run.figures.items() if name != "workers_in_a_row"}
        runs.save(dataclasses.replace(run, figures=figures), tmp_path / SET)
    words = r"^the stored set 'morning' \(made by git 0123456789\) has no 'workers_in_a_row'"
    with pytest.raises(InvalidInput, match=words):
        pack.read(SET, "old", directory=tmp_path, progress=False)


# ---- a deep search as evidence -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def review():
    return pack.read(SET, "Mornings", directory=STORED, revision="0123456789", progress=False)


def test_a_deep_search_that_was_stored_stands_in_the_evidence(review, tmp_path, capsys):
    assert cli.main(["explore", "--shallower", "8", "--quiet", "--output", str(tmp_path / "search.json")]) == 0
    assert "two jobs in batches" in capsys.readouterr().out
    short, deep = evidence.gather(review.found["explorer"], tmp_path)[:2]
    assert (short.kind, deep.kind, deep.verdict) == (evidence.SEARCH, evidence.SEARCH, "held")
    assert "every order of up to 1 actions over 7 families" in deep.shown and "search.json, sha256 " in deep.source
    assert "lab explore" not in short.source


def test_without_one_the_command_that_makes_it_is_named(review, tmp_path):
    short, following = evidence.gather(review.found["explorer"], tmp_path)[:2]
    assert short.source.endswith(f"; deeper: {evidence.DEEPER}") and following.kind == "laboratory run"


@pytest.mark.parametrize(
    ("changed", "verdict", "words", "all_told"),
    [
        ({"violation": "a lease changes nothing"}, "BROKEN", "broken: a lease changes", "; BROKEN: exhaustive search;"),
        ({"complete": False}, "cut short", "not ended: one job", ", not broken;"),
    ],
)
def test_a_search_that_broke_a_promise_or_was_cut_short_is_no_proof(
    review, tmp_path, changed, verdict, words, all_told
):
    family = {"scenario": "one job", "depth": 6, "states": 9, "transitions": 40, "complete": True, "violation": "none"}
    told = {"kind": "search", "postgresql": "18.6", "families": [family, family | changed]}
    (tmp_path / "search.json").write_text(json.dumps(told))
    deep = evidence.gather(review.found["explorer"], tmp_path)[1]
    assert deep.verdict == verdict and words in deep.shown
    again = dataclasses.replace(review, pieces=evidence.gather(review.found["explorer"], tmp_path))
    assert f"1 of 4 kinds of evidence is there{all_told}" in said(again)


# ---- sentences that agree with their charts ------------------------------------------------------------------------


def test_the_pick_up_is_never_better_than_its_chart_says(review):
    run = review.found["poll"]
    slow = dataclasses.replace(run, frames={"pickup": run["pickup"].assign(mean_seconds=0.77)})
    one = decisions.decide({**review.found, "poll": slow}, decisions.bearing(1.0, STORED))[3]
    assert (one.measured, one.met) == ("770 ms", False) and "begun 770 ms after it is due on average (" in one.sentence


def test_steps_of_a_campaign_that_met_nobody_are_no_faults(review, tmp_path):
    campaign = {"seed": 7, "minutes": 10.0, "version": "18.6", "plan": [], "injected": {"kill": 3, "missed": 20},
                "jobs": 23, "lease_losses": 18, "broken": {"no job is lost": []}}  # fmt: skip
    (tmp_path / "campaign.json").write_text(json.dumps(campaign))
    [found] = [one for one in evidence.gather(review.found["explorer"], tmp_path) if one.kind == "campaign"]
    assert "3 kill (20 more met nobody); 23 jobs" in found.shown


# ---- print ---------------------------------------------------------------------------------------------------------


def test_a_short_table_is_never_cut_by_the_end_of_a_page(review):
    blocks = [block for block in document.blocks(review) if isinstance(block, Table)]
    page = markup.page("t", blocks, {}).decode()
    whole = [len(block.frame) <= markup.SHORT for block in blocks]
    assert [kind == ' class="whole"' for kind in re.findall(r"<table([^>]*)>", page)] == whole and set(whole) == {0, 1}


def test_the_faults_are_told_in_the_order_in_which_their_figure_numbers_them(review):
    run = review.found["faults"]
    numbered = run["faults"].sort_values("time_seconds", kind="stable")["target"].tolist()
    [text] = [block.text for block in document.blocks(review) if "with these faults" in getattr(block, "text", "")]
    places = [text.index(f"{target} ") for target in dict.fromkeys(numbered) if f"{target} " in text]
    assert len(places) >= 3 and places == sorted(places)


def test_the_dead_letters_are_drawn_over_the_whole_run_with_all_of_its_faults(review):
    figure, run = review.figure("dead-letters"), review.found["faults"]
    low, high = figure.sheet.axes[0].get_xlim()
    assert (low, high >= run.figures["span_seconds"]) == (0, True)
    drawn = {text.get_text() for text in labels.visible_texts(figure.sheet)}
    assert not [text for text in drawn if "than the fault lane can label" in text]

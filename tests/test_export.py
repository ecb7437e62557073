"""Exports: five kinds of file, equal bytes in two processes, exact numbers, safe names, whole files or none."""

import hashlib
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from jobqueue.errors import InvalidInput
from jobqueue.lab import charts, export

ROOT = Path(__file__).parents[1]
AGES = pd.DataFrame({"time_seconds": [0.0, 1.0, 2.0], "oldest_age_seconds": [0.0, 4.0, 0.1]})
SCRIPT = """
import sys, pandas as pd
from jobqueue.lab import charts, export
ages = pd.DataFrame({"time_seconds": [0.0, 1.0, 2.0], "oldest_age_seconds": [0.0, 4.0, 0.1]})
faults = pd.DataFrame({"time_seconds": [0.5], "kind": ["kill"], "target": ["w1"]})
about = dict(seed=7, lease_seconds=4.0, workers={"fast": 2, "slow": 1}, postgres="18.6")
export.save(charts.queue_age(ages, faults, **about), "age", ages, directory=sys.argv[1], **about)
"""


def saved(tmp_path, frame=AGES, name="age", **parameters):
    return export.save(charts.queue_age(AGES), name, frame, directory=tmp_path / "new" / "folder", **parameters)


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_a_save_writes_svg_png_pdf_csv_and_a_caption(tmp_path):
    assert [path.name for path in saved(tmp_path)] == ["age.svg", "age.png", "age.pdf", "age.csv", "age.md"]


def test_each_file_is_of_its_kind(tmp_path):
    heads = [path.read_bytes()[:5] for path in saved(tmp_path)]
    assert heads == [b"<?xml", b"\x89PNG\r", b"%PDF-", b"time_", b"# Que"]


def test_the_paths_show_no_folder_of_this_machine(tmp_path):
    assert repr(saved(tmp_path)) == "saved age.svg, age.png, age.pdf, age.csv, age.md in new/folder"


def test_two_processes_write_the_same_bytes(tmp_path):
    for run, seed, zone in (("one", "1", "UTC"), ("two", "2", "Asia/Tokyo")):
        env = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / run)], env=env, check=True, timeout=120)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


def test_a_users_own_style_does_not_change_the_bytes(tmp_path):
    import matplotlib

    export.save(charts.queue_age(AGES), "age", AGES, directory=tmp_path / "plain")
    with matplotlib.rc_context({"font.size": 20, "font.family": ["DejaVu Serif"], "svg.fonttype": "none"}):
        export.save(charts.queue_age(AGES), "age", AGES, directory=tmp_path / "styled")
    assert digests(tmp_path / "plain") == digests(tmp_path / "styled")


def test_the_caption_tells_title_parameters_versions_and_digests(tmp_path):
    files = saved(tmp_path, seed=7, lease_seconds=4, postgres="18.6", revision="1a2b3c")
    text = files[-1].read_text()
    assert text.startswith("# Queue age peaked at 4 s\n")
    assert (
        "| lease_seconds | 4 |\n| seed | 7 |\n" in text and "postgresql 18.6" in text and "git revision 1a2b3c." in text
    )
    assert f"- `age.csv` sha256 {hashlib.sha256(files[3].read_bytes()).hexdigest()}\n" in text


def test_a_password_in_a_parameter_is_blotted_out():
    facts = export.provenance(dsn="postgresql://me:s3cret@db/jobs", other="host=db password='s3 cret' user=me")
    assert facts["parameters"] == {"dsn": "postgresql://me:***@db/jobs", "other": "host=db password=*** user=me"}


def test_big_integers_are_exact_in_the_csv():
    frame = pd.DataFrame({"job_id": [2**63 - 1, 2**53 + 1], "started": [0.1 + 0.2, 3.0]})
    assert export.csv(frame).decode() == f"job_id,started\n{2**63 - 1},0.30000000000000004\n{2**53 + 1},3\n"


def test_a_missing_id_beside_a_big_one_stays_exact():
    frame = pd.DataFrame({"job_id": pd.array([2**60 + 1, None], dtype="Int64")})
    assert export.csv(frame).decode() == f'job_id\n{2**60 + 1}\n""\n'


def test_an_id_that_a_float_has_rounded_is_refused():
    with pytest.raises(InvalidInput, match="the column job_id holds floats above 2\\^53"):
        export.csv(pd.DataFrame({"job_id": [2**60 + 1, None]}))


def test_instants_are_written_with_their_offset():
    frame = pd.DataFrame({"slot": [datetime(2026, 10, 25, 1, tzinfo=UTC)]})
    assert export.csv(frame).decode() == "slot\n2026-10-25T01:00:00+00:00\n"


def test_several_frames_become_several_tables(tmp_path):
    names = [path.name for path in saved(tmp_path, {"ages": AGES, "faults": AGES.head(0)})]
    assert names == ["age.svg", "age.png", "age.pdf", "age-ages.csv", "age-faults.csv", "age.md"]


@pytest.mark.parametrize(
    "name", ["", "../age", "a/b", "a\\b", ".hidden", "con", "COM1", "a b", "a" * 101, "age\n", "é", None]
)
def test_an_unsafe_name_is_refused(tmp_path, name):
    with pytest.raises(InvalidInput, match="^export name "):
        export.save(Figure(), name, AGES, directory=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_object_known_only_by_its_address_is_no_parameter():
    with pytest.raises(InvalidInput, match="^export parameter policy: object has no text of its own"):
        export.provenance(policy=object())


def test_an_older_export_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    saved(tmp_path)
    folder = saved(tmp_path, AGES.head(1))[0].parent
    assert (folder / "age.csv").read_text() == "time_seconds,oldest_age_seconds\n0,0\n"
    assert len(list(folder.iterdir())) == 5


def test_a_figure_that_is_not_ours_is_saved_under_its_own_title(tmp_path):
    figure = Figure()
    figure.subplots().set_title("Somebody else's")
    assert export.save(figure, "other", AGES, directory=tmp_path)[-1].read_text().startswith("# Somebody else's\n")

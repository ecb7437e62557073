"""House rules that a machine can hold: layers, one clock, SQL in its files, short functions, few names."""

import ast
import functools
import importlib
import io
import os
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from jobqueue.sql import SQL as SHIPPED

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "jobqueue"
MODULES = sorted(CORE.glob("*.py"))
LAB = sorted((CORE / "lab").glob("*.py"))
SQL = sorted(CORE.rglob("*.sql"))
CORE_SQL = [path for path in SQL if "lab" not in path.parts]
README = ROOT / "README.md"
LAYERS = [  # a module imports from the sets above its own, or from its own without a circle
    {"errors", "model", "outcome", "backoff", "cron", "limits"},
    {"sql", "transactions", "bulk"},
    {"queue", "schedules", "slots", "metrics", "story", "installation", "publication"},
    {"loop", "context", "shift", "slot", "rounds", "endings", "pulse", "watch"},
    {"worker", "scheduler", "reaper", "janitor"},
    {"__init__"},
    {"__main__"},
]
LOOPS = 3  # the first layer that may wait, jitter its own polling and keep threads
PUBLIC = {
    "Queue", "Schedules", "Worker", "Scheduler", "Reaper", "Janitor", "Handler", "Backoff", "Lease", "Outcome", "Empty",
    "Retry", "PermanentError", "InfrastructureError", "LeaseLost", "JobQueueError", "metrics",
}  # fmt: skip
# 1,800 were meant. Worth more: a worker that survives what production does to it (1,000, in eight rooms), clock changes
# by a cron of our own (200; croniter's own answers are wrong there), files that survive kill -9 (230), the command line
# (330), types that mypy --strict believes (90), keys by COPY (30), whatever a database or its pooler is set to (30).
PYTHON_LINES, SQL_LINES = 3_575, 800


# ---- reading -------------------------------------------------------------------------------------------------------


@functools.cache
def text(path):
    return path.read_text(encoding="utf-8")


@functools.cache
def nodes(path):
    return list(ast.walk(ast.parse(text(path))))


def breaking(paths, rule):
    """{file: what rule(path) found} for every file in which it found something."""
    return {str(path.relative_to(ROOT)): found for path in paths if (found := sorted(rule(path)))}


def for_types_only(path):
    """Ids of the nodes under `if TYPE_CHECKING`, which never run."""
    blocks = [node for node in nodes(path) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return {id(node) for block in blocks for statement in block.body for node in ast.walk(statement)}


def imports(path):
    """Modules of this package that the file imports anywhere but for types, as 'queue' or 'lab.sim'."""
    found, idle = set(), for_types_only(path)
    for node in (node for node in nodes(path) if id(node) not in idle):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            found |= {node.module} if node.module else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "jobqueue":
            found.add(node.module.removeprefix("jobqueue").lstrip(".") or "__init__")
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix("jobqueue.") for alias in node.names if alias.name.startswith("jobqueue.")
            }
    return found


def foreign_imports(path):
    """Top names of what the file imports from outside of this package."""
    found = {node.module for node in nodes(path) if isinstance(node, ast.ImportFrom) and not node.level}
    found |= {alias.name for node in nodes(path) if isinstance(node, ast.Import) for alias in node.names}
    return {name.split(".")[0] for name in found} - {"jobqueue"}


def layer(module):
    return next((number for number, names in enumerate(LAYERS) if module.split(".")[0] in names), None)


def of_layers(below):
    return [path for path in MODULES if layer(path.stem) is not None and layer(path.stem) < below]


def functions(path):
    return [node for node in nodes(path) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def length(function):
    return function.end_lineno - function.lineno + 1


def docstrings(path):
    """Ids of the nodes that are docstrings."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        id(node.body[0].value)
        for node in nodes(path)
        if isinstance(node, owners) and isinstance(node.body[0], ast.Expr)
    }


def calls(path):
    """Dotted names of everything that is called, last two parts."""
    return {".".join(ast.unparse(node.func).split(".")[-2:]) for node in nodes(path) if isinstance(node, ast.Call)}


def code_of_sql(path):
    return [line.strip() for line in text(path).splitlines() if line.strip() and not line.lstrip().startswith("--")]


# ---- layers --------------------------------------------------------------------------------------------------------


def test_every_module_of_the_core_has_its_place_in_the_layers():
    assert [path.stem for path in MODULES if layer(path.stem) is None] == []


def test_imports_run_downward_only():
    def upward(path):
        return {name for name in imports(path) if (layer(name) or 0) > (layer(path.stem) or 0)}

    assert breaking(MODULES, upward) == {}


def test_no_modules_import_each_other_in_a_circle():
    graph = {
        path.stem: {name for name in imports(path) if (CORE / f"{name}.py").exists()} - {"__init__"} for path in MODULES
    }
    free = set()
    while ready := {name for name, needs in graph.items() if name not in free and needs <= free}:
        free |= ready
    assert set(graph) - free == set()


def test_the_core_never_imports_the_lab():
    def lab(path):
        return {name for name in imports(path) if name.split(".")[0] == "lab"}

    assert breaking([path for path in MODULES if path.stem != "__main__"], lab) == {}


def test_main_imports_the_lab_only_inside_functions():
    top = ast.parse(text(CORE / "__main__.py")).body
    assert [
        line
        for node in top
        if isinstance(node, (ast.Import, ast.ImportFrom))
        if re.search(r"\blab\b", line := ast.unparse(node))
    ] == []


def test_the_core_needs_psycopg_croniter_and_the_standard_library_only():
    allowed = set(sys.stdlib_module_names) | {"psycopg", "croniter"}
    lazily = {"prometheus_client"}  # the optional extra for stats --openmetrics

    assert (
        breaking(
            MODULES,
            lambda path: foreign_imports(path) - allowed - (lazily if path.stem in ("metrics", "__main__") else set()),
        )
        == {}
    )


def test_pure_modules_do_no_input_or_output():
    busy = {"psycopg", "socket", "os", "subprocess", "threading", "time", "logging", "asyncio", "pathlib"}
    assert breaking(of_layers(1), lambda path: foreign_imports(path) & busy) == {}


# ---- one clock, one source of chance -------------------------------------------------------------------------------


def test_the_core_never_asks_the_workers_clock_for_a_date():
    clocks = {
        "time.time",
        "time.time_ns",
        "datetime.now",
        "datetime.utcnow",
        "datetime.today",
        "date.today",
        "time.gmtime",
        "time.localtime",
    }
    assert breaking(MODULES, lambda path: calls(path) & clocks) == {}


def test_what_is_stored_is_drawn_from_a_generator_that_is_passed_in():
    """Loops may jitter their own polling; nothing below them draws from the global generator."""

    def global_draws(path):
        return {call for call in calls(path) if re.fullmatch(r"random\.[a-z]\w*", call)}

    assert breaking(of_layers(LOOPS), global_draws) == {}


def test_sql_has_one_clock_too():
    clock = re.compile(
        r"\b(clock_timestamp|statement_timestamp|transaction_timestamp|current_timestamp|localtimestamp)\b|(?<!\.)\bnow\(\)",
        re.I,
    )

    def other_clocks(path):
        return [
            line
            for line in code_of_sql(path)
            if clock.search(line) and "return pg_catalog.statement_timestamp()" not in line
        ]

    assert breaking(CORE_SQL, other_clocks) == {}


# ---- SQL stands in .sql files --------------------------------------------------------------------------------------

STATEMENT = re.compile(
    r"\s*(select\b.+\bfrom|insert\s+into|update\b.+\bset|delete\s+from|with\b.+\bselect|(create|alter|drop)\s+(or\s+replace\s+)?(table|function|view|index|schema|role|database|trigger)\b|truncate\s)",
    re.I | re.S,
)


def sql_in_python(path):
    """Literals that are statements, and literals given to execute()."""
    prose = docstrings(path)
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            if STATEMENT.match(node.value):
                yield f"{node.lineno}: {node.value[:60]}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".execute", ".executemany", ".stream")):
            yield from (f"{node.lineno}: {ast.unparse(sent)[:60]}" for sent in node.args[:1] if is_text(sent))


def is_text(node):
    return isinstance(node, (ast.Constant, ast.JoinedStr))


def test_no_sql_is_written_in_python():
    assert breaking(MODULES + LAB, sql_in_python) == {}


def test_no_comment_in_a_file_of_statements_holds_a_bare_percent_sign():
    """psycopg reads it as the beginning of a parameter, in comments too."""

    def bare(path):
        comments = [line.split("--", 1)[1] for line in text(path).splitlines() if "--" in line]
        return [comment for comment in comments if re.search(r"%(?!\(\w+\)s)", comment.replace("%%", ""))]

    assert breaking([path for path in SQL if path.name == "queries.sql"], bare) == {}


def test_every_statement_of_the_core_is_sent_by_somebody():
    """By its name, or by a name that is put together (f"prune_{what}")."""
    python = "\n".join(map(text, MODULES + LAB))
    sent = {name for name in vars(SHIPPED) if re.search(rf"\b{name}\b", python) or name.split("_")[0] + "_{" in python}
    assert set(vars(SHIPPED)) - sent == set()


def test_every_sql_file_opens_with_a_sentence():
    assert breaking(SQL, lambda path: [] if re.match(r"-- [A-Z`]\w*", text(path)) else ["no sentence"]) == {}


# ---- shape ---------------------------------------------------------------------------------------------------------


def test_no_function_is_longer_than_forty_lines():
    assert (
        breaking(
            MODULES + LAB,
            lambda path: [f"{node.name}: {length(node)}" for node in functions(path) if length(node) > 40],
        )
        == {}
    )


def test_most_functions_of_the_core_are_short():
    lengths = sorted(length(node) for path in MODULES for node in functions(path))
    assert (lengths[len(lengths) // 2] <= 8, lengths[int(len(lengths) * 0.9)] <= 24) == (True, True), lengths


def test_every_file_opens_with_one_sentence():
    def no_sentence(path):
        opening = (ast.get_docstring(ast.parse(text(path))) or "").split("\n\n")[0]
        return [] if re.match(r"[A-Z`].*[.:]$", opening, re.S) else [opening]

    assert breaking(MODULES + LAB, no_sentence) == {}


def test_no_line_is_longer_than_120_characters():
    def long_lines(path):
        return [number for number, line in enumerate(text(path).splitlines(), 1) if len(line) > 120]

    assert breaking(MODULES + LAB + SQL, long_lines) == {}


def test_no_file_is_a_drawer_for_odds_and_ends():
    assert {path.stem for path in MODULES + LAB} & {"utils", "util", "helpers", "common", "misc"} == set()


def test_the_core_uses_the_words_of_the_field_as_agreed():
    avoided = re.compile(r"(^|_)(dequeue\w*|acks?|acknowledge\w*|rescue\w*|messages)($|_)")

    def names(path):
        arguments = {argument.arg for node in functions(path) for argument in node.args.args + node.args.kwonlyargs}
        return {name for name in {node.name for node in functions(path)} | arguments if avoided.search(name)}

    assert breaking(MODULES, names) == {}


def code_lines(path):
    """Lines that hold code: no blank lines, no comments, no docstrings."""
    idle = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = tokenize.generate_tokens(io.StringIO(text(path)).readline)
    used = {line for token in tokens if token.type not in idle for line in range(token.start[0], token.end[0] + 1)}
    told = docstrings(path)
    return len(
        used - {line for node in nodes(path) if id(node) in told for line in range(node.lineno, node.end_lineno + 1)}
    )


def test_the_core_stays_small():
    """Counted are lines of code, without blank lines, comments and docstrings; migrations tell what has been."""
    today = [path for path in CORE_SQL if path.parent.name != "migrations"]
    python, sql = sum(map(code_lines, MODULES)), sum(len(code_of_sql(path)) for path in today)
    assert (python <= PYTHON_LINES, sql <= SQL_LINES) == (True, True), (python, sql)


# ---- types ---------------------------------------------------------------------------------------------------------


def test_the_types_of_the_core_hold():
    """The package ships py.typed: a caller's mypy believes what stands here."""
    command = [sys.executable, "-m", "mypy", "--strict", *map(str, MODULES)]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout


# ---- the public face -----------------------------------------------------------------------------------------------


@pytest.fixture
def package():
    return importlib.import_module("jobqueue")


def test_the_exported_names_are_those_of_the_contract(package):
    assert set(package.__all__) == PUBLIC


def test_there_are_at_most_twenty_and_each_exists(package):
    assert (len(package.__all__) <= 20, [name for name in package.__all__ if not hasattr(package, name)]) == (True, [])


def test_every_public_thing_says_what_it_is(package):
    assert [name for name in package.__all__ if not getattr(package, name).__doc__] == []


def test_every_public_method_says_what_it_does(package):
    public = [getattr(package, name) for name in package.__all__ if isinstance(getattr(package, name), type)]
    methods = [
        (cls, name, value) for cls in public for name, value in vars(cls).items() if callable(value) and name[0] != "_"
    ]
    assert [f"{cls.__name__}.{name}" for cls, name, value in methods if not value.__doc__] == []


@pytest.mark.skipif(not README.exists(), reason="there is no README yet")
def test_the_readme_names_every_exported_name_and_every_module_of_the_core(package):
    names = list(package.__all__) + [path.stem for path in MODULES if path.stem[0] != "_"]
    assert [name for name in names if not re.search(rf"\b{name}\b", text(README))] == []


# ---- nothing of the house in which this was built ------------------------------------------------------------------

OTHERS = {".venv", ".git", "node_modules", "runs", ".pytest_cache", ".hypothesis", ".ipynb_checkpoints", "build"}
FOREIGN = re.compile("/wo" + "rk/|/ho" + r"me/\w|/ro" + "ot/|/tm" + "p/bu" + "ild|pypi" + r"\.|npm" + "js", re.I)
PICTURE = re.compile(r"[A-Za-z0-9+/=]{200,}")  # base64 spells anything now and then


def committed():
    """Files of ours that are text; generated and installed folders are not entered."""
    kinds = {".py", ".sql", ".md", ".toml", ".yml", ".ipynb"}
    for folder, inner, names in os.walk(ROOT):
        inner[:] = set(inner) - OTHERS
        yield from (Path(folder, name) for name in names if Path(name).suffix in kinds or name == "run")


def test_no_committed_file_names_a_path_of_one_machine_or_a_registry():
    def foreign(path):
        return [line.strip()[:120] for line in PICTURE.sub("", text(path)).splitlines() if FOREIGN.search(line)]

    assert breaking(committed(), foreign) == {}

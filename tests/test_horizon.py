"""The what-if of the horizon: a held snapshot keeps dead rows, a claim that begins at its mark does not walk them."""

import pandas as pd
import psycopg
import pytest

from jobqueue.errors import InvalidInput
from jobqueue.lab import charts, horizon, labels

JOBS = 2000


@pytest.fixture(scope="module")
def found():
    return horizon.study(jobs=JOBS, progress=False)


def test_every_variant_churns_the_same_jobs_in_turn(found):
    rounds = found.groupby("variant", sort=False)["jobs"].agg(["count", "max"])
    assert rounds.index.tolist() == [variant.name for variant in horizon.VARIANTS]
    assert rounds.to_numpy().tolist() == [[JOBS // horizon.BATCH, JOBS]] * len(horizon.VARIANTS)
    assert (found["claim_seconds"] > 0).all() and (found.groupby("variant")["busy_seconds"].diff().dropna() > 0).all()


@pytest.mark.parametrize(
    "variant, dead", [(horizon.VARIANTS[0], 0), (horizon.VARIANTS[2], 2000)], ids=["free", "held"]
)
def test_a_held_snapshot_keeps_what_died(server, variant, dead):
    """A thousand jobs leave two dead rows each; only a vacuum's own count is exact, between two it is an estimate."""
    with horizon._variant(server.dsn, variant) as rounds:
        for _ in range(10):
            rounds.one()
        conn = rounds._queue.conn
        conn.execute("select pg_stat_force_next_flush()")
        conn.execute("vacuum jobqueue.job")
        assert conn.execute(horizon.SQL.state).fetchone()[0] == dead


def test_the_table_tells_the_first_tenth_from_the_last():
    busy = pd.Series(range(1, 101)).mul(0.01).mask(lambda at: at > 0.9, lambda at: 0.9 + 2 * (at - 0.9))
    rows = {"variant": "one", "jobs": range(100, 10_100, 100), "busy_seconds": busy, "vacuums": 0, "bytes": 5e6,
            "claim_seconds": [0.002] * 90 + [0.006] * 10, "dead_tuples": 7.0}  # fmt: skip
    (row,) = horizon.table(pd.DataFrame(rows)).to_dict("records")
    assert (row["claim_first_ms"], row["claim_last_ms"], row["dead_tuples"], row["megabytes"]) == (2.0, 6.0, 7.0, 5.0)
    assert row["rate_last_to_first"] == pytest.approx(0.5)


@pytest.mark.long
@pytest.mark.timeout(180)
def test_the_watermark_spares_a_claim_the_dead_rows(server):
    """A ratio of medians in one run, of variants that take turns: 0.6 and less on a machine that others use, too."""
    variants = [variant for variant in horizon.VARIANTS if variant.name.startswith("held, with")][:2]
    told = horizon.table(horizon.study(variants, jobs=30_000, dsn=server.dsn, progress=False))
    claims = told.set_index("variant")["claim_last_ms"]
    assert claims["held, with watermark"] < 0.85 * claims["held, without watermark"]


def test_an_archive_moves_the_rows_and_autovacuum_settings_reach_the_table(server):
    archived = horizon.Variant("archive", held=False, archive=5)
    lazy = horizon.Variant("lazy", held=False, autovacuum=horizon.POSTGRES_DEFAULTS)
    with horizon._variant(server.dsn, archived) as rounds:
        for _ in range(5):
            rounds.one()
        count = "select (select count(*) from jobqueue.job where status = 'done'), count(*) from jobqueue.job_archive"
        assert rounds._queue.conn.execute(count).fetchone() == (0, 5 * horizon.BATCH)
    with horizon._variant(server.dsn, lazy) as rounds:
        told = "select reloptions from pg_class where oid = 'jobqueue.job'::regclass"
        assert "autovacuum_vacuum_scale_factor=0.2" in rounds._queue.conn.execute(told).fetchone()[0]


def test_nothing_is_left_when_a_round_fails(server):
    with pytest.raises(psycopg.errors.UndefinedTable), horizon._variant(server.dsn, horizon.VARIANTS[1]) as rounds:
        name = rounds._queue.conn.info.dbname
        rounds._queue.conn.execute("select * from no_such_table")
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        assert conn.execute("select 1 from pg_database where datname = %s", (name,)).fetchall() == []


@pytest.mark.parametrize("given", [{"variants": []}, {"variants": [horizon.VARIANTS[0]] * 2}, {"jobs": 10}])
def test_bad_input_is_refused(given):
    with pytest.raises(InvalidInput):
        horizon.study(**given)


def test_the_figure_says_what_the_last_tenth_says(found):
    ends = found.groupby("variant", sort=False)["claim_seconds"].apply(lambda took: took.tail(len(took) // 10).median())
    figure = charts.horizon(found)
    ratio = ends["held, without watermark"] / ends["no snapshot held"]
    assert f"× {ratio:.2f} (held, without watermark)" in figure.finding
    assert (labels.clashes(figure), len(figure.axes[0].lines)) == ([], len(horizon.VARIANTS))

"""Charts are asked what they show: titles computed from the data, the data itself, and no text that collides."""

import random
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobqueue import Backoff
from jobqueue.errors import InvalidInput
from jobqueue.lab import charts, labels, style, theory
from jobqueue.lab.charts.fault import spells
from jobqueue.lab.charts.life import Phase, story

ABOUT = {"seed": 7, "time_scale": 0.01, "postgres": "18.6", "revision": "1a2b3c", "lease_seconds": 4.0, "workers": 4}
FAULTS = pd.DataFrame(
    [
        (20, "kill", "w2"),
        (25, "pause", "w3"),
        (32, "resume", "w3"),
        (45, "start", "w2"),
        (50, "cut", "w1"),
        (60, "crash", "database"),
        (61.5, "restart", "database"),
        (62, "poison", "mail.send"),
        (85, "burst", "200 jobs"),
        (88, "kill", "w4"),
    ],
    columns=["time_seconds", "kind", "target"],
)


def ages(n=91, step=1.0):
    """Queue age climbs from 20 s to 40 s, then falls: 0 … 10 … 0."""
    t = np.arange(n) * step
    age = np.clip(np.minimum((t - 20) / 2, 10 - (t - 40) / 4), 0, None)
    return pd.DataFrame(
        {
            "time_seconds": t,
            "ready": age * 6,
            "due": age * 6,
            "running": 4,
            "waiting_retry": (age > 5) * 3,
            "dead": (t > 60) * 1,
            "done": t * 20,
            "oldest_age_seconds": age,
        }
    )


def attempts(workers=4, each=20):
    rows = [
        {
            "job_id": 100 * w + i,
            "attempt": 1,
            "epoch": 1,
            "worker": f"w{w}",
            "started": 4.0 * i,
            "ended": 4.0 * i + 3.5,
            "outcome": "done",
        }
        for w in range(1, workers + 1)
        for i in range(each)
    ]
    rows[3]["outcome"], rows[9]["outcome"], rows[15]["outcome"] = "failed", "released", "lost"
    rows[-1].update(ended=None, outcome="running")
    return pd.DataFrame(rows)


def texts(figure):
    return [text.get_text() for text in labels.visible_texts(figure)]


def line(figure, label):
    return next(artist for ax in figure.axes for artist in ax.lines if artist.get_label() == label)


FIGURES = {
    "overview": lambda: charts.overview(ages(), attempts(), FAULTS, **ABOUT),
    "overview of nothing": lambda: charts.overview(None, None),
    "queue age": lambda: charts.queue_age(ages(), FAULTS, **ABOUT),
    "queue age of one sample": lambda: charts.queue_age(ages().head(1)),
    "counts that end at one value": lambda: charts.counts(ages().assign(ready=4, waiting_retry=4, dead=4), **ABOUT),
    "counts in millions": lambda: charts.counts(ages().assign(ready=3_000_000, done=18_000_000), **ABOUT),
    "lanes of many workers": lambda: charts.worker_lanes(attempts(40), **ABOUT),
    "lanes of long names": lambda: charts.worker_lanes(
        attempts().assign(worker="host.example:1234:W" + "w" * 40), FAULTS
    ),
    "a hundred faults": lambda: charts.queue_age(
        ages(),
        pd.DataFrame(
            {"time_seconds": np.arange(100) * 0.9, "kind": "cut", "target": [f"worker number {i}" for i in range(100)]}
        ),
        **ABOUT,
    ),
    "faults alone": lambda: charts.fault_lane(FAULTS, **ABOUT),
    "no faults": lambda: charts.fault_lane(None),
    "many parameters": lambda: charts.queue_age(
        ages(), FAULTS, **ABOUT, **{f"parameter_{i}": "some value" for i in range(14)}
    ),
    "a life": lambda: charts.life(JOB, STARTS, **ABOUT),
    "a life from the row alone": lambda: charts.life(JOB),
    "a life of sixty leases": lambda: charts.life(worn_job()),
    "a type that tries mathtext": lambda: charts.life({**JOB, "type": "$\\frac{a}{b}$\n" * 20}),
}


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_no_text_collides_with_another_or_leaves_the_figure(figure):
    assert labels.clashes(figure()) == []


def test_the_title_states_the_peak_its_fault_and_the_recovery():
    assert (
        charts.queue_age(ages(), FAULTS).finding
        == "Queue age peaked at 10 s while fault 1 (kill w2) lasted and was last over a tenth of it 35 s later"
    )


def test_a_queue_that_did_not_recover_is_not_said_to_have():
    assert (
        charts.queue_age(ages(n=50), FAULTS).finding
        == "Queue age peaked at 10 s while fault 1 (kill w2) lasted and was still over a tenth of it at the end"
    )


def test_a_queue_that_dips_and_rises_again_has_not_recovered_at_the_dip():
    dip = ages().assign(oldest_age_seconds=lambda f: f["oldest_age_seconds"].where(f["time_seconds"] != 50, 0))
    assert charts.queue_age(dip, FAULTS).finding.endswith("was last over a tenth of it 35 s later")


def test_age_is_down_when_it_is_as_it_was_before_the_first_fault():
    busy = ages().assign(oldest_age_seconds=lambda f: f["oldest_age_seconds"].clip(lower=2))
    assert charts.queue_age(busy, FAULTS).finding.endswith("was last over what it was before the faults 31 s later")


def test_faults_that_were_over_or_that_were_several_are_not_named_beside_the_peak():
    over = FAULTS.tail(6).assign(time_seconds=[1, 2, 3, 4, 5, 90])
    several = FAULTS.head(4).assign(time_seconds=[20, 25, 41, 45])
    said = [charts.queue_age(ages(), faults).finding for faults in (over, several)]
    assert [text.split(" and ")[0] for text in said] == [
        "Queue age peaked at 10 s",
        "Queue age peaked at 10 s while 2 faults lasted",
    ]


def test_a_peak_between_two_samples_names_only_a_fault_that_lasted_through_both():
    peak = ages(step=10.0).assign(peak_age_seconds=lambda f: f["oldest_age_seconds"] + (f["time_seconds"] == 40) * 9)
    said = [charts.queue_age(peak, FAULTS.head(1).assign(time_seconds=[start])).finding for start in (29, 31)]
    assert ["while fault 1 (kill w2) lasted" in text for text in said] == [True, False]


def test_what_stands_beside_no_line_says_that_it_is_not_drawn():
    assert {"not drawn: done 1,800", "○ ready 0"} <= set(texts(charts.counts(ages())))


def test_the_title_of_counts_adds_up_the_last_sample():
    assert charts.counts(ages()).finding == (
        "1,800 jobs done, 1 dead, 4 still open; at most 60 ready and 3 waiting for a retry at a sample"
    )


def test_the_lines_are_the_data():
    figure = charts.overview(ages(), attempts(), FAULTS)
    assert line(figure, "queue age").get_ydata().tolist() == ages()["oldest_age_seconds"].tolist()
    assert line(figure, "ready").get_ydata().tolist() == ages()["ready"].tolist()


def test_subtitle_and_footer_tell_parameters_and_origin():
    said = texts(charts.queue_age(ages(), **ABOUT))
    assert "lease 4 s · workers 4" in said
    assert "seed 7   ·   time scale 0.01   ·   PostgreSQL 18.6   ·   git 1a2b3c" in said


def test_a_state_has_one_colour_in_every_chart():
    figure = charts.counts(ages())
    assert {name: line(figure, style.STATES[name].word).get_color() for name in ("ready", "running", "dead")} == {
        "ready": style.BLUE,
        "running": style.GREEN,
        "dead": style.VERMILLION,
    }


def test_only_colours_with_contrast_are_used():
    marks = [*style.STATES.values(), *style.OUTCOMES.values(), *style.FAULTS.values()]
    assert {mark.colour for mark in marks} <= {style.BLACK, style.BLUE, style.VERMILLION, style.GREEN, style.PURPLE}


def test_no_two_states_share_their_symbol():
    for map_ in (style.STATES, style.OUTCOMES, style.FAULTS):
        assert len({mark.symbol for mark in map_.values()}) == len(map_)


@pytest.mark.parametrize(
    "figure, said",
    [
        (lambda: charts.queue_age(None), "no samples"),
        (lambda: charts.counts([]), "no samples"),
        (lambda: charts.worker_lanes(pd.DataFrame()), "no attempts"),
        (lambda: charts.fault_lane(None), "no faults"),
    ],
)
def test_an_empty_frame_says_so_in_the_plot(figure, said):
    assert said in texts(figure())


def test_a_frame_without_a_column_is_refused_by_name():
    with pytest.raises(
        InvalidInput, match="^charts.queue_age: the frame lacks oldest_age_seconds; it has time_seconds, ready$"
    ):
        charts.queue_age(ages()[["time_seconds", "ready"]])


def test_a_column_that_is_no_number_is_refused_by_name():
    with pytest.raises(
        InvalidInput, match="^charts.queue_age: the column oldest_age_seconds holds something that is no number"
    ):
        charts.queue_age(ages().assign(oldest_age_seconds="soon"))


def test_too_many_samples_are_thinned_to_maxima_and_the_figure_says_so():
    long = ages(n=10_001, step=0.01)
    figure = charts.queue_age(long)
    assert "Note: samples every 10 ms; each point is the maximum of 6 samples" in texts(figure)
    assert max(line(figure, "queue age").get_ydata()) == long["oldest_age_seconds"].max()


def test_workers_without_a_lane_are_announced():
    assert "Note: 24 of 40 workers are drawn, those with the most attempts" in texts(charts.worker_lanes(attempts(40)))


def test_workers_are_in_the_order_that_people_count():
    assert [text for text in texts(charts.worker_lanes(attempts(11))) if text.startswith("w")][-2:] == ["w10", "w11"]


def test_a_bar_spans_its_attempt():
    figure = charts.worker_lanes(attempts(1).head(5))
    boxes = [path.get_extents() for bars in figure.axes[0].collections for path in bars.get_paths()]
    assert sorted((box.x0, box.x1) for box in boxes) == [(0, 3.5), (4, 7.5), (8, 11.5), (12, 15.5), (16, 19.5)]


def test_attempts_at_the_same_time_do_not_cover_each_other():
    both = attempts(1, each=16).assign(started=1.0, ended=2.0, outcome="done").head(2)
    boxes = [path.get_extents() for bars in charts.worker_lanes(both).axes[0].collections for path in bars.get_paths()]
    assert boxes[0].y1 <= boxes[1].y0 or boxes[1].y1 <= boxes[0].y0


def test_a_fault_that_ends_another_gets_no_number_of_its_own():
    assert [(s.number, s.kind, s.target, s.start, s.end, s.ended) for s in spells(FAULTS, 90.0)] == [
        (1, "kill", "w2", 20, 45, True),
        (2, "pause", "w3", 25, 32, True),
        (3, "cut", "w1", 50, None, False),
        (4, "crash", "database", 60, 61.5, True),
        (5, "poison", "mail.send", 62, None, False),
        (6, "burst", "200 jobs", 85, None, False),
        (7, "kill", "w4", 88, 90, False),
    ]


def test_a_killed_worker_that_was_paused_is_paused_no_longer():
    faults = [
        {"time_seconds": 1, "kind": "pause", "target": "w1"},
        {"time_seconds": 3, "kind": "kill", "target": "w1"},
        {"time_seconds": 5, "kind": "start", "target": "w1"},
    ]
    assert [(s.kind, s.start, s.end) for s in spells(faults, 9.0)] == [("pause", 1, 3), ("kill", 3, 5)]


def test_an_end_that_is_known_before_is_the_same_as_the_event_at_that_time():
    faults = [
        {"time_seconds": 1, "kind": "kill", "target": "w1", "until_seconds": 4},
        {"time_seconds": 4, "kind": "start", "target": "w1", "until_seconds": None},
        {"time_seconds": 9, "kind": "start", "target": "w1", "until_seconds": None},
    ]
    assert [(s.kind, s.start, s.end) for s in spells(faults, 10.0)] == [("kill", 1, 4), ("start", 9, None)]


def test_a_stop_lasts_until_the_next_start_and_its_exit_is_no_fault():
    faults = [(1, "stop", "w1"), (2, "exit", "w1"), (5, "start", "w1"), (6, "exit", "w1")]
    found = spells(pd.DataFrame(faults, columns=["time_seconds", "kind", "target"]), 9.0)
    assert [(s.kind, s.start, s.end) for s in found] == [("stop", 1, 5), ("exit", 6, None)]


def test_faults_that_find_no_room_are_counted():
    assert any(
        text.endswith("faults more than the fault lane can label") for text in texts(FIGURES["a hundred faults"]())
    )


@pytest.mark.parametrize(
    "seconds, said",
    [
        (0, "0 s"),
        (0.0123, "12.3 ms"),
        (0.9999, "1 s"),
        (5.61, "5.61 s"),
        (119, "119 s"),
        (600, "10 min"),
        (7200, "2 h"),
        (400_000, "4.6 d"),
    ],
)
def test_durations_are_said_in_the_unit_that_people_use(seconds, said):
    assert style.duration(seconds) == said


def test_a_logarithmic_axis_of_durations_is_labelled_where_people_count():
    runs = pd.DataFrame({"policy": "full", "competitors": [2, 3, 4], "calls": 3, "seconds": [1.0, 90.0, 3000.0]})
    axis = charts.contention(runs, **ABOUT).axes[1].yaxis
    low, high = axis.get_view_interval()
    shown = [axis.get_major_formatter()(at) for at in axis.get_majorticklocs() if low <= at <= high]
    assert shown == ["1 s", "10 s", "60 s", "10 min", "60 min"]


@pytest.mark.parametrize(
    "span, step", [(0.08, 0.01), (9, 1), (90, 10), (3600, 600), (86400, 10800), (7 * 86400, 86400)]
)
def test_ticks_stand_at_steps_that_people_count_in(span, step):
    assert style.step_seconds(span) == pytest.approx(step)


@given(st.floats(0, 1e9), st.integers(4, 9))
def test_an_axis_of_durations_ends_at_one_of_its_ticks(value, most):
    top = style.ceiling_seconds(value, most, 1e-3)
    steps = top / style.step_seconds(top, most)
    assert steps == pytest.approx(round(steps)) and steps <= most + 1e-6 and top >= value * (1 - 1e-6)


@pytest.mark.parametrize(
    ("value", "most", "top"), [(0, 5, 1), (8.7, 5, 10), (151, 6, 180), (700, 5, 900), (16_000, 6, 18_000)]
)
def test_an_axis_of_durations_ends_where_people_count(value, most, top):
    assert style.ceiling_seconds(value, most) == top


T = datetime(2026, 11, 30, 12, tzinfo=UTC)


def at(seconds):
    return T + timedelta(seconds=seconds)


def ended(seconds, event, owner, epoch):
    return {"at": at(seconds).isoformat(), "event": event, "owner": owner, "epoch": epoch, "error": "x"}


JOB = {
    "id": 17,
    "type": "mail.send",
    "created_at": T,
    "run_at": at(9),
    "status": "done",
    "attempts": 3,
    "epoch": 4,
    "started_at": at(9.4),
    "finished_at": at(12.4),
    "finished_by": "w1",
    "finished_epoch": 4,
    "history_trimmed": 0,
    "history": [ended(2, "failed", "w3", 1), ended(3.5, "released", "w4", 2), ended(8, "lost", "w2", 3)],
}
STARTS = pd.DataFrame({"epoch": [1, 2, 3, 4], "started": [0.5, 3.0, 4.0, 9.4]})


def worn_job():
    return {
        **JOB,
        "epoch": 61,
        "history": [ended(i + 1, "failed", f"w{i}", i + 1) for i in range(60)],
        "started_at": at(70),
        "finished_at": at(71),
        "finished_epoch": 61,
        "history_trimmed": 12,
    }


def test_a_life_is_told_phase_by_phase():
    assert story(JOB, STARTS)[:-1] == [
        Phase("ready", 0, 0.5),
        Phase("running", 0.5, 2, 1, "w3", "failed"),
        Phase("waiting_retry", 2, 3),
        Phase("running", 3, 3.5, 2, "w4", "released"),
        Phase("ready", 3.5, 4),
        Phase("running", 4, 8, 3, "w2", "lost"),
        Phase("waiting_retry", 8, 9.4),
        Phase("running", 9.4, 12.4, 4, "w1", "done"),
    ]


def test_what_the_row_does_not_tell_is_not_made_up():
    assert [(p.state, p.start, p.end) for p in story(JOB)[:2]] == [("unseen", 0, 2), ("unseen", 2, 3.5)]


def test_a_redriven_job_was_dead_until_then():
    job = {
        **JOB,
        "status": "ready",
        "epoch": 1,
        "started_at": None,
        "finished_at": None,
        "history": [ended(2, "failed", "w3", 1), ended(6, "redriven", None, 1)],
    }
    assert story(job, STARTS.head(1), until=at(8)) == [
        Phase("ready", 0, 0.5),
        Phase("running", 0.5, 2, 1, "w3", "failed"),
        Phase("dead", 2, 6),
        Phase("ready", 6, 8),
    ]


def test_the_title_of_a_life_counts_what_went_wrong_before():
    assert (
        charts.life(JOB, STARTS).finding == "Job 17 (mail.send) was done at attempt 3, 12.4 s after it was created: "
        "1 failed attempt, 1 release, 1 lost lease before"
    )


def test_phases_that_are_not_drawn_are_announced():
    assert "Note: the last 20 of 63 phases are drawn; 12 older ends of leases are trimmed from the row" in texts(
        charts.life(worn_job())
    )


def test_instants_and_numbers_are_not_mixed():
    with pytest.raises(InvalidInput, match="^charts.life: created_at is a number"):
        story({**JOB, "created_at": 0.0})


def test_a_notebook_shows_the_figure_as_a_picture():
    assert charts.queue_age(ages())._repr_png_()[:8] == b"\x89PNG\r\n\x1a\n"


RNG = np.random.default_rng(11)
POLICIES = {jitter: Backoff(jitter=jitter, ceiling_seconds=60) for jitter in ("none", "full", "equal", "decorrelated")}


def delays(attempts=range(1, 11), each=400):
    rng = random.Random(1)
    rows = [(name, k, policy.delay(k, rng)) for name, policy in POLICIES.items() for k in attempts for _ in range(each)]
    return pd.DataFrame(rows, columns=["policy", "attempt", "delay_seconds"])


def runs():
    rows = [(name, n, n**power, n / 10) for name, power in (("none", 2), ("full", 1.1)) for n in (10, 50, 200)]
    return pd.DataFrame(rows, columns=["policy", "competitors", "calls", "seconds"])


def loads():
    def quantiles(rho):
        return (theory.queue_age_quantile(q, rho * 4 / 3, 3.0, 4) for q in (0.5, 0.95, 0.99))

    rows = [(rho, *quantiles(rho)) for rho in (0.5, 0.8, 0.95)]
    return pd.DataFrame(rows, columns=["utilisation", "p50", "p95", "p99"])


def recoveries():
    rows = [(lease, lease - left) for lease in (2.0, 10.0, 60.0) for left in np.linspace(0, lease / 3, 40)]
    return pd.DataFrame(rows, columns=["lease_seconds", "recovery_seconds"])


EXPIRIES = pd.DataFrame({"lease_seconds": [2.0, 10.0, 60.0], "freezes": [100, 100, 100], "expired": [84, 43, 1]})
FINISHED = pd.DataFrame({"status": ["done"] * 90 + ["dead"] * 10, "attempts": [1] * 60 + [2] * 30 + [3] * 10})
DEAD = pd.DataFrame({"time_seconds": np.arange(70) * 60.0, "cause": [f"cause {i % 7}" for i in range(70)]})
BY_TYPE = pd.DataFrame(
    [(t, kind, n) for t in range(60) for kind, n in (("mail", 5), ("report", t // 20), ("$x$", 1))],
    columns=["time_seconds", "type", "running"],
)
NIGHT = datetime(2026, 10, 24, 22, tzinfo=UTC)
SLOTS = pd.DataFrame({"schedule_id": "0 * * * *", "slot": [NIGHT + timedelta(hours=h) for h in range(6)]})
WEEK = pd.DataFrame({"at": [NIGHT + timedelta(hours=h) for h in range(150)], "age": np.arange(150) % 24 + 0.5})

MORE = {
    "delay by attempt": lambda: charts.delay_by_attempt(delays(), POLICIES, **ABOUT),
    "retry herd": lambda: charts.retry_herd(delays([1], 2000).drop(columns="attempt"), **ABOUT),
    "contention": lambda: charts.contention(runs(), **ABOUT),
    "age against load": lambda: charts.age_against_load(loads(), servers=4, mean_service_seconds=3.0, **ABOUT),
    "lease length": lambda: charts.lease_length(recoveries(), EXPIRIES, mean_freeze_seconds=10.0),
    "lease length with a choice": lambda: charts.lease_length(recoveries(), EXPIRIES, chosen=10.0, **ABOUT),
    "lease length of one": lambda: charts.lease_length(recoveries().head(40), None),
    "attempts to death": lambda: charts.attempts_to_death(FINISHED, failure=0.4, max_attempts=3, **ABOUT),
    "dead letters": lambda: charts.dead_letters(DEAD, FAULTS, **ABOUT),
    "running by type": lambda: charts.running_by_type(BY_TYPE, **ABOUT),
    "lease expirations": lambda: charts.lease_expirations(DEAD, FAULTS, until_seconds=7200, **ABOUT),
    "missed slots": lambda: charts.missed_slots(SLOTS.assign(reason=["misfire", "overlap"] * 3), **ABOUT),
    "slot ledger": lambda: charts.slot_ledger(SLOTS, "Europe/Berlin", **ABOUT),
    "a week": lambda: charts.week(WEEK, "age", label="queue age (s)", **ABOUT),
}
EMPTY = {
    "no delays": lambda: charts.delay_by_attempt(None, {}),
    "no retries": lambda: charts.retry_herd(None),
    "no runs": lambda: charts.contention(None),
    "no kills": lambda: charts.lease_length(None, None),
    "no finished jobs": lambda: charts.attempts_to_death(None),
    "no dead letters": lambda: charts.dead_letters(None),
    "no samples": lambda: charts.running_by_type(None),
    "no lost leases": lambda: charts.lease_expirations(None),
    "no missed slots": lambda: charts.missed_slots(None),
    "no slots": lambda: charts.slot_ledger(None, "UTC"),
}


@pytest.mark.parametrize("figure", [*MORE.values(), *EMPTY.values()], ids=[*MORE, *EMPTY])
def test_no_text_collides_in_the_charts_of_a_review(figure):
    assert labels.clashes(figure()) == []


@pytest.mark.parametrize("said, figure", EMPTY.items(), ids=EMPTY)
def test_a_chart_without_data_says_what_is_missing(said, figure):
    assert said in texts(figure())


TITLES = {
    "retry herd": "Peak retry rate × mean delay ÷ N: full 0.58, "
    "decorrelated 1.12, equal 1.63; none sends all at one instant",
    "contention": "With 200 competitors full needs the fewest calls (340), none the least time (20 s)",
    "age against load": "At 95% utilisation the p99 of queue age is 66.6 s; M/M/4 says 66.6 s",
    "lease length": "A lease of 2 s: p95 recovery 1.97 s of 40 kills, 84 of 100 freezes lose it; "
    "a lease of 60 s: p95 recovery 59 s of 40 kills, 1 of 100 freezes lose it",
    "attempts to death": "10 of 100 finished jobs (10.00%) ended as dead letters; "
    "independent failures would give 6.40%",
    "dead letters": "70 dead letters, 10 of them by cause 0",
    "running by type": "At most 8 running at once; mail peaked at 5",
    "lease expirations": "70 leases lost in 2 h, 35 an hour; at most 5 within 5 min",
    "missed slots": "6 slots of 1 schedule missed: 3 misfire, 3 overlap",
    "slot ledger": "6 slots fired, 0 missed across the change of Europe/Berlin, 60 min back at 2026-10-25 01:00 UTC",
    "a week": "Highest queue age (s): 23.5 on Mon at 21:00; lowest: 0.5 in 7 hours",
}


@pytest.mark.parametrize("chart", TITLES)
def test_the_title_of_a_review_chart_is_computed_from_its_data(chart):
    assert MORE[chart]().finding == TITLES[chart]


def test_drawn_means_and_closed_forms_stand_in_one_panel():
    figure = MORE["delay by attempt"]()
    full = figure.axes[1]
    drawn, closed = (
        next(a.get_ydata() for a in full.lines if a.get_label() == label) for label in ("drawn", "closed form")
    )
    assert list(closed) == [theory.mean_delay(POLICIES["full"], k) for k in range(1, 11)]
    assert list(drawn) == pytest.approx(list(closed), rel=0.15)


def test_the_band_of_the_closed_form_holds_the_p5_and_p95_of_the_draws():
    rng, policy = random.Random(1), POLICIES["full"]
    drawn = np.quantile([policy.delay(5, rng) for _ in range(20_000)], [0.05, 0.95])
    assert drawn == pytest.approx([theory.delay_quantile(q, policy, 5) for q in (0.05, 0.95)], rel=0.05)


def test_a_policy_that_is_not_explained_is_refused():
    with pytest.raises(
        InvalidInput, match="^charts.delay_by_attempt: the frame has a policy that `policies` lacks: 'full'$"
    ):
        charts.delay_by_attempt(delays(), {"none": POLICIES["none"]})


def test_causes_beyond_the_fifth_are_added_up_and_announced():
    said = texts(MORE["dead letters"]())
    assert "Note: 3 more are added up as other" in said and "30 other" in said


def test_jobs_that_have_no_bar_are_counted():
    more = pd.DataFrame({"status": ["ready", "running", "cancelled", "done"], "attempts": [0, 1, 1, 41]})
    said = texts(charts.attempts_to_death(pd.concat([FINISHED, more])))
    assert "Note: not drawn: 2 jobs still open, 1 job cancelled, 1 job with more than 40 attempts" in said


def test_a_herd_of_few_jobs_says_how_far_it_strays_from_theory():
    said = texts(charts.retry_herd(delays([1], 250)))
    assert any(text.endswith("theory: of very many jobs, with 250 a bin strays by some 20%") for text in said)


@pytest.mark.parametrize("chosen", [1.0, 10.0, 900.0])
def test_the_chosen_lease_is_marked_in_both_panels_wherever_it_lies(chosen):
    figure = charts.lease_length(recoveries(), EXPIRIES, chosen=chosen)
    marks = [line.get_xdata()[0] for ax in figure.axes for line in ax.lines if line.get_label() == "chosen"]
    low, high = figure.axes[1].get_xlim()
    assert marks == [chosen, chosen] and low < chosen < high and labels.clashes(figure) == []
    assert any(text.endswith("dotted: the choice") for text in texts(figure))


def test_the_hour_that_comes_twice_is_shown_twice_on_the_wall_clock():
    top = MORE["slot ledger"]().axes[0]
    assert [text.get_text() for text in top.texts] == ["00:00", "01:00", "02:00", "02:00", "03:00", "04:00"]


def test_a_naive_slot_is_refused():
    with pytest.raises(InvalidInput, match="^charts.slot_ledger: an instant has no time zone$"):
        charts.slot_ledger(SLOTS.assign(slot=datetime(2026, 10, 25, 2)), "Europe/Berlin")


def test_a_cell_of_the_week_is_the_mean_of_its_hour():
    two = pd.DataFrame({"at": [NIGHT, NIGHT + timedelta(minutes=30)], "age": [1.0, 4.0]})
    grid = charts.week(two, "age").axes[0].images[0].get_array()
    assert (grid[5, 22], int(grid.count())) == (2.5, 1)


@pytest.mark.parametrize(("times", "said"), [
    ([60.0], "1 lease lost in 60 min"), ([60.0, 60.0], "2 leases lost in 60 min, all at one instant"),
    ([60.0, 78.0], "2 leases lost in 60 min, all within 18 s"),
])  # fmt: skip
def test_leases_that_are_lost_together_have_no_rate(times, said):
    lost = pd.DataFrame({"time_seconds": times})
    assert charts.lease_expirations(lost, until_seconds=3600.0).finding == said


def test_hours_without_a_sample_are_announced():
    assert "each hour: its mean; 18 hours without a sample: hatched" in texts(MORE["a week"]())
    highest = charts.week(WEEK, "age", label="queue age (s)", of="max").finding
    assert highest.startswith(f"Highest queue age (s): {WEEK['age'].max():.3g} on ")

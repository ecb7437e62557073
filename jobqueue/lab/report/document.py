"""The review as blocks: every sentence and every table is computed from the runs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from .. import matrix, style
from . import decisions, evidence
from .blocks import Block, Figure, Heading, Listing, Paragraph, Table, amount
from .decisions import Decision
from .evidence import Piece
from .making import CUT, parameters
from .runs import Stored

d, n = style.duration, style.count
SECONDS_A_DAY = 86_400
FAULTS = {"kill": "{} killed", "pause": "{} frozen", "outage": "{} out of reach",
          "down": "what jobs of type {} need away (those that begin then fail)"}  # fmt: skip
NOUNS = {"complete": "completion", "fail": "failure"}  # of what a worker says


@dataclass(frozen=True)
class Review:
    """All that a document is made of."""

    title: str
    found: Mapping[str, Stored]
    decisions: Sequence[Decision]
    pieces: Sequence[Piece]
    figures: Sequence[Figure]
    provenance: dict

    def figure(self, slug: str) -> Figure:
        return next(one for one in self.figures if one.slug == slug)

    def drawn(self, slug: str) -> list[Figure]:
        """The figure where there is something to show."""
        return [one for one in self.figures if one.slug == slug]

    def labelled(self, slug: str) -> str:
        return self.figure(slug).label


def blocks(review: Review) -> list[Block]:
    """In the order in which they are read."""
    parts = (_summary, _load, _day, _faults, _choices, _retries, _broker, _states, _evidence, _cost, _limits,
             _parameters, _provenance)  # fmt: skip
    return [block for part in parts for block in part(review)]


def decided(review: Review) -> pd.DataFrame:
    frame = decisions.table(list(review.decisions))
    return frame.assign(figure=[review.labelled(slug) for slug in frame["figure"]])


def tables(review: Review) -> dict[str, pd.DataFrame]:
    """Every table by the name of its file."""
    return {block.slug: block.frame for block in blocks(review) if isinstance(block, Table)}


# ---- decisions -----------------------------------------------------------------------------------------------------


def _summary(review: Review) -> list[Block]:
    load = review.found["load"]
    about = (
        f"For the load {load.parameters['workload']}. What is measured is simulated: the shipped SQL on a real "
        f"PostgreSQL {load.postgres}, workers and time virtual, seed {load.seed}; what is computed stands beside it: "
        f"by formula, and for the workers first come, first served. What is counted in the load is not simulated. The "
        f"failure matrix is of a real queue on a real clock. {_of_processes(review)}"
    )
    widths = (0.12, 0.2, 0.22, 0.12, 0.12, 0.08, 0.14)
    return [
        Heading("Decisions"),
        Paragraph(decisions.summary(list(review.decisions)), strong=True),
        Paragraph(about),
        Table(
            "Decisions, each with its target, its figure and the chart that shows it",
            decided(review),
            widths,
            (),
            "decisions",
        ),
        *(Paragraph(f"{one.sentence} {review.labelled(one.figure)}.") for one in review.decisions),
    ]


def _of_processes(review: Review) -> str:
    kinds = [piece.kind for piece in review.pieces if piece.was_run and piece.kind != evidence.SEARCH]
    if not kinds:
        return "No run of real processes is stored."
    return f"Of real processes: {', '.join(dict.fromkeys(kinds))}."


# ---- the load and the day ------------------------------------------------------------------------------------------


def _load(review: Review) -> list[Block]:
    load = review.found["load"].figures
    left = f" {n(load['left_out'], 'line')} of the file had no work to replay." if load["left_out"] else ""
    failing = f" {n(load['failed'], 'job')} fail for good, as in the history." if load["failed"] else (
        " By the history none fails; where it does not say how a job ended, the job counts as done.")  # fmt: skip
    text = (
        f"{n(load['jobs'], 'job')} in {d(load['span_seconds'])}, {d(load['mean_seconds'])} each on average: "
        f"{amount(decisions.at_work(review.found))} at work at a time if none ever waited, "
        f"{amount(load['peak_busy'])} at "
        f"most. {amount(load['erlangs'])} erlangs is what they bring: seconds of work for each second of arrivals, "
        "what runs on after the last arrival included. "
        "The busiest minute "
        f"begins {d(load['peak_at_seconds'])} after the start and brings {amount(load['peak_per_second'])} jobs a "
        f"second.{failing}{left}"
    )
    frame = review.found["load"]["types"].rename(columns=_spoken)
    numbers = [name for name in frame.columns if name != "type"]
    return [Heading("The load"), Paragraph(text), review.figure("arrivals"),
            Table("The load by type of job; seconds of service", frame, (), numbers, "load-by-type"),
            review.figure("age-by-workers")]  # fmt: skip


def _day(review: Review) -> list[Block]:
    run, plan = review.found["day"], review.found["plan"]
    told, limit = run.figures, plan.parameters["p99_age_seconds"]
    kept = "within" if told["p99_age"] <= limit else "OVER"
    text = (
        f"With {n(run.parameters['workers'], 'worker')} the queue age was at most {d(told['p99_age'])} for 99 % of the "
        f"time until the last job had begun ({kept} the target of {d(limit)}), at most {d(told['p50_age'])} for half "
        f"of it, and {d(told['max_age'])} at worst. A job waited {d(told['p50_wait'])} in the middle, "
        f"{d(told['p99_wait'])} at p99. {_ended(told)}"
    )
    lease = parameters(plan)["lease_seconds"]
    parts: list[Block] = [Heading("The whole load as planned"), Paragraph(text)]
    own = run.parameters
    if own["lease_seconds"] != lease:
        parts.append(Paragraph(
            f"In this run no worker fails, so its lease is set to {d(own['lease_seconds'])}, renewed every "
            f"{d(own['heartbeat_seconds'])}: the {n(told['renewals'])} renewals of a lease of {d(lease)} would only "
            f"cost time. The run with faults uses the recommended lease."
        ))  # fmt: skip
    frame = run["waits"].rename(columns=_spoken)
    return [*parts, review.figure("queue-age"), review.figure("counts"), *review.drawn("running-by-type"),
            Table("Waits by type in seconds: the last attempt's, from due to begun", frame, (),
                  [name for name in frame.columns if name != "type"], "waits-by-type")]  # fmt: skip


def _ended(told: Mapping) -> str:
    ends = [
        f"{n(told[state])} {word}"
        for state, word in (("done", "done"), ("failed", "failed for good"), ("dead", "dead"))
        if told[state] or state == "done"
    ]
    open_ = told["ready"] + told["running"]
    still = (
        f", {n(open_)} still open when it was ended after {d(told['span_seconds'])}" if open_ else ", none left open"
    )
    return f"Of {n(told['jobs'], 'job')} {', '.join(ends)}{still}; {n(told['attempts'], 'attempt')}."


# ---- faults and choices --------------------------------------------------------------------------------------------


def _faults(review: Review) -> list[Block]:
    run = review.found["faults"]
    told = run.figures
    text = (
        f"{_stretch(review)}, on {_fleet(review)}, with these faults: {_plan_in_words(run)}. {_ended(told)} "
        f"{n(told['lease_losses'], 'lease')} lost{_held_nothing(run)}, {_refused(run)}; queue age {d(told['max_age'])} "
        f"at worst: while the database is out of reach producers wait, too, and no job is added. {_accounted(told)}"
    )
    recoveries = run["recoveries"]
    by = recoveries.groupby(["fault", "worker"], sort=False).agg(
        leases=("job_id", "size"), slowest_ready_again=("ready_again_seconds", "max"),
        slowest_running_again=("running_again_seconds", "max")).reset_index()  # fmt: skip
    by.columns = ["fault", "worker", "leases lost", "slowest ready again (s)", "slowest running again (s)"]
    return [
        Heading("With faults"), Paragraph(text), review.figure("faults"), review.figure("lost-leases"),
        Table(_recovered(by), by, (), list(by.columns[2:]), "recoveries"),
        review.figure("attempts"), *review.drawn("dead-letters"),
    ]  # fmt: skip


def _fleet(review: Review) -> str:
    """Where the workers' slots are told as processes of several, what that comes to."""
    told, chosen = review.found["faults"].figures, parameters(review.found["plan"])["workers"]
    if told["slots"] == 1:
        return n(told["processes"], "worker")
    total = told["processes"] * told["slots"]
    return f"{told['processes']} worker processes of {told['slots']} slots ({total:,} in all, for {chosen:,})"


def _held_nothing(run: Stored) -> str:
    """The workers that a fault met while they held no job, or not long enough to lose it."""
    hit = [fault["target"] for fault in json.loads(run.parameters["faults"]) if fault["kind"] in ("kill", "pause")]
    idle = [target for target in hit if target not in set(run["recoveries"]["worker"])]
    return f" (none by {', '.join(idle)})" if idle else ""


def _refused(run: Stored) -> str:
    """What old owners said too late, by verb."""
    by = run["refused"]["verb"].value_counts(sort=False)
    if by.empty:
        return "no write of an old owner came late"
    said = ", ".join(n(count, NOUNS.get(verb, verb)) for verb, count in by.items())
    return f"{n(by.sum(), 'late write')} of old owners refused ({said})"


def _stretch(review: Review) -> str:
    told, load = review.found["faults"].figures, review.found["load"].figures
    if told["stretch_jobs"] == load["jobs"]:
        return f"The whole load, {n(load['jobs'], 'job')} in {d(told['stretch_seconds'])}"
    return (
        f"The busiest {n(told['stretch_jobs'], 'job')}, which arrive in {d(told['stretch_seconds'])}, begun with "
        f"nothing at work (so its queue age does not say whether the workers suffice)"
    )


def _accounted(told: Mapping) -> str:
    missing = told["jobs"] - sum(told[state] for state in ("done", "failed", "dead", "ready", "running"))
    return f"{n(missing, 'job')} UNACCOUNTED FOR." if missing else "Every job that was enqueued is accounted for."


def _recovered(by: pd.DataFrame) -> str:
    if by.empty:
        return "Recoveries: no fault met a job that was running"
    return "Recoveries: from the fault until the jobs were ready, and running, again (backoff included in the latter)"


def _plan_in_words(run: Stored) -> str:
    """In the order in which the figure numbers them."""
    plan = pd.DataFrame(json.loads(run.parameters["faults"])).sort_values("at", kind="stable")
    words = []
    for (kind, at), part in plan.groupby(["kind", "at"], sort=False):
        seconds = part["seconds"].iloc[0]
        whom = ", ".join(part["target"])
        lasting = f", back after {d(seconds)}" if kind == "kill" else f" for {d(seconds)}"
        words.append(f"{FAULTS[kind].format(whom)} at {d(at)}{lasting}")
    return "; ".join(words)


def _choices(review: Review) -> list[Block]:
    return [Heading("Lease and polling"), *_found(review, "lease-length", "pickup")]


def _retries(review: Review) -> list[Block]:
    return [Heading("Retries"), *_found(review, "retry-delays", "retry-herd", "outlasted")]


def _found(review: Review, *slugs: str) -> list[Block]:
    """What the figures found, as a paragraph, and the figures."""
    shown = [review.figure(slug) for slug in slugs]
    return [Paragraph(" ".join(f"{one.sheet.finding} ({one.label})." for one in shown)), *shown]


def _broker(review: Review) -> list[Block]:
    return [
        Heading("Broker or not"),
        Paragraph(review.decisions[-1].sentence),
        review.figure("needed-rate"),
        *review.drawn("load-curve"),
    ]


# ---- matrix and evidence -------------------------------------------------------------------------------------------


def _states(review: Review) -> list[Block]:
    entries = review.found["matrix"]["entries"]
    text = (
        f"{n(len(entries), 'state')} that support may meet, each observed while a real queue was driven into it on "
        f"PostgreSQL {review.found['matrix'].postgres}. {matrix.COMPLETE} Commands in `backquotes` are arguments of "
        f"python -m jobqueue."
    )
    frame = entries.rename(columns={"roll_back": "criterion to roll back"})
    shown = frame.drop(columns="query")
    widths = (0.14, 0.28, 0.22, 0.14, 0.22)
    queries = "\n\n".join(f"-- {row.state}\n{row.query};" for row in entries.itertuples())
    return [Heading("Failure matrix"), Paragraph(text), review.figure("states"),
            Table("Failure matrix: what is seen, what may be done, by whom, and when to stop", shown, widths, (),
                  "failure-matrix"),
            Paragraph("The queries behind the column “observed”, to be pasted with the id in question:"),
            Listing(queries)]  # fmt: skip


def _evidence(review: Review) -> list[Block]:
    broken = [piece.kind for piece in review.pieces if piece.verdict == "BROKEN"]
    missing = [piece for piece in review.pieces if not piece.was_run]
    kinds = {piece.kind for piece in review.pieces}
    there = len(kinds) - len(missing)
    text = f"{there} of {len(kinds)} kinds of evidence {'is' if there == 1 else 'are'} there"
    text += f"; BROKEN: {', '.join(broken)}" if broken else ", not broken" if there == 1 else ", none of them broken"
    text += f"; not run here: {', '.join(piece.kind for piece in missing)}." if missing else "."
    out: list[Block] = [
        Heading("Evidence"), Paragraph(text), review.figure("coverage"),
        Table("Evidence", evidence.table(list(review.pieces)), (0.12, 0.22, 0.09, 0.37, 0.2), (), "evidence"),
    ]  # fmt: skip
    if missing:
        commands = "\n".join(evidence.COMMANDS[piece.kind] for piece in missing)
        out += [Paragraph("What is missing is made by these commands; the next pack reads what they leave:"),
                Listing(commands)]  # fmt: skip
    return out


# ---- cost and limits -----------------------------------------------------------------------------------------------


def _cost(review: Review) -> list[Block]:
    load, plan = review.found["load"].figures, parameters(review.found["plan"])
    weight = review.found["matrix"].figures["bytes_per_job"]
    a_day = round(load["jobs"] / max(load["span_seconds"], 1) * SECONDS_A_DAY)
    workers, share = review.found["workers"].figures["workers"], review.found["day"].figures["busy"]
    idle, poll, beat = workers * (1 - share), plan["poll_seconds"], decisions.renewed_every(review.found)
    rows = [(f"{name} rows", f"{size:,} bytes a job", _bytes(size * a_day) + " a day")
            for name, size in weight.items()]  # fmt: skip
    rows += [
        ("idle polling", f"every {d(poll)} for each idle process",
         f"at one slot a process {amount(idle / poll)} queries a second on average, {amount(workers / poll)} if all "
         "are idle"),
        ("renewals", f"about every {d(beat)} for each job at work",
         f"at most {amount(decisions.at_work(review.found) / beat)} rows a second on average (a shorter job renews "
         f"nothing), {amount(workers / beat)} if all are busy"),
        ("idle workers", f"{share:.0%} busy while jobs arrive",
         f"{amount(idle)} of {workers:,} slots idle on average"),
    ]  # fmt: skip
    text = (
        f"At the rate of this load, {n(a_day, 'job')} a day. Job rows are kept until the janitor archives them, keys "
        f"until their time has passed; files that jobs publish come on top. The bytes are measured on "
        "keyed jobs with a "
        f"small payload."
    )
    frame = pd.DataFrame(rows, columns=["what", "unit cost", "for this load"])
    return [Heading("Cost"), Paragraph(text), Table("Cost", frame, (0.2, 0.4, 0.4), (), "cost")]


def _limits(review: Review) -> list[Block]:
    load = review.found["load"].figures
    longest = float(review.found["load"]["types"]["max_seconds"].max())
    cut = (
        f"The load begins with nothing at work, and its longest job runs {d(longest)}: jobs that ran "
        "on from before are "
        f"missing, so it is lighter than it was, and a load that follows another needs more workers."
    )
    texts = [
        "Execution is at least once. An effect is applied once where the destination shares the job's transaction, or "
        "checks the epoch and a unique effect key; the epoch alone refuses late writes, it does not prevent a second "
        "execution.",
        "SKIP LOCKED gives no strict order, nor fairness among consumers. A snapshot that is held degrades every queue "
        "of this family.",
        "Virtual time knows no lock waits and no disk: whether the server bears the rate is what a load run says, not "
        "these simulations. Idle workers of the simulation look at the recommended poll interval; NOTIFY only helps.",
        "The load is one sample; another can be worse. A history shows what the old system let through: jobs that were "
        "never sent because it was slow are missing.",
        "p99 of queue age leaves out one hundredth of the time: read it together with the worst age, which the text "
        "names.",
    ]
    if longest > CUT * load["span_seconds"]:
        texts.insert(3, cut)
    return [Heading("Limits"), *map(Paragraph, texts)]


# ---- parameters and provenance -------------------------------------------------------------------------------------


def _parameters(review: Review) -> list[Block]:
    rows = [(name, key, _shown(value)) for name, run in review.found.items()
            for key, value in [("seed", run.seed), *sorted(run.parameters.items())] if value is not None]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["run", "parameter", "value"])
    plan = pd.DataFrame([(key, _shown(value)) for key, value in review.found["plan"].figures["values"].items()],
                        columns=["parameter", "value"])  # fmt: skip
    return [
        Heading("Parameters"),
        Table("What the recommendations come to, as arguments of sim.run; a worker renews its leases by itself", plan,
              (0.3, 0.7), (), "recommended"),
        Table("Parameters of every run; those of a simulation that are not named are its defaults", frame,
              (0.12, 0.24, 0.64), (), "parameters"),
    ]  # fmt: skip


def _provenance(review: Review) -> list[Block]:
    versions = ", ".join(f"{key} {value}" for key, value in review.provenance["versions"].items() if value)
    made = sorted({run.revision for run in review.found.values()})
    text = (
        f"Runs made by git {', '.join(made)}; this pack by git {review.provenance['revision']}, with "
        f"{versions}. Stored "
        f"runs: {review.provenance['set']}; the same runs give the same bytes. The zip holds every figure as svg, png "
        f"and pdf, its data and every table as csv, and provenance.json with the sha256 of each file."
    )
    return [Heading("Provenance"), Paragraph(text)]


def _spoken(name: str) -> str:
    words = str(name).removesuffix("_seconds").replace("_", " ")
    return f"{words} (s)" if str(name).endswith("_seconds") else words


def _shown(value) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.10g}"
    return json.dumps(value, ensure_ascii=False)


def _bytes(size: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{amount(size / unit)} {name}"
    return f"{size:,.0f} bytes"

"""Charts: each a function from frames to one Figure; they know no database."""

from jobqueue.lab.charts.calendar import missed_slots, slot_ledger, week
from jobqueue.lab.charts.capacity import age_against_load, lease_length
from jobqueue.lab.charts.evidence import coverage, interleaving, mutant_matrix, trace
from jobqueue.lab.charts.failures import attempts_to_death, dead_letters, lease_expirations, running_by_type
from jobqueue.lab.charts.life import life
from jobqueue.lab.charts.live import counts, fault_lane, overview, queue_age, worker_lanes
from jobqueue.lab.charts.load import horizon, load_costs, load_curve, load_dimension, load_waits, peers
from jobqueue.lab.charts.policy import contention, delay_by_attempt, herd, retry_herd
from jobqueue.lab.charts.states import states

__all__ = [
    "age_against_load",
    "attempts_to_death",
    "contention",
    "counts",
    "coverage",
    "dead_letters",
    "delay_by_attempt",
    "fault_lane",
    "herd",
    "horizon",
    "interleaving",
    "lease_expirations",
    "lease_length",
    "life",
    "load_costs",
    "load_curve",
    "load_dimension",
    "load_waits",
    "missed_slots",
    "mutant_matrix",
    "overview",
    "peers",
    "queue_age",
    "retry_herd",
    "running_by_type",
    "slot_ledger",
    "states",
    "trace",
    "week",
    "worker_lanes",
]

"""Charts: each a function from frames to one Figure; they know no database."""

from jobqueue.lab.charts.life import life
from jobqueue.lab.charts.live import counts, fault_lane, overview, queue_age, worker_lanes

__all__ = ["counts", "fault_lane", "life", "overview", "queue_age", "worker_lanes"]

"""graphile-worker, on Node: its settings of speed, a local queue and completions in batches."""

from . import NODE, Facts

FACTS = Facts(
    package="graphile-worker",
    kind=NODE,
    script="graphile.mjs",
    settings="concurrentJobs=24, localQueue of 500, completeJobBatchDelay=0, failJobBatchDelay=0; addJob(), "
    "addJobs(5,000)",
    back_after="4 h",
    redelivery="the lock's age",
    tells="in batches, as soon as one is under way",
)

"""pg-boss, on Node: batches of 500, LISTEN/NOTIFY."""

from . import NODE, Facts

FACTS = Facts(
    package="pg-boss",
    kind=NODE,
    script="pgboss.mjs",
    settings="batchSize=500, burstWhenBatchFull, useListenNotify, localConcurrency=1; send(), insert(5,000)",
    back_after="15 min",
    redelivery="expireInSeconds",
    tells="a batch at once, after its last job",
)

"""Not a queue: the least that PostgreSQL itself needs for the same rows, by pgbench and COPY (`floor` measures it)."""

from . import SQL, Facts

FACTS = Facts(
    package="pgbench",
    kind=SQL,
    settings="pgbench -M prepared on a table of six columns: a transaction to claim 200, another to complete them",
    back_after="never",
    redelivery="no lease, no check of an owner",
    tells="in its own transaction",
)

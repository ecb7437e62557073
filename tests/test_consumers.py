"""Many consumers on a queue that is never empty: nobody's job is forgotten, fairness among consumers not promised."""

import os
import threading
import time

import psycopg
import pytest

from jobqueue import Queue

CONSUMERS = 32
BACKLOG = 400
SECONDS = float(os.environ.get("JOBQUEUE_CONSUMER_SECONDS", 15))


class Crowd:
    """Consumers with a connection each, and a producer that keeps the backlog full."""

    def __init__(self, dsn):
        self.dsn, self.until = dsn, time.monotonic() + SECONDS
        self.waits, self.done, self.oldest = [], [0] * CONSUMERS, []

    def consume(self, place):
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            queue = Queue(conn)
            while time.monotonic() < self.until:
                for lease in queue.claim(f"consumer-{place}"):
                    queue.complete(lease)
                    self.done[place] += 1

    def produce(self):
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            queue = Queue(conn)
            while time.monotonic() < self.until:
                found = conn.execute(
                    "select count(*), coalesce(extract(epoch from now() - min(run_at)), 0)::float8 "
                    "from jobqueue.job where status = 'ready'"
                ).fetchone()
                self.oldest.append(found[1])
                queue.enqueue_many([{"type": "mail"}] * max(1, min(1000, BACKLOG - found[0])))

    def run(self):
        threads = [threading.Thread(target=self.consume, args=(place,)) for place in range(CONSUMERS)]
        threads.append(threading.Thread(target=self.produce))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_due_job_grows_much_older_than_the_others_beside_32_consumers(dsn, conn, queue):
    queue.enqueue_many([{"type": "mail"}] * BACKLOG)
    crowd = Crowd(dsn)
    crowd.run()
    (p99,) = conn.execute(
        "select percentile_cont(0.99) within group (order by extract(epoch from started_at - run_at))::float8 "
        "from jobqueue.job where status = 'done'"
    ).fetchone()
    print(f"{sum(crowd.done)} jobs; per consumer {min(crowd.done)}–{max(crowd.done)}; p99 {p99:.3f} s, "
          f"oldest {max(crowd.oldest):.3f} s")  # fmt: skip
    assert (min(crowd.done) > 0, max(crowd.oldest) <= 3 * p99) == (True, True)

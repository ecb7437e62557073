"""A service over HTTP that takes in effects, behind three doors: unguarded, fenced by the epoch, fenced and with a key.

    with destination.serve() as service:
        destination.post(service.url, "fenced", lease)      # "taken", "known" or "stale"
        service.taken["unguarded"]                          # [(job, epoch), …] in the order in which they came

The fence refuses an epoch older than the newest seen of its job: so an effect that landed before the takeover is there
twice all the same. The key is the job's: the second effect under it is known already.
"""

import http.server
import json
import threading
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..errors import InfrastructureError
from ..model import Lease

UNGUARDED, FENCED, KEYED = DOORS = ("unguarded", "fenced", "fenced with a key")
ANSWERS = {200: "taken", 208: "known", 409: "stale"}
TIMEOUT_SECONDS = 10


@dataclass
class Service:
    """What came, by door; `refused` counts what the fence and the key kept out."""

    url: str = ""
    taken: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: {door: [] for door in DOORS})
    refused: Counter = field(default_factory=Counter)
    _newest: dict = field(default_factory=lambda: defaultdict(int))
    _keys: set = field(default_factory=set)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def take(self, door: str, job: int, epoch: int) -> int:
        """The HTTP status of an effect; one at a time, since the fence and the key are looked at and set together."""
        with self._guard:
            newest = self._newest[door, job]
            self._newest[door, job] = max(newest, epoch)
            is_stale, is_known = door != UNGUARDED and epoch < newest, door == KEYED and job in self._keys
            if is_stale or is_known:
                self.refused[door] += 1
                return 409 if is_stale else 208
            if door == KEYED:
                self._keys.add(job)
            self.taken[door].append((job, epoch))
            return 200

    def repeated(self, door: str) -> list[int]:
        """Jobs whose effect it took in more than once."""
        return sorted(job for job, times in Counter(job for job, _ in self.taken[door]).items() if times > 1)

    def stale(self, door: str) -> list[int]:
        """Jobs of which it took in an effect of an older epoch after one of a newer."""
        newest: dict[int, int] = defaultdict(int)
        found = set()
        for job, epoch in self.taken[door]:
            if epoch < newest[job]:
                found.add(job)
            newest[job] = max(newest[job], epoch)
        return sorted(found)


@contextmanager
def serve() -> Iterator[Service]:
    """On a port of the loopback interface, as long as the block lasts."""
    service = Service()

    class Door(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(service.take(sent["door"], sent["job"], sent["epoch"]))
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Door)
    threading.Thread(target=server.serve_forever, name="destination", daemon=True).start()
    service.url = f"http://127.0.0.1:{server.server_port}/effects"
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()


def post(url: str, door: str, lease: Lease) -> str:
    """Sends the effect of a lease; raises InfrastructureError where nobody answers."""
    body = json.dumps({"door": door, "job": lease.id, "epoch": lease.epoch}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=TIMEOUT_SECONDS) as answer:
            return ANSWERS[answer.status]
    except urllib.error.HTTPError as error:
        with error:
            return ANSWERS[error.code]
    except OSError as error:
        raise InfrastructureError(f"the destination doesn't answer: {error}") from error

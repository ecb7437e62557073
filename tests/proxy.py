"""A door to PostgreSQL on a unix socket of its own that can cut a session before or after a chosen message has passed.

What is watched for is a marker in a request (`COMMIT`, a statement's text), and the end of the reply to it, a message
ReadyForQuery (`Z`).
"""

from __future__ import annotations

import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from psycopg import conninfo


class Proxy:
    """`cut_when(marker, point)`: the next session that sends the marker is cut before its request or its reply passes.

    "request": the server never hears of it. "reply": it has been carried out, and nobody hears of that.
    `answers`: how many have passed so far, whatever the session. `waiting`: sessions that have asked and wait for one.
    """

    def __init__(self, dsn: str) -> None:
        given = conninfo.conninfo_to_dict(dsn)
        self._server = f"{given['host']}/.s.PGSQL.{given['port']}"
        self._folder = tempfile.TemporaryDirectory(prefix="jq-proxy-", dir="/tmp")
        self.dsn = conninfo.make_conninfo(dsn, host=self._folder.name, port=5432)
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(Path(self._folder.name, ".s.PGSQL.5432")))
        self._door.listen(50)
        self._lock = threading.Lock()
        self._marker, self._point = b"", ""
        self.cuts = self.answers = 0
        self.waiting: set[socket.socket] = set()
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_when(self, marker: str, point: str) -> None:
        with self._lock:
            self._marker, self._point = marker.encode(), point

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._door.close()
        for one in list(self._open):
            _shut(one)
        self._folder.cleanup()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._door.accept()
                server = socket.socket(socket.AF_UNIX)
                try:
                    server.connect(self._server)
                except OSError:
                    client.close()
                    continue
                self._open |= {client, server}
                threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        silent = threading.Event()
        threading.Thread(target=self._replies, args=(client, server, silent), daemon=True).start()
        with suppress(OSError):
            while data := client.recv(65_536):
                point = self._strikes(data)
                if point == "request":
                    break
                if point == "reply":
                    silent.set()
                self.waiting.add(client)
                server.sendall(data)
        if not silent.is_set():
            _shut(client), _shut(server)

    def _strikes(self, data: bytes) -> str:
        with self._lock:
            if not self._marker or self._marker not in data:
                return ""
            point, self._marker, self._point = self._point, b"", ""
            self.cuts += 1
            return point

    def _replies(self, client: socket.socket, server: socket.socket, silent: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(65_536):
                is_whole = data[-6:-1] == b"Z\0\0\0\5"  # ReadyForQuery: it is done, and the commit with it
                if silent.is_set():
                    if is_whole:
                        break
                    continue
                if is_whole:
                    self.waiting.discard(client)
                    with self._lock:
                        self.answers += 1
                client.sendall(data)
        self.waiting.discard(client)
        _shut(client), _shut(server)


def _shut(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()

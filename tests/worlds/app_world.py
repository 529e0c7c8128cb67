"""A small service as an application in this process, without HTTP around it."""

import asyncio
import threading

from prometheus_client.parser import text_string_to_metric_families
from server_world import Answer


def exposed(text):
    """What is exposed to Prometheus: by the name of each series its samples, by their labels'
    values in the order of the labels' names. Raises where it is not in the format."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        if family.name in found:
            raise ValueError(f"{family.name} is exposed twice")
        found[family.name] = {tuple(s.labels.values()): s.value for s in family.samples}
        if not family.documentation:
            raise ValueError(f"nothing says what {family.name} is")
    return found


class HeardLines:
    """A log in whose place the lines are kept."""

    def __init__(self):
        self.lines = []

    def info(self, event, **facts):
        self.lines.append({"event": event, **facts})

    warning = error = info


class InProcess:
    """Runs what `make` makes, in an event loop of its own."""

    def __enter__(self):
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.service = self.run(self.make())
        return self

    def __exit__(self, *_):
        self.service.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def make(self):
        raise NotImplementedError

    def run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def ask(self, method, path, body=b"", headers=None):
        return self.run(self.asked(method, path, body, headers))

    async def asked(self, method, path, body=b"", headers=None, pieces=None):
        """With `pieces`, the body comes in these, and nothing says how long it is."""
        path, _, query = path.partition("?")
        told = [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
        if pieces is None:
            told.append((b"content-length", str(len(body)).encode()))
            pieces = [body]
        scope = {
            "type": "http", "method": method, "path": path, "query_string": query.encode(),
            "headers": told,
        }  # fmt: skip
        waiting = [
            {"type": "http.request", "body": piece, "more_body": n + 1 < len(pieces)}
            for n, piece in enumerate(pieces)
        ]
        said = []

        async def receive():
            return waiting.pop(0) if waiting else {"type": "http.disconnect"}

        async def send(message):
            said.append(message)

        await self.service(scope, receive, send)
        heads = {k.decode(): v.decode() for k, v in said[0]["headers"]}
        return Answer(said[0]["status"], heads, b"".join(m.get("body", b"") for m in said[1:]))

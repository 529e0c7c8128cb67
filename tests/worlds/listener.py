"""What listens on a port of this machine, on an event loop in a thread."""

import asyncio
import threading


class Listener:
    """A subclass says what is done with a connection: `_accept(reader, writer)` keeps in `_open`
    what is open."""

    def __init__(self, context=None):
        self.context, self.port = context, 0
        self._open = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)

    def __enter__(self):
        self._thread.start()
        if not self._ready.wait(10):
            raise TimeoutError(f"{type(self).__name__} did not start")
        return self

    def __exit__(self, *_):
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10)

    async def _main(self):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(lambda loop, context: None)
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self.context)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for writer in list(self._open):
            writer.transport.abort()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

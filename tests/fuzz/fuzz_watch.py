"""What is watched while inputs come: every answer, every error that somebody has logged or nobody
has caught, how long an input took, and the memory."""

import contextlib
import ctypes
import gc
import logging
import os
import threading
import traceback
from dataclasses import dataclass

import uvloop
from app_world import InProcess

_WHOLE = 4096
"""Bytes of an answer that are kept to be looked at."""


@dataclass(slots=True)
class Heard:
    """An answer of a service."""

    method: str
    path: str
    status: int = 0
    body: bytes = b""
    complete: bool = False
    starts: int = 0


class Trouble(Exception):
    """Something that must not be, in a sentence; `kind` tells troubles apart."""

    def __init__(self, kind, sentence):
        super().__init__(sentence)
        self.kind = kind


class Watched:
    """A service whose answers are heard."""

    def __init__(self, service):
        self.service, self.heard, self.troubles = service, [], []

    def __getattr__(self, name):
        return getattr(self.service, name)

    async def __call__(self, scope, receive, send):
        heard = Heard(scope["method"], scope["path"])
        self.heard.append(heard)

        async def note(message):
            if message["type"] == "http.response.start":
                heard.status, heard.starts = message["status"], heard.starts + 1
            else:
                if len(heard.body) < _WHOLE:
                    heard.body += bytes(message.get("body", b""))
                heard.complete = not message.get("more_body", False)
            await send(message)

        try:
            await self.service(scope, receive, note)
        except Exception as error:
            self.troubles.append(escaped(error))
            raise


def escaped(error):
    """An exception that nobody has caught, named by where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "sottovoce" in frame.filename] or frames[-1:]
    where = f"{os.path.basename(ours[-1].filename)}:{ours[-1].name}" if ours else "?"
    text = "".join(traceback.format_exception(error))
    return Trouble(f"{type(error).__name__} in {where}", text[-1500:])


class Here(InProcess):
    """An application whose event loop runs in this thread, while something is asked."""

    def __enter__(self):
        self.loop = uvloop.new_event_loop()
        self.loop.set_exception_handler(self._unforeseen)
        self.unforeseen = []
        self.service = Watched(self.run(self.make()))
        return self

    def __exit__(self, *_):
        self.service.close()
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()

    def run(self, work):
        return self.loop.run_until_complete(work)

    def _unforeseen(self, loop, context):
        error = context.get("exception")
        found = Trouble(context["message"], context["message"]) if error is None else escaped(error)
        self.unforeseen.append(found)


def here(application):
    """The class of this application in tests, run here."""
    return type(f"Fuzzed{application.__name__}", (application, Here), {})


class ErrorLog(logging.Handler):
    """What libraries log as an error, and what ends a thread."""

    NAMES = ("uvicorn.error", "asyncio", "sqlalchemy", "concurrent.futures")

    def __init__(self):
        super().__init__(logging.ERROR)
        self.troubles = []

    def emit(self, record):
        if record.exc_info and record.exc_info[1] is not None:
            self.troubles.append(escaped(record.exc_info[1]))
        else:
            self.troubles.append(Trouble("logged", record.getMessage()))

    def __enter__(self):
        for name in self.NAMES:
            logging.getLogger(name).addHandler(self)
            logging.getLogger(name).setLevel(logging.ERROR)
            logging.getLogger(name).propagate = False
        self._before = threading.excepthook
        threading.excepthook = lambda told: self.troubles.append(escaped(told.exc_value))
        return self

    def __exit__(self, *_):
        threading.excepthook = self._before
        for name in self.NAMES:
            logging.getLogger(name).removeHandler(self)
            logging.getLogger(name).propagate = True


def resident():
    """Bytes of memory that this process holds, when all that can be given back has been."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as source:
        return int(source.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

"""`sottovoce demo --web`: the shop's processes and its page."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from sottovoce.cli import output
from sottovoce.cli.device_page import has_windows
from sottovoce.core.words import said

_WATCH_SECONDS = 0.5


def serve_shop(
    out: Path | None,
    *,
    port: int = 0,
    opens: bool = True,
    as_json: bool = False,
    settings: Sequence[str] = (),
) -> None:
    """Until Ctrl-C. Nothing of it runs or lies about then. `settings` change the town."""
    language = output.language_asked()
    from sottovoce.engines.processes import require_port
    from sottovoce.runs.shop import HOST, ShopTown, shop_folder, tab_library
    from sottovoce.web.process import PageProcess
    from sottovoce.web.shop import SHOP_CALLS, Shop

    began = time.monotonic()

    def tell(words: str) -> None:
        output.note(f"{time.monotonic() - began:5.1f} s  {words}")

    with (
        output.ended_by_signals() as asked,
        output.interruptible("the demo was stopped before it was ready; nothing of it is left"),
        contextlib.ExitStack() as stack,
    ):
        if port:
            require_port(HOST, port)  # before anything is made
        library = tab_library(tell)
        folder = stack.enter_context(shop_folder(out))
        town = ShopTown(folder, tell, settings=settings, page_port=port, stopped=asked.is_set)
        stack.callback(town.close)
        stack.callback(_stopping)
        stack.callback(_deaf)  # what is being ended is not ended half
        town.prepare()

        def invite(url: str) -> None:
            if as_json:
                console = (town.server.running() or {}).get("console")
                places = {"server": town.url, "folder": folder, "console": console}
                output.emit({"url": url, "pid": os.getpid(), **places})
                return
            keys = ["terminal.link", "terminal.again"] if sys.stdin.isatty() else ["terminal.link"]
            output.show(*output.told(*(said(key, url=url) for key in keys)))

        async def watch() -> None:
            while True:
                await asyncio.sleep(_WATCH_SECONDS)
                town.watch()

        page = PageProcess(
            Shop(town),
            invite,
            port=town.page_port,
            language=language,
            browser=opens and not as_json and has_windows(),
            calls=SHOP_CALLS,
            start="shop.html",
            library=library,
            talks_to=town.url,
            beside=watch,
        )
        town.start()  # the page has its port before a thousand residents take theirs
        tell("The shop is open; Ctrl-C closes it" + (" and removes its folder" * (out is None)))
        page.run()


def _stopping() -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone
        output.note("stopping")


def _deaf() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

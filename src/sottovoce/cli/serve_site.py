"""`sottovoce serve site`: the public documents of a federation as static files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Said, says
from sottovoce.cli.serve_server import Folder, address_of_server
from sottovoce.errors import ServiceError, UsageError

if TYPE_CHECKING:
    from sottovoce.stores.site import StaticSite

_LOOK_SECONDS = 2.0


@says
def site(
    folder: Folder,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="The folder for the files. It is made if it is not there."
        ),
    ],
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The address at which tabs reach the server. By default it is that of the "
            "running one.",
        ),
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option(
            "--script", metavar="FILE", help="The script for pages. By default it is the built one."
        ),
    ] = None,
    pages: Annotated[
        list[str] | None,
        typer.Option(
            "--page",
            metavar="ORIGIN",
            help="The beginning of the address of a shop's pages that may have frame.html in them, "
            "like https://shop.example; may be given several times.",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on, and write them anew whenever they change.")
    ] = False,
) -> Said:
    """Write what is public of a federation as static files, for any web server or CDN.

    FOLDER/files has terms, catalogue, the published model and the script for pages, each under a
    name with its hash, packed with gzip beside it; such a file never changes. FOLDER/index.json
    names those in force with hashes for browsers (SRI), and says where the live server is; it is
    replaced last, so that nobody finds half. FOLDER/sottovoce has all that pages load: elements,
    consent page, service worker and the frame of --page. FOLDER/nginx.conf has headers to go with
    them. Rounds, enrolments and reports stay with the live server, which need not run for this.

    \b
    Examples:
      sottovoce serve site town --out /srv/www/town --server https://api.shop.example
      sottovoce serve site town --out /srv/www/town --page https://shop.example --watch
    """
    from sottovoce.stores.server_folder import open_folder
    from sottovoce.stores.site import built_script, site_of, write_site

    found = open_folder(folder)
    if out.resolve().is_relative_to(found.path.resolve()):
        raise UsageError(f"{out} is in the server's own folder, which is for nobody else's eyes")
    address = address_of_server(found, server)
    code, around = script or built_script(), _origins(pages)
    with contextlib.closing(found.database()) as store:

        def write() -> tuple[StaticSite, bool]:
            with store.reading() as link:
                made = site_of(found, link, address, code, around)
            return made, write_site(made, out)

        made, _ = write()
        said = _said(folder, out, made)
        if watch:
            for line in said[1]:
                output.note(line)
            _follow(write)
    return said


def _origins(pages: list[str] | None) -> list[str]:
    """As browsers write them."""
    from sottovoce.services.kit.cors import Origins

    found = sorted(one.decode() for one in Origins.of(pages).allowed)
    if not {"*", "null"}.isdisjoint(found):
        raise UsageError("--page names shops by their origins, each for itself")
    return found


def _said(folder: Path, out: Path, made: StaticSite) -> tuple[dict[str, Any], list[str]]:
    from sottovoce.stores.site import LIBRARY, SCRIPT

    lines = [f"{len(made.files)} file(s) and index.json in {out}"]
    if made.script:
        lines.append(f"In a page, with BASE as the address of {out}: {made.script}")
    else:
        lines.append(
            "The script for pages is not among them: it is not built; run `npm ci && npm run build`"
            " in clients/browser, or name it with --script FILE"
        )
    if made.library:
        lines.append(f"Elements, consent page and frame for pages are in {out / LIBRARY}")
    elif made.script:
        lines.append(f"Elements, consent page and frame are not: none lie beside {SCRIPT}")
    return {"folder": folder, "out": out, "index": dict(made.index), "script": made.script}, lines


def _follow(write: Callable[[], tuple[StaticSite, bool]]) -> None:
    """Until SIGTERM or Ctrl-C. What cannot be read or written now may be later."""
    from sottovoce.engines.processes import told_to_stop

    trouble = ""
    with told_to_stop() as stop:
        while not stop.wait(_LOOK_SECONDS):
            try:
                made, changed = write()
            except (ServiceError, UsageError) as error:
                if str(error) != trouble:
                    output.note(f"not written: {error}")
                trouble = str(error)
                continue
            trouble = ""
            if changed:
                output.note(f"written anew: {', '.join(file.name for file in made.files)}")

"""`sottovoce serve status`: where a federation stands, whichever party's folder is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sottovoce.cli.options import Said, says
from sottovoce.cli.serve_server import OperatorCa, OperatorToken, Where, server_status


@says
def status(where: Where, ca: OperatorCa = None, token: OperatorToken = None) -> Said:
    """Say where a federation stands: rounds, devices, for whom it waits, what was refused.

    A folder is looked at whether or not its server runs: of `serve server`, of a SuperLink that
    trains, of an orchestrator, or of a data owner, which says what it holds. An address needs two
    files of the folder's keys, and nothing else of it.

    \b
    Examples:
      sottovoce serve status town
      sottovoce serve status bakery
      sottovoce serve status https://example.org:8443 --ca ca.crt --token operator.token
    """
    party = _party_in(Path(where)) if ca is None and token is None else None
    return server_status(where, ca, token) if party is None else party(Path(where))


def _party_in(folder: Path) -> Callable[[Path], Said] | None:
    """What says where the party stands whose folder this is, if it is not a server for devices."""
    from sottovoce.stores import conductor, orchestrator_folder, owner_folder

    if (folder / owner_folder.APPLICATION).is_file():
        from sottovoce.cli.serve_owner import owner_status

        return owner_status
    if (folder / orchestrator_folder.ISSUER).is_file():
        from sottovoce.cli.serve_orchestrator import orchestrator_status

        return orchestrator_status
    if (folder / conductor.FILE).is_file():
        from sottovoce.cli.serve_flower import flower_status

        return flower_status
    return None

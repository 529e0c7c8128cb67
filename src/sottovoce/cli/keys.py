"""`sottovoce keys init | show | renew | node`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli.options import Said, says
from sottovoce.errors import UsageError

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder with the federation's keys.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        metavar="NAME|IP",
        help="Name or address under which devices reach the server; repeatable. Loopback is "
        "always among them.",
    ),
]
Days = Annotated[int, typer.Option(min=1, help="How long the server's certificate is valid.")]

_DAYS = 825


@says
def init(folder: Folder, host: Hosts = None, days: Days = _DAYS) -> Said:
    """Make a certificate authority, the server's certificate and the operator's secrets.

    DIR is the folder to put them in. Existing keys are never overwritten. Private keys and secrets
    get mode 600; `ca.key` is only needed for `keys renew` and may be kept elsewhere.

    \b
    Examples:
      sottovoce keys init federation/keys
      sottovoce keys init federation/keys --host recommender.example.org --host 192.0.2.7
    """
    from sottovoce.stores.keys import init_keys

    init_keys(folder, host or [], days)
    return _show(folder, f"New keys are in {folder}. Keep everything but ca.crt to yourself.")


@says
def show(folder: Folder) -> Said:
    """Show subjects, names, fingerprints and expiry of the certificates, and names of the keys of a
    federation with a shuffler. No secrets are shown.

    DIR is the folder of `keys init`.

    \b
    Example:
      sottovoce keys show federation/keys
    """
    return _show(folder)


@says
def renew(
    folder: Folder,
    host: Hosts = None,
    days: Days = _DAYS,
    reports: Annotated[
        bool,
        typer.Option("--reports", help="Make a new key to which reports are sealed instead."),
    ] = False,
) -> Said:
    """Make a new server certificate from the same authority; devices need nothing new.

    DIR is the folder of `keys init`. Without --host the names stay as they are. Restart the server
    afterwards.

    With --reports, it is a new key to which reports are sealed, if they come through a shuffler.
    The server takes it for the next round that it opens; it need not be restarted, and devices
    learn of it with the round. The former key is destroyed when no round needs it any more.

    \b
    Examples:
      sottovoce keys renew federation/keys
      sottovoce keys renew federation/keys --host new-name.example.org
      sottovoce keys renew federation/keys --reports
    """
    from sottovoce.stores.keys import renew_keys

    if reports and (host or days != _DAYS):
        raise UsageError("--host and --days are of a certificate; leave them or --reports out")
    if reports:
        return _renew_reports(folder)
    renew_keys(folder, host or [], days)
    words = "The server's certificate is new; restart the server, or send it SIGHUP."
    return _show(folder, words)


def _renew_reports(folder: Path) -> Said:
    from sottovoce.stores.keys import ReportKeys

    ring = ReportKeys(folder)
    if not ring.exists:
        raise UsageError(
            f"{folder} has no report keys; only the server of a federation with a shuffler has"
        )
    new = ring.rotate()
    kept = [key.id.hex() for key in ring.all()]
    told = f"The next round uses the report key {new.id.hex()}."
    return {"folder": folder, "report_key": new.id.hex(), "report_keys": kept}, [told]


@says
def node(
    folder: Folder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call the node.")],
) -> Said:
    """Make a key pair for a Flower node (ECDSA P-384, OpenSSH format).

    DIR is a folder for keys, NAME the node's name: NAME is the private key, which stays with the
    node, NAME.pub the public one, which the operator registers.

    \b
    Example:
      sottovoce keys node federation/keys library-1
    """
    from sottovoce.stores.keys import node_keys

    private = node_keys(folder, name)
    public = private.with_name(f"{name}.pub")
    lines = [f"private key  {private}", f"public key   {public}"]
    return {"private_key": private, "public_key": public}, lines


def _show(folder: Path, *notes: str) -> Said:
    from sottovoce.stores.keys import show_keys

    facts, lines = show_keys(folder), list(notes)
    content = [
        {
            **{name: getattr(fact, name) for name in ("file", "subject", "hosts")},
            "fingerprint": fact.fingerprint,
            "not_before": fact.not_before.isoformat(),
            "not_after": fact.not_after.isoformat(),
            "trouble": fact.trouble,
        }
        for fact in facts
    ]
    for fact in facts:
        lines.append(f"{fact.file}  {fact.subject}")
        if fact.hosts:
            lines.append(f"  for          {', '.join(fact.hosts)}")
        lines.append(f"  valid        {fact.not_before:%Y-%m-%d} to {fact.not_after:%Y-%m-%d}")
        lines.append(f"  fingerprint  {fact.fingerprint}")
        if fact.trouble:
            lines.append(f"  TROUBLE      {fact.trouble}")
    found = _shuffled(folder)
    if found:
        *former, newest = found["report_keys"]
        kept = ", ".join(former) or "no other"
        lines.append(f"admission.key  fingerprint {found['admission_key']}")
        lines.append(f"report-keys.json  {newest} for the next round; kept: {kept}")
    return {"folder": folder, "certificates": content, **found}, lines


def _shuffled(folder: Path) -> dict[str, Any]:
    """Names of the keys that only the server of a federation with a shuffler has."""
    import hashlib

    from sottovoce.stores.keys import ReportKeys
    from sottovoce.stores.server_folder import admission_key

    ring = ReportKeys(folder)
    if not ring.exists:
        return {}
    public = admission_key(folder).public_key().public_bytes_raw()
    return {
        "admission_key": hashlib.sha256(public).hexdigest(),
        "report_keys": [key.id.hex() for key in ring.all()],
    }

"""`sottovoce keys init | show | renew | rotate | node`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Json
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


def init(folder: Folder, host: Hosts = None, days: Days = 825, as_json: Json = False) -> None:
    """Make a certificate authority, the server's certificate and the operator's secrets.

    DIR is the folder to put them in. Refuses to overwrite keys. Private keys and secrets get mode
    600; `ca.key` is only needed for `keys renew` and may be kept elsewhere.

    \b
    Examples:
      sottovoce keys init federation/keys
      sottovoce keys init federation/keys --host recommender.example.org --host 192.0.2.7
    """
    from sottovoce.stores.keys import init_keys

    init_keys(folder, host or [], days)
    _show(folder, as_json, f"New keys are in {folder}. Keep everything but ca.crt to yourself.")


def show(folder: Folder, as_json: Json = False) -> None:
    """Subjects, names, fingerprints and expiry of the certificates, and names of the keys of a
    federation with a proxy. No secrets.

    DIR is the folder of `keys init`.

    \b
    Example:
      sottovoce keys show federation/keys
    """
    _show(folder, as_json)


def renew(folder: Folder, host: Hosts = None, days: Days = 825, as_json: Json = False) -> None:
    """A new server certificate from the same authority; devices need nothing new.

    DIR is the folder of `keys init`. Without --host the names stay as they are. Restart the server
    afterwards.

    \b
    Examples:
      sottovoce keys renew federation/keys
      sottovoce keys renew federation/keys --host new-name.example.org
    """
    from sottovoce.stores.keys import renew_keys

    renew_keys(folder, host or [], days)
    words = "The server's certificate is new; restart the server, or send it SIGHUP."
    _show(folder, as_json, words)


def rotate(folder: Folder, as_json: Json = False) -> None:
    """A new key to which reports are sealed, where they come through a proxy.

    DIR is the folder with the keys of the federation's server. The server takes the new key for the
    next round that it opens; it need not be restarted, and devices learn of it with the round. The
    former key is destroyed when no round needs it any more.

    \b
    Example:
      sottovoce keys rotate federation/keys
    """
    from sottovoce.stores.keys import ReportKeys

    ring = ReportKeys(folder)
    if not ring.exists:
        raise UsageError(
            f"{folder} has no report keys; only the server of a federation with a proxy has"
        )
    new = ring.rotate()
    kept = [key.id.hex() for key in ring.all()]
    if as_json:
        output.emit({"folder": folder, "report_key": new.id.hex(), "report_keys": kept})
    else:
        output.show(f"The next round uses the report key {new.id.hex()}.")


def node(
    folder: Folder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call the node.")],
    as_json: Json = False,
) -> None:
    """A key pair for a Flower node (ECDSA P-384, OpenSSH format).

    DIR is a folder for keys, NAME the node's name: NAME is the private key, which stays with the
    node, NAME.pub the public one, which the operator registers.

    \b
    Example:
      sottovoce keys node federation/keys library-1
    """
    from sottovoce.stores.keys import node_keys

    private = node_keys(folder, name)
    public = private.with_name(f"{name}.pub")
    if as_json:
        output.emit({"private_key": private, "public_key": public})
    else:
        output.show(f"private key  {private}", f"public key   {public}")


def _show(folder: Path, as_json: bool, *notes: str) -> None:
    from sottovoce.stores.keys import show_keys

    facts = show_keys(folder)
    if as_json:
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
        output.emit({"folder": folder, "certificates": content, **_proxied(folder)})
        return
    output.show(*notes)
    for fact in facts:
        lines = [
            f"{fact.file}  {fact.subject}",
            f"  valid        {fact.not_before:%Y-%m-%d} to {fact.not_after:%Y-%m-%d}",
            f"  fingerprint  {fact.fingerprint}",
        ]
        if fact.hosts:
            lines.insert(1, f"  for          {', '.join(fact.hosts)}")
        if fact.trouble:
            lines.append(f"  TROUBLE      {fact.trouble}")
        output.show(*lines)
    found = _proxied(folder)
    if found:
        *former, newest = found["report_keys"]
        kept = ", ".join(former) or "no other"
        output.show(
            f"admission.key  fingerprint {found['admission_key']}",
            f"report-keys.json  {newest} for the next round; kept: {kept}",
        )


def _proxied(folder: Path) -> dict[str, Any]:
    """Names of the keys that only the server of a federation with a proxy has."""
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

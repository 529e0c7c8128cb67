"""`sottovoce keys init | show | renew | node`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sottovoce.cli import output
from sottovoce.cli.options import Json

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
    from sottovoce.engines.https.keys import init_keys

    init_keys(folder, host or [], days)
    _show(folder, as_json, f"New keys are in {folder}. Keep everything but ca.crt to yourself.")


def show(folder: Folder, as_json: Json = False) -> None:
    """Subjects, names, fingerprints and expiry of the certificates. No secrets.

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
    from sottovoce.engines.https.keys import renew_keys

    renew_keys(folder, host or [], days)
    words = "The server's certificate is new; restart the server, or send it SIGHUP."
    _show(folder, as_json, words)


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
    from sottovoce.engines.https.keys import node_keys

    private = node_keys(folder, name)
    public = private.with_name(f"{name}.pub")
    if as_json:
        output.emit({"private_key": private, "public_key": public})
    else:
        output.show(f"private key  {private}", f"public key   {public}")


def _show(folder: Path, as_json: bool, *notes: str) -> None:
    from sottovoce.engines.https.keys import show_keys

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
        output.emit({"folder": folder, "certificates": content})
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

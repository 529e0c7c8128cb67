"""Making the folder of a new federation from an experiment file and a catalogue."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce.errors import ConfigError, CorruptData, DataNotFound, KeyTrouble, UsageError

if TYPE_CHECKING:
    from sottovoce.core.links import CheckedSum, Link
    from sottovoce.experiment import Experiment
    from sottovoce.stores.server_folder import ServerFolder

_MOST_DEVICES = 1 << 20
"""In a sum of which nobody says how many devices it is over."""


_NOBODYS_KEY = "00" * 32


def make_federation(
    folder: Path,
    file: str,
    settings: list[str],
    catalogue: Path | None,
    names: list[str],
    rounds: int | None,
    proxy: tuple[str, Path] | None = None,
    proxy_key: Path | None = None,
    *,
    aggregators: Sequence[tuple[str, Path, Path]] = (),
    chain: Sequence[Path] = (),
    gateways: bool = False,
    spare: int = 0,
) -> ServerFolder:
    """The folder of a new federation, from an experiment file; `proxy` is the address of its proxy
    and the file with the proxy's authority, `proxy_key` the file with its public key, for a secure
    sum. `aggregators`: of a checked sum, address, authority and key of those besides the server;
    `chain` are the files of the shufflers behind the first one. `gateways`: it will run on Flower.
    `spare`: places for items that are yet to come."""
    import secrets

    from sottovoce.experiment import Experiment, find_experiment
    from sottovoce.parties.secure_sum import fitted
    from sottovoce.parties.server import NO_DEFENCE
    from sottovoce.stores.server_folder import create_folder
    from sottovoce.wire.catalogue import with_spare
    from sottovoce.wire.terms import Terms

    experiment = Experiment.from_file(find_experiment(file), settings)
    algorithm, release, chosen = experiment.cross_device()
    if gateways and (objection := chosen.hosts(release)):
        raise ConfigError(objection)
    if gateways and experiment.defence != NO_DEFENCE:
        raise ConfigError(
            "[defence] is the server's, and Flower's gateways tell it sums over their devices; use "
            "`sottovoce serve server`"
        )
    algorithm.check_terms()
    to_run = algorithm.rounds if rounds is None else rounds
    if not to_run:
        raise ConfigError("say how many rounds to run: --rounds N, or algorithm.rounds in the file")
    items, categories = _items_of(experiment) if catalogue is None else read_items(catalogue)
    if categories:
        categories += [()] * spare
    items = with_spare(items, spare)
    federation = f"{experiment.name}-{secrets.token_hex(4)}"
    size = algorithm.waits_for
    built = algorithm.build_under(release, chosen, algorithm.draws)
    most = _MOST_DEVICES if size == "all" else size
    fitting = fitted(built, release, chosen, algorithm.draws, most)
    if fitting.checking is not None:
        if proxy is not None:
            raise ConfigError("a checked sum has aggregators, not a helper; use --aggregator")
        link: Link = _checked(folder, fitting.checking, aggregators)
    elif aggregators:
        raise ConfigError("--aggregator is for a checked sum; set link.name to checked-sum")
    else:
        link = _chained(_link(fitting, proxy, proxy_key), chain)
    terms = Terms.of(federation, len(items), algorithm, algorithm.draws, release, link)
    return create_folder(
        folder,
        terms,
        items,
        categories=categories,
        cohort_size=size,
        rounds=to_run,
        rules=experiment.service,
        defence=experiment.defence,
        hosts=names,
    )


def _link(link: Link, proxy: tuple[str, Path] | None, key: Path | None) -> Link:
    """The link of an experiment file, with the proxy of a real federation."""
    if key is not None and "key" not in link.deployed:
        raise ConfigError("--proxy-key is for a secure sum; set link.name to secure-sum")
    if not link.deployed:
        if proxy is not None:
            raise ConfigError(
                "--proxy is for an algorithm whose reports go through one, like fmf, or for a "
                "secure sum"
            )
        return link
    found = {name: str(getattr(link, name)) for name in link.deployed}
    if proxy is not None:
        found["url"], file = proxy
        try:
            found["authority"] = file.read_text("ascii")
        except (OSError, ValueError):
            raise DataNotFound(f"the proxy's certificate authority {file} cannot be read") from None
    if key is not None:
        found["key"] = _sealing_key(key)
    if not all(found.values()):
        more = (
            ", --proxy-ca FILE and --proxy-key FILE" if "key" in found else " and --proxy-ca FILE"
        )
        raise ConfigError(f"the federation needs a proxy: say where it is with --proxy URL{more}")
    _require_proxy(found["url"], found["authority"])
    return link.at(**found)


def _checked(
    folder: Path, link: CheckedSum, others: Sequence[tuple[str, Path, Path]]
) -> CheckedSum:
    """The link of an experiment file, with three aggregators, of which the server is the first; its
    keys are made here."""
    from sottovoce.stores.aggregator_folder import init_first

    if (folder / "federation.json").exists():
        raise UsageError(f"{folder} holds a federation already; start it without --experiment")
    if not others:
        raise ConfigError(
            "a checked sum needs two organisations besides the server's: say where their "
            "aggregators are with --aggregator URL, --aggregator-ca FILE and --aggregator-key "
            "FILE, twice each"
        )
    authorities, keys = [], []
    for url, ca, key in others:
        try:
            authorities.append(ca.read_text("ascii"))
        except (OSError, ValueError):
            raise DataNotFound(f"the aggregator's authority {ca} cannot be read") from None
        keys.append(_sealing_key(key, "--aggregator-key"))
        _require_proxy(url, authorities[-1], "--aggregator")
    urls = tuple(url for url, *_ in others)
    # Raises where one is named twice, before keys are made.
    found = replace(link, urls=urls, authorities=tuple(authorities), keys=(_NOBODYS_KEY, *keys))
    return replace(found, keys=(init_first(folder / "keys"), *keys))


def _chained(link: Link, files: Sequence[Path]) -> Link:
    """The same with the further shufflers of a real federation."""
    from sottovoce.stores.shuffler_folder import read_hop

    if link.mixing is None:
        if files:
            raise ConfigError("--then is for randomised reports, which pass shufflers, like fmf's")
        return link
    hops = tuple(read_hop(file) for file in files) or link.mixing.chain
    for hop in hops:
        if not (hop.url and hop.authority and hop.key):
            raise ConfigError(
                f"link.chain has {len(hops)} further shuffler(s): say who they are with --then "
                "FILE for each, the hop.json of `sottovoce serve shuffler --init`"
            )
        _require_proxy(hop.url, hop.authority, "--then")
    return replace(link.mixing, chain=hops)


def _require_proxy(url: str, authority: str, option: str = "--proxy") -> None:
    """Raises where nobody could reach a proxy there."""
    from sottovoce.engines.client import loopback
    from sottovoce.stores.server_folder import require_address

    require_address(url, option)
    if url.startswith("http:") and not loopback(url):
        raise UsageError(
            f"{option} must be an https:// address, not {url}: without TLS devices would send "
            "to nobody, and the terms of a federation do not change"
        )
    _require_authority(authority, option)


def _sealing_key(file: Path, option: str = "--proxy-key") -> str:
    """The public key of a secure sum's proxy or of an aggregator, as its own `--init` wrote it."""
    try:
        text = file.read_text("ascii").strip().lower()
        good = len(bytes.fromhex(text)) == 32 and len(text) == 64
    except OSError:
        raise DataNotFound(f"the {_whose(option)}'s key {file} cannot be read") from None
    except ValueError:
        good = False
    if not good:
        raise KeyTrouble(
            f"{option} must be the file seal.pub of the {_whose(option)}, with its public key in "
            "hexadecimal, and nothing else"
        )
    if file.name.endswith(".key"):
        raise KeyTrouble(
            f"{option} is the {_whose(option)}'s public key, seal.pub; seal.key is a secret"
        )
    return text


def _whose(option: str) -> str:
    return option.removeprefix("--").split("-")[0]


def _require_authority(text: str, option: str = "--proxy") -> None:
    """Raises where this is no certificate authority: no device would ever trust the proxy then, and
    the terms of a federation do not change."""
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificates(text.encode())
        signs = all(
            one.extensions.get_extension_for_class(x509.BasicConstraints).value.ca for one in found
        )
    except (ValueError, x509.ExtensionNotFound):
        found, signs = [], False
    if not found or not signs or "PRIVATE KEY" in text:
        raise KeyTrouble(
            f"{option}-ca must be the certificate of the {_whose(option)}'s authority, the file "
            "ca.crt of its keys, and nothing else"
        )


def _items_of(experiment: Experiment) -> tuple[list[tuple[str, str]], list[tuple[str, ...]]]:
    from sottovoce.wire.catalogue import cleaned

    dataset = experiment.dataset()
    names = dataset.interactions.items_vocabulary()
    numbers = range(dataset.interactions.n_items)
    items = [(names.name(n), cleaned(dataset.title(n))) for n in numbers]
    return items, [tuple(map(cleaned, of)) for of in dataset.item_categories or ()]


def read_catalogue(path: Path) -> list[tuple[str, str]]:
    """Ids and titles from a CSV or Parquet file with the columns item and, optionally, title."""
    return read_items(path)[0]


def read_items(path: Path) -> tuple[list[tuple[str, str]], list[tuple[str, ...]]]:
    """The same, and the categories of each, from a column of that name with | between them; none
    where there is no such column."""
    from sottovoce.wire.catalogue import items_of

    if not path.is_file():
        raise DataNotFound(f"the catalogue {path} is not there")
    if path.suffix == ".parquet":
        rows = _parquet_rows(path)
    else:
        try:
            with path.open(newline="", encoding="utf-8") as source:
                rows = list(csv.DictReader(source))
        except (UnicodeDecodeError, csv.Error) as error:
            raise CorruptData(f"{path} is not a CSV file in UTF-8: {error}") from None
    return items_of(rows, str(path))


def _parquet_rows(path: Path) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptData(f"{path} is not a Parquet file: {error}") from None
    wanted = [name for name in ("item", "title", "categories") if name in table.column_names]
    return list(table.select(wanted).to_pylist())

"""Words of the made-up town: kinds of venue, districts, and names for venues. All invented.

A kind leans towards some residents: `f` and `m` by gender, `y` and `o` by age (young, old),
and the occupations named in `jobs`. Leans are log-weights, see `town.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sottovoce.data.foursquare_categories import TOP_CATEGORIES

GENDERS = ("F", "M")
AGE_BANDS = ("18-24", "25-34", "35-49", "50-64", "65+")
OCCUPATIONS = (
    "student",
    "teacher",
    "engineer",
    "shopkeeper",
    "nurse",
    "craftsman",
    "office worker",
    "retired",
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of venue, how common it is, and whom it draws."""

    top: str
    leaf: str
    heads: tuple[str, ...]
    weight: float
    female: float = 0.0
    young: float = 0.0
    jobs: tuple[str, ...] = ()


_A, _C, _F, _N, _O, _P, _R, _S, _T = TOP_CATEGORIES

KINDS: tuple[Kind, ...] = (
    Kind(_A, "Movie Theater", ("Cinema", "Sala"), 2.0, 0.2, 0.5),
    Kind(_A, "Museum", ("Museo", "Raccolta"), 1.5, 0.5, -0.7, ("teacher",)),
    Kind(_A, "Soccer Stadium", ("Stadio", "Arena"), 1.0, -1.2, 0.3, ("craftsman",)),
    Kind(_A, "Theater", ("Teatro", "Palcoscenico"), 1.2, 0.6, -0.8, ("teacher",)),
    Kind(_C, "University", ("Facoltà", "Dipartimento"), 0.8, 0.0, 1.0, ("student", "teacher")),
    Kind(_C, "College Library", ("Biblioteca", "Sala studio"), 0.8, 0.3, 0.9, ("student",)),
    Kind(_C, "College Cafeteria", ("Mensa", "Refettorio"), 0.6, 0.0, 1.1, ("student",)),
    Kind(_F, "Café", ("Caffè", "Bar Pasticceria"), 5.0, 0.1, 0.0, ("office worker",)),
    Kind(_F, "Italian Restaurant", ("Trattoria", "Osteria"), 4.0, 0.0, -0.3),
    Kind(_F, "Pizza Place", ("Pizzeria", "Forno"), 4.0, -0.2, 0.6, ("student",)),
    Kind(_F, "Ice Cream Shop", ("Gelateria", "Cremeria"), 2.0, 0.4, 0.3),
    Kind(_F, "Japanese Restaurant", ("Giapponese", "Sushi"), 1.5, 0.4, 0.7, ("engineer",)),
    Kind(_F, "Burger Joint", ("Paninoteca", "Hamburgheria"), 1.5, -0.7, 0.8, ("craftsman",)),
    Kind(_N, "Cocktail Bar", ("Cocktail bar", "Aperitivo"), 2.2, 0.2, 0.7, ("office worker",)),
    Kind(_N, "Pub", ("Pub", "Birreria"), 2.2, -0.8, 0.6, ("engineer",)),
    Kind(_N, "Nightclub", ("Discoteca", "Club"), 1.4, 0.1, 1.3, ("student",)),
    Kind(_N, "Wine Bar", ("Enoteca", "Vineria"), 1.4, 0.0, -0.5, ("shopkeeper",)),
    Kind(_O, "Park", ("Parco", "Giardino"), 2.5, 0.3, -0.2),
    Kind(_O, "Gym", ("Palestra", "Centro sportivo"), 2.0, -0.4, 0.6, ("engineer",)),
    Kind(_O, "Yoga Studio", ("Studio yoga", "Spazio yoga"), 1.0, 1.3, 0.2, ("nurse",)),
    Kind(_O, "Soccer Field", ("Campo", "Campetto"), 1.2, -1.4, 0.7, ("craftsman",)),
    Kind(_P, "Office", ("Uffici", "Palazzo"), 2.0, 0.0, 0.0, ("office worker", "engineer")),
    Kind(_P, "Hospital", ("Clinica", "Poliambulatorio"), 1.0, 0.3, -0.9, ("nurse",)),
    Kind(_P, "Church", ("Chiesa", "Oratorio"), 1.5, 0.3, -1.2, ("retired",)),
    Kind(_P, "Library", ("Biblioteca comunale", "Archivio"), 0.8, 0.4, -0.2, ("teacher",)),
    Kind(_R, "Home (private)", ("Casa", "Cascina"), 0.6, 0.0, 0.0),
    Kind(_R, "Housing Development", ("Residenza", "Villaggio"), 0.4, 0.0, -0.4, ("retired",)),
    Kind(_S, "Bookstore", ("Libreria", "Cartolibreria"), 1.6, 0.5, -0.1, ("teacher", "student")),
    Kind(_S, "Grocery Store", ("Alimentari", "Mercatino"), 2.5, 0.3, -0.5, ("retired",)),
    Kind(_S, "Cosmetics Shop", ("Profumeria", "Erboristeria"), 1.2, 1.6, 0.1),
    Kind(_S, "Electronics Store", ("Elettronica", "Radio e TV"), 1.3, -1.1, 0.3, ("engineer",)),
    Kind(_S, "Clothing Store", ("Boutique", "Sartoria"), 1.8, 0.9, 0.4, ("shopkeeper",)),
    Kind(_S, "Hardware Store", ("Ferramenta", "Colorificio"), 1.0, -1.0, -0.6, ("craftsman",)),
    Kind(_T, "Train Station", ("Stazione", "Fermata"), 1.5, 0.0, 0.3, ("student",)),
    Kind(_T, "Hotel", ("Albergo", "Locanda"), 1.0, 0.0, -0.2, ("shopkeeper",)),
    Kind(_T, "Bus Station", ("Autostazione", "Capolinea"), 1.2, 0.2, 0.2, ("student", "retired")),
)

_DISTRICTS = (
    "Borgovecchio",
    "Campolungo",
    "Fontanella",
    "Montebasso",
    "Pratofiorito",
    "Rocca Alta",
    "San Celso",
    "Tre Mulini",
    "Acquachiara",
    "Belpoggio",
    "Cortelunga",
    "Due Torri",
    "Lungofiume",
    "Ortogrande",
    "Ponte Nuovo",
    "Valdombra",
)

_TAILS = (
    "del Ponte", "della Luna", "del Sole", "delle Rose", "del Moro", "della Torre", "dei Tigli",
    "del Gallo", "della Fonte", "dell'Angelo", "del Lupo", "della Pergola", "dei Mercanti",
    "del Pozzo", "della Volpe", "delle Erbe", "del Faro", "della Quercia", "dei Fabbri",
    "dell'Orso", "del Cigno", "della Rondine", "delle Stelle", "del Melograno", "della Strega",
    "dei Pescatori", "del Vicolo", "della Campana", "dell'Ulivo", "del Tramonto", "San Lorenzo",
    "Sant'Anna", "San Giorgio", "Santa Lucia", "Aurora", "Primavera", "Garibaldina", "Centrale",
    "Vecchia Corte", "Bella Vista", "Al Glicine", "Alla Posta", "Ai Portici", "All'Ancora",
    "Da Piero", "Da Ines", "Da Oreste", "Da Carla", "Da Tullio", "Da Mirella", "Fratelli Bosio",
    "Fratelli Lanza", "Sorelle Ghini", "Eredi Morra", "Zanetti", "Bellucci", "Corradi", "Fumagallo",
)  # fmt: skip


def district_names(count: int) -> tuple[str, ...]:
    """The first `count` districts; past the list they are numbered."""
    rounds = -(-count // len(_DISTRICTS))
    named = [n if r == 0 else f"{n} {r + 1}" for r in range(rounds) for n in _DISTRICTS]
    return tuple(named[:count])


def venue_names(
    kinds: NDArray[np.int64], districts: NDArray[np.int64], shuffle: np.random.Generator
) -> tuple[str, ...]:
    """One distinct name per venue, such as "Caffè del Ponte"; later ones also name the district."""
    places = district_names(int(districts.max()) + 1 if len(districts) else 0)
    supplies: dict[int, Iterator[str]] = {}
    taken: set[str] = set()
    names: list[str] = []
    for kind, district in zip(kinds.tolist(), districts.tolist(), strict=True):
        if kind not in supplies:
            plain = [f"{head} {tail}" for head in KINDS[kind].heads for tail in _TAILS]
            supplies[kind] = iter([plain[i] for i in shuffle.permutation(len(plain))])
        name = next(supplies[kind], None)
        if name is None:
            head = KINDS[kind].heads[int(shuffle.integers(len(KINDS[kind].heads)))]
            name = f"{head} {_TAILS[int(shuffle.integers(len(_TAILS)))]}, {places[district]}"
        plain_name, again = name, 2
        while name in taken:
            name, again = f"{plain_name} {again}", again + 1
        taken.add(name)
        names.append(name)
    return tuple(names)

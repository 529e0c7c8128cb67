"""Components by name: the package's own, and those of others.

A room (a package such as `sottovoce.algorithms`, or a module) has one `Registry` for its kind of
component. A component enters it where it is defined:

    @ALGORITHMS.register("fpl")
    @dataclass(frozen=True, slots=True)
    class FPLConfig(AlgorithmSettings): ...

Nobody else lists it. The first question to a registry imports the modules of its room that have
such a line (a room's helpers stay out), the entry points of installed packages in the group
`sottovoce.components` (each names a module that registers what it has), and the files of
`use_file`. A file is taken from the command line or from the environment of the process, never from
an experiment, a run or a server's terms: what these name must be there already.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from sottovoce.errors import ConfigError, SottovoceError

T = TypeVar("T")
C = TypeVar("C", bound=type)

GROUP = "sottovoce.components"
"""Of the entry points by which other packages bring components."""
FILES = "SOTTOVOCE_COMPONENTS"
"""The environment variable with files of components, separated as PATH is."""
_ENTERS = re.compile(r"(@|\w+ = )[A-Z_]+\.(register|add)\(")
"""A line by which something enters a registry."""
_HOW = "a component of your own is loaded with `sottovoce --with FILE.py`"


class Component:
    """What every component has: the name under which it is registered."""

    __slots__ = ()
    name: ClassVar[str] = ""


class Registry(Generic[T]):
    """The components of one kind, by name: the room's own, file by file, then those of others."""

    def __init__(self, kind: str, room: str, base: type) -> None:
        """`kind` is what they are called in sentences, `base` what each must derive from."""
        self.kind, self._room, self._base = kind, room, base
        self._found: dict[str, T] = {}
        self._homes: dict[str, str] = {}
        self._loading = self._loaded = False

    def register(self, name: str) -> Callable[[C], C]:
        """Enter a class under a name that no other has."""

        def enter(component: C) -> C:
            self._check(name, component, _place(component))
            component.name = name  # type: ignore[attr-defined]
            self._found[name] = component  # type: ignore[assignment]
            self._homes[name] = component.__module__
            return component

        return enter

    def add(self, name: str, component: T) -> T:
        """Enter something that is no class, an attack or a metric, under a name of its own."""
        home = str(sys._getframe(1).f_globals.get("__name__", ""))
        self._check(name, component, f"the one of {home}")
        self._found[name], self._homes[name] = component, home
        return component

    def __getitem__(self, name: str) -> T:
        self._load()
        try:
            return self._found[name]
        except KeyError:
            raise ConfigError(
                f"no {self.kind} is called {name!r}; there are {sorted(self)}{self.hint}"
            ) from None

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._found

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(tuple(self._found))

    def __len__(self) -> int:
        self._load()
        return len(self._found)

    def items(self) -> list[tuple[str, T]]:
        self._load()
        return list(self._found.items())

    def values(self) -> list[T]:
        return [component for _, component in self.items()]

    @property
    def hint(self) -> str:
        """What to do about a name that is not known, and what could not be loaded."""
        return "".join(f"; {sentence}" for sentence in (_HOW, *_troubles))

    def require(self, component: object) -> None:
        """Raises where this is no component that was registered here, but a relative of one."""
        name = getattr(component, "name", "")
        if name not in self or type(component) is not self._found[name]:
            raise ConfigError(
                f"{type(component).__name__} is not registered as {_article(self.kind)}, so that "
                f"nothing has held it to its contract; register it by a name of its own"
            )

    def _check(self, name: str, component: object, where: str) -> None:
        if not name or not name.replace("-", "").replace("_", "").isalnum() or name.lower() != name:
            raise ConfigError(f"{where} needs a name of small letters, digits and -, not {name!r}")
        if not issubclass(
            component if isinstance(component, type) else type(component), self._base
        ):
            raise ConfigError(
                f"{where} is registered as {_article(self.kind)} and does not derive from "
                f"{self._base.__name__}"
            )
        lacks = sorted(getattr(component, "__abstractmethods__", ()))
        if lacks:
            raise ConfigError(
                f"{where} lacks {', '.join(lacks)}, which {_article(self.kind)} must have"
            )
        other: Any = self._found.get(name)
        if other is not None and not _same(other, component):
            first = _place(other) if isinstance(other, type) else f"the one of {self._homes[name]}"
            raise ConfigError(
                f"two {self.kind}s are called {name!r}, {first} and {where}; give one of them "
                "another name"
            )

    def _load(self) -> None:
        if self._loaded or self._loading:  # a component may ask while its room is being read
            return
        self._loading = True
        try:
            own = _own_modules(self._room)
            for module in own:
                importlib.import_module(module)
            _load_others()
            # Whatever was imported first: the room's own by their modules, then those of others.
            place = {module: number for number, module in enumerate(own)}
            order = sorted(self._found, key=lambda name: place.get(self._homes[name], len(own)))
            self._found = {name: self._found[name] for name in order}
            self._loaded = True
        finally:
            self._loading = False


def use_file(path: Path | str) -> None:
    """Load a file of components, here and in every process that this one starts."""
    place = Path(path).resolve()
    _import_file(place)
    known = [part for part in os.environ.get(FILES, "").split(os.pathsep) if part]
    if str(place) not in known:
        os.environ[FILES] = os.pathsep.join([*known, str(place)])


_troubles: list[str] = []
"""What could not be loaded of other packages, a sentence each: nothing else is lost by it."""
_others_loaded = False


def _load_others() -> None:
    global _others_loaded
    if _others_loaded:
        return
    _others_loaded = True
    for path in os.environ.get(FILES, "").split(os.pathsep):
        if path:
            _import_file(Path(path))
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            owner = entry.dist.name if entry.dist is not None else "a package"
            _troubles.append(
                f"the components of {owner} ({entry.value}) cannot be loaded: "
                f"{type(error).__name__}: {error}"
            )
            print(f"sottovoce: {_troubles[-1]}", file=sys.stderr)


def _import_file(path: Path) -> None:
    """Import a file once, whatever the ways to it."""
    place = path.resolve()
    # By name and place: two files of one name are two modules, and the same one everywhere.
    name = f"{place.stem}_{hashlib.blake2b(str(place).encode(), digest_size=4).hexdigest()}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None or not place.is_file():
        raise ConfigError(f"{path} is no Python file with components")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SottovoceError as error:
        del sys.modules[name]
        raise ConfigError(f"{path} cannot be loaded: {error}") from None
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error


def _own_modules(room: str) -> list[str]:
    """The modules of a room that register something: those with such a line."""
    spec = importlib.util.find_spec(room)
    if spec is None or not spec.submodule_search_locations:
        return [room]
    found = []
    for module in pkgutil.iter_modules(spec.submodule_search_locations, f"{room}."):
        folder = Path(module.module_finder.path)  # type: ignore[union-attr]
        place = folder / module.name.rpartition(".")[2]
        source = place / "__init__.py" if module.ispkg else place.with_suffix(".py")
        lines = source.read_text(encoding="utf-8").splitlines()
        if any(_ENTERS.match(line) for line in lines):
            found.append(module.name)
    return sorted(found)


def _same(one: object, other: object) -> bool:
    """Whether a class is the same one again: its module was imported a second time."""
    if not isinstance(one, type) or not isinstance(other, type) or _place(one) != _place(other):
        return one is other
    try:
        return inspect.getsourcefile(one) == inspect.getsourcefile(other)
    except (OSError, TypeError):
        return True


def _place(component: object) -> str:
    named = component if isinstance(component, type) else type(component)
    return f"{named.__module__}.{named.__qualname__}"


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"

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
import importlib.util
import inspect
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from sottovoce.errors import ConfigError, SottovoceError

T = TypeVar("T")
C = TypeVar("C", bound=type)

GROUP = "sottovoce.components"
"""Of the entry points by which other packages bring components."""
FILES = "SOTTOVOCE_COMPONENTS"
"""The environment variable with files of components, separated as PATH is."""
_ENTERS = re.compile(r"(@|\w+ = )?[A-Z_]+\.(register|add)\(")
"""A line by which something enters a registry."""
_MAKES = re.compile(r"^[A-Z_]+(: Registry\[.*\])? = Registry[\[(]", re.MULTILINE)
"""A line that makes a registry."""
_NAME = re.compile(r"[a-z0-9]+([-_][a-z0-9]+)*")
_HOW = "a component of your own is loaded with `sottovoce --with FILE.py`"


class Component:
    """What every component has: the name under which it is registered."""

    __slots__ = ()
    name: ClassVar[str] = ""
    listed_at: ClassVar[int] = 100
    """Where it stands in lists: small numbers first, equal ones in the order of their files."""


class Registry(Mapping[str, T]):
    """The components of one kind, by name; those of the package come before those of others."""

    def __init__(self, kind: str, room: str, base: type) -> None:
        """`kind` is what they are called in sentences, `base` what each must derive from."""
        self.kind, self._room, self._base = kind, room, base
        self._found: dict[str, T] = {}
        self._places: dict[str, str] = {}
        self._ranks: dict[str, tuple[int, bool, str, int]] = {}
        """In which order they are listed, whatever was imported first."""
        self._reading = self._read = False
        _registries[kind] = self

    def register(self, name: str) -> Callable[[C], C]:
        """Enter a class under a name that no other has."""

        def enter(component: C) -> C:
            module = component.__module__
            self._enter(name, component, module, f"{_where(module)}.{component.__qualname__}")
            component.name = name  # type: ignore[attr-defined]
            return component

        return enter

    def add(self, name: str, component: T) -> T:
        """Enter something that is no class, such as an attack, under a name of its own."""
        caller = sys._getframe(1)
        module = caller.f_globals.get("__name__", "")
        self._enter(name, component, module, f"{_where(module)}, line {caller.f_lineno}")
        return component

    def place(self, name: str) -> str:
        """Where a component was entered, as a reader would look it up."""
        self[name]
        return self._places[name]

    def about(self, name: str) -> str:
        """What a component is: the first line of its docstring, or else of its module's."""
        component: Any = self[name]
        kind = component if isinstance(component, type) else type(component)
        said = inspect.getdoc(component) or ""
        if said.startswith(f"{kind.__name__}("):  # the words of a dataclass that has none
            said = inspect.getdoc(sys.modules.get(kind.__module__)) or ""
        return said.partition("\n")[0]

    def __getitem__(self, name: str) -> T:
        self._load(name)
        try:
            return self._found[name]
        except KeyError:
            raise ConfigError(
                f"no {self.kind} is called {name!r}; there are {sorted(self)}{self.hint}"
            ) from None

    def __contains__(self, name: object) -> bool:
        self._load(name)
        return name in self._found

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._found, key=self._ranks.__getitem__))

    def __len__(self) -> int:
        self._load()
        return len(self._found)

    def __repr__(self) -> str:
        return f"<Registry of {self.kind}s>"

    def get(self, name: str, default: Any = None) -> Any:
        self._load(name)
        return self._found.get(name, default)

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

    def _enter(self, name: str, component: Any, module: str, place: str) -> None:
        if not _own(module):
            self._read_room()  # so that whoever takes a name of ours hears of it, not we
        self._check(name, component, place)
        self._found[name], self._places[name] = component, place
        listed_at = getattr(component, "listed_at", 100)
        self._ranks[name] = listed_at, not _own(module), module, len(self._ranks)

    def _check(self, name: object, component: object, place: str) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(f"{place} needs a name of small letters, digits and -, not {name!r}")
        if not issubclass(
            component if isinstance(component, type) else type(component), self._base
        ):
            raise ConfigError(
                f"{place} is registered as {_article(self.kind)} and does not derive from "
                f"{self._base.__name__}"
            )
        lacks = sorted(getattr(component, "__abstractmethods__", ()))
        if lacks:
            raise ConfigError(
                f"{place} lacks {', '.join(lacks)}, which {_article(self.kind)} must have"
            )
        other: Any = self._found.get(name)
        if other is None or other is component:
            return
        if self._places[name] != place or not _same_file(other, component):
            raise ConfigError(
                f"two {self.kind}s are called {name!r}, {self._places[name]} and {place}; give one "
                "of them another name"
            )

    def _load(self, name: object = None) -> None:
        """What there is; of the package's own, where one is asked for by its name, that one. Rooms
        are large, and a device is in one federation."""
        with _lock:
            found = self._read_named(name)
            if not found:
                self._read_room()
            if not self._reading:
                _load_files()
                if not found:
                    _load_packages()

    def _read_named(self, name: object) -> bool:
        """Whether it is there, after the module was imported that seems to register it."""
        if isinstance(name, str) and not (self._read or self._reading or name in self._found):
            for module in _own_modules(self._room, f'("{name}"'):
                importlib.import_module(module)
        return name in self._found

    def _read_room(self) -> None:
        with _lock:
            if self._read or self._reading:  # a component may ask while its room is being read
                return
            self._reading = True
            try:
                for module in _own_modules(self._room):
                    importlib.import_module(module)
                self._read = True
            finally:
                self._reading = False


_registries: dict[str, Registry[Any]] = {}
_lock = threading.RLock()


def registries() -> dict[str, Registry[Any]]:
    """Every registry of the package by its kind, whether or not its room has been imported."""
    package = Path(__file__).parent
    for source in sorted(package.rglob("*.py")):
        if _MAKES.search(source.read_text(encoding="utf-8")):
            inside = source.relative_to(package.parent).with_suffix("")
            importlib.import_module(".".join(inside.parts))
    return dict(sorted(_registries.items()))


def use_file(path: Path | str) -> None:
    """Load a file of components, here and in every process that this one starts."""
    place = Path(path).resolve()
    _import_file(place)
    if place not in _files():
        _set_files([*_files(), place])


_troubles: list[str] = []
"""What could not be loaded of other packages, a sentence each: nothing else is lost by it."""
_files_loaded = _packages_loaded = False


def _load_files() -> None:
    global _files_loaded
    if _files_loaded:
        return
    _files_loaded = True
    try:
        for path in _files():
            _import_file(path)
    except ConfigError:
        _files_loaded = False
        raise


def _load_packages() -> None:
    """Those of other packages that are installed. Whoever asks for one of ours has no need of
    them."""
    global _packages_loaded
    if _packages_loaded:
        return
    _packages_loaded = True
    import importlib.metadata

    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            entry.load()
        except (Exception, SystemExit) as error:  # another's code may raise anything
            owner = entry.dist.name if entry.dist is not None else "a package"
            _troubles.append(
                f"the components of {owner} ({entry.value}) cannot be loaded: {_words(error)}"
            )
            print(f"sottovoce: {_troubles[-1]}", file=sys.stderr)


def _files() -> list[Path]:
    return [Path(part).resolve() for part in os.environ.get(FILES, "").split(os.pathsep) if part]


def _set_files(places: list[Path]) -> None:
    os.environ[FILES] = os.pathsep.join(map(str, places))


def _module_name(place: Path) -> str:
    # By name and place: two files of one name are two modules, and the same one everywhere.
    return f"{place.stem}_{hashlib.blake2b(str(place).encode(), digest_size=4).hexdigest()}"


def _import_file(place: Path) -> None:
    """Import a file once, whatever the ways to it."""
    name = _module_name(place)
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None or not place.is_file():
        raise ConfigError(f"{place} is no Python file with components")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # another's code may raise anything
        del sys.modules[name]
        raise ConfigError(f"{place} cannot be loaded: {_words(error)}") from error


class _FilesByName:
    """Finds a file of components by the name of its module: a process that was started with others'
    objects may meet their classes before it asks a registry."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        for place in _files():
            if _module_name(place) == fullname:
                return importlib.util.spec_from_file_location(fullname, place)
        return None


sys.meta_path.append(_FilesByName())
if FILES in os.environ:
    _set_files(_files())  # a process that this one starts may have another working directory


def _own_modules(room: str, with_words: str = "") -> list[str]:
    """The modules of a room that register something: those with such a line, which has these
    words."""
    spec = importlib.util.find_spec(room)
    if spec is None or not spec.submodule_search_locations:
        return [room]
    found = []
    for folder in map(Path, spec.submodule_search_locations):
        for source in folder.rglob("*.py"):
            lines = source.read_text(encoding="utf-8").splitlines()
            if any(_ENTERS.match(line) and with_words in line for line in lines):
                name = ".".join([room, *source.relative_to(folder).with_suffix("").parts])
                found.append(name.removesuffix(".__init__"))
    return sorted(found)


def _same_file(one: object, other: object) -> bool:
    """Whether two things of one place come from one file: its module was imported again."""
    if not isinstance(one, type) or not isinstance(other, type):
        return type(one).__qualname__ == type(other).__qualname__
    try:
        return inspect.getsourcefile(one) == inspect.getsourcefile(other)
    except (OSError, TypeError):
        return True


def _where(module: str) -> str:
    """A module as a reader knows it; a file of components by its path."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return file if file and _module_name(Path(file)) == module else module


def _own(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]


def _words(error: BaseException) -> str:
    if isinstance(error, SottovoceError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"

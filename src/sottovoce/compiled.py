"""Loops that numba compiles, without numba until one of them is run.

`njit` here takes numba's options and gives a `Kernel`. Called, it is compiled; within a compiled
loop it is what numba's own would be. The compiler takes some 70 MB and a second, which a device
that learns from one person's history does not need: within `left_out` kernels that say so (`alone`)
run as the Python they are written in, over NumPy's numbers, or in a form over whole arrays that is
given beside them. Both give the same bits, to which tests/contracts/test_alone.py holds every one
of them. All others are compiled in any process.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np

Function = Callable[..., Any]

_turn = threading.RLock()
_without = False
_inside = threading.local()


@contextlib.contextmanager
def left_out(without: bool = True) -> Iterator[None]:
    """As if this process were one device, or were not."""
    global _without
    before, _without = _without, without
    try:
        yield
    finally:
        _without = before


class Kernel:
    """A loop that is compiled when it is first called."""

    def __init__(self, function: Function, alone: bool, options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        # By these numba knows whom it may inline.
        self.py_func, self.targetoptions = function, options
        self.plain: Function | None = function if alone else None
        """What one device runs instead; None where it is compiled there, too."""
        self.place = ""
        """The module with the loop that is compiled, if it is not this function."""
        self._compiled: Any = None

    def alone(self, function: Function) -> Function:
        """Decorates the form over whole arrays that one device runs instead."""
        self.plain = function
        return function

    @property
    def compiled(self) -> Any:
        """As numba made it."""
        if self._compiled is None:
            with _turn:
                if self._compiled is None:
                    from numba import njit

                    loop = self.py_func
                    if self.place:
                        loop = getattr(import_module(self.place), loop.__name__)
                    self._compiled = njit(**self.targetoptions)(loop)
        return self._compiled

    @property
    def _numba_type_(self) -> Any:
        return self.compiled._numba_type_

    def __call__(self, *arguments: Any) -> Any:
        if not _without or self.plain is None:
            return self.compiled(*arguments)
        if getattr(_inside, "kernel", False):
            return self.plain(*arguments)
        _inside.kernel = True
        try:
            # Whole numbers wrap around, as compiled ones do, and nobody is warned of it.
            with np.errstate(all="ignore"):
                return self.plain(*arguments)
        finally:
            _inside.kernel = False


def njit(function: Function | None = None, /, *, alone: bool = False, **options: Any) -> Any:
    """numba's `njit`, put off. `alone`: one device runs the function as it is written."""
    if function is None:
        return functools.partial(njit, alone=alone, **options)
    return Kernel(function, alone, options)


def accelerated(place: str, **options: Any) -> Callable[[Function], Kernel]:
    """Decorates the form over whole arrays. The loop of the same name that is compiled is in the
    module `place`, which is loaded with the compiler."""

    def decorate(function: Function) -> Kernel:
        kernel = Kernel(function, True, options)
        kernel.place = place
        return kernel

    return decorate


class Primitive:
    """A function that compiled loops have in a form of their own, written for the compiler."""

    def __init__(self, function: Function, theirs: Callable[[], Any]) -> None:
        functools.update_wrapper(self, function)
        self.plain, self._theirs = function, theirs

    @functools.cached_property
    def _numba_type_(self) -> Any:
        # Asked while something is compiled, which one thread at a time does.
        from numba.core.registry import cpu_target

        theirs = self._theirs()
        cpu_target.typing_context.refresh()
        return cpu_target.typing_context.resolve_value_type(theirs)

    def __call__(self, *arguments: Any) -> Any:
        return self.plain(*arguments)


def primitive(theirs: Callable[[], Any]) -> Callable[[Function], Any]:
    """Decorates the plain form. `theirs` gives what numba knows of it (an intrinsic, a function
    with overloads), and is asked when it is first compiled into something."""
    return lambda function: Primitive(function, theirs)


def intrinsic(place: str, name: str) -> Callable[[], Any]:
    """The intrinsic of that name in a module that is loaded with the compiler."""
    return lambda: getattr(import_module(place), name)

"""One process at a time writes to numba's cache, and none reads meanwhile.

Numba numbers the files of compiled code by an index that it reads, changes and writes back, without
a lock. Two processes that compile two widths of a kernel at once may choose the same number: then
the index says that the code of one width is that of the other. Here it would be kept, and fail or
crash whatever uses that width, until the cache is thrown away.
"""

import contextlib
import fcntl
import functools

from numba.core.caching import IndexDataCacheFile


def _alone(method, how):
    @functools.wraps(method)
    def locked(self, *arguments):
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # where nothing can be written, nothing is
                file = stack.enter_context(open(f"{self._index_path}.lock", "a"))
                fcntl.flock(file, how)
            return method(self, *arguments)

    return locked


def use_locks():
    """In this process, from now on."""
    if not hasattr(IndexDataCacheFile.save, "__wrapped__"):
        IndexDataCacheFile.save = _alone(IndexDataCacheFile.save, fcntl.LOCK_EX)
        IndexDataCacheFile.load = _alone(IndexDataCacheFile.load, fcntl.LOCK_SH)

"""Parts of the server that need no network."""

import asyncio
import threading

import pytest

from sottovoce.services.kit.documents import Document, DocumentCache
from sottovoce.wire.refusals import RefusalCounts, Refused


def test_a_document_is_made_once_for_all_who_wait():
    async def ask():
        cache, made, go = DocumentCache(1 << 20), [], threading.Event()

        def make():
            go.wait(60)
            made.append(1)
            return Document.of(b"x" * 100)

        asked = [asyncio.ensure_future(cache.get(("a",), make)) for _ in range(50)]
        await asyncio.sleep(0.01)
        go.set()
        found = await asyncio.gather(*asked)
        assert len(made) == 1
        assert all(each is found[0] for each in found)
        assert await cache.get(("a",), make) is found[0]
        cache.close()

    asyncio.run(ask())


def test_a_cache_keeps_what_was_used_last_within_its_limit():
    async def ask():
        cache, made = DocumentCache(3 * 2024), []

        async def get(name):
            def make():
                made.append(name)
                return Document(bytes(1000), "identity", b"")

            await cache.get((name,), make)

        for name in "abcacdaa":
            await get(name)
        assert made == list("abcd")
        await get("b")
        assert made == list("abcdb"), "it had not been used for the longest time"
        cache.drop(lambda key: key == ("a",))
        await get("a")
        assert made == list("abcdba")
        cache.close()

    asyncio.run(ask())


def test_too_many_documents_at_once_are_refused_and_failures_not_kept():
    async def ask():
        cache, go = DocumentCache(1 << 20, waiting=2), threading.Event()

        def slow():
            go.wait(60)
            return Document.of(b"")

        first = [asyncio.ensure_future(cache.get((n,), slow)) for n in range(2)]
        await asyncio.sleep(0.01)
        with pytest.raises(Refused, match="too many"):
            await cache.get((3,), slow)
        go.set()
        await asyncio.gather(*first)

        def broken():
            raise MemoryError

        with pytest.raises(MemoryError):
            await cache.get((4,), broken)
        assert (await cache.get((4,), slow)).body == b""
        cache.close()

    asyncio.run(ask())


def test_what_could_not_be_stored_is_stored_later():
    tally = RefusalCounts()
    tally.count("late")
    tally.count("late")

    def fail():
        with tally.storing() as counts:
            tally.count("replay")
            assert counts == {"late": 2}
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with tally.settled() as new:
        assert new == {"late": 2, "replay": 1}
    with tally.storing() as counts:
        assert counts == {"late": 2, "replay": 1}
    with tally.settled() as new:
        assert new == {}

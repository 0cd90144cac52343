"""Split listing: whatever the names are and however the streams overtake each other, it is the sequential listing."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node.remote.drivers.driver import ListBounds, RemoteObject
from storage_node.remote.inventory.split_listing import ListedRange, SplitListing, point_between
from storage_node.remote.location.skipped_names import SkippedNames
from tests.example_count import examples
from tests.table import table


@dataclass
class Place:
    """A place with these names, which answers a listing in pages, each after some turns of the event loop."""

    names: list[str]
    page: int
    random: random.Random
    requests: int = 0
    at_once: int = 0
    most_at_once: int = 0

    async def list(
        self, prefix: str, start_after: str, *, skipped: SkippedNames, bounds: ListBounds
    ) -> AsyncGenerator[list[RemoteObject], None]:
        after = start_after
        while True:
            self.requests += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            at = max(bisect_right(self.names, after), bisect_left(self.names, prefix))
            page = [name for name in self.names[at : at + self.page] if name.startswith(prefix)]
            for _ in range(self.random.randrange(6)):
                await asyncio.sleep(0)
            self.at_once -= 1
            found, is_last = [], len(page) < self.page
            for name in page:
                if bounds.until and name > bounds.until:
                    is_last = True
                    break
                bounds.position = after = name
                if "!" in name:
                    skipped.note(name)
                else:
                    found.append(RemoteObject(name, 1, "", "", 0))
            if bounds.until and after >= bounds.until:
                is_last = True
            if found:
                yield found
            if is_last:
                return

    def list_split(self, prefix: str, streams: int) -> tuple[list[str], int]:
        """Return the names that a split listing finds, and how many it has left out."""
        found: dict[int, list[str]] = {}

        async def take(range_: ListedRange, page: list[RemoteObject]) -> None:
            found.setdefault(id(range_), []).extend(one.name for one in page)
            await asyncio.sleep(0)

        ranges = asyncio.run(SplitListing(self.list, prefix, streams=streams, take=take).run())
        return [name for one in ranges for name in found.get(id(one), ())], sum(one.skipped.count for one in ranges)


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(
    st.sets(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=12) | st.text("aab/0!", min_size=1, max_size=8),
        max_size=200,
    ),
    st.integers(1, 30),
    st.integers(1, 9),
    st.sampled_from(["", "a", "a/", "0"]),
    st.randoms(use_true_random=False),
)
def test_any_names_are_listed_once_in_their_order(
    names: set[str], page: int, streams: int, prefix: str, rnd: random.Random
) -> None:
    wanted = [name for name in sorted(names) if name.startswith(prefix)]
    place = Place(sorted(names), page, rnd)
    found, skipped = place.list_split(prefix, streams)
    assert found == [name for name in wanted if "!" not in name]
    assert skipped == sum("!" in name for name in wanted)
    assert place.most_at_once <= streams


TEXT = st.text(st.characters(codec="utf-8"), max_size=6) | st.text("ab/", max_size=6)


@given(TEXT, TEXT, TEXT)
def test_a_point_is_between(position: str, until: str, first: str) -> None:
    if until and position >= until:
        position, until = until, position + "x"
    point = point_between(position, until, "", first)
    assert point is None or (position < point and (not until or point < until))
    if point is not None:
        point.encode()


KINDS: dict[str, Callable[[], list[str]]] = {
    "numbered": lambda: [f"train/en/{number:08d}.wav" for number in range(20_000)],
    "hexadecimal": lambda: [f"{random.Random(number).getrandbits(64):016x}" for number in range(20_000)],
    "in folders": lambda: [f"s{number % 7}/{number % 31:02}/x{number}" for number in range(20_000)],
    "in one long folder": lambda: [f"{'very long folder/' * 8}{number:06}" for number in range(20_000)],
}


@pytest.mark.slow
@table("kind", KINDS)
def test_streams_share_the_pages_and_ask_little_more(kind: str) -> None:
    names = sorted(KINDS[kind]())
    place = Place(names, 100, random.Random(3))
    assert place.list_split("", 8) == (names, 0)
    assert place.most_at_once == 8
    assert place.requests <= 1.6 * len(names) / 100 + 64


def test_an_error_of_one_stream_ends_the_listing() -> None:
    place = Place(KINDS["hexadecimal"](), 100, random.Random(3))

    async def take(range_: ListedRange, page: list[RemoteObject]) -> None:
        if place.requests > 20:
            raise ValueError("full")

    place.names.sort()
    with pytest.raises(ValueError, match="full"):
        asyncio.run(SplitListing(place.list, "", streams=8, take=take).run())

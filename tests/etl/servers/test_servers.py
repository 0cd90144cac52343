"""Every server framework, by every communication that it has, with bytes and with files: what all of them do alike."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ais_loader.errors import NodeUnavailable, TransformFailed, TransformTimeout
from ais_loader.wire.generated import ais_etl_pb2 as pb
from storage_node.etl.values import MAX_IN_MEMORY_BYTES, Content
from tests.etl.servers.server_kit import (
    CHANNELS,
    FORMS,
    GO_ON,
    HPULL,
    HPUSH,
    ORIGIN,
    WAITING,
    WS,
    Owner,
    bytes_of,
    new_server,
    of_file,
    open_stage,
    run,
)
from tests.every_value import every_value_once, product_of
from tests.node.loop_kit import until

Communication = pb.TransformServer.Communication
Address = Callable[[str, str], str]
LARGE = b"a longer line of text, again and again\n" * (3 * (1 << 20) // 39)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def address(files: Path) -> Iterator[Address]:
    """The address of the server of a framework and form, started when it is first asked for."""
    with contextlib.ExitStack() as held:
        known: dict[tuple[str, str], str] = {}

        def of(framework: str, form: str) -> str:
            if (framework, form) not in known:
                server = new_server(framework, FORMS[form], file_roots=[files])
                known[framework, form] = held.enter_context(server.running())
            return known[framework, form]

        yield of


Channel = tuple[str, Communication]
QUICK: list[Channel] = [("fastapi", WS), ("flask", HPULL), ("http", HPUSH)]
"""Each framework and each communication once; the slow set has all channels."""


def named(value: Channel | str | bool) -> str:
    return f"{value[0]}-{Communication.Name(value[1])}" if isinstance(value, tuple) else str(value)


each_channel = pytest.mark.parametrize("channel", product_of(CHANNELS, quick=[(one,) for one in QUICK]), ids=named)
each_form = pytest.mark.parametrize(
    ("channel", "form"), product_of(CHANNELS, list(FORMS), quick=every_value_once(QUICK, FORMS)), ids=named
)
IN_MEMORY = ["transform", "transform_stream"]
each_form_in_memory = pytest.mark.parametrize(
    ("channel", "form"), product_of(CHANNELS, IN_MEMORY, quick=every_value_once(QUICK, IN_MEMORY)), ids=named
)


@pytest.mark.parametrize(
    ("channel", "form", "fqn"),
    product_of(CHANNELS, list(FORMS), [False, True], quick=every_value_once(CHANNELS, FORMS, [False, True])),
    ids=lambda value: ["bytes", "fqn"][value] if isinstance(value, bool) else named(value),
)
@pytest.mark.sampled(16)
def test_what_the_author_wrote_is_made_of_every_object(
    channel: Channel, fqn: bool, form: str, address: Address, files: Path
) -> None:
    framework, communication = channel

    async def main() -> None:
        async with open_stage(address(framework, form), communication, fqn=fqn, connections=3) as (stage, _):
            inputs = [b"", b"x", b"abc" * 3000, LARGE, b"12", LARGE[: 1 << 20], b"z" * 70_000]

            async def one(number: int, data: bytes) -> None:
                content = of_file(files / f"{os.getpid()}-{number}", data) if fqn or number == 3 else Content.of(data)
                made = await stage.run(ORIGIN, content, "")
                assert bytes_of(made) == data.upper()
                content.close()

            await asyncio.gather(*(one(number, data) for number, data in enumerate(inputs)))
            assert (
                bytes_of(await stage.run(ORIGIN, Content.of(b"n"), '{"say": "path"}'))
                == b"b/gr\xc3\xb6\xc3\x9fer/a #?%.txt"
            )
            args = '{"say": "args", "ä": [1, null]}'
            assert (
                bytes_of(await stage.run(ORIGIN, Content.of(LARGE), args)).decode() == "{'say': 'args', 'ä': [1, None]}"
            )
            # What a transform left unread of the last input is not taken for the next.
            assert bytes_of(await stage.run(ORIGIN, Content.of(b"next"), "")) == b"NEXT"

    run(main())


@each_form
def test_a_transform_that_raises_fails_its_object_with_its_message_and_no_other(
    channel: Channel, form: str, address: Address
) -> None:
    framework, communication = channel

    async def main() -> None:
        async with open_stage(address(framework, form), communication, connections=1) as (stage, _):
            for data in (b"small", LARGE):
                with pytest.raises(TransformFailed, match=r"t: b/größer/a #\?%\.txt: ValueError: no vowels: ä"):
                    await stage.run(ORIGIN, Content.of(data), '{"fail": "no vowels: ä"}')
                assert bytes_of(await stage.run(ORIGIN, Content.of(b"next"), "")) == b"NEXT"
            with pytest.raises(TransformFailed, match="the arguments are not JSON"):
                await stage.run(ORIGIN, Content.of(b""), "{")

    run(main())


@each_form_in_memory
def test_an_output_is_held_to_its_limits_while_it_comes(channel: Channel, form: str, address: Address) -> None:
    framework, communication = channel

    async def main() -> None:
        where = address(framework, form)
        async with open_stage(where, communication, output_bytes=100_000, connections=1) as (stage, _):
            with pytest.raises(TransformFailed, match="more than 100,000 bytes, the most that it may"):
                await stage.run(ORIGIN, Content.of(b"abc" * 1000), '{"repeat": 100}')
            assert len(bytes_of(await stage.run(ORIGIN, Content.of(b"abc" * 1000), '{"repeat": 33}'))) == 99_000
        async with open_stage(where, communication, inflation=2.5, connections=1) as (stage, _):
            with pytest.raises(TransformFailed, match=r"more than 2,500 bytes, 2\.5 times its input"):
                await stage.run(ORIGIN, Content.of(b"x" * 1000), '{"repeat": 3}')
            assert len(bytes_of(await stage.run(ORIGIN, Content.of(b"x" * 1000), '{"repeat": 2}'))) == 2000

    run(main())


@each_channel
def test_a_large_output_is_a_file_of_the_spool(channel: Channel, address: Address) -> None:
    framework, communication = channel

    async def main() -> None:
        async with open_stage(address(framework, "transform_stream"), communication) as (stage, _):
            made = await stage.run(ORIGIN, Content.of(LARGE), '{"repeat": 2}')
            assert made.size_bytes > MAX_IN_MEMORY_BYTES and made.fd >= 0 and made.data is None
            chunks = [LARGE[at : at + (1 << 20)].upper() for at in range(0, len(LARGE), 1 << 20)]
            found = bytes_of(made)
            # By the chunks of the way: each comes twice, whatever its size.
            assert len(found) == 2 * len(LARGE) and found.startswith(LARGE[:1000].upper())
            assert sum(map(len, chunks)) == len(LARGE)

    run(main())


@pytest.mark.slow
@each_channel
def test_one_that_takes_too_long_is_broken_off_and_the_next_is_not_disturbed(
    channel: Channel, address: Address
) -> None:
    framework, communication = channel

    async def main() -> None:
        async with open_stage(address(framework, "transform"), communication, timeout_s=0.3, connections=1) as (
            stage,
            _,
        ):
            GO_ON.clear()
            try:
                with pytest.raises(TransformTimeout, match=r"took longer than 0\.3 s"):
                    await stage.run(ORIGIN, Content.of(b"slow"), '{"waits": true}')
            finally:
                GO_ON.set()
            stage._timeout_s = 180.0  # a busy machine may take longer than that for anything
            assert bytes_of(await stage.run(ORIGIN, Content.of(b"next"), "")) == b"NEXT"

    run(main())


@each_channel
def test_what_is_cancelled_leaves_nothing_for_the_next(channel: Channel, address: Address) -> None:
    framework, communication = channel

    async def main() -> None:
        async with open_stage(address(framework, "transform"), communication, connections=1) as (stage, _):
            for data in (b"slow", LARGE):
                content = Content.of(data)
                WAITING.clear()
                GO_ON.clear()
                task = asyncio.create_task(stage.run(ORIGIN, content, '{"waits": true}'))
                try:
                    await until(WAITING.is_set)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                finally:
                    GO_ON.set()
                content.close()
                assert bytes_of(await stage.run(ORIGIN, Content.of(b"next"), "")) == b"NEXT"

    run(main())


@each_form_in_memory
def test_a_server_puts_its_output_where_it_is_told_and_the_job_learns_the_version(
    channel: Channel, form: str, address: Address
) -> None:
    framework, communication = channel

    async def main() -> None:
        async with open_stage(address(framework, form), communication, connections=2) as (stage, side):
            owner = Owner()
            side.put_result = owner.put
            url = await side.start()
            for number, data in enumerate((b"", b"small", LARGE)):
                name = f"made/ä {number}?.txt"
                target = side.target(url, "to", name, max_bytes=1 << 30, lifetime_s=60, extra={"from": "b/x@7"})
                stored = await stage.run_to(ORIGIN, Content.of(data), "", target)
                assert owner.objects[f"to/{name}"] == data.upper()
                assert (stored.version, stored.size_bytes) == (f"v{number + 1}", len(data))
                assert stored.checksum == Content.of(data.upper()).checksum
                assert owner.claims[-1].extra == {"from": "b/x@7"}
            target = side.target(url, "to", "large", max_bytes=1000, lifetime_s=60)
            with pytest.raises(NodeUnavailable, match="larger than its 1,000 bytes"):
                await stage.run_to(ORIGIN, Content.of(b"x" * 1001), "", target)
            with pytest.raises(TransformFailed, match="ValueError: no"):
                await stage.run_to(ORIGIN, Content.of(b"x"), '{"fail": "no"}', target)
            target = side.target(url, "to", "made/ä 1?.txt", max_bytes=9, lifetime_s=60, extra={"if_absent": True})
            with pytest.raises(NodeUnavailable, match=r"version-conflict: .* is there already"):
                await stage.run_to(ORIGIN, Content.of(b"x"), "", target)
            assert sorted(owner.objects) == [f"to/made/ä {number}?.txt" for number in range(3)]
            assert bytes_of(await stage.run(ORIGIN, Content.of(b"next"), "")) == b"NEXT"

    run(main())


@each_channel
def test_a_server_reads_no_file_but_those_of_its_folders(
    channel: Channel, address: Address, tmp_path: Path, files: Path
) -> None:
    framework, communication = channel

    async def main() -> None:
        async with open_stage(address(framework, "transform"), communication, fqn=True) as (stage, _):
            (files / "link").unlink(missing_ok=True)
            content = of_file(tmp_path / "secret", b"secret")
            (files / ".." / "x").write_bytes(b"x")
            (files / "link").symlink_to(tmp_path / "secret")
            for path in (tmp_path / "secret", files / "link", files / ".." / "x"):
                content.path = str(path)
                with pytest.raises(TransformFailed, match="is in none of the folders of this server's `file_roots`"):
                    await stage.run(ORIGIN, content, "")
            content.close()

    run(main())
    with new_server(framework).running() as bare:

        async def without() -> None:
            async with open_stage(bare, communication, fqn=True) as (stage, _):
                content = of_file(tmp_path / "x", b"x")
                with pytest.raises(TransformFailed, match="its `file_roots` names no folder"):
                    await stage.run(ORIGIN, content, "")
                content.close()

        run(without())


@pytest.mark.slow
def test_a_class_has_exactly_one_form() -> None:
    with pytest.raises(TypeError, match="has none of transform, transform_file and transform_stream"):
        new_server("http", type("Nothing", (), {}))
    both = type("Both", (FORMS["transform"], FORMS["transform_stream"]), {})
    with pytest.raises(TypeError, match="has transform and transform_stream of transform, transform_file and"):
        new_server("http", both)


@pytest.mark.slow
def test_objects_are_spread_over_several_websockets(address: Address) -> None:
    async def main() -> None:
        async with open_stage(address("fastapi", "transform"), WS, connections=4) as (stage, _):
            now_s = asyncio.get_running_loop().time
            for _ in range(20):  # a busy machine may need several tries
                began_s = now_s()
                await asyncio.gather(*(stage.run(ORIGIN, Content.of(b"x"), '{"sleep_s": 0.3}') for _ in range(4)))
                if now_s() - began_s < 4 * 0.3:  # one after another they would never be done by then
                    return
            raise AssertionError("one after another")

    run(main())

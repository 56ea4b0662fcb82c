"""The proxy that breaks connections must itself be reliable."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from psframework.testing.faults import FaultyLink


@pytest.fixture
async def echo_address() -> AsyncIterator[str]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def connect(link: FaultyLink) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = link.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def test_passes_everything_on(echo_address: str) -> None:
    async with FaultyLink(echo_address) as link:
        reader, writer = await connect(link)
        writer.write(b"x" * 300_000)
        assert await reader.readexactly(300_000) == b"x" * 300_000
        assert link.passed == 600_000
        writer.close()


async def test_cut_resets_open_connections_and_accepts_new_ones(echo_address: str) -> None:
    async with FaultyLink(echo_address) as link:
        reader, writer = await connect(link)
        writer.write(b"a")
        await reader.readexactly(1)
        link.cut()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        reader, writer = await connect(link)
        writer.write(b"b")
        assert await reader.readexactly(1) == b"b"
        writer.close()


async def test_a_trigger_cuts_after_so_many_bytes(echo_address: str) -> None:
    async with FaultyLink(echo_address) as link:
        link.after(10, link.cut)
        reader, writer = await connect(link)
        writer.write(b"x" * 10)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(10)
        writer.close()


async def test_blackhole_holds_bytes_back_until_healed(echo_address: str) -> None:
    async with FaultyLink(echo_address) as link:
        reader, writer = await connect(link)
        link.blackhole()
        assert not link.flowing
        writer.write(b"a")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await reader.readexactly(1)
        link.heal()
        assert await reader.readexactly(1) == b"a"
        writer.close()


async def test_refuse_drops_new_connections(echo_address: str) -> None:
    async with FaultyLink(echo_address) as link:
        link.refuse()
        reader, _ = await connect(link)
        try:
            assert await reader.read(1) == b""
        except ConnectionError:
            pass

"""Options of both ends must fit together."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

import grpc
import pytest

from psframework.rpc.options import channel_options, server_options
from psframework.testing.faults import FaultyLink

EXPERIMENTS = "-event_engine_client,-event_engine_listener"
MAKE_A_SERVER = """
import psframework
import asyncio, os, grpc

async def main():
    server = grpc.aio.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await server.stop(None)

asyncio.run(main())
print(os.environ["GRPC_EXPERIMENTS"])
"""

CALL_A_WORKER = """
import asyncio
from pathlib import Path
import psframework as psf

def wakes():
    tasks = [task / "status" for task in Path("/proc/self/task").iterdir()]
    texts = [text for text in (task.read_text() for task in tasks) if "event_engine" in text]
    return sum(int(text.split("voluntary_ctxt_switches:")[1].split()[0]) for text in texts)

async def main():
    async with psf.local_cluster(workers=1) as local, psf.connect(local.address) as cluster:
        call = lambda: cluster.rpc_async("worker-0", "psframework.nn.functional.relu", (1.0,))
        await call()
        before = wakes()
        for _ in range(300):
            await call()
        print(wakes() - before)

asyncio.run(main())
"""


def test_the_server_allows_the_keepalive_that_clients_send():
    client, server = dict(channel_options()), dict(server_options())
    assert server["grpc.http2.min_recv_ping_interval_without_data_ms"] < client["grpc.keepalive_time_ms"]
    assert server["grpc.keepalive_permit_without_calls"] == client["grpc.keepalive_permit_without_calls"] == 1


def test_a_port_is_never_shared():
    assert dict(server_options())["grpc.so_reuseport"] == 0


def test_sizes_and_extras():
    assert dict(server_options(max_message=7))["grpc.max_receive_message_length"] == 7
    options = dict(channel_options(max_message=7, server_name="n", extra=[("grpc.enable_http_proxy", 1)]))
    assert options["grpc.max_receive_message_length"] == 7
    assert options["grpc.ssl_target_name_override"] == "n" and options["grpc.enable_http_proxy"] == 1


@pytest.mark.parametrize("own", [None, "-event_engine_client"])
def test_this_release_of_grpc_knows_the_experiments_and_users_win(own: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    environment |= {"GRPC_EXPERIMENTS": own} if own else {}
    command = [sys.executable, "-c", MAKE_A_SERVER]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == (own or EXPERIMENTS)
    assert "xperiment" not in done.stderr


def test_messages_do_not_pass_through_threads_of_the_event_engine() -> None:
    command = [sys.executable, "-c", CALL_A_WORKER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=45, check=True)
    # Each of the 300 calls would wake one of those threads at least once; their timers do so now and then.
    assert int(done.stdout) < 300, "gRPC was imported before it was told"


async def test_a_connection_that_swallows_everything_is_closed() -> None:
    times = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")
    options = dict(channel_options())
    options |= {name: int(options[name]) // 10 for name in times if name in options}  # a tenth, for the test
    server = grpc.aio.server(options=server_options(extra=[("grpc.keepalive_time_ms", 60_000)]))

    async def echo(_: object, context: Any) -> None:
        await context.write(await context.read())
        await context.read()

    methods = {"Echo": grpc.stream_stream_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.T", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with FaultyLink(f"127.0.0.1:{port}") as link:
        async with grpc.aio.insecure_channel(link.address, options=tuple(options.items())) as channel:
            stream = channel.stream_stream("/test.T/Echo")()
            await stream.write(b"a")
            assert await stream.read() == b"a"
            link.blackhole()
            async with asyncio.timeout(5):
                with pytest.raises(grpc.aio.AioRpcError, match="ping timeout"):
                    await stream.read()
    await server.stop(0)

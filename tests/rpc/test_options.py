"""Options of both ends must fit together."""

from __future__ import annotations

from psframework.rpc.options import channel_options, server_options


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

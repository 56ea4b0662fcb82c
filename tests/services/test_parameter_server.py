"""`python -m services.parameter_server` alone answers health, reflection and a typed call of a stock stub."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from psframework.cluster.process import ServiceProcess
from psframework.errors import UnknownTable
from psframework.proto.v1 import parameter_server_pb2, parameter_server_pb2_grpc
from psframework.rpc.status import from_rpc_error


@pytest.fixture(scope="module")
async def address():
    process = ServiceProcess("shard", "services.parameter_server", [])
    process.start()
    yield await process.wait_serving(30)
    await process.stop(5)
    assert process.returncode == 0


def test_health_reflection_and_a_typed_call(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        reply = next(iter(stub.ServerReflectionInfo(iter([request]), timeout=10)))
        names = {service.name for service in reply.list_services_response.service}
        assert {"psframework.proto.v1.ParameterServerService", "psframework.proto.v1.CallService"} <= names
        shard = parameter_server_pb2_grpc.ParameterServerServiceStub(channel)
        assert not shard.ListTables(parameter_server_pb2.ListTablesRequest(), timeout=10).tables


def test_a_table_that_is_not_there_is_an_error_and_the_shard_lives_on(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        shard = parameter_server_pb2_grpc.ParameterServerServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            shard.Pull(parameter_server_pb2.PullRequest(table="default/none", writer=1), timeout=10)
        assert isinstance(from_rpc_error(caught.value), UnknownTable)
        assert not shard.ListTables(parameter_server_pb2.ListTablesRequest(), timeout=10).tables

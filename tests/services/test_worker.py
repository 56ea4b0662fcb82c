"""`python -m services.worker` alone answers health, reflection and typed calls of a stock stub."""

from collections.abc import AsyncIterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from psframework.cluster.process import ServiceProcess
from psframework.cluster.script import import_path
from psframework.errors import NotRegistered
from psframework.proto.v1.remote_pb2 import DescribeRequest, InvokeRequest
from psframework.proto.v1.remote_pb2_grpc import RemoteServiceStub
from psframework.rpc.status import from_rpc_error
from psframework.rpc.values import arguments
from psframework.rpc.values.journey import Journey


@pytest.fixture(scope="module")
async def address() -> AsyncIterator[str]:
    environment = {"PYTHONPATH": import_path()}
    process = ServiceProcess(
        "worker", "services.worker", ["--import", "remote_functions"], environment=environment
    )
    process.start()
    yield await process.wait_serving(30)
    assert process.output[0].startswith("serving on ")
    await process.stop(5)
    assert process.returncode == 0


def test_health_reflection_and_what_may_be_called(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        reply = next(iter(stub.ServerReflectionInfo(iter([request]), timeout=10)))
        names = {service.name for service in reply.list_services_response.service}
        assert {"psframework.proto.v1.RemoteService", "psframework.proto.v1.CallService"} <= names
        functions = RemoteServiceStub(channel).Describe(DescribeRequest(), timeout=10).functions
        kinds = {function.name: function.kind for function in functions}
        assert kinds["remote_functions.add"] == "function"
        assert kinds["remote_functions.sleep"] == "async function"
        assert kinds["remote_functions.Counter"] == "class"


def test_a_call_of_a_stock_stub(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        stub = RemoteServiceStub(channel)
        values = arguments.encode_call((20, 22), None, Journey())
        reply = stub.Invoke(InvokeRequest(function="remote_functions.add", arguments=values), timeout=10)
        assert arguments.decode(reply.value, (), Journey(outgoing=False)) == 42


def test_what_is_not_registered_is_told_and_the_worker_lives_on(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        stub = RemoteServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Invoke(InvokeRequest(function="remote_functions.ad"), timeout=10)
        error = from_rpc_error(caught.value)  # type: ignore[arg-type]
        assert isinstance(error, NotRegistered)
        assert "remote_functions.add" in str(error)
        assert stub.Describe(DescribeRequest(), timeout=10).functions

"""`python -m services.coordinator` alone answers health, reflection and a typed call from stock stubs."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from psframework.cluster.process import ServiceProcess
from psframework.proto.v1 import (
    coordinator_pb2,
    coordinator_pb2_grpc,
    parameter_server_pb2,
    parameter_server_pb2_grpc,
)


@pytest.fixture(scope="module")
async def address():
    process = ServiceProcess("coordinator", "services.coordinator", [])
    process.start()
    yield await process.wait_serving(30)
    await process.stop(5)
    assert process.returncode == 0


def reflected(channel: grpc.Channel) -> set[str]:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    reply = next(iter(stub.ServerReflectionInfo(iter([request]), timeout=10)))
    return {service.name for service in reply.list_services_response.service}


def test_health_reflection_and_typed_calls(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        assert {
            "psframework.proto.v1.CoordinatorService",
            "psframework.proto.v1.ModelService",
            "psframework.proto.v1.CallService",
            "grpc.health.v1.Health",
        } <= reflected(channel)
        coordinator = coordinator_pb2_grpc.CoordinatorServiceStub(channel)
        joined = coordinator.Join(
            coordinator_pb2.JoinRequest(role="trainer", job="j", lease_seconds=5, timeout_seconds=5),
            timeout=10,
        )
        assert joined.member.name == "trainer-0"
        members = coordinator.ListMembers(coordinator_pb2.ListMembersRequest(), timeout=10)
        assert [member.name for member in members.members] == ["trainer-0"]
        models = parameter_server_pb2_grpc.ModelServiceStub(channel)
        assert not models.ListModels(parameter_server_pb2.ListModelsRequest(), timeout=10).models


def test_the_reflected_descriptors_can_be_fetched(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        name = "psframework.proto.v1.CoordinatorService"
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        reply = next(iter(stub.ServerReflectionInfo(iter([request]), timeout=10)))
        assert reply.file_descriptor_response.file_descriptor_proto

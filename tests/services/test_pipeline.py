"""`python -m services.pipeline`: the driver alone, and as a member of a cluster."""

from service_checks import check_alone, check_member


async def test_alone() -> None:
    await check_alone("services.pipeline")


async def test_in_a_cluster() -> None:
    await check_member("services.pipeline", "pipeline", "pipeline-0")

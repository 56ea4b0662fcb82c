"""`python -m services.pipeline_stage`: alone, and as a member that is named shorter than its role."""

from service_checks import check_alone, check_member


async def test_alone() -> None:
    await check_alone("services.pipeline_stage")


async def test_in_a_cluster() -> None:
    await check_member("services.pipeline_stage", "pipeline-stage", "stage-0")

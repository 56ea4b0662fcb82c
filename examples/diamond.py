"""A diamond of processes: A asks B and D, both ask C, and one backward goes through all four.

        A          hidden = x @ first
       / \\
      B   D        tanh of it; its square
       \\ /
        C          @ last: one parameter, reached by two paths

Every gradient is that of the same model in one process.

python examples/diamond.py
python examples/diamond.py --picture diamond.svg
"""

import argparse
import asyncio
from typing import Any

import numpy as np

import psframework as psf
from psframework.dist_autograd.handle import gradients

B, C, D = "worker-0", "worker-1", "worker-2"


def parameter(seed: int) -> psf.Tensor:
    """The same in every process."""
    return psf.tensor(np.random.default_rng(seed).normal(size=(4, 4)), requires_grad=True)


last = parameter(2)  # every process makes it; C's is used


@psf.remote
def multiply(hidden: psf.Tensor) -> psf.Tensor:
    """What C does."""
    return hidden @ last


@psf.remote
async def bend(hidden: psf.Tensor) -> psf.Tensor:
    """What B does."""
    return await psf.current_cluster().rpc_async(C, multiply, args=(hidden.tanh(),))


@psf.remote
async def square(hidden: psf.Tensor) -> psf.Tensor:
    """What D does."""
    return await psf.current_cluster().rpc_async(C, multiply, args=(hidden * hidden,))


@psf.remote
def gradient_of_last() -> Any:
    """Asked of C inside the context, after the backward."""
    return gradients()[last]


async def together(cluster: psf.Cluster, x: np.ndarray, picture: str | None) -> list[np.ndarray]:
    """The gradients of `first` and `last` by four processes."""
    first = parameter(1)
    async with cluster.dist_autograd() as ctx:
        hidden = x @ first
        bent, squared = await asyncio.gather(
            cluster.rpc_async(B, bend, args=(hidden,)), cluster.rpc_async(D, square, args=(hidden,))
        )
        loss = (bent * squared).sum()
        if picture:
            await ctx.draw(picture, names={"first": first})
        await ctx.backward([loss])
        return [ctx.gradients()[first], await cluster.rpc_async(C, gradient_of_last)]


def alone(x: np.ndarray) -> list[np.ndarray]:
    """The same by one process."""
    first, last = parameter(1), parameter(2)
    hidden = x @ first
    loss = ((hidden.tanh() @ last) * ((hidden * hidden) @ last)).sum()
    loss.backward()
    return [first.grad, last.grad]


async def main() -> None:
    """Starts three workers, and compares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--picture", default="diamond.svg", help="where to draw the graph; '' for nowhere")
    args = parser.parse_args()

    x = np.random.default_rng(0).normal(size=(2, 4))
    async with psf.local_cluster(workers=3) as local, psf.connect(local.address, name="A") as cluster:
        found = await together(cluster, x, args.picture)
    for name, ours, single in zip(("A's first", "C's last"), found, alone(x)):
        print(f"the gradient of {name}:\n{ours.round(4)}")
        print(f"in one process it differs by {np.abs(ours - single).max():.1g}")


if __name__ == "__main__":
    asyncio.run(main())

"""Two processes that call each other in turn, A -> B -> A -> ..., and one backward through all of it.

Each multiplies with its own parameter and hands on what is left to do. So both use their parameters several
times, each while it waits for the other; no gradient is lost and nobody waits for ever.
Every gradient is that of the same loop in one process.

python examples/recursion.py
python examples/recursion.py --depth 20 --picture recursion.svg
"""

import argparse
import asyncio
from typing import Any

import numpy as np

import psframework as psf
from psframework.dist_autograd.handle import gradients

A, B = "A", "worker-0"


def parameter(name: str) -> psf.Tensor:
    """The same in every process."""
    seed = [A, B].index(name)
    return psf.tensor(np.random.default_rng(seed).normal(size=(4, 4)) / 2, requires_grad=True)


weights = {name: parameter(name) for name in (A, B)}  # every process makes both, and uses its own


@psf.remote
async def descend(x: psf.Tensor, depth: int) -> psf.Tensor:
    """`depth` more layers, every other one here."""
    cluster = psf.current_cluster()
    x = (x @ weights[cluster.name]).tanh()
    if depth == 1:
        return x
    other = B if cluster.name == A else A
    return x + await cluster.rpc_async(other, descend, args=(x, depth - 1))


@psf.remote
def gradient_here() -> Any:
    """Asked of B inside the context, after the backward."""
    return gradients()[weights[psf.current_cluster().name]]


async def together(
    cluster: psf.Cluster, x: np.ndarray, depth: int, picture: str | None
) -> dict[str, np.ndarray]:
    """The gradients by two processes."""
    async with cluster.dist_autograd() as ctx:
        loss = (await descend(psf.tensor(x), depth)).sum()
        if picture:
            await ctx.draw(picture, names={f"{A}'s weight": weights[A]})
        await ctx.backward([loss])
        return {A: ctx.gradients()[weights[A]], B: await cluster.rpc_async(B, gradient_here)}


def alone(x: np.ndarray, depth: int) -> dict[str, np.ndarray]:
    """The same by one process."""
    own = {name: parameter(name) for name in (A, B)}

    def layer(x: Any, level: int) -> psf.Tensor:
        x = (x @ own[(A, B)[level % 2]]).tanh()
        return x if level == depth - 1 else x + layer(x, level + 1)

    layer(x, 0).sum().backward()
    return {name: weight.grad for name, weight in own.items()}


async def main() -> None:
    """Starts a worker, and compares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--depth", type=int, default=5, help="layers, in A and B by turns; at least 2")
    parser.add_argument("--picture", default="recursion.svg", help="where to draw the graph; '' for nowhere")
    args = parser.parse_args()

    x = np.random.default_rng(2).normal(size=(2, 4))
    async with psf.local_cluster(workers=1) as local, psf.connect(local.address, name=A) as cluster:
        found = await together(cluster, x, args.depth, args.picture)
    single = alone(x, args.depth)
    for name, gradient in found.items():
        print(f"the gradient of {name}'s weight:\n{gradient.round(4)}")
        print(f"in one process it differs by {np.abs(gradient - single[name]).max():.1g}")


if __name__ == "__main__":
    asyncio.run(main())

"""Digits with DistributedDataParallel: every rank trains on its share of the images, and all have one model.

psf run --nproc-per-node 2 examples/ddp.py
psf run --nproc-per-node 2 examples/ddp.py --epochs 20 --timeline run.svg
"""

import argparse
import asyncio
import hashlib

import psframework as psf
import psframework.nn.functional as F
from psframework import nn, optim


def network() -> nn.Sequential:
    """8 x 8 images -> scores of ten digits."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


async def train(group: psf.ProcessGroup, args: argparse.Namespace) -> nn.Sequential:
    """Trains one model on all ranks; rank 0 tells how it goes."""
    digits, model = psf.data.digits(), network()
    ddp = await psf.DistributedDataParallel(model, group)  # from here on all have rank 0's parameters
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    sampler = psf.data.ShardedSampler(len(digits.x_train), group.rank, group.size)
    for epoch in range(args.epochs):
        for x, y in psf.data.batches(
            digits.x_train, digits.y_train, args.batch // group.size, sampler=sampler
        ):
            loss = F.cross_entropy(ddp(x), y)
            await ddp.backward(loss)  # .grad is the mean over all ranks
            optimizer.step()
            optimizer.zero_grad()
        if group.rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    if args.timeline and group.rank == 0:
        ddp.timeline(args.timeline)
    return model


async def main() -> None:
    """Joins the ranks that `psf run` started, trains, and compares the models."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64, help="images of a step, over all ranks")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--timeline", help="where to draw the last step of rank 0, as SVG")
    args = parser.parse_args()

    psf.manual_seed(0)
    async with psf.connect() as cluster, await cluster.process_group() as group:
        model = await train(group, args)
        digest = hashlib.sha256(b"".join(p.numpy().tobytes() for p in model.parameters())).hexdigest()
        digests = await group.gather_object(digest, dst=0)
        if digests is not None:  # on rank 0
            test = psf.data.digits()
            with psf.no_grad():
                right = (model(test.x_test).numpy().argmax(1) == test.y_test).mean()
            print(
                f"{group.size} ranks over {group.transport}, {len(set(digests))} model, accuracy {right:.3f}"
            )


if __name__ == "__main__":
    asyncio.run(main())

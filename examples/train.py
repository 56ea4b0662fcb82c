"""README's loop against any cluster: PSF_COORDINATOR says where, PSF_TLS_DIR holds the certificates.

psf up                                                   # in one terminal; it prints the address
PSF_COORDINATOR=127.0.0.1:7070 python examples/train.py  # in others: together they train one model
"""

import asyncio

import psframework as psf
import psframework.nn.functional as F
from psframework import nn, optim


async def train(cluster: psf.Cluster) -> float:
    """Trains a small network on the digits; returns its accuracy on the test images."""
    psf.manual_seed(0)
    digits = psf.data.digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    ps = await cluster.parameter_server(model, optimizer=optim.Adam(lr=3e-3), consistency=psf.BSP())
    for epoch in range(10):
        for x, y in psf.data.batches(digits.x_train, digits.y_train, 64, seed=0, epoch=epoch):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            await ps.push_pull()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    with psf.no_grad():
        return float((model(digits.x_test).numpy().argmax(1) == digits.y_test).mean())


async def main() -> None:
    """Joins the cluster, trains, leaves."""
    async with psf.connect() as cluster:
        print("accuracy", await train(cluster))


if __name__ == "__main__":
    asyncio.run(main())

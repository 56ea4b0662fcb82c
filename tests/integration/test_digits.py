"""A convolutional network learns the bundled handwriting as well as such networks do."""

from threadpoolctl import threadpool_limits

import psframework.nn.functional as F
from psframework import nn, no_grad, optim
from psframework.data import batches, digits

EPOCHS, BATCH = 20, 64


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Conv2d(24, 24, 3, padding=1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(24, 48, 3, padding=1),
        nn.BatchNorm2d(48),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(4 * 48, 10),
    )


def accuracy_after_training(seed: int) -> float:
    """Share of the test images that are read right, after a few seconds of training on the others."""
    nn.manual_seed(seed)
    data, model = digits(), network()
    steps = EPOCHS * -(-len(data.x_train) // BATCH)
    optimizer = optim.AdamW(model.parameters(), lr=optim.schedule.OneCycle(0.01, steps), weight_decay=0.01)
    for epoch in range(EPOCHS):
        for x, y in batches(data.x_train, data.y_train, BATCH, seed=seed, epoch=epoch):
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with no_grad():
        return float((model(data.x_test).data.argmax(1) == data.y_test).mean())


def test_the_digits_are_read() -> None:
    # Products as small as these only lose by a second thread, and the other tests want that core.
    with threadpool_limits(1):
        assert accuracy_after_training(seed=0) >= 0.985

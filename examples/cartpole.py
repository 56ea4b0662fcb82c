"""CartPole by actors and a learner: observers on workers balance poles, one agent learns from all of them.

Each observer, an RRef on a worker, plays in its own environment and asks the agent, an RRef here, for every
action. `psf.batched` answers all of them by one forward. The agent learns by PPO (Schulman et al., 2017).

python examples/cartpole.py
python examples/cartpole.py --workers 4 --plot returns.png
"""

import argparse
import asyncio
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import psframework as psf
import psframework.nn.functional as F
from psframework import nn, optim

OBSERVERS = 16
STEPS = 32  # of each observer between two updates


class CartPole:
    """A pole on a cart (Barto, Sutton and Anderson, 1983), with the numbers of gymnasium's CartPole-v1.

    Attributes:
        state: position, velocity, angle, angular velocity.
        steps: since the pole was put upright.
    """

    GRAVITY, CART, POLE, LENGTH, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02  # LENGTH: half of the pole's
    FARTHEST, STEEPEST, LONGEST = 2.4, math.radians(12), 500

    def __init__(self, rng: np.random.Generator):
        self._rng = rng
        self.reset()

    def reset(self) -> None:
        """Puts the pole upright, nearly."""
        self.state, self.steps = self._rng.uniform(-0.05, 0.05, 4), 0

    def step(self, action: int) -> bool:
        """Pushes the cart to the left (0) or right (1); whether the episode has ended."""
        _, speed, angle, turn = self.state.tolist()
        sine, cosine = math.sin(angle), math.cos(angle)
        mass = self.CART + self.POLE
        push = self.FORCE if action else -self.FORCE
        pull = (push + self.POLE * self.LENGTH * turn**2 * sine) / mass
        turning = (self.GRAVITY * sine - cosine * pull) / (
            self.LENGTH * (4 / 3 - self.POLE * cosine**2 / mass)
        )
        speeding = pull - self.POLE * self.LENGTH * turning * cosine / mass
        self.state = self.state + self.SECONDS * np.array([speed, speeding, turn, turning])
        self.steps += 1
        fallen = abs(self.state[0]) > self.FARTHEST or abs(self.state[2]) > self.STEEPEST
        return bool(fallen) or self.steps >= self.LONGEST


@psf.register_type
class Segment(NamedTuple):
    """What an observer saw: states (t + 1, 4), actions (t,), ends of episodes (t,), and their returns."""

    states: np.ndarray
    actions: np.ndarray
    ends: np.ndarray
    returns: list[int]


@psf.remote
class Observer:
    """Plays in an environment of its own."""

    def __init__(self, number: int, seed: int):
        self.number = number
        self.environment = CartPole(np.random.default_rng([seed, number]))

    async def observe(self, agent: psf.RRef, steps: int) -> Segment:
        """Plays on for so many steps; the agent chooses."""
        environment, returns = self.environment, []
        states, actions, ends = [environment.state], [], []
        for _ in range(steps):
            action = await agent.rpc_async().act((self.number, environment.state))
            end = environment.step(action)
            if end:
                returns.append(environment.steps)
                environment.reset()
            states.append(environment.state)
            actions.append(action)
            ends.append(end)
        return Segment(np.float32(states), np.array(actions), np.float32(ends), returns)


class Policy(nn.Module):
    """States -> scores of both actions, and what return is to be expected."""

    def __init__(self, width: int = 64):
        self.body = nn.Sequential(nn.Linear(4, width), nn.Tanh())
        self.head = nn.Linear(width, 3)

    def forward(self, states: np.ndarray) -> tuple[psf.Tensor, psf.Tensor]:
        """(..., 4) -> (..., 2) and (...)."""
        out = self.head(self.body(states))
        return out[..., :2], out[..., 2]


@psf.remote
class Agent:
    """Chooses actions for all observers, and learns from what they saw."""

    def __init__(self, seed: int):
        self.policy = Policy()
        self.optimizer = optim.Adam(self.policy.parameters(), lr=5e-3)
        self.rng = np.random.default_rng(seed)
        self.dice = [np.random.default_rng([seed, number, 1]) for number in range(OBSERVERS)]

    @psf.batched(max_size=OBSERVERS, max_wait=0.1)  # they ask in step, so that it is full at once
    async def act(self, asked: Sequence[tuple[int, np.ndarray]]) -> list[int]:
        """An action for each observer, given its number and the state of its environment."""
        with psf.no_grad():
            scores = self.policy(np.float32([state for _, state in asked]))[0].numpy()
        right = 1 / (1 + np.exp(scores[:, 0] - scores[:, 1]))
        return [int(self.dice[number].random() < chance) for (number, _), chance in zip(asked, right)]

    def learn(self, segments: Sequence[Segment]) -> None:
        """Some steps of PPO."""
        states, actions, ends = (np.stack(part, 1) for part in list(zip(*segments))[:3])
        with psf.no_grad():
            scores, values = self.policy(states)
            before = F.log_softmax(scores[:-1]).numpy()
        advantages = advantages_of(values.numpy(), ends)
        returns = advantages + values.numpy()[:-1]
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        data = (
            states[:-1].reshape(-1, 4),
            before.reshape(-1, 2),
            *map(np.ravel, (actions, advantages, returns)),
        )
        for _ in range(10):
            for rows in np.split(self.rng.permutation(actions.size), 4):
                self.optimizer.zero_grad()
                self.loss(*(part[rows] for part in data)).backward()
                self.optimizer.step()

    def loss(
        self,
        states: np.ndarray,
        before: np.ndarray,
        actions: np.ndarray,
        advantages: np.ndarray,
        returns: np.ndarray,
    ) -> psf.Tensor:
        """PPO's: better actions become likelier, but not by much at once; values and entropy beside that."""
        scores, values = self.policy(states)
        logs, each = F.log_softmax(scores), np.arange(len(actions))
        ratio = (logs[each, actions] - before[each, actions]).exp()
        gain = psf.ops.minimum(ratio * advantages, ratio.clip(0.8, 1.2) * advantages)
        entropy = -(logs.exp() * logs).sum(-1)
        return -gain.mean() + 0.005 * F.mse_loss(values, returns) - 0.01 * entropy.mean()


def advantages_of(
    values: np.ndarray, ends: np.ndarray, discount: float = 0.99, trace: float = 0.95
) -> np.ndarray:
    """How much better actions were than expected (GAE, Schulman et al., 2016); each step is rewarded by 1."""
    surprises = 1 + discount * values[1:] * (1 - ends) - values[:-1]
    advantages, later = np.zeros_like(ends), np.zeros_like(ends[0])
    for step in reversed(range(len(ends))):
        advantages[step] = later = surprises[step] + discount * trace * (1 - ends[step]) * later
    return advantages


def plot(returns: Sequence[int], file: Path) -> None:
    """Draws the returns, and the mean of 20."""
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=(8, 4.5), layout="constrained")).subplots()
    axes.plot(returns, ".", alpha=0.4, label="episode")
    axes.plot(range(19, len(returns)), np.convolve(returns, np.ones(20) / 20, "valid"), label="mean of 20")
    axes.set(title="CartPole", xlabel="episode", ylabel="return", ylim=(0, None))
    axes.legend()
    figure.savefig(file)
    print(f"returns: {file}")


async def train(cluster: psf.Cluster, args: argparse.Namespace) -> list[int]:
    """Plays and learns until the target is reached; the return of each episode."""
    psf.manual_seed(args.seed)
    agent = Agent(args.seed)
    mine = cluster.rref(agent)
    observers = [
        cluster.remote(f"worker-{number % args.workers}", Observer, args=(number, args.seed))
        for number in range(OBSERVERS)
    ]
    returns, begin = [], time.perf_counter()
    for update in range(1, args.updates + 1):
        segments = await asyncio.gather(*(each.rpc_async().observe(mine, STEPS) for each in observers))
        await psf.compute(agent.learn, segments)
        returns += [each for segment in segments for each in segment.returns]
        mean, seconds = np.mean(returns[-20:] or [0]), time.perf_counter() - begin
        print(
            f"update {update}: {len(returns)} episodes, mean of 20: {mean:.1f}, {seconds:.1f} s", flush=True
        )
        if mean >= args.target:
            break
    return returns


async def main() -> None:
    """Starts workers, trains, and maybe draws the returns."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--target", type=float, default=475.0, help="mean of 20 returns at which to stop")
    parser.add_argument("--updates", type=int, default=200, help="at which to stop in any case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, help="picture of the returns to write")
    args = parser.parse_args()
    async with psf.local_cluster(workers=args.workers) as local, psf.connect(local.address) as cluster:
        returns = await train(cluster, args)
    if args.plot:
        plot(returns, args.plot)


if __name__ == "__main__":
    asyncio.run(main())

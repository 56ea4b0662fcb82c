"""Random programs that jump between processes, and run in one process too: what the oracle test compares.

A program is a list of steps over a list of values, which begins with its arguments; each step appends one.
`Inline` runs all of it here. `Remote` runs steps that are calls in the processes that they name, where more
programs may be nested. Both use the same parameters: each place has its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Protocol

import numpy as np

import psframework as psf
from psframework import nn
from psframework.autograd import Tensor
from psframework.dist_autograd.ids import ContextId

SIDE, PARAMETERS = 3, 2
OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mul": lambda a, b: a * b.tanh(),
    "add": lambda a, b: a * 0.5 + b,
    "tanh": lambda a, b: (a - b).tanh(),
    "matmul": lambda a, b: (a @ b) * 0.3,
    "transposed": lambda a, b: a.T + b,
}
parameters: dict[tuple[str, int], nn.Parameter] = {}


def parameter(place: str, number: int) -> nn.Parameter:
    """A parameter of a place: the same numbers wherever it is made."""
    key = place, number
    if key not in parameters:
        rng = np.random.default_rng([number, *place.encode()])
        parameters[key] = nn.Parameter(rng.normal(size=(SIDE, SIDE)))
    return parameters[key]


class World(Protocol):
    """How steps that leave a place are done."""

    def call(self, place: str, program: Any, args: list[Any]) -> Awaitable[Any]: ...
    def sync(self, place: str, op: str, a: Any, b: Any) -> Awaitable[Any]: ...
    async def remote(self, place: str, program: Any, args: list[Any]) -> Any: ...
    async def fetch(self, rref: Any) -> Any: ...


class Once:
    """A value that is made at its first use, and kept."""

    def __init__(self, make: Callable[[], Awaitable[Any]]) -> None:
        self._make = make
        self._made: Any = None

    async def __call__(self) -> Any:
        if self._made is None:
            self._made = await self._make()
        return self._made


class Inline:
    """One process."""

    async def call(self, place: str, program: Any, args: list[Any]) -> Any:
        return await run(self, place, program, args)

    async def sync(self, place: str, op: str, a: Any, b: Any) -> Any:
        return OPERATIONS[op](a, b)

    async def remote(self, place: str, program: Any, args: list[Any]) -> Any:
        return Once(lambda: run(self, place, program, args))

    async def fetch(self, rref: Any) -> Any:
        return await rref()


class Remote:
    """Many processes, seen from the one at hand."""

    async def call(self, place: str, program: Any, args: list[Any]) -> Any:
        return await psf.current_cluster().rpc_async(place, run_there, (program, args))

    async def sync(self, place: str, op: str, a: Any, b: Any) -> Any:
        return await psf.current_cluster().rpc_async(place, operate, (op, a, b))

    async def remote(self, place: str, program: Any, args: list[Any]) -> Any:
        rref = psf.current_cluster().remote(place, run_there, (program, args))
        await rref.confirmed_by_owner()  # so that forwards run one after the other
        return rref

    async def fetch(self, rref: Any) -> Any:
        return await rref.to_here()


async def run(world: World, place: str, program: Any, args: list[Any]) -> Any:
    """The results of a program at a place: one tensor, or a list of several."""
    steps, results = program
    values = list(args)
    for kind, *rest in steps:
        values.append(await _step(world, place, kind, rest, values))
    found = [values[index] for index in results]
    return found[0] if len(found) == 1 else found


async def _step(world: World, place: str, kind: str, rest: list[Any], values: list[Any]) -> Any:
    if kind == "parameter":
        return parameter(place, *rest)
    if kind == "op":
        op, a, b = rest
        return OPERATIONS[op](values[a], values[b])
    if kind == "sync":
        where, op, a, b = rest
        return await world.sync(where, op, values[a], values[b])
    if kind == "item":
        of, index = rest
        return values[of][index]
    if kind == "fetch":
        return await world.fetch(values[rest[0]])
    where, nested, operands = rest
    args = [values[index] for index in operands]
    return await (world.call if kind == "call" else world.remote)(where, nested, args)


@psf.remote
async def run_there(program: Any, args: list[Any]) -> Any:
    return await run(Remote(), psf.current_cluster().name, program, args)


@psf.remote
def operate(op: str, a: Any, b: Any) -> Any:
    """In a thread of the pool."""
    return OPERATIONS[op](a, b)


@psf.remote
def gradients_here(context: tuple[int, int]) -> dict[int, Any]:
    """{number of the parameter: its gradient in a context}, of this place."""
    cluster = psf.current_cluster()
    found = cluster.dist.contexts
    id = ContextId(*context)
    kept = found.find(id).gradients if id in found else {}
    own = {parameters[key]: key[1] for key in parameters if key[0] == cluster.name}
    return {own[leaf]: gradient for leaf, gradient in kept.items()}


# How programs come about


class Draft:
    """One program while it is drawn."""

    def __init__(self, random: Random, places: list[str], arguments: str, use_all: bool) -> None:
        self.random = random
        self.places = places
        self.kinds = list(arguments)  # of each value: tensor, reference, or list (only its items are used)
        self.steps: list[Any] = []
        self.used: set[int] = set()
        self.use_all = use_all

    def add(self, kind: str, *step: Any) -> int:
        self.steps.append(step)
        self.kinds.append(kind)
        return len(self.kinds) - 1

    def pick(self, kinds: str = "t") -> int:
        """One of the values; rather one that nothing uses yet."""
        found = [index for index, kind in enumerate(self.kinds) if kind in kinds]
        fresh = [index for index in found if index not in self.used]
        chosen = self.random.choice(fresh if fresh and self.random.random() < 0.5 else found)
        self.used.add(chosen)
        return chosen

    def draw(self, depth: int) -> None:
        """One more step."""
        choice = self.random.random()
        if "t" not in self.kinds or choice < 0.2:
            self.add("t", "parameter", self.random.randrange(PARAMETERS))
        elif choice < 0.45 or depth == 0:
            self.add("t", "op", self.random.choice(sorted(OPERATIONS)), self.pick(), self.pick())
        elif choice < 0.55:
            where, op = self.random.choice(self.places), self.random.choice(sorted(OPERATIONS))
            self.add("t", "sync", where, op, self.pick(), self.pick())
        elif choice < 0.65 and "r" in self.kinds:
            self.add("t", "fetch", self.pick("r"))
        else:
            self._call(depth)

    def _call(self, depth: int) -> None:
        operands = [self.pick("tr") for _ in range(self.random.randint(0, 3))]
        kinds = "".join(self.kinds[index] for index in operands)
        where, is_rref = self.random.choice(self.places), self.random.random() < 0.3
        count = 1 if is_rref else self.random.randint(1, 3)
        nested = program(self.random, self.places, depth - 1, kinds, count, use_all=self.use_all)
        made = self.add(
            "r" if is_rref else "t" if count == 1 else "l",
            "remote" if is_rref else "call",
            where,
            nested,
            operands,
        )
        if count > 1:
            self.used.add(made)
            for index in range(count):
                self.add("t", "item", made, index)

    def finish(self, results: int) -> Any:
        """The program, with so many results."""
        if "t" not in self.kinds:
            self.add("t", "parameter", 0)
        chosen = [self.pick() for _ in range(results)]
        if self.use_all:
            for index in [i for i, kind in enumerate(self.kinds) if kind == "r" and i not in self.used]:
                self.add("t", "fetch", index)
            for index in [i for i, kind in enumerate(self.kinds) if kind == "t" and i not in self.used]:
                chosen[0] = self.add("t", "op", "add", chosen[0], index)
        return [self.steps, chosen]


def program(
    random: Random, places: list[str], depth: int, arguments: str = "", results: int = 1, *, use_all: bool
) -> Any:
    """A random program.

    Args:
        random: decides.
        places: names of processes, in which its parts may run.
        depth: of calls inside calls.
        arguments: kinds of its arguments, a letter each.
        results: how many it has.
        use_all: whether all that it makes matters to its first result.
    """
    draft = Draft(random, places, arguments, use_all)
    for _ in range(random.randint(1, 5)):
        draft.draw(depth)
    return draft.finish(results)

"""The state of a whole pipe, collected from its ranks and given to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psframework.pipeline.naming import Naming
from psframework.pipeline.ranks import Ranks
from psframework.pipeline.ties import first_values
from psframework.rpc.deadline import Deadline


class States:
    """The parameters and buffers of one pipe.

    Args:
        ranks: of the pipe.
        naming: of its state.
    """

    def __init__(self, ranks: Ranks, naming: Naming) -> None:
        self._ranks, self._naming = ranks, naming

    async def read(self, deadline: Deadline) -> dict[str, Any]:
        """All, by the names that they have in the pipe."""
        states = await self._ranks.call("state_dict", deadline=deadline)
        return self._naming.join({stage: arrays for state in states for stage, arrays in state.items()})

    async def load(self, parts: Mapping[int, Mapping[str, Any]], deadline: Deadline) -> None:
        """Gives each stage its part, as `Naming.split` cuts them; commits are the caller's.

        Raises:
            ModelMismatch: names or shapes differ; some stages may have theirs already.
        """
        ranks = self._ranks
        for seat in ranks.seats:
            own = {stage: parts[stage] for stage in ranks.plan.stages_of(seat.rank)}
            await ranks.call("load_state_dict", own, deadline=deadline, seats=[seat])
        await self.share_ties(deadline)

    async def share_ties(self, deadline: Deadline) -> None:
        """Gives all copies of a tied parameter the values of the first."""
        ranks = self._ranks
        values: dict[tuple[int, str], Any] = {}
        for seat in ranks.seats:
            held = ranks.plan.stages_of(seat.rank)
            names = [place for tie in ranks.plan.ties for place in tie if place[0] in held]
            if names and seat.replica == 0:
                values |= (await ranks.call("shared", names, deadline=deadline, seats=[seat]))[0]
        firsts = first_values(ranks.plan.ties, values)
        for seat in ranks.seats:
            held = ranks.plan.stages_of(seat.rank)
            own = {place: array for place, array in firsts.items() if place[0] in held}
            if own:
                await ranks.call("share", own, deadline=deadline, seats=[seat])

"""What one process keeps of contexts, and for how long."""

import numpy as np
import pytest

from psframework.autograd.tensor import Tensor
from psframework.dist_autograd.context import Contexts
from psframework.dist_autograd.ids import ContextId, TensorsId
from psframework.dist_autograd.pairs import Sent
from psframework.errors import ContextClosed, WireError

ME, ANN = 7, 3


def test_gradients_of_several_backwards_add_up() -> None:
    context = Contexts(ME).open("me")
    leaf = Tensor(np.ones(2), requires_grad=True)
    context.add({leaf: np.ones(2)})
    context.add({leaf: np.full(2, 2.0)})
    np.testing.assert_array_equal(context.gradients[leaf], [3.0, 3.0])


def test_a_message_has_one_sender() -> None:
    context = Contexts(ME).open("me")
    message = context.arriving(TensorsId(9, 4), ("bob", 9), "")
    assert context.arriving(TensorsId(9, 4), ("bob", 9), "") is message
    with pytest.raises(WireError, match="came from bob, and now from eve"):
        context.arriving(TensorsId(9, 4), ("eve", 10), "")


def test_nothing_is_kept_of_a_context_that_has_ended() -> None:
    contexts = Contexts(ME)
    context = contexts.open("me")
    context.sent[TensorsId(ME, 1)] = Sent(TensorsId(ME, 1), "bob", "")
    context.arriving(TensorsId(9, 4), ("bob", 9), "")
    context.add({Tensor(np.ones(2), requires_grad=True): np.ones(2)})
    assert context.sizes() == {"sent": 1, "received": 1, "gradients": 1}
    assert contexts.end(context.id) is context
    assert not any(context.sizes().values())
    assert len(contexts) == 0 and context.id not in contexts
    for use in (
        context.check,
        lambda: contexts.find(context.id),
        lambda: context.arriving(TensorsId(9, 4), ("bob", 9), ""),
    ):
        with pytest.raises(ContextClosed, match=r"7\.1.* has ended"):
            use()
    assert contexts.end(context.id) is None


def test_why_a_context_failed_is_told_to_whoever_uses_it() -> None:
    contexts = Contexts(ME)
    context = contexts.open("me")
    contexts.end(context.id, "has failed: no money")
    with pytest.raises(ContextClosed, match=r"context 7\.1 of me has failed: no money"):
        context.check()


def test_a_late_call_revives_no_context() -> None:
    contexts = Contexts(ME)
    first = contexts.enter(ContextId(ANN, 1), "ann")
    assert contexts.enter(ContextId(ANN, 1), "ann") is first
    contexts.end(ContextId(ANN, 1))
    contexts.end(ContextId(ANN, 5))  # heard of only now that it has ended
    for counter in (1, 5):
        with pytest.raises(ContextClosed, match="has ended"):
            contexts.enter(ContextId(ANN, counter), "ann")
    assert [context.id for context in contexts] == []
    contexts.enter(ContextId(ANN, 3), "ann")


def test_contexts_of_nobody() -> None:
    contexts = Contexts(ME)
    with pytest.raises(WireError, match="never opened here"):
        contexts.enter(ContextId(ME, 5), "me")
    with pytest.raises(ContextClosed, match="not known here"):
        contexts.find(ContextId(ANN, 1))


def test_a_creator_tells_below_what_all_have_ended() -> None:
    contexts = Contexts(ME)
    late, other = contexts.enter(ContextId(ANN, 4), "ann"), contexts.enter(ContextId(ANN, 9), "ann")
    assert contexts.end_below(ANN, 9) == [late]
    assert list(contexts) == [other]
    with pytest.raises(ContextClosed):
        contexts.enter(ContextId(ANN, 8), "ann")
    assert contexts.end_of(ANN, "has ended: ann is gone") == [other]
    with pytest.raises(ContextClosed, match="ann is gone"):
        other.check()


def test_what_has_ended_is_remembered_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psframework.dist_autograd.context.REMEMBERED", 10)
    contexts = Contexts(ME)
    mine = [contexts.open("me").id for _ in range(100)]
    for id in mine:
        contexts.end(id)
    assert contexts.remembered == 0
    with pytest.raises(ContextClosed, match="has ended"):
        contexts.enter(mine[0], "me")
    for creator in range(100, 200):
        for counter in range(1, 51):
            contexts.end(ContextId(creator, counter))
    assert contexts.remembered == 10 * 10
    with pytest.raises(ContextClosed, match="has ended"):
        contexts.enter(ContextId(199, 50), "ann")
    contexts.end_below(199, 60)
    assert contexts.remembered == 9 * 10
    with pytest.raises(ContextClosed, match="has ended"):
        contexts.enter(ContextId(199, 1), "ann")

"""What operations save: a change in place is noticed or harmless, and nothing is held in vain."""

import numpy as np
import pytest
from op_case import Case, collect, dense

from psframework.autograd import Node, Tensor, backward
from psframework.autograd.draw import arrays_of
from psframework.errors import AutogradError

CASES = [case for case in collect("op_cases") if any(array.size for array in case.inputs)]


def forward(case: Case):
    """The leaves, the operation's inputs (made from them) and its results that require grad."""
    leaves = [Tensor(array.copy(), True) for array in case.inputs]
    inputs = [leaf * 1.0 for leaf in leaves]
    answer = case.op(*inputs, *(array.copy() for array in case.constants))
    results = [answer] if isinstance(answer, Tensor) else [one for one in answer if isinstance(one, Tensor)]
    return leaves, inputs, [result for result in results if result.requires_grad]


def gradients(leaves, results):
    seeds = [np.linspace(0.5, 1.5, one.size).reshape(one.shape).astype(one.dtype) for one in results]
    found = backward(results, seeds)
    return [dense(found.get(leaf, np.zeros(leaf.shape))) for leaf in leaves]


def change(tensor):
    tensor.data[...] = tensor.data * 1.7 + 0.3
    tensor.bump_version()


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_a_change_in_place_is_noticed_or_harmless(case):
    leaves, inputs, results = forward(case)
    if not results:
        return
    expected = gradients(leaves, results)
    for kind, count in ((1, len(inputs)), (2, len(results))):
        for place in range(count):
            changed = forward(case)
            if changed[kind][place].data.flags.writeable:
                change(changed[kind][place])
            try:
                found = gradients(changed[0], changed[2])
            except AutogradError:
                continue
            what = f"{'input' if kind == 1 else 'result'} {place} was changed"
            for one, other in zip(found, expected):
                np.testing.assert_allclose(one, other, err_msg=what)


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_no_input_is_held_that_is_not_watched(case):
    """Of an array that a rule reads the version is saved; what it does not read it must not hold."""
    _, inputs, results = forward(case)
    above = {one._node for one in inputs}
    nodes, stack = set(), [one._node for one in results]
    while stack:
        node = stack.pop()
        if isinstance(node, Node) and node not in above and node not in nodes:
            nodes.add(node)
            stack.extend(node.edges)
    for node in nodes:
        watched = {id(version) for version, _ in node.saved}
        for array in arrays_of(node):
            for place, one in enumerate(inputs):
                held = array.size and (array is one.data or array.base is one.data)
                assert not held or id(one._version) in watched, f"{node.name} holds input {place}"

"""Optimizer updates in one pass over parameter, gradient and slots, where NumPy's way takes a dozen.

The arithmetic is that of the rules in `optim`, in their order; a test holds them to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from psframework.backend.arrays import Array
from psframework.backend.kernels.launch import Launcher


class Update(NamedTuple):
    """A rule with certain options, as a kernel.

    Attributes:
        slots: names of the arrays that it keeps, in the kernel's order.
        scalars: names of the rule's coefficients, in the rule's order.
        body: statements over `p`, `g`, slots and scalars, all of type T.
    """

    slots: tuple[str, ...]
    scalars: tuple[str, ...]
    body: str


def _average(slot: str, value: str, decay: str, share: str) -> str:
    return f"{slot} = {slot} * {decay} + ({value}) * {share};"


def _decayed(options: Any) -> str:
    return "T d = g + p * decay;" if options.weight_decay else "T d = g;"


def _sgd(options: Any) -> Update:
    lines = [_decayed(options)]
    if options.momentum:
        lines.append("momentum_buffer = momentum_buffer * momentum + d * share;")
        lines.append("d = d + momentum_buffer * momentum;" if options.nesterov else "d = momentum_buffer;")
    lines.append("p = p - d * rate;")
    slots = ("momentum_buffer",) if options.momentum else ()
    return Update(slots, ("rate", "momentum", "share", "decay"), "\n".join(lines))


def _adam_moments() -> list[str]:
    return [
        _average("exp_avg", "d", "beta1", "share1"),
        _average("exp_avg_sq", "d * d", "beta2", "share2"),
    ]


def _adam(options: Any) -> Update:
    decoupled = options.name == "adamw"
    lines = ["p = p * decay;", "T d = g;"] if decoupled and options.weight_decay else []
    lines = lines or (["T d = g;"] if decoupled else [_decayed(options)])
    lines += _adam_moments()
    root = "exp_avg_sq"
    if options.amsgrad:
        lines.append("max_exp_avg_sq = max_exp_avg_sq > exp_avg_sq ? max_exp_avg_sq : exp_avg_sq;")
        root = "max_exp_avg_sq"
    lines.append(f"p = p - exp_avg / (sqrt({root}) + eps) * size;")
    slots = ("exp_avg", "exp_avg_sq") + ("max_exp_avg_sq",) * bool(options.amsgrad)
    return Update(slots, ("size", "eps", "beta1", "share1", "beta2", "share2", "decay"), "\n".join(lines))


def _adagrad(options: Any) -> Update:
    lines = [_decayed(options), "sum = sum + d * d;", "p = p - d / (sqrt(sum) + eps) * rate;"]
    return Update(("sum",), ("rate", "eps", "decay"), "\n".join(lines))


def _rmsprop(options: Any) -> Update:
    lines = [_decayed(options), _average("square_avg", "d * d", "alpha", "share")]
    slots, variance = ["square_avg"], "square_avg"
    if options.centered:
        slots.append("grad_avg")
        lines += [_average("grad_avg", "d", "alpha", "share")]
        lines += ["T variance = square_avg - grad_avg * grad_avg;", "variance = variance > 0 ? variance : 0;"]
        variance = "variance"
    lines.append(f"d = d / (sqrt({variance}) + eps);")
    if options.momentum:
        slots.append("momentum_buffer")
        lines += ["momentum_buffer = momentum_buffer * momentum + d;", "d = momentum_buffer;"]
    lines.append("p = p - d * rate;")
    scalars = ("rate", "alpha", "share", "eps", "momentum", "decay")
    return Update(tuple(slots), scalars, "\n".join(lines))


def _ftrl(options: Any) -> Update:
    root = "sqrt(accumulator)" if options.lr_power == -0.5 else "pow(accumulator, power)"
    lines = [f"T before_root = {root} * before;", "linear = linear + g;"]
    if options.l2_shrinkage:
        lines.append("linear = linear + p * shrinkage;")
    lines += ["accumulator = accumulator + g * g;", f"T root = {root} * now;"]
    change = " + change" if options.beta else ""
    lines.append(f"linear = linear - (root - before_root{change}) * p;")
    lines += [
        "T whole = root + divisor;",
        # the least normal number of the type, as the rule has it
        "T tiny = sizeof(T) == 4 ? (T)1.1754943508222875e-38 : (T)2.2250738585072014e-308;",
        "whole = whole > tiny ? whole : tiny;",
        "T clipped = linear > low ? linear : low;",
        "clipped = clipped < high ? clipped : high;",
        "p = (clipped - linear) / whole;",
    ]
    scalars = ("now", "before", "change", "low", "high", "divisor", "shrinkage", "power")
    return Update(("accumulator", "linear"), scalars, "\n".join(lines))


_LAMB_SCALARS = ("rate", "beta1", "share1", "beta2", "share2", "correction", "eps", "decay")


def _lamb(options: Any) -> Update:
    """The second pass; the averages are up to date, and `rate` has the trust ratio."""
    decay = " + p * decay" if options.weight_decay else ""
    body = f"p = p - (exp_avg / (sqrt(exp_avg_sq) + eps) * correction{decay}) * rate;"
    return Update(("exp_avg", "exp_avg_sq"), _LAMB_SCALARS, body)


_UPDATES: Mapping[str, Callable[[Any], Update]] = {
    "sgd": _sgd,
    "adam": _adam,
    "adamw": _adam,
    "adagrad": _adagrad,
    "rmsprop": _rmsprop,
    "ftrl": _ftrl,
    "lamb": _lamb,
}


def update_of(rule: Any) -> Update | None:
    """The kernel of an `optim` rule; None for one that has no fused form."""
    make = _UPDATES.get(rule.name)
    return None if make is None else make(rule)


class UpdateKernels(Launcher):
    """Optimizer steps in place."""

    def update(
        self, rule: Any, p: Array, g: Array, state: Mapping[str, Array], scalars: Sequence[Any]
    ) -> bool:
        """One step of `rule` in place, if there is a kernel for it.

        Args:
            rule: an update rule of `optim`: its name and options choose the kernel.
            p: float32 or float64; updated.
            g: the gradient, of the shape and dtype of `p`.
            state: slots of the shape and dtype of `p`; updated.
            scalars: the rule's coefficients for this step.

        Returns:
            Whether it was done.
        """
        update = update_of(rule)
        if update is None or p.dtype.char not in "fd" or g.dtype != p.dtype:
            return False
        inputs = ", ".join(f"T {name}" for name in ("g", *update.scalars))
        outputs = ", ".join(f"T {name}" for name in ("p", *update.slots))
        kernel = self.elementwise(inputs, outputs, update.body, f"update_{rule.name}")
        kernel(g, *scalars, p, *(state[name] for name in update.slots))
        return True

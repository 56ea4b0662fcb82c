"""Optimizers with torch's names and formulas; each is an update rule (`.rule`) that a server can run too."""

from psframework.optim import schedule
from psframework.optim.adagrad import Adagrad, AdagradRule, RowWiseAdagrad, RowWiseAdagradRule
from psframework.optim.adam import Adam, AdamRule, AdamW, AdamWRule
from psframework.optim.clip import (
    GlobalNorm,
    clip_coefficient,
    clip_grad_norm_,
    clip_grad_value_,
    scale_,
    squared_norm,
)
from psframework.optim.ftrl import FTRL, Ftrl, FTRLRule
from psframework.optim.lamb import LAMB, LAMBRule
from psframework.optim.optimizer import Optimizer
from psframework.optim.rmsprop import RMSprop, RMSpropRule
from psframework.optim.rule import (
    UpdateRule,
    apply_blocks,
    rule_from_spec,
    set_update_threads,
    update_threads,
)
from psframework.optim.scaler import GradScaler
from psframework.optim.sgd import SGD, SGDRule

__all__ = [
    "FTRL",
    "LAMB",
    "SGD",
    "Adagrad",
    "AdagradRule",
    "Adam",
    "AdamRule",
    "AdamW",
    "AdamWRule",
    "FTRLRule",
    "Ftrl",
    "GlobalNorm",
    "GradScaler",
    "LAMBRule",
    "Optimizer",
    "RMSprop",
    "RMSpropRule",
    "RowWiseAdagrad",
    "RowWiseAdagradRule",
    "SGDRule",
    "UpdateRule",
    "apply_blocks",
    "clip_coefficient",
    "clip_grad_norm_",
    "clip_grad_value_",
    "rule_from_spec",
    "scale_",
    "schedule",
    "set_update_threads",
    "squared_norm",
    "update_threads",
]

"""Distributed data parallel training: one model on every rank, gradients averaged while backward runs."""

from psframework.ddp import hooks

__all__ = ["hooks"]

"""The differentiable operations: functions of tensors, arrays and numbers. `Tensor`'s methods call them."""

"""Distributed autograd: gradients go back along the messages that tensors came by."""

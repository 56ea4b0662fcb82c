"""Registered functions: how they are found, called, run, streamed and batched."""

"""Bytes and memory: array specs, the raw codec, chunks, lanes, shared segments. No gRPC here."""

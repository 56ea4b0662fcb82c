"""Pipelines: a model cut into stages on several services, fed by micro-batches."""

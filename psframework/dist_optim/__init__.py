"""The distributed optimizer: a local optimizer with each owner of parameters, stepped together."""

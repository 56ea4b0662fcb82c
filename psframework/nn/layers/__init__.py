"""Layers: modules with torch's names, arguments, weight shapes and initial values."""

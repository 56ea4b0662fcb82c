"""What both sides of benchmarks/pipeline.py must do alike. Nothing of psframework is imported."""

RANKS = 2
WIDTH, LAYERS, BATCH = 1024, 8, 512  # an MLP of equal layers, so that both stages cost the same
STEPS = 10  # of a repetition
SCHEDULES = ("gpipe", "1f1b", "eager-1f1b")
MICROBATCHES = (4, 8)


def case(schedule: str, microbatches: int) -> str:
    """Its name on both sides."""
    return f"{schedule} m{microbatches}"

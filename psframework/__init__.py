"""psframework."""

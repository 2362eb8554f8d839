"""Theory: the loss from formulas. Nothing here trains, and nothing imports JAX."""

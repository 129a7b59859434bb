"""One training step: what the user writes, how it is run, and how its state is kept."""

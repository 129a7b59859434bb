"""Find where a non-finite value was born, why, and what that shows."""

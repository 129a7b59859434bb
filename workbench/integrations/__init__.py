"""Recorders attached to training frameworks, one file each, imported lazily."""

"""Which checkpoints may be resumed from: committed, suspect or quarantined."""

"""The training steps of the guided notebooks; each records its own incident in seconds."""

"""Does it come from before the last good checkpoint? The trial starts from an older one: a change of the view."""

NAME = "earlier-checkpoint"
FACTOR = "checkpoint"
SUMMARY = "The trial starts from an earlier checkpoint and trains through the suspect step."
PARAMETERS = ("step",)
SPECIFIC = True

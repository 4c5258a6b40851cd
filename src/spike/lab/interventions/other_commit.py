"""Does it take this code? The trial runs the code of another commit: a change of the view."""

NAME = "other-commit"
FACTOR = "code"
SUMMARY = "The trial runs the code of another commit."
PARAMETERS = ("commit",)
SPECIFIC = True

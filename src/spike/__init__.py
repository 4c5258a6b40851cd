"""spike: walk a loss-spike incident from detection to a proven cause."""

__version__ = "0.1.0"

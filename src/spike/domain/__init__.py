"""The pure core: frozen facts in, verdicts out. No path, clock, torch, yaml, git or print in here."""

"""Which changes are made around the process instead of in it? Constants only; the probe has the others."""

"""One module a console line shape, each exporting SHAPE (see spike.readers.metrics.console_text)."""

"""One module a metric format, each exporting READER (see spike.readers.metrics.contract)."""

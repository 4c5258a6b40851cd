"""One file a metric source, each exporting READER."""

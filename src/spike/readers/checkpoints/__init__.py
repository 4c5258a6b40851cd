"""One file a checkpoint layout, each exporting READER."""

"""One file a hardware event source, each exporting READER."""

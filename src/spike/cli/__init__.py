"""The command line: one file a command, each options, one action, one rendering."""

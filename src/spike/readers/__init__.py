"""The world to domain facts. A reader never writes and never executes what it reads."""

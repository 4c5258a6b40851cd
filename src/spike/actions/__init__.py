"""The use cases. An action takes facts and ports, returns a value and never prints."""

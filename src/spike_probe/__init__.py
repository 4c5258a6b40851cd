"""The probe: records what every optimizer step of a training process did, and changes at most one thing."""

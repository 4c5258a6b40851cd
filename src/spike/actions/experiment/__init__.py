"""What do trials of the operator's own command show? From the investigation to the verdict and the gate."""

"""What can be changed in a live process? One file each; see `spike_probe.intervention` for their shape."""

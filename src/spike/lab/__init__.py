"""Everything that runs a trial: view, launch, probe staging, trace collection."""

"""Load and lint playbooks and runbook pages."""

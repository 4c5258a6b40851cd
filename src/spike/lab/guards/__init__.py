"""What keeps a run safe while a trial writes wherever it likes? One module per mechanism; stdlib only."""

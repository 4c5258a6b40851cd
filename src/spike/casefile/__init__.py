"""Everything that is written to a case: layout, atomic writes, hashing, pinning, manifest, journal."""

"""Child processes: scripts and shells under a supervisor that ends everything they started."""

"""Templates as text: secure reading with exact positions, validation, building nodes, and writing them back."""

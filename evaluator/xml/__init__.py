"""Templates as text: secure reading with exact positions, validation, building nodes, writing them
back.
"""

"""The SQLite layer: databases that several processes share, rows that show damage and whose they
are, leases and their owners.
"""

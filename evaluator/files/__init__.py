"""Files: opening below a root, publishing whole files, SQLite databases, what ships beside the
code.
"""

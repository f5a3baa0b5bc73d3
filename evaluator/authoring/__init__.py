"""What authors look at: portraits of templates, the changes between two versions, pages, history.

Nothing here runs a script, imports code of a project or sends anything.
"""

"""The language server: what an editor shows of templates while their author types.

Nothing here runs a template, imports code of a project or sends anything, except the two commands
that the user triggers: `evaluator.render` and `evaluator.simulate`.
"""

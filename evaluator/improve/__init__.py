"""Better templates, with a proof: a search over edits of a template, and a decision on rows that
the search has not seen.

`run.improve` is the way in; `search` has the search as a function of its evidence, `evidence` what
it is recorded in, `certificate` the result.
"""

"""The language inside texts and conditions: Jinja2's grammar, evaluated on plain data with bounded
cost.

The path of one variable, `{{ user.name | upper }}`:

1. `parsing` reads the text with Jinja's lexer and parser. Every node of the tree knows its offset
   in the text. A text whose placeholders are all paths needs no parser: `syntax` reads it, and
   neither Jinja nor what is based on its tree is imported. The result is the same.
2. `walker` walks the tree for `analysis`, which lists the names and calls that the text refers to
   (`user`, path `name`). The checks of a template library report undefined and unused variables
   from it, before anything runs.
3. `expressions` and `statements` turn the tree into Python closures (`closures`), one for each
   node. No Python code is generated.
4. `sandbox` runs the closures on a `Scope` (`scopes`) with a `Rendering` (`values`), which bounds
   steps, time and size. `values`, `operators`, `filters` and `functions` hold what the closures can
   do.
5. The result is text or plain data. It is never read as a template again.

An error is a `LocatedError` (`locating`) at an offset until `sandbox` or `analysis` turns it into
an `ExpressionError` with the line and column in the author's file.

`inputs` checks given values against declared inputs and parameters.
"""

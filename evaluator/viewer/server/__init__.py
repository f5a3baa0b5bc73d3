"""The local viewer: a server on 127.0.0.1 that shows the runs, batches and templates of a
folder.
"""

from evaluator.viewer.server.app import make_app, serve

__all__ = ["make_app", "serve"]

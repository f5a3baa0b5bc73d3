"""Random ids and keys. No other module makes one.

Call the functions through the module (`randomness.token_hex(8)`), so that simulations can replace
them. A generator with a seed (`random.Random(seed)`) is no randomness and needs none of this.
"""

from __future__ import annotations

import secrets

__all__ = ["choice", "token_bytes", "token_hex", "token_urlsafe"]

choice = secrets.choice
token_bytes = secrets.token_bytes
token_hex = secrets.token_hex
token_urlsafe = secrets.token_urlsafe

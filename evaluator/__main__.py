"""`python -m evaluator` is the command `evaluator`."""

from evaluator.cli import main

main()

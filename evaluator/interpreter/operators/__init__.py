"""One module an operator; each has `run(run, task, prepared)`."""

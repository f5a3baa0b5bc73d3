"""Jobs that outlive a process: the entries of a queue, and the tasks that run in the background.

Both are states in a database that processes share. A job has an owner, which renews a lease; where
the owner is gone, the next process that looks ends the job or returns it to the queue. The public
names are in `evaluator.queue` and `evaluator.background`.

`store` is what the two databases share: opening, transactions, leases.

The queue: `entries`, `document` and `intake` say what an entry is, in a file and in words.
`queue_tables` and `queue_store` keep entries in a database; `queue_files` reads and writes the
files beside it. `worker`, `attempt_runs` and `deliverables` are an attempt and its result.
`queue_view` and `task_queue` are what users call.

Background tasks: `tasks` and `output` say what a task is, tells and prints.
`background_store` is the database. `in_process` and `scripts` do the work of each type.
`background_tasks` and `background_tools` are what users and models call.
"""

"""The persistent queue: entries, their file `task-queue.json`, the store, and the dispatcher."""

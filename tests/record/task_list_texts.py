"""A task list that tests read and change."""

from __future__ import annotations

PLAN = """\
# Move the archive

For everybody.

## [PLANNER] Preparation

- [x] Count the files
- [ ] Choose a day

### Risks

- [ ] Ask about backups

## [WORKER] Move

Copy, compare, switch.

1. [ ] Copy
2. [ ] Compare

## Notes

* [ ] Tell the others
"""

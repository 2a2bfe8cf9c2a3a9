"""Keeps Snakemake's scheduler from waking itself up ever more often.

After every look at the jobs, Snakemake 9 sets a timer for the next look, a second later. Every job
that ends causes a look besides. So the timers never get fewer: after some hundred jobs, the
scheduler looks at them hundreds of times in a second and takes a core for itself.
"""

import threading
from typing import Any


def keep_one_timer(scheduler: Any) -> None:
    """Makes Snakemake's job scheduler wait for one timer at a time.

    Args:
        scheduler: the class `JobScheduler`. If it sets no such timers, nothing is changed.
    """
    if not hasattr(scheduler, "_schedule_reevalutation"):
        return

    def wake(self: Any) -> None:
        self._timer = None
        self._open_jobs.release()

    def look_again(self: Any, delay: float) -> None:
        if getattr(self, "_timer", None) is None:
            self._timer = threading.Timer(delay, wake, [self])
            self._timer.daemon = True
            self._timer.start()

    scheduler._schedule_reevalutation = look_again

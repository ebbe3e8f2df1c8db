"""A worker that knows one method more, which fails, and that can be made slow enough to be killed in the middle."""

import os
import sys
import time

from privet.compare import ENTRANTS, Entrant, worker
from privet.errors import PrivetError
from privet.training.step import Step


def broken(*_: object) -> None:
    raise PrivetError("This method is broken on purpose.")


BROKEN = Entrant("broken", "A broken method", broken)

if __name__ == "__main__":
    ENTRANTS["broken"] = BROKEN
    worker.DRAWS = 400
    if os.environ.get("PRIVET_TEST_SLOW"):
        release = Step.release

        def slowly(*arguments, **named):
            time.sleep(0.1)
            return release(*arguments, **named)

        Step.release = slowly
    sys.exit(worker.main(sys.argv[1:]))

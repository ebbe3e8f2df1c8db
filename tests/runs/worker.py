"""A worker whose audits are quick, and that can be made slow enough to be killed in the middle."""

import os
import sys
import time

from privet.methods import Power
from privet.runs import worker
from privet.training.step import Step

if __name__ == "__main__":
    worker.POWER = Power(draws=400, canaries=100)
    if os.environ.get("PRIVET_TEST_SLOW"):
        release = Step.release

        def slowly(*arguments, **named):
            time.sleep(0.1)
            return release(*arguments, **named)

        Step.release = slowly
    sys.exit(worker.main(sys.argv[1:]))

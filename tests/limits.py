"""A time limit for a block of a test."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TooLong(BaseException):  # not an Exception: nothing that is tested may swallow it
    pass


@contextmanager
def seconds(limit: float, what: str = "this", *, of_cpu: float = 0.0) -> Iterator[None]:
    """Fail if the block takes longer; 0 is no limit. Without alarms, and outside of the main thread, there is none either.

    Args:
        limit: seconds on the clock, which pass faster than the work gets done where other programs are running.
        what: named in the message.
        of_cpu: seconds of CPU time of this process.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(signum: int, frame: FrameType | None) -> None:
        raise TooLong(f"{what} took longer than {of_cpu if signum == signal.SIGPROF else limit:g} seconds")

    clocks = ((signal.SIGALRM, signal.ITIMER_REAL, limit), (signal.SIGPROF, signal.ITIMER_PROF, of_cpu))
    before = [(name, timer, signal.signal(name, stop)) for name, timer, most in clocks if most]
    for _, timer, most in clocks:
        signal.setitimer(timer, most)
    try:
        yield
    finally:
        for name, timer, handler in before:
            signal.setitimer(timer, 0)
            signal.signal(name, handler)

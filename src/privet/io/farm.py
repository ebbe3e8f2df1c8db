"""Many runs at once, through joblib: in processes of this machine, on a Dask cluster, or on a Ray cluster."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from privet.errors import InputError, PrivetError

T = TypeVar("T")

PACKAGES = {"dask": "distributed", "ray": "ray"}
BACKENDS = ("local", *PACKAGES)
START = "local"
"""The address that starts a small Dask cluster or Ray instance on this machine."""
TOGETHER, ALONE = 2, 2
"""How often work is submitted again together without a single result, and then each piece alone, before it counts as lost."""
_SECONDS = 0.1
_ORPHANED = 3
_THREADS = "OMP_NUM_THREADS"
_ONE_AT_A_TIME = threading.Lock()


class WorkerLostError(PrivetError):
    """The worker of a piece of work ended without a result each time that it was submitted."""


def cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


@dataclass(frozen=True)
class Farm:
    """Where many independent runs are computed, and how many at once.

        with Farm(jobs=4).in_use():                                        # shadow models and audits inside use it
            privet.attacks.membership(model, members, others, attack="lira", train=train)

    Each piece of work runs alone in its process, with one thread, in the folder in which this process is. A piece whose worker
    is lost is submitted again. On the same kind of processor and with the same versions of the libraries, a seeded result depends
    neither on the number of jobs nor on the backend. Workers on other machines need the same folders and packages.

    Attributes:
        jobs: how many at once; None for as many as there are cores, here or in the cluster.
        backend: "local", "dask" or "ray".
        address: of the scheduler of Dask or the head of Ray; "local" starts one on this machine.
    """

    jobs: int | None = None
    backend: str = "local"
    address: str = ""

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise InputError(f"The backend of a farm is local, dask or ray, and not {self.backend!r}.")
        if self.backend == "local" and self.address:
            raise InputError(
                "An address is that of a cluster: choose the backend dask or ray with it, or leave it out."
            )
        if self.backend != "local" and not self.address:
            raise InputError(
                f"The backend {self.backend} needs the address of its cluster, or the address local, which starts one on this "
                f"machine (--address, or address=...)."
            )
        if self.jobs is not None and self.jobs < 1:
            raise InputError(f"A farm computes at least one run at a time, and not {self.jobs} (--jobs, or jobs=...).")
        package = PACKAGES.get(self.backend)
        if package is not None and find_spec(package) is None:  # now, and not when a folder was made for the runs
            raise InputError(
                f"The backend {self.backend} needs the package {package}: pip install 'privet[{self.backend}]'."
            )

    @contextmanager
    def in_use(self) -> Iterator[Farm]:
        """Inside, `farm_in_use` gives this farm."""
        with _new_workers() if self.backend == "local" else nullcontext():
            token = _IN_USE.set(self)
            try:
                yield self
            finally:
                _IN_USE.reset(token)

    def map(self, function: Callable[..., T], items: Sequence[tuple[Any, ...]]) -> list[T]:
        """The result of `function(*item)` for each item, in their order; an error of any of them is raised."""
        found: dict[int, T] = {}
        for number, result in self.each(function, items):
            if isinstance(result, Exception):
                raise result
            found[number] = result
        return [found[number] for number in range(len(items))]

    def each(
        self,
        function: Callable[..., T],
        items: Sequence[tuple[Any, ...]],
        watch: Callable[[], None] | None = None,
    ) -> Iterator[tuple[int, T | Exception]]:
        """The number of each item with its result, as soon as it is there; an error takes the place of a result.

        Args:
            function: called as ``function(*item)`` in a worker. It is called again where its worker was lost: what it does must
                go on from what the first call left on the disk.
            items: the arguments of each call.
            watch: called a few times a second, from another thread, until all have ended.
        """
        if not items:
            return
        work = _Work(function, str(Path.cwd()))
        left, lost = dict.fromkeys(range(len(items)), 0), 0
        with ExitStack() as stack:
            most, settings = stack.enter_context(self._connected(len(items)))
            if watch is not None:
                stack.enter_context(_regularly(watch))
            while left:
                alone = lost >= TOGETHER
                chosen, before = (list(left)[:1] if alone else list(left)), len(left)
                try:
                    for number, result in _round(work, items, chosen, most, settings):
                        del left[number]
                        yield number, result
                    lost = 0
                except GeneratorExit:
                    raise
                except Exception as error:  # of the workers: an error of `function` is a result
                    lost = 0 if len(left) < before else lost + 1
                    if not alone:
                        continue
                    left[chosen[0]] += 1
                    if left[chosen[0]] >= ALONE:
                        del left[chosen[0]]
                        yield chosen[0], _lost(error)

    @contextmanager
    def _connected(self, items: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """How many run at once, and how joblib is configured for this farm, once the cluster answers."""
        if self.backend == "local":
            with _new_workers() if farm_in_use() is not self else nullcontext():
                watched = {"initializer": _die_with, "initargs": (os.getpid(),)}
                yield min(self.jobs or cores(), items), {"backend": "loky", "inner_max_num_threads": 1, **watched}
        elif self.backend == "dask":
            yield from self._dask(items)
        else:
            yield from self._ray(items)

    def _dask(self, items: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
        from distributed import Client, LocalCluster

        with ExitStack() as stack:
            place: Any = self.address
            if place == START:
                most = min(self.jobs or cores(), items)
                place = stack.enter_context(
                    LocalCluster(n_workers=most, threads_per_worker=1, processes=True, dashboard_address=None)
                )
            try:
                client = stack.enter_context(Client(place, set_as_default=False, timeout="30s"))
            except (OSError, ValueError) as error:
                raise PrivetError(f"No Dask scheduler answers at {self.address}: {error}") from None
            threads = sum(client.nthreads().values())
            yield self.jobs or max(1, threads), {"backend": "dask", "client": client}

    def _ray(self, items: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
        import ray
        from joblib import register_parallel_backend
        from ray.util.joblib.ray_backend import RayBackend

        mine = not ray.is_initialized()
        if mine:
            own = {"num_cpus": min(self.jobs or cores(), items), "include_dashboard": False}
            try:
                ray.init(address=self.address, log_to_driver=False, **(own if self.address == START else {}))
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise PrivetError(f"No Ray cluster answers at {self.address}: {error}") from None
        try:
            register_parallel_backend("privet-ray", _with_generator(RayBackend))
            most = self.jobs or max(1, int(ray.cluster_resources().get("CPU", 1)))
            # A pool has two actors at least, and both must find room.
            room = {"ray_remote_args": {"num_cpus": 0.5}} if most == 1 else {}
            yield most, {"backend": "privet-ray", **room}
        finally:
            if mine:
                ray.shutdown()


_IN_USE: ContextVar[Farm | None] = ContextVar("farm", default=None)


def farm_in_use() -> Farm | None:
    """The farm that was chosen for shadow models and audits; None: they are computed here, one after the other."""
    return _IN_USE.get()


def _round(
    work: _Work, items: Sequence[tuple[Any, ...]], chosen: Sequence[int], most: int, settings: Mapping[str, Any]
) -> Iterator[tuple[int, Any]]:
    """Submit the chosen items once; raises if a worker is lost."""
    from joblib import Parallel, delayed, parallel_config

    # With n_jobs=1 joblib would do the work in this process; how many run at once is how many are dispatched.
    with parallel_config(**settings, n_jobs=max(2, most), temp_folder=tempfile.gettempdir()):
        parallel = Parallel(batch_size=1, pre_dispatch=most, return_as="generator_unordered")
        results = parallel(delayed(work)(number, items[number]) for number in chosen)
        try:
            yield from results
        finally:
            results.close()


def _with_generator(backend: type) -> type:
    """Ray's backend for joblib, giving each result when it is there: a lost actor must not take the others' results along."""
    return type("Backend", (backend,), {"supports_return_generator": True})


@dataclass(frozen=True)
class _Work:
    """Calls a function in a worker, in the folder of the process that sent it."""

    function: Callable[..., Any]
    folder: str

    def __call__(self, number: int, item: tuple[Any, ...]) -> tuple[int, Any]:
        with _ONE_AT_A_TIME:  # torch's generator and its threads belong to the process, which a thread of Dask shares
            try:
                self._enter()
                with _one_thread():
                    return number, self.function(*item)
            except Exception as error:
                return number, _sendable(error)

    def _enter(self) -> None:
        if Path.cwd() == Path(self.folder):
            return
        try:
            os.chdir(self.folder)
        except OSError as error:
            raise PrivetError(
                f"A worker on {os.uname().nodename} cannot enter {self.folder} ({error.strerror}): workers need the folders of "
                f"the machine that sends them work, for example on a shared disk."
            ) from None


@contextmanager
def _new_workers() -> Iterator[None]:
    """Worker processes of this farm alone: joblib keeps those of earlier work, with the environment of that time."""
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor(reuse=True).shutdown(wait=True)
    try:
        yield
    finally:
        get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread for torch and the libraries of linear algebra: the order of a sum depends on their number."""
    from threadpoolctl import threadpool_limits

    torch, before = sys.modules.get("torch"), os.environ.get(_THREADS)
    threads = torch.get_num_threads() if torch is not None else None
    os.environ[_THREADS] = "1"  # for a torch that is imported inside
    try:
        if torch is not None:
            torch.set_num_threads(1)
        with threadpool_limits(1):
            yield
    finally:
        if torch is not None:
            torch.set_num_threads(threads)
        if before is None:
            del os.environ[_THREADS]
        else:
            os.environ[_THREADS] = before


def _sendable(error: Exception) -> Exception:
    """The error, or its words where it cannot be sent to another process."""
    with suppress(Exception):
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    return PrivetError(" ".join(f"{type(error).__name__}: {error}".split()))


def _die_with(sender: int) -> None:
    """End this worker when the process that started it is gone: nobody waits for the result."""

    def look() -> None:
        while os.getppid() == sender:
            time.sleep(_SECONDS)
        os._exit(_ORPHANED)

    threading.Thread(target=look, daemon=True).start()


@contextmanager
def _regularly(watch: Callable[[], None]) -> Iterator[None]:
    over = threading.Event()

    def look() -> None:
        while not over.wait(_SECONDS):
            watch()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        watch()


def _lost(error: Exception) -> WorkerLostError:
    named = [each.name for each in signal.Signals if f"{each.name}(" in str(error)]
    how = f"was ended by the signal {named[0]}" if named else "was lost"
    first = str(error).strip().splitlines()[0] if str(error).strip() else ""
    said = "" if named else f" ({type(error).__name__}: {first[:200]})"
    return WorkerLostError(f"its worker {how} each time, {TOGETHER + ALONE} times{said}")

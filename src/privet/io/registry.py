"""Registries that other packages can extend, and imports of a user's own code."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

from privet.errors import InputError, PrivetError, PrivetWarning
from privet.io.given import kind_of, user_path

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
V = TypeVar("V")

PREFIX = "py:"
"""Marks the name of a user's own object: ``py:package.module:Name``."""


class Registry(Generic[T]):
    """Values by name: Privet's own, and those that plug-ins add.

        METHODS: Registry[Method] = Registry("method", "privet.methods")

        @METHODS.register("mine")             # or METHODS.register("mine", value)
        class Mine: ...                       # without a name, the value's attribute `key` is its name

    Another package adds a value by an entry point of `group`, whose name is the value's name. The entry point may also name a
    module that calls `register` itself. Entry points are loaded once, when an unknown name is looked up or all names are
    listed. One that fails causes a warning that names its package, and nothing else.

    Formal guarantees: nobody replaces a value that another module registered; the second one is refused. A module outside
    of Privet may register its own value again, as a notebook does when a cell runs twice.

    Args:
        kind: the noun in messages, such as "method".
        group: the group of entry points.
        check: converts a registered object to the value that is stored, or raises `InputError`.
    """

    _all: ClassVar[list[Registry[Any]]] = []

    def __init__(self, kind: str, group: str, check: Callable[[Any], T] | None = None) -> None:
        self.kind, self.group = kind, group
        self._one = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
        self._check = check
        self._values: dict[str, T] = {}
        self._given: dict[str, tuple[object, str]] = {}
        """For each name the object as it was registered, and the module that registered it."""
        self._failures: dict[str, str] = {}
        self._loaded = False
        Registry._all.append(self)

    @overload
    def register(self, key: str, value: V) -> V: ...
    @overload
    def register(self, key: str) -> Callable[[V], V]: ...
    @overload
    def register(self, key: V) -> V: ...
    def register(self, key: Any, value: Any = None) -> Any:
        """Add a value under a name: ``register(name, value)``, ``@register(name)``, or ``@register`` with `value.key`.

        Give this method itself to plug-ins, not a function that calls it: the calling module is noted.
        """
        by = str(sys._getframe(1).f_globals.get("__name__", ""))
        if not isinstance(key, str):
            name = getattr(key, "key", None)
            if not isinstance(name, str):
                raise InputError(
                    f"{self._one.capitalize()} needs a name: register it with one, or give it the attribute 'key'."
                )
            return self._add(name, key, by)
        if value is not None:
            return self._add(key, value, by)
        return lambda later: self._add(key, later, by)

    def _add(self, key: str, value: V, by: str) -> V:
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", key):
            raise InputError(
                f"{self._one.capitalize()} cannot be called {key!r}: use letters, digits, dots, dashes and underscores."
            )
        known = self._given.get(key)
        if known is not None and known[0] is not value and (known[1] != by or _built_in(by)):
            whose = "is part of Privet" if _built_in(known[1]) else f"was registered by {known[1]}"
            raise InputError(f"There is {self._one} {key!r} already, which {whose}: choose another name.")
        stored = self._check(value) if self._check is not None else value
        own = getattr(stored, "key", None)
        if isinstance(own, str) and own != key and not isinstance(stored, type):
            # Otherwise records and statements would use another name than the table.
            raise InputError(f"The {self.kind} {own!r} cannot be registered as {key!r}: use one name for both.")
        self._values[key] = stored  # type: ignore[assignment]
        self._given[key] = (value, by)
        return value

    def __getitem__(self, key: str) -> T:
        """The value of that name; otherwise `InputError` with the names that there are."""
        if key in self:
            return self._values[key]
        if failure := self.failure(key):
            raise InputError(failure)
        raise InputError(f"{no_such(self.kind, key, self._values)}.")

    def __contains__(self, key: object) -> bool:
        if key not in self._values:
            self._load(asked=key)
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def names(self) -> tuple[str, ...]:
        """All names, those of plug-ins included."""
        self._load()
        return tuple(self._values)

    def items(self) -> tuple[tuple[str, T], ...]:
        self._load()
        return tuple(self._values.items())

    def failure(self, key: str) -> str:
        """Why the entry point of that name cannot be used; empty if there is none or it works."""
        self._load(asked=key)
        return self._failures.get(key, "")

    @staticmethod
    @contextmanager
    def restored() -> Iterator[None]:
        """Undo the registrations of a block in all registries; for tests."""
        before = [(one, one._values.copy(), one._given.copy()) for one in Registry._all]
        try:
            yield
        finally:
            for one, values, given in before:
                one._values, one._given = values, given

    def _load(self, asked: object = None) -> None:
        """Load the entry points of other packages, the first time; warn of those that fail, except of the one `asked` for."""
        if self._loaded:
            return
        self._loaded = True
        from importlib.metadata import entry_points  # slow to import, and most commands do not need it

        broken: list[str] = []
        for point in sorted(entry_points(group=self.group), key=lambda one: (_package(one), one.name)):
            try:
                with redirect_stdout(sys.stderr):
                    found = point.load()
                already = any(found is given for given, _ in self._given.values())
                if not isinstance(found, ModuleType) and not already:
                    self._add(point.name, found, f"the package {_package(point)}")
            except (Exception, SystemExit) as error:
                said = f"The {self.kind} {point.name!r} of the package {_package(point)} cannot be used: {_why(error)}."
                self._failures[point.name] = said
                broken += [said] if point.name != asked else []
        for said in broken:
            warnings.warn(said, PrivetWarning, stacklevel=4)


def no_such(kind: str, name: str, known: Iterable[str]) -> str:
    """The sentence for a name that does not exist, with the nearest one and all that there are; without its full stop."""
    near = difflib.get_close_matches(str(name).lower(), known := list(known), n=1, cutoff=0.6)
    hint = f" did you mean {near[0]!r}? There" if near else " there"
    return f"There is no {kind} {name!r}:{hint} are {', '.join(known)}"


def load_plugin(path: Path | str) -> ModuleType:
    """Import a user's Python file, once, so that its `register` calls take effect.

    Its module name depends on its path alone, so that objects it defines can be sent to worker processes that load the same
    file. Its folder is added to the end of `sys.path`, so that it can import the files beside it.
    """
    try:
        file = user_path(path).resolve()
    except RuntimeError:  # a link to itself
        raise InputError(f"The plug-in {path} is a link that leads back to itself: name the file.") from None
    name = (
        f"privet_plugin_{re.sub(r'[^A-Za-z0-9_]', '_', file.stem)}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    )
    if name in sys.modules:
        return sys.modules[name]
    if file.suffix != ".py" or not _is_file(file):
        raise InputError(f"The plug-in {path} is not a Python file: give the path of a .py file.")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _add_to_path(file.parent)
    try:
        with redirect_stdout(sys.stderr):  # whatever it prints must not get between lines for a program
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(f"The plug-in {path} cannot be loaded: {_why(error, file)}.") from None
    return module


def plugin_name(module: str) -> str:
    """The name of the file of a plug-in, from the name of its module; empty for other modules."""
    found = re.fullmatch(r"privet_plugin_(\w+)_[0-9a-f]{8}", module)
    return found[1] if found else ""


def _is_file(path: Path) -> bool:
    try:
        return kind_of(path) == "file"
    except InputError:
        return False


def object_at(text: str) -> Any:
    """The object that ``package.module:Name`` names, with or without the prefix ``py:``.

    As with ``python -m``, the current folder is searched first. This runs the module's code: only ever pass a name that the
    user of this process typed, never one from a file.
    """
    module_name, colon, name = text.removeprefix(PREFIX).partition(":")
    parts = [*module_name.split("."), *name.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise InputError(f"{text!r} does not name an object: write {PREFIX}package.module:Name.")
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        importlib.invalidate_caches()
        with redirect_stdout(sys.stderr):
            found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            raise InputError(
                f"There is no module {error.name!r}, neither in the current folder nor installed: check {text!r}."
            ) from None
        raise InputError(f"The module {module_name!r} cannot be imported: {_why(error)}.") from None
    finally:
        sys.path.remove(folder)
        _add_to_path(folder)  # at the end: later imports of the module are found, and hide nothing
    for part in name.split("."):
        if not hasattr(found, part):
            near = difflib.get_close_matches(part, dir(found), n=1)
            hint = f"did you mean {near[0]!r}?" if near else "check the name."
            raise InputError(f"The module {module_name!r} has no {name!r}: {hint}")
        found = getattr(found, part)
    return found


def _add_to_path(folder: Path | str) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _built_in(module: str) -> bool:
    return module == "privet" or module.startswith("privet.")


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.module


def _why(error: BaseException, file: Path | None = None) -> str:
    """An error as the end of a sentence, with the line of `file` (or of the last file) that raised it."""
    if isinstance(error, PrivetError):
        return str(error).rstrip(".")
    text = str(error).strip().partition("\n")[0].rstrip(".")
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, SyntaxError):
        return (
            f"line {error.lineno}: {error.msg}"
            if file is not None
            else f"{error.filename}, line {error.lineno}: {error.msg}"
        )
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if file is not None and frame.filename == str(file)
    ]
    return f"line {lines[-1]}: {said}" if lines else said

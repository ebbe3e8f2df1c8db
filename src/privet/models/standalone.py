"""A model of Privet as one Python file that needs torch and nothing of Privet, so that a release can be used anywhere."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from privet.errors import InputError

HERE = "privet.models."
ERRORS = "privet.errors"
HEADER = '''"""The model of this release. It needs torch only; made by Privet from its own source (Apache License 2.0)."""

from __future__ import annotations

'''


class _Source:
    """The definitions and imports at the top of one module, by name."""

    def __init__(self, module: ModuleType) -> None:
        self.lines = inspect.getsource(module).splitlines()
        self.definitions: dict[str, ast.stmt] = {}
        self.imports: dict[str, tuple[str, str]] = {}
        for node in ast.parse("\n".join(self.lines)).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                self.definitions[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self.definitions |= {each.id: node for target in targets for each in _names(target)}
            elif isinstance(node, ast.Import):
                self.imports |= {alias.asname or alias.name: (alias.name, "") for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                self.imports |= {alias.asname or alias.name: (str(node.module), alias.name) for alias in node.names}

    def text(self, node: ast.stmt) -> str:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(each.lineno for each in decorators)])
        return "\n".join(self.lines[first - 1 : node.end_lineno])


def _names(node: ast.AST) -> list[ast.Name]:
    return [each for each in ast.walk(node) if isinstance(each, ast.Name)]


def standalone(builder: Callable[..., Any]) -> str:
    """The source of a builder of `privet.models`, with everything of Privet that it uses, as one file.

    Raises InputError for a builder that is not a function or class of `privet.models`: the source of other packages is not
    Privet's to copy.
    """
    name, home = getattr(builder, "__name__", ""), str(getattr(builder, "__module__", ""))
    if not home.startswith(HERE) or getattr(import_module(home), name, None) is not builder:
        raise InputError(f"{name or builder!r} is not a model of Privet: only those can be written as one file.")
    whole = _Bundle()
    whole.add(home, name)
    return whole.text()


class _Bundle:
    """Definitions of several modules; `order` has a module after those that it imports."""

    def __init__(self) -> None:
        self.order: dict[str, _Source] = {}
        self.wanted: set[tuple[str, str]] = set()
        self.imported: set[str] = set()

    def load(self, module: str) -> _Source:
        if module not in self.order:
            try:
                source = _Source(import_module(module))
            except (OSError, TypeError):
                raise InputError(
                    f"The source of {module} is not there, so its models cannot be written as one file."
                ) from None
            for origin, _ in source.imports.values():
                if origin.startswith(HERE):
                    self.load(origin)
            self.order[module] = source
        return self.order[module]

    def add(self, module: str, name: str) -> None:
        """Note a definition, and everything that it names."""
        if (module, name) in self.wanted:
            return
        self.wanted.add((module, name))
        source = self.load(module)
        for used in {each.id for each in _names(source.definitions[name])}:
            if used in source.definitions:
                self.add(module, used)
            elif used in source.imports:
                self.add_import(module, used, *source.imports[used])

    def add_import(self, module: str, used: str, origin: str, what: str) -> None:
        if origin == ERRORS:
            self.imported.add(f"{used} = ValueError")
        elif origin.startswith(HERE):
            self.add(origin, what)
        elif origin.partition(".")[0] == "privet":
            raise InputError(f"{module} uses {origin}, so its models cannot be written as one file.")
        else:
            renamed = "" if used == (what or origin) else f" as {used}"
            self.imported.add(f"from {origin} import {what}{renamed}" if what else f"import {origin}{renamed}")

    def text(self) -> str:
        found = []
        for module, source in self.order.items():
            nodes = {id(node): node for name, node in source.definitions.items() if (module, name) in self.wanted}
            found += [source.text(node) for node in sorted(nodes.values(), key=lambda node: node.lineno)]
        imports = sorted(self.imported, key=lambda line: (" = " in line, line))
        return HEADER + "\n".join(imports) + "\n\n\n" + "\n\n\n".join(found) + "\n"

"""Registries take values from Privet, from other packages and from a user's file, and say in one sentence what is wrong."""

import pickle
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest

from privet.errors import InputError, PrivetWarning
from privet.io import Registry, load_plugin, object_at


@pytest.fixture
def tools() -> Registry[object]:
    registry: Registry[object] = Registry("tool", "privet.test_tools")
    built_in = {"__name__": "privet.tools", "registry": registry}
    exec("registry.register('hammer', 'a hammer'); registry.register('saw', 'a saw')", built_in)
    return registry


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Installs a package with entry points, as pip would: a module and a dist-info folder on the path."""
    made: list[str] = []

    def install(name: str, code: str, **points: str) -> None:
        site = tmp_path / f"site_{name}"
        info = site / f"{name}-1.2.dist-info"
        info.mkdir(parents=True)
        (site / f"{name}.py").write_text(textwrap.dedent(code), encoding="utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n", encoding="utf-8")
        lines = [f"{key} = {value}" for key, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[privet.test_tools]", *lines, ""]), encoding="utf-8")
        monkeypatch.syspath_prepend(str(site))
        made.append(name)

    yield install
    for name in made:
        sys.modules.pop(name, None)


def test_a_value_is_registered_by_call_by_decorator_and_by_its_own_key(tools):
    assert tools.register("drill", 3) == 3

    @tools.register("plane")
    def plane() -> None: ...

    @tools.register
    class Chisel:
        key = "chisel"

    assert tools["drill"] == 3
    assert tools["plane"] is plane
    assert tools["chisel"] is Chisel
    assert tools.names() == ("hammer", "saw", "drill", "plane", "chisel") == tuple(tools)
    assert dict(tools.items())["hammer"] == "a hammer"
    assert len(tools) == 5


def test_a_value_with_a_key_has_no_second_name(tools):
    class Chisel:
        key = "chisel"

    with pytest.raises(InputError, match="'chisel' cannot be registered as 'gouge': use one name for both"):
        tools.register("gouge", Chisel())
    assert "gouge" not in tools


def test_an_unknown_name_is_answered_with_the_known_ones(tools):
    with pytest.raises(InputError, match=r"^There is no tool 'x': there are hammer, saw\.$"):
        tools["x"]
    with pytest.raises(
        InputError, match=r"^There is no tool 'hamer': did you mean 'hammer'\? There are hammer, saw\.$"
    ):
        tools["hamer"]
    assert "x" not in tools
    assert "saw" in tools


@pytest.mark.parametrize("name", ["", "a b", "a:b", "../a", "-a"])
def test_a_name_is_one_plain_word(tools, name):
    with pytest.raises(InputError, match="cannot be called"):
        tools.register(name, 1)


def test_a_value_without_a_name_is_refused(tools):
    with pytest.raises(InputError, match="A tool needs a name"):
        tools.register(object())


def test_nobody_replaces_what_another_module_registered(tools):
    with pytest.raises(
        InputError, match=r"^There is a tool 'saw' already, which is part of Privet: choose another name\.$"
    ):
        tools.register("saw", "a worse saw")
    assert tools["saw"] == "a saw"
    exec("registry.register('axe', 'theirs')", {"__name__": "theirs", "registry": tools})
    with pytest.raises(InputError, match="which was registered by theirs"):
        tools.register("axe", "mine")


def test_a_notebook_cell_may_run_twice(tools):
    tools.register("mine", 1)
    tools.register("mine", 2)
    assert tools["mine"] == 2


def test_privet_itself_registers_a_name_once(tools):
    with pytest.raises(InputError, match="already"):
        exec("registry.register('saw', 'another')", {"__name__": "privet.tools", "registry": tools})


def test_registrations_of_a_block_are_undone(tools):
    with Registry.restored():
        tools.register("axe", 1)
        assert "axe" in tools
    assert tools.names() == ("hammer", "saw")
    tools.register("axe", 2)


def test_values_are_checked_and_converted():
    def number(value: object) -> int:
        if not isinstance(value, str):
            raise InputError("A number is given as text.")
        return int(value)

    numbers: Registry[int] = Registry("number", "privet.test_numbers", number)
    assert numbers.register("three", "3") == "3"
    assert numbers["three"] == 3
    with pytest.raises(InputError, match="given as text"):
        numbers.register("four", 4)
    assert "four" not in numbers


def test_an_entry_point_adds_a_value_and_is_loaded_once(tools, package):
    package("extra", "print('loading')\nvalue = ['a drill']\n", drill="extra:value")
    assert tools["hammer"] == "a hammer"
    assert "extra" not in sys.modules, "a known name must not wait for other packages"
    assert tools["drill"] == ["a drill"]
    assert tools["drill"] is tools["drill"]
    assert tools.names() == ("hammer", "saw", "drill")


def test_an_entry_point_may_name_a_module_that_registers(tools, package, monkeypatch):
    import privet.io

    monkeypatch.setattr(privet.io, "TOOLS", tools, raising=False)
    code = """
        from privet.io import TOOLS

        @TOOLS.register
        class Drill:
            key = "drill"

        TOOLS.register("axe", 1)
        """
    package("extra", code, anything="extra", drill="extra:Drill")
    assert tools.names() == ("hammer", "saw", "drill", "axe")


@pytest.mark.parametrize(
    ("code", "point", "reason"),
    [
        ("import nowhere_to_be_found", "extra:value", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("1 / 0", "extra:value", "ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(3)", "extra:value", "SystemExit: 3"),
        ("value = (", "extra:value", r"extra\.py, line 1: '\(' was never closed"),
        ("", "extra:value", "AttributeError: module 'extra' has no attribute 'value'"),
    ],
)
def test_a_broken_entry_point_is_a_warning_that_names_its_package(tools, package, code, point, reason):
    package("extra", code, drill=point)
    said = f"^The tool 'drill' of the package extra 1.2 cannot be used: .*{reason}\\.$"
    with pytest.warns(PrivetWarning, match=said):
        assert tools.names() == ("hammer", "saw")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tools.names() == ("hammer", "saw"), "it is loaded and warned of once"
    with pytest.raises(InputError, match=said):
        tools["drill"]


def test_asking_for_a_broken_entry_point_is_one_error_and_no_warning(tools, package):
    package("extra", "1 / 0", drill="extra:value")
    with pytest.raises(InputError, match=r"of the package extra 1\.2 cannot be used"):
        tools["drill"]


def test_an_entry_point_cannot_replace_a_built_in_value(tools, package):
    package("extra", "value = 'a worse saw'", saw="extra:value")
    with pytest.warns(
        PrivetWarning, match="'saw' of the package extra 1.2 cannot be used: There is a tool 'saw' already"
    ):
        assert tools.names() == ("hammer", "saw")
    assert tools["saw"] == "a saw"


def test_two_packages_with_one_name_are_told_apart(tools, package):
    package("first", "value = 1", drill="first:value")
    package("second", "value = 2", drill="second:value")
    with pytest.warns(
        PrivetWarning, match="of the package second 1.2 cannot be used: .* registered by the package first 1.2"
    ):
        tools.names()
    assert tools["drill"] == 1


def test_a_plug_in_file_is_run_once_under_one_name(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    (tmp_path / "helper.py").write_text("answer = 42\n")
    file = tmp_path / "my plug-in.py"
    file.write_text("import helper\nprint('run', helper.answer)\nclass Mine: ...\n")
    module = load_plugin(file)
    assert load_plugin(str(file)) is module
    assert capsys.readouterr().err == "run 42\n"
    assert module.__name__.startswith("privet_plugin_my_plug_in_")
    assert sys.modules[module.__name__] is module
    code = "import pickle, sys; from privet.io import load_plugin; load_plugin(sys.argv[1]); pickle.load(sys.stdin.buffer)()"
    done = subprocess.run(
        [sys.executable, "-c", code, str(file)], input=pickle.dumps(module.Mine), capture_output=True, check=True
    )
    assert done.returncode == 0, "another process finds the class under the same name"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 1\nx = (\n", r"line 2: '\(' was never closed"),
        ("x = 1\n\nraise ValueError('too\\nlong.')\n", "line 3: ValueError: too"),
        ("import nowhere_to_be_found\n", "line 1: ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("raise SystemExit\n", "line 1: SystemExit"),
        ("from privet.errors import InputError\nraise InputError('Choose another name.')\n", "Choose another name"),
    ],
)
def test_the_error_of_a_plug_in_file_is_one_sentence(tmp_path, text, reason):
    file = tmp_path / "broken.py"
    file.write_text(text)
    with pytest.raises(InputError, match=f"broken.py cannot be loaded: {reason}\\.$") as caught:
        load_plugin(file)
    assert "\n" not in str(caught.value)
    assert not [name for name in sys.modules if name.startswith("privet_plugin_broken_")]


@pytest.mark.parametrize("name", ["missing.py", "folder", "text.txt"])
def test_only_a_python_file_is_a_plug_in(tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.txt").touch()
    with pytest.raises(InputError, match="is not a Python file"):
        load_plugin(tmp_path / name)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder, with a package and a module whose name the standard library also has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    package = tmp_path / "ownpackage"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "parts.py").write_text("class Net:\n    depth = 3\n", encoding="utf-8")
    (package / "broken.py").write_text("1 / 0\n", encoding="utf-8")
    (package / "later.py").write_text(
        "def load():\n    from ownpackage import parts\n    return parts.Net\n", encoding="utf-8"
    )
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "ownpackage"]:
        del sys.modules[name]


def test_an_object_of_the_current_folder_is_found(here):
    net = object_at("py:ownpackage.parts:Net")
    assert net is object_at("ownpackage.parts:Net")
    assert object_at("py:ownpackage.parts:Net.depth") == 3
    assert object_at("math:pi") > 3
    assert sys.path[0] != str(here), "files of the current folder must not hide installed modules afterwards"


def test_a_function_may_import_its_neighbors_later(here):
    load = object_at("py:ownpackage.later:load")
    sys.modules.pop("ownpackage.parts", None)
    assert load().depth == 3


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("py:ownpackage.parts", "^'py:ownpackage.parts' does not name an object: write py:package.module:Name\\.$"),
        ("py::Net", "does not name an object"),
        ("py:own package:Net", "does not name an object"),
        ("py:../own:Net", "does not name an object"),
        (
            "py:nowhere:Net",
            "^There is no module 'nowhere', neither in the current folder nor installed: check 'py:nowhere:Net'",
        ),
        ("py:ownpackage.part:Net", "^There is no module 'ownpackage.part'"),
        (
            "py:ownpackage.broken:Net",
            "^The module 'ownpackage.broken' cannot be imported: ZeroDivisionError: division by zero\\.$",
        ),
        ("py:ownpackage.parts:Ned", "^The module 'ownpackage.parts' has no 'Ned': did you mean 'Net'\\?$"),
        ("py:ownpackage.parts:zzz", "^The module 'ownpackage.parts' has no 'zzz': check the name\\.$"),
    ],
)
def test_what_is_wrong_with_the_name_of_an_object(here, text, reason):
    with pytest.raises(InputError, match=reason):
        object_at(text)


def test_the_facade_waits_for_no_torch():
    code = "import sys, privet.io; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path.cwd(), check=False).returncode == 0


def test_what_a_plugin_prints_does_not_get_between_lines_for_a_program(tmp_path, monkeypatch, capsys):
    (tmp_path / "talking.py").write_text("print('0.5')\nvalue = 1\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    load_plugin("talking.py")
    assert object_at("py:talking:value") == 1
    sys.modules.pop("talking")
    assert capsys.readouterr() == ("", "0.5\n0.5\n")

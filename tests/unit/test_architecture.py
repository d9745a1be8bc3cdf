"""The rules of the packages in `docs/design.md` that `lint-imports` does not check.

They are checked in the source, without importing it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tfdist.cluster import task_types
from tfdist.config.strategies.table import rows

pytestmark = pytest.mark.stacks("newest")

PACKAGE = ROOT / "tfdist"

#: Where private names of others are used, and their classes and modules are changed.
PRIVATE_ROOMS = (
    "upstream",
    "strategies/parameter_server",
    "strategies/in_graph",
    "strategies/replicas",
)

#: Modules that read or write the environment, each with its reason.
ENVIRONMENT = {
    "__init__.py": "sets what TensorFlow reads when it is imported",
    "entry.py": "a task starts",
    "estimator/estimator_job.py": "a task starts, and tf.estimator reads TF_CONFIG",
    "process/": "reads what the task was started with",
    "strategies/horovod.py": "hvd.init reads nothing else",
    "coordination/liveness/heartbeat.py": "passes it on to the process that watches",
    "data/sources.py": "keeps TensorFlow Datasets from asking the network",
    "tools/commands/": "a command starts",
    "tools/launch/forkserver.py": "a fork server starts, and a task starts in a copy of it",
    "tools/launch/run_script.py": "a task starts",
    "tools/launch/remote/server.py": "a launcher starts on a host",
    "tools/launch/process.py": "passes it on to the tasks",
}

#: The most lines that are neither blank, comment, docstring nor import. Who raises the number says
#: in the changelog what the lines bring.
LINES_OF_CODE = 20_905

NAMES = tuple(rows())


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def lines_of_code(path: Path) -> int:
    tree, text = tree_of(path), path.read_text().splitlines()
    others = {number for number, line in enumerate(text, 1) if line.strip().startswith("#")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            others.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return sum(1 for number, line in enumerate(text, 1) if line.strip() and number not in others)


def test_the_package_has_no_more_code_than_before() -> None:
    assert sum(map(lines_of_code, files())) <= LINES_OF_CODE


def test_the_tools_and_the_rooms_that_they_share_import_no_tensorflow() -> None:
    """At import; a function may."""
    bare = (
        "errors",
        "cluster",
        "coordination",
        "config",
        "tools",
    )
    for path in files():
        # The script of a task of `tfdist test` is no tool.
        if room_of(module_of(path)) not in bare or path.match("selftest/script.py"):
            continue
        for node in tree_of(path).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert "tensorflow" not in ast.unparse(node), f"{path}: {ast.unparse(node)}"


def strings_compared(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Compare):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield node.lineno, part.value


@pytest.mark.parametrize("path", files(), ids=module_of)
def test_no_condition_is_on_a_strategys_name(path: Path) -> None:
    relative = path.relative_to(PACKAGE).as_posix()
    if relative.startswith("config/strategies/"):
        return
    own = path.stem if relative.startswith("strategies/") else ""
    found = [(line, value) for line, value in strings_compared(path) if value in NAMES]
    # The name of a package is no strategy's, and `horovod` is both.
    found = [(line, value) for line, value in found if not is_package(path, line)]
    assert all(value == own for _, value in found), found


#: Modules that compare with the names of types of tasks or list them, each with its reason.
TASK_TYPES = {"cluster/task_types.py": "the table"}


def task_types_listed(path: Path) -> Iterator[str]:
    """The names of types that a module compares with, lists, or has as keys."""
    names = {*task_types.rows(), *task_types.older_names()}
    constants = {name for name, value in vars(task_types).items() if value in [*names]}
    for node in ast.walk(tree_of(path)):
        parts: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            parts = list(node.elts)
        elif isinstance(node, ast.Dict):
            parts = list(node.keys)
        for part in parts:
            is_literal = isinstance(part, ast.Constant) and part.value in [*names]
            is_constant = isinstance(part, ast.Name) and part.id in constants
            if is_literal or (is_constant and isinstance(node, ast.Compare)):
                yield ast.unparse(node)


@pytest.mark.parametrize("path", files(), ids=module_of)
def test_the_types_of_tasks_are_rows_of_a_table(path: Path) -> None:
    """A module asks a row what it has to know, and compares with no name."""
    if path.relative_to(PACKAGE).as_posix() not in TASK_TYPES:
        assert [*task_types_listed(path)] == []


def is_package(path: Path, line: int) -> bool:
    return "packages" in path.read_text().splitlines()[line - 1]


@cache
def own_names() -> frozenset[str]:
    """The functions, classes and variables that the package itself defines."""
    found: set[str] = set()
    for path in files():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                found.add(node.name)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return frozenset(found)


@cache
def assigned_names() -> frozenset[str]:
    """The attributes that the package gives its own objects."""
    return frozenset().union(*(assigned(tree_of(path)) for path in files()))


@cache
def read_names() -> frozenset[str]:
    """The attributes that the package reads anywhere."""
    return frozenset(
        node.attr
        for path in files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    )


PRIVATE_PACKAGES = ("tensorflow.python", "tensorflow.core", "keras.src")
BY_NAME = ("getattr", "hasattr", "setattr", "delattr")


def is_private(name: str) -> bool:
    is_dunder = name.startswith("__") and name.endswith("__")
    return name.startswith("_") and not is_dunder and not name.startswith("_tfdist")


def private_names(path: Path) -> Iterator[str]:
    """What a module uses of others' private names: imports, attributes, and names as strings.

    An attribute of `self` that the package sets and never reads is one that others read.
    """
    tree = tree_of(path)
    set_here = assigned(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            names = [module, *(alias.name for alias in node.names)]
            yield from (n for n in names if n.startswith(PRIVATE_PACKAGES))
        elif isinstance(node, ast.Attribute) and node.attr == "__internal__":
            yield ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in BY_NAME:
            name = node.args[1]
            text = name.value if isinstance(name, ast.Constant) else None
            if isinstance(text, str) and is_private(text):
                yield text
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            target = ast.unparse(node.value)
            if f"{target}.{node.attr}" in DOCUMENTED:
                continue
            own = own_names() | set_here
            if target in ("self", "cls"):
                own = own_names() | (assigned_names() & read_names())
            if node.attr not in own:
                yield node.attr


# Names of Python's documentation that begin with an underscore, and argparse's list of the flags of
# a parser, which has no other name.
DOCUMENTED = ("os._exit", "sys._current_frames", "self._actions")


def assigned(tree: ast.Module) -> set[str]:
    """The attributes that a module gives its own objects."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
    }


def test_private_names_of_others_are_used_in_four_rooms() -> None:
    wrong = []
    for path in files():
        relative = path.relative_to(PACKAGE).as_posix()
        if relative.startswith(PRIVATE_ROOMS):
            continue
        wrong += [f"{relative}: {name}" for name in private_names(path)]
    assert wrong == []


def imported_from_others(tree: ast.Module) -> set[str]:
    """The names that a module has imported from packages outside of the standard library."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                module = getattr(node, "module", None) or alias.name
                package = module.partition(".")[0]
                if package != "tfdist" and package not in sys.stdlib_module_names:
                    found.add(alias.asname or alias.name.partition(".")[0])
    return found


def patched(path: Path) -> Iterator[str]:
    """What a module sets in modules and classes of other packages."""
    tree = tree_of(path)
    others = imported_from_others(tree)
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr":
            targets = [ast.Attribute(node.args[0], "", ast.Store())]
        for target in targets:
            if not isinstance(target, ast.Attribute):
                continue
            owner = ast.unparse(target.value)
            # An object that a function returns is no module or class.
            is_named = owner.replace(".", "").isidentifier()
            if target.attr == "__class__" or (is_named and owner.partition(".")[0] in others):
                yield ast.unparse(target)


def test_classes_and_modules_of_others_are_patched_in_four_rooms() -> None:
    wrong = [
        f"{relative}: {name}"
        for path in files()
        if not (relative := path.relative_to(PACKAGE).as_posix()).startswith(PRIVATE_ROOMS)
        for name in patched(path)
    ]
    assert wrong == []
    assert any(patched(path) for path in files())


#: Modules that set attributes of other objects, each with its reason.
SETS_ATTRIBUTES = {
    "compat/replaced.py": "the one that replaces methods, and gives them back",
    "process/tensorflow_import.py": "of the loader of a module, until it has loaded it",
    "storage/export.py": "of a new tf.Module",
    "strategies/parameter_server/steps/coordinator.py": "of a strategy of its own class",
    "strategies/parameter_server/steps/keras3.py": "the functions that Keras makes",
    "tools/commands/arguments.py": "argcomplete asks for it",
    "upstream/global_seed.py": "the state of TensorFlow's generator, which is no method",
}
SETTERS = ("setattr", "object.__setattr__")
#: Where Keras itself keeps the functions that it makes of a model.
FUNCTION_SLOTS = ("train_function", "test_function", "predict_function")


def replaced_methods(path: Path) -> Iterator[str]:
    """Where a module gives a function to an attribute of an object that is not its own.

    The functions `apply` and `apply_…` of the four rooms change classes. A value whose name is a
    constant is a mark of tfdist's own.
    """
    tree = tree_of(path)
    relative = path.relative_to(PACKAGE).as_posix()
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    imported = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    allowed = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.lstrip("_").startswith("apply")
        if relative.startswith(PRIVATE_ROOMS)
        for inner in ast.walk(node)
    }
    for node in (each for each in ast.walk(tree) if each not in allowed):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Call) and ast.unparse(node.func) in SETTERS:
            targets = [ast.Subscript(ast.Name(f"vars({ast.unparse(node.args[0])})"), node.args[1])]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("update", "setdefault", "pop", "clear"):
                targets = [ast.Subscript(node.func.value, ast.Constant(node.func.attr))]
        elif isinstance(node, ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.Assign):
            name = ast.unparse(node.value).partition("(")[0].rpartition(".")[2]
            is_function = isinstance(node.value, ast.Lambda) or name in (*functions, "partial")
            targets = [x for x in node.targets if is_function or isinstance(x, ast.Subscript)]
        for target in targets:
            if isinstance(target, ast.Attribute):
                owner = ast.unparse(target.value)
                # Both tfdist's own objects and Keras's optimizers have this one.
                known = {*FUNCTION_SLOTS, *assigned_names()} - {"apply"}
                is_own = target.attr in known
            elif isinstance(target, ast.Subscript):
                owner = ast.unparse(target.value)
                if not owner.startswith("vars(") and not owner.endswith(".__dict__"):
                    continue
                owner = owner.removeprefix("vars(").removesuffix(")")
                is_own = isinstance(target.slice, ast.Name) and target.slice.id.isupper()
            else:
                continue
            if not is_own and owner.partition(".")[0] not in ("self", "cls", *imported):
                yield ast.unparse(target)


def test_one_module_replaces_methods_of_objects_of_others() -> None:
    found = {path.relative_to(PACKAGE).as_posix(): [*replaced_methods(path)] for path in files()}
    # In compat/replaced.py, `attributes` are the `vars` of an object.
    assert {path for path, names in found.items() if names} == {*SETS_ATTRIBUTES} - {
        "compat/replaced.py"
    }


def test_the_unit_tests_start_no_process() -> None:
    starts = ("subprocess.run", "subprocess.Popen", "launch(", "run_by_hand(", "ForkServer(")
    own = Path(__file__)
    found = [
        path.name
        for path in (ROOT / "tests" / "unit").rglob("test_*.py")
        if path != own and any(start in path.read_text() for start in starts)
    ]
    assert found == []


def test_the_environment_is_read_where_a_process_starts() -> None:
    wrong = [
        relative
        for path in files()
        if not (relative := path.relative_to(PACKAGE).as_posix()).startswith(tuple(ENVIRONMENT))
        and any(
            isinstance(node, ast.Attribute) and ast.unparse(node) == "os.environ"
            for node in ast.walk(tree_of(path))
        )
    ]
    assert wrong == []

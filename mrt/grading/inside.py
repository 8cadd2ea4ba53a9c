"""What runs within the sandbox of `mrt.grading.sandbox`, to which it is handed over as text: all imports are inside.

`enter` limits the process, then `run` or `serve` executes the program. Tests that are Python code run in a second
sandbox, `judge`. Functions of the program are calls over a pipe there, which `serve` answers with plain values. So a
program cannot reach the comparisons, and it never sees a test.
"""

from collections.abc import Callable
from typing import Any


def enter() -> None:
    """Limit this process, give up root where a user is named, and become the interpreter that runs a script.

    "+" in the file `mark`, which only this process has, says that it got there; the script has no standard error.
    """
    import json
    import os
    import resource
    import sys

    limits, user, command, mark = json.loads(sys.argv[1])
    for name, limit in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        ceiling = resource.getrlimit(kind)[1]
        value = limit if ceiling < 0 else min(limit, ceiling)
        resource.setrlimit(kind, (value, value))
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.set_inheritable(mark, False)
    os.write(mark, b"+")
    try:
        os.execv(command[0], command)
    except OSError as error:
        os.write(mark, str(error).encode())


def encode(value: Any, number: Callable[[Any], int]) -> Any:
    """A value as JSON: plain data by its content, whatever class is below it; another object by its number."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray):
        return ["bytes", value.decode("latin-1")]
    if isinstance(value, dict):
        return ["dict", [[encode(key, number), encode(item, number)] for key, item in value.items()]]
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return [kind.__name__, [encode(item, number) for item in value]]
    if isinstance(value, complex):
        return ["complex", [value.real, value.imag]]
    return ["object", number(value)]


def decode(value: Any, thing: Callable[[int], Any]) -> Any:
    """The value of its JSON; `thing` gives the object of a number. Raises if it is none."""
    if not isinstance(value, list):
        return value
    kind, content = value
    if kind == "object":
        return thing(content)
    if kind == "bytes":
        return content.encode("latin-1")
    if kind == "complex":
        return complex(*content)
    if kind == "dict":
        return {decode(key, thing): decode(item, thing) for key, item in content}
    makers: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
    return makers[kind](decode(item, thing) for item in content)


def run() -> None:
    """Run the program of a file as a script."""
    import os
    import sys

    with os.fdopen(int(sys.argv[1]), encoding="utf-8") as file:
        text = file.read()
    sys.argv = ["program.py"]
    space = sys.modules["__main__"].__dict__
    del space["run"], space["annotations"]
    exec(compile(text, "program.py", "exec", dont_inherit=True), space)


def serve() -> None:
    """Import the program of a file, then answer requests, one a line: call its functions, look at their results."""
    import json
    import operator
    import os
    import sys
    import types

    with os.fdopen(int(sys.argv[1]), encoding="utf-8") as file:
        text = file.read()
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    objects: list[Any] = []

    def number(value: Any) -> int:
        objects.append(value)
        return len(objects) - 1

    def chosen(names: list[str]) -> dict[str, Any]:
        """Globals of the program by name, or methods of its class `Solution`, as LeetCode has them."""
        space = module.__dict__
        solution = space["Solution"]() if isinstance(space.get("Solution"), type) else None
        values = {name: space[name] if name in space else getattr(solution, name, None) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    operations: dict[str, Callable[..., Any]] = {
        "globals": chosen,
        "call": lambda function, values, named: function(*values, **named),
        "getattr": getattr,
        "getitem": operator.getitem,
        **{name: getattr(__import__("builtins"), name) for name in ("len", "bool", "iter", "next", "str", "repr")},
    }
    module = sys.modules["program"] = types.ModuleType("program")
    exec(compile(text, "program.py", "exec", dont_inherit=True), module.__dict__)
    for line in requests:
        operation, *values = json.loads(line)
        try:
            result = operations[operation](*(decode(value, objects.__getitem__) for value in values))
            reply = json.dumps(["value", encode(result, number)])
        except Exception as error:
            reply = json.dumps(["raised", type(error).__name__])
        replies.write(reply + "\n")
        replies.flush()


class Channel:
    """The pipes to the program's process, which `serve` answers. A program that ends, or babbles, ends the tests."""

    def __init__(self, sent_to: int, received_from: int) -> None:
        import os

        self.send, self.receive = os.fdopen(sent_to, "w"), os.fdopen(received_from)
        self.replies: list[str] = []

    def ask(self, operation: str, *values: Any) -> Any:
        """The value that an operation gives there; raises the builtin error that it raises there."""
        import builtins
        import json
        import os

        request = json.dumps([operation, *(encode(value, self.number) for value in values)])
        try:
            self.send.write(request + "\n")
            self.send.flush()
            line = self.receive.readline()
            kind, value = json.loads(line)
            result = decode(value, lambda number: Remote(self, int(number)))
        except BaseException:  # no test may take this for an error of the program
            os._exit(1)
        self.replies.append(line)
        if kind == "value":
            return result
        raised = getattr(builtins, str(value), Exception)
        raise raised if isinstance(raised, type) and issubclass(raised, Exception) else Exception

    def number(self, value: Any) -> int:
        """The number of an object of the program."""
        if type(value) is not Remote:
            raise TypeError(f"a {type(value).__name__} of the tests cannot be handed to the program")
        return int(value.__dict__["number"])


class Remote:
    """An object of the program's process. What `==`, `<` and the like compare is this, not that object."""

    def __init__(self, channel: Channel, number: int) -> None:
        self.__dict__.update(channel=channel, number=number)

    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__" or name == "__class__":
            return object.__getattribute__(self, name)
        return self.__dict__["channel"].ask("getattr", self, name)

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self.__dict__["channel"].ask("call", self, values, named)

    def __getitem__(self, key: Any) -> Any:
        return self.__dict__["channel"].ask("getitem", self, key)

    def __iter__(self) -> Any:
        return self.__dict__["channel"].ask("iter", self)

    def __next__(self) -> Any:
        return self.__dict__["channel"].ask("next", self)

    def __len__(self) -> Any:
        return self.__dict__["channel"].ask("len", self)

    def __bool__(self) -> Any:
        return self.__dict__["channel"].ask("bool", self)

    def __str__(self) -> Any:
        return self.__dict__["channel"].ask("str", self)


def names_in(tests: list[str]) -> tuple[list[str], list[str]]:
    """The names that tests may take from the program, and the modules that they use (`math.isclose`), imported or not.

    Builtins and modules are never taken from the program, which could define others.
    """
    import ast
    import builtins
    import sys

    nodes = [node for test in tests for node in ast.walk(ast.parse(test))]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    owners = {node.value.id for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
    modules = owners & sys.stdlib_module_names
    return sorted(names - {*dir(builtins)} - modules), sorted(modules)


def judge() -> None:
    """Run tests, and write a line for each: whether it passed, and a hash of the replies; without any it fails."""
    import hashlib
    import importlib
    import json
    import os
    import sys
    import types

    tests_at, sent_to, received_from = map(int, sys.argv[1:])
    with os.fdopen(tests_at, encoding="utf-8") as file:
        tests = json.load(file)
    verdicts, null = os.fdopen(os.dup(1), "w"), os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    channel = Channel(sent_to, received_from)
    names, modules = names_in(tests)
    solution = sys.modules["solution"] = types.ModuleType("solution")  # where tests may import the program from
    solution.__dict__.update(channel.ask("globals", names))
    space = {**solution.__dict__, **{name: importlib.import_module(name) for name in modules}, "__name__": "__main__"}
    for test in tests:
        channel.replies.clear()
        try:
            exec(compile(test, "tests.py", "exec", dont_inherit=True), space)
            passed = bool(channel.replies)
        except BaseException:
            passed = False
        replies = hashlib.sha256("".join(channel.replies).encode()).hexdigest() if channel.replies else None
        verdicts.write(json.dumps([passed, replies]) + "\n")
        verdicts.flush()

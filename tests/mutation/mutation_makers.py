"""Mutants: small changes to the body of a function, each with a name that says what was changed.

What is inside a `raise`, and the text of a `__repr__`, is left alone: it is words. So are defaults
and annotations. A name holds the changed code before and after, not its line, so that it stays the
same when other code moves."""

import ast
import copy
import importlib
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

COMPARED = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Mod: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd, ast.Pow: ast.Mult,
}  # fmt: skip
NAMES = {
    "all": "any", "any": "all", "min": "max", "max": "min", "minimum": "maximum",
    "maximum": "minimum", "floor": "ceil", "ceil": "floor", "zeros": "ones", "ones": "zeros",
}  # fmt: skip
MACHINES = {"copy", "dtype", "strict", "compression", "order", "partitioning"}
"""Keyword arguments about the machine, not about what leaves."""
EITHER_WAY = {"min", "max", "minimum", "maximum", "array_equal", "equal"}
"""Functions whose arguments may be swapped."""
SQL = re.compile(r"SELECT|INSERT|UPDATE|DELETE|WHERE|SET| [a-z_]+ = [a-z_]+ \+ excluded|ORDER BY")
IN_SQL = {
    " + ": " - ", " > ": " >= ", " < ": " <= ", " >= ": " > ", " AND ": " OR ", "max(": "min(",
    " IN ": " NOT IN ", "DISTINCT ": "", "WHERE ": "WHERE NOT ", " 1,": " 2,", ", 1)": ", 2)",
    "> 0": "> 1", "count(*)": "1", "reports * ": "",
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    module: str
    function: str
    change: str
    code: object
    tests: tuple[str, ...]
    """Files of which those tests are run that call the function."""

    @property
    def name(self):
        return f"{self.module}:{self.function}: {self.change}"


def mutants(module, patterns, tests):
    """Of the functions of a module of ours whose qualified name matches one of the patterns."""
    path = ROOT / "src" / "sottovoce" / f"{module.replace('.', '/')}.py"
    tree = ast.parse(path.read_text())
    found = []
    for name, node in _functions(tree):
        if any(re.fullmatch(pattern, name) for pattern in patterns) and _mutable(node):
            found += _of_function(module, tree, name, node, str(path), tests)
    return found


def function_of(mutant):
    """The function object that has the code: of a property its getter, of a class method what is
    inside."""
    place = importlib.import_module(f"sottovoce.{mutant.module}")
    *outer, last = mutant.function.split(".")
    for name in outer:
        place = getattr(place, name)
    found = vars(place)[last]
    return getattr(found, "fget", None) or getattr(found, "__func__", found)


def put_in(mutant):
    """From now on the function has the mutant's code. `super` makes a function a closure, also for
    code from which it has gone."""
    function = function_of(mutant)
    function.__code__ = mutant.code.replace(co_freevars=function.__code__.co_freevars)


def _functions(tree, prefix=""):
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node


def _mutable(node):
    """Not what numba compiles, and not what nobody but a person reads."""
    made = {ast.unparse(each).split("(")[0] for each in node.decorator_list}
    return made <= {"property", "classmethod", "staticmethod"} and node.name != "__repr__"


def _of_function(module, tree, name, node, path, tests):
    found, seen = [], {}
    for place, before, after in _changes(node):
        # Put in, compiled and taken out again: a tree is not copied for every mutant.
        owner, field, index = place
        kept = getattr(owner, field)
        if index is None:
            setattr(owner, field, after)
        else:
            setattr(owner, field, [*kept[:index], after, *kept[index + 1 :]])
        try:
            code = compile(ast.fix_missing_locations(tree), path, "exec")
        finally:
            setattr(owner, field, kept)
        change = getattr(after, "said", None) or f"{_words(before)} → {_words(after)}"
        seen[change] = seen.get(change, 0) + 1
        if seen[change] > 1:
            change += f" #{seen[change]}"
        found.append(Mutant(module, name, change, _inner(code, name), tests))
    return found


def _inner(code, name):
    for each in code.co_consts:
        if hasattr(each, "co_qualname"):
            if each.co_qualname == name:
                return each
            if name.startswith(each.co_qualname + ".") and (found := _inner(each, name)):
                return found
    return None


def _words(node):
    text = "nothing" if isinstance(node, ast.Pass) else ast.unparse(node)
    return re.sub(r"\s+", " ", text.split("\n    ")[0] if "\n" in text else text)


def _changes(function):
    """(where, what, by what) for every change, in the order of the code."""
    body = function.body
    documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    for index in range(int(documented), len(body)):
        yield from _inside(function, "body", index, body[index])


def _inside(owner, field, index, node):
    place = (owner, field, index)
    if isinstance(node, ast.Raise):
        return
    for after in _instead(node):
        yield place, node, after
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "args") and not (
            name == "args" and isinstance(node, ast.Call)
        ):
            continue
        if isinstance(value, list):
            for at, each in enumerate(value):
                if isinstance(each, ast.AST):
                    yield from _inside(node, name, at, each)
        elif isinstance(value, ast.AST):
            yield from _inside(node, name, None, value)


def _instead(node):
    """What may stand in the place of a node."""
    match node:
        case ast.Expr(value=ast.Constant()):
            pass
        case ast.Expr() | ast.AugAssign():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.If() | ast.IfExp() | ast.While():
            for constant in (True, False):
                if not (isinstance(node, ast.While) and constant):
                    yield _with(node, test=ast.Constant(constant))
        case ast.Constant(value=str(text)) if SQL.search(text):
            for word, other in IN_SQL.items():
                for found in re.finditer(re.escape(word), text):
                    yield ast.Constant(text[: found.start()] + other + text[found.end() :])
        case ast.Constant(value=str(text)):
            yield ast.Constant(text + "XX")
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.UnaryOp():
            yield node.operand
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield _with(node, op=other)
            for at in range(len(node.values)):
                left = [*node.values[:at], *node.values[at + 1 :]]
                yield left[0] if len(left) == 1 else _with(node, values=left)
        case ast.Compare():
            for at, op in enumerate(node.ops):
                for other in COMPARED[type(op)]:
                    yield _with(node, ops=[*node.ops[:at], other(), *node.ops[at + 1 :]])
        case ast.BinOp() if type(node.op) in COMPUTED:
            yield _with(node, op=COMPUTED[type(node.op)]())
        case ast.Call():
            yield from _other_calls(node)
        case ast.comprehension(ifs=[_]):
            yield _with(node, ifs=[])
        case ast.Subscript(slice=ast.Name() | ast.Attribute(), ctx=ast.Load()):
            yield node.value
    if isinstance(node, ast.AugAssign):
        yield _with(node, op=COMPUTED[type(node.op)]())


def _other_calls(node):
    args, name = node.args, node.func
    word = getattr(name, "attr", getattr(name, "id", ""))
    fixed = word in EITHER_WAY or any(isinstance(each, ast.Starred) for each in args)
    for at in range(len(args) - 1):
        if not fixed and ast.dump(args[at]) != ast.dump(args[at + 1]):
            yield _with(node, args=[*args[:at], args[at + 1], args[at], *args[at + 2 :]])
    for at, keyword in enumerate(node.keywords):
        if keyword.arg not in MACHINES:
            left = [*node.keywords[:at], *node.keywords[at + 1 :]]
            said = f"{_words(name)}(…) → without {keyword.arg or '**'}"
            yield _with(node, keywords=left, said=said)
    empty = args and ast.unparse(args[0]).startswith(("0", "(0,"))
    if word in NAMES and not (empty and word in ("zeros", "ones")):
        field = "attr" if isinstance(name, ast.Attribute) else "id"
        yield _with(node, func=_with(name, **{field: NAMES[word]}))


def _with(node, **fields):
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other

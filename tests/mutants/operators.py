"""The small faults that random mutants are made of: where in a module, and what stands there then.

Faults are inside functions only, never in messages' wording, logging, annotations or defaults.
"""

import ast
from collections.abc import Iterator

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
    ast.GtE: ast.Gt, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div,
    ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
CALLS = {"any": "all", "all": "any", "min": "max", "max": "min"}
SKIPPED = {"args", "annotation", "returns", "decorator_list"}
DROPPED = (ast.AugAssign, ast.Delete, ast.Raise, ast.Continue, ast.Break)
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
Fault = tuple[ast.AST, str]


def faults(source: str) -> Iterator[Fault]:
    """Each place of a module with the text that replaces it, in the order of the module."""
    for node in outermost_functions(ast.parse(source)):
        for statement in node.body:
            yield from faults_below(statement)


def outermost_functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FUNCTION):
            yield child
        else:
            yield from outermost_functions(child)


def faults_below(node: ast.AST) -> Iterator[Fault]:
    if isinstance(node, ast.JoinedStr) or is_logging(node):  # 3.11 misplaces what an f-string holds
        return
    if isinstance(node, ast.stmt):
        yield from ((node, text) for text in faults_of_statement(node))
    for test in tests_of(node):
        if not isinstance(test, ast.Compare | ast.BoolOp) and not is_not(test):
            yield test, f"(not ({ast.unparse(test)}))"
    if isinstance(node, ast.expr):
        yield from ((node, f"({ast.unparse(other)})") for other in faults_of_expression(node))
    for name, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        for child in children if name not in SKIPPED or isinstance(node, ast.Call) else []:
            if isinstance(child, ast.AST) and not isinstance(child, ast.pattern):
                yield from faults_below(child)


def is_not(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def is_logging(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func).startswith(("log.", "self.log."))


def tests_of(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        return [node.test]
    return node.ifs if isinstance(node, ast.comprehension) else []


def faults_of_statement(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Return) and node.value and ast.unparse(node.value) != "None":
        yield "return None"
    stores = isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple)
    calls = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
    if stores or calls or isinstance(node, DROPPED):
        yield "pass"


def faults_of_expression(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=right):
            for place, operator in enumerate(ops):
                swapped = [*ops[:place], SWAPS[type(operator)](), *ops[place + 1 :]]
                yield ast.Compare(left, swapped, right)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(SWAPS[type(op)](), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPS and not (
            is_text(left) or is_text(right)
        ):
            yield ast.BinOp(left, SWAPS[type(op)](), right)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in CALLS:
            yield ast.Call(ast.Name(CALLS[name]), args, keywords)


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )

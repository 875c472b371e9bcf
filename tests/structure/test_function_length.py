# SPDX-License-Identifier: Apache-2.0
"""No function is longer than 60 lines, no kernel longer than 80; public functions have 8 parameters at most.

Lines are those of the body with code on them: blank lines, comments and, in Python, docstrings do not count. Tests may
be longer. Usage: test_function_length.py [--root DIR] [--report N]
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from pathlib import Path

import c_tokens
from c_tokens import Function
from repository_files import C_SUFFIXES, ROOT, find_public_functions, list_files, read_text, report

MAX_LINES = 60
MAX_KERNEL_LINES = 80
MAX_PARAMETERS = 8
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def find_python_functions(text: str) -> list[Function]:
    """Returns a module's functions and methods. One that stands in another counts for both."""
    code = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    tree = ast.parse(text)
    documented = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            code -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    functions = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = sum(1 for line in range(node.body[0].lineno, node.end_lineno + 1) if line in code)
            functions.append(Function(node.name, node.lineno, lines))
    return functions


def limit_of(function: Function) -> int:
    return MAX_KERNEL_LINES if function.kernel else MAX_LINES


def find_all_functions(root: Path) -> list[tuple[str, Function]]:
    """Returns the functions of the repository outside of tests/ with their files, the longest first."""
    found = []
    for name in list_files(root):
        if name.startswith("tests/"):
            continue
        if name.endswith(".py"):
            find = find_python_functions
        elif name.endswith((*C_SUFFIXES, ".inc")):
            find = c_tokens.find_functions
        else:
            continue
        found += [(name, function) for function in find(read_text(root / name))]
    return sorted(found, key=lambda entry: (-entry[1].lines, entry[0], entry[1].line))


def find_wide_declarations(root: Path) -> list[str]:
    """Returns a line for each public function with more parameters than it may have."""
    return [
        f"{path}: {name} has {parameters} parameters, {MAX_PARAMETERS} are allowed"
        for name, (path, parameters) in find_public_functions(root).items()
        if parameters > MAX_PARAMETERS
    ]


def describe(functions: list[tuple[str, Function]]) -> list[str]:
    """Returns a line for each."""
    return [
        f"{function.lines:5}  {'kernel' if function.kernel else '':6}  {function.name:36}  {name}:{function.line}"
        for name, function in functions
    ]


_SNIPPET = r"""
#define BRACE {
#ifdef __cplusplus
extern "C" {
#endif
struct point { int x, y; };
struct __align__(8) wide : base<(1 > 0)> { int v; };
static const int table[] = { 1, 2, 3 };
enum kind { A, B };
TRF_API int declared(void (*callback)(int, char *), int b);
int one_line(void) { return '{' + "}"[0]; }
TRF_HD static inline struct point
two_lines(int a /* { */,
          int b) {
    // } not code
    const char *text = "}}}";

    /* nor
       is this */ int c = 1'000;
}
#if A
int twice(int a) {
#else
int twice(void) {
#endif
    return 1;
}
namespace { namespace inner {
template <class Type, int kSize = (3 > 2)> __global__ void __launch_bounds__(128, 2) run(Type *out) {
    auto write = [&](int i) {
        out[i] = 0;
    };
    write(0);
}
template <> __device__ int to_type<half, (1 > 0)>(int a) {
    return a;
}
struct walk : base {
    int x = 0;
    __device__ walk(int a) : base{a}, x(a) {}
    __device__ bool operator()(int a) const {
        return a;
    }
  private:
    int y() const noexcept {
        if (x) {
            return R"m({{")m"[0];
        }
        return 2;
    }
};
} }
static void (*picked)(void) = one;
START(name) {
    body();
}
#ifdef __cplusplus
}
#endif
"""

_PYTHON_SNIPPET = '''
def outer(a):
    """A docstring
    of two lines."""

    # A comment.
    text = """
    two
    """
    def inner():
        return text
    return inner
'''


def test_finds_functions() -> None:
    found = [(f.name, f.lines, f.kernel) for f in c_tokens.find_functions(_SNIPPET)]
    assert found == [
        ("one_line", 1, False),
        ("two_lines", 2, False),
        ("twice", 2, False),
        ("run", 4, True),
        ("to_type", 1, False),
        ("walk", 1, False),
        ("operator", 1, False),
        ("y", 4, False),
        ("START", 1, False),
    ], found
    assert [(f.name, f.lines) for f in find_python_functions(_PYTHON_SNIPPET)] == [("outer", 6), ("inner", 1)]
    long_body = "".join(f"    x += {i};\n" for i in range(MAX_LINES + 1))
    (function,) = c_tokens.find_functions("void f(int x) {\n" + long_body + "}\n")
    assert function.lines == MAX_LINES + 1 > limit_of(function)


def test_counts_parameters() -> None:
    assert c_tokens.find_declarations(_SNIPPET, "TRF_API") == {"declared": 2}
    none = c_tokens.find_declarations("#define API\nAPI void *f(void);\nAPI int g(int a[], int b, c d);", "API")
    assert none == {"f": 0, "g": 3}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--build", type=Path, help="not used: every test of this folder gets it")
    parser.add_argument("--nm", help="likewise")
    parser.add_argument("--report", type=int, default=0, metavar="N", help="list the N longest functions, too")
    options = parser.parse_args()
    test_finds_functions()
    test_counts_parameters()

    functions = find_all_functions(options.root)
    for line in describe(functions[: options.report]):
        print(line)
    too_long = [entry for entry in functions if entry[1].lines > limit_of(entry[1])]
    too_wide = find_wide_declarations(options.root)
    lines = describe(too_long)
    if too_long:
        lines.insert(0, f"functions of more than {MAX_LINES} lines, kernels of more than {MAX_KERNEL_LINES}:")
    return report(
        lines + too_wide,
        f"{len(functions)} functions; {len(too_long)} are too long, {len(too_wide)} have too many parameters",
    )


if __name__ == "__main__":
    sys.exit(main())

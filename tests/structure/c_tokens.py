# SPDX-License-Identifier: Apache-2.0
"""A tokenizer for C, C++ and CUDA, and the function definitions that it finds.

It is no parser: it knows scopes by their braces and declarations by their shape, which is enough for code that is
formatted by a tool and compiles. Branches of conditional compilation are followed one by one from the same state; where
several of them begin the same function, the last one counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

# The order matters: comments before operators, raw strings before names.
_TOKEN = re.compile(
    r"""(?P<comment>//(?:[^\n\\]|\\\n|\\)*|/\*.*?\*/)
      | (?P<raw>(?:u8|[uUL])?R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)")
      | (?P<string>(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*")
      | (?P<character>(?:u8|[uUL])?'(?:[^'\\\n]|\\.)+')
      | (?P<number>\.?[0-9](?:[eEpP][+-]|'[0-9A-Za-z]|[0-9A-Za-z_.])*)
      | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
      | (?P<blank>(?:\s|\\\n)+)
      | (?P<other>::|->|.)""",
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE = re.compile(r"#(?:[^\n\\/]|\\\n|\\.|//[^\n]*|/\*.*?\*/|/)*", re.DOTALL)

# Words that may precede a parenthesis at the level of declarations and are not the function's name.
_ATTRIBUTES = {
    "__attribute__",
    "__launch_bounds__",
    "__align__",
    "__declspec",
    "alignas",
    "_Alignas",
    "decltype",
    "noexcept",
    "explicit",
    "requires",
    "__cluster_dims__",
    "__maxnreg__",
    "__block_size__",
}


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    line: int
    at: int  # its first character in the text


@dataclass(frozen=True)
class Function:
    """A definition: its name and the line of that, the lines of code in its body, and whether it is a kernel."""

    name: str
    line: int
    lines: int
    kernel: bool = False


def tokenize(text: str) -> tuple[list[Token], set[int]]:
    """Returns the tokens without comments, a directive being one token, and the numbers of the lines with code."""
    tokens, code = [], set()
    at, line, line_is_blank = 0, 1, True
    while at < len(text):
        match = _TOKEN.match(text, at)
        kind = match.lastgroup
        if match.group() == "#" and line_is_blank:
            match, kind = _DIRECTIVE.match(text, at), "directive"
        word = match.group()
        newlines = word.count("\n")
        if kind == "blank":
            line_is_blank = line_is_blank or "\n" in word
        elif kind != "comment":
            tokens.append(Token(kind, word, line, at))
            code.update(range(line, line + newlines + 1))
            line_is_blank = False
        line += newlines
        at = match.end()
    return tokens, code


def _without_template(declaration: list[Token]) -> list[Token]:
    """Leaves out `template <...>` at the beginning, whose parameters may have parentheses and equal signs."""
    while declaration and declaration[0].text == "template":
        depth, at, parentheses = 0, 1, 0
        while at < len(declaration):
            text = declaration[at].text
            parentheses += (text in "([") - (text in ")]")
            if parentheses == 0:
                depth += (text == "<") - (text == ">")
            at += 1
            if depth == 0:
                break
        declaration = declaration[at:]
    return declaration


def _at_top_level(declaration: list[Token]) -> list[Token]:
    """The tokens outside of parentheses, which themselves count as outside."""
    depth, found = 0, []
    for token in declaration:
        if token.text in (")", "]"):
            depth -= 1
        if depth == 0:
            found.append(token)
        if token.text in ("(", "["):
            depth += 1
    return found


def _function_name(declaration: list[Token]) -> Token | None:
    """The name that a declaration in front of an opening brace defines as a function, or None."""
    name = None
    top = _at_top_level(declaration)
    for count, (token, behind) in enumerate(zip(top, top[1:]), 1):
        if token.text == ":" and name:
            break  # a constructor's initializers
        if token.text == "=" and (not name or name.text != "operator"):
            return None
        if token.text == "operator":
            name = token
        elif behind.text == "(" and not (name and name.text == "operator"):
            token = _before_arguments(top[:count]) if token.text == ">" else token
            if token and token.kind == "name" and token.text not in _ATTRIBUTES:
                name = token
    return name


def _before_arguments(tokens: list[Token]) -> Token | None:
    """The name of a specialization, `f` of `f<Type>`, where the last token is the closing bracket."""
    depth = 0
    for at in range(len(tokens) - 1, 0, -1):
        depth += (tokens[at].text == ">") - (tokens[at].text == "<")
        if depth == 0:
            return tokens[at - 1]
    return None


def _has_initializers(declaration: list[Token]) -> bool:
    top = _at_top_level(declaration)
    return any(first.text == ")" and second.text == ":" for first, second in zip(top, top[1:]))


def _kind_of_brace(declaration: list[Token]) -> str:
    """What an opening brace after these tokens begins: "scope", "function", "type" or "value"."""
    words = {token.text for token in _at_top_level(declaration)}
    if "namespace" in words or (len(declaration) == 2 and declaration[0].text == "extern"):
        return "scope"
    last = declaration[-1].text if declaration else ""
    if last not in (")", "}", "const", "noexcept", "override") and _has_initializers(declaration):
        return "value"  # `walk(int a) : base{a}, size{1} {`: of base or of size
    is_type = bool(words & {"struct", "class", "union"})
    # `struct point f(int x) {` is a function, `struct __align__(8) point {` is none.
    if _function_name(declaration) and not (is_type and last not in (")", "const", "noexcept", "override")):
        return "function"
    return "type" if is_type else "value"


@dataclass
class _State:
    """The state of the scan: what it has read of a declaration, and the braces around."""

    declaration: tuple[Token, ...] = ()
    depth: int = 0  # of braces in a function or a value, which are skipped; the braces of scopes do not matter
    function: tuple[Token, int, bool] | None = None  # the name, the line of the brace, whether it is a kernel
    parentheses: int = 0


@dataclass
class _Scan:
    code: set[int]
    functions: list[Function] = field(default_factory=list)
    state: _State = field(default_factory=_State)
    branches: list[_State] = field(default_factory=list)

    def take(self, token: Token) -> None:
        if token.kind == "directive":
            self._follow(token.text[1:].split(None, 1)[:1])
        elif self.state.depth:
            self._skip(token)
        elif token.text == "{" and self.state.parentheses == 0:
            self._open(token)
        elif token.text == "}" and self.state.parentheses == 0:
            self.state.declaration = ()
        elif token.text == ";" and self.state.parentheses == 0:
            self.state.declaration = ()
        else:
            self.state.parentheses += (token.text == "(") - (token.text == ")")
            self.state.declaration += (token,)
            if [t.text for t in self.state.declaration[-2:]] in (["public", ":"], ["private", ":"], ["protected", ":"]):
                self.state.declaration = ()

    def _follow(self, directive: list[str]) -> None:
        word = re.match(r"\w*", directive[0]).group() if directive else ""
        if word in ("if", "ifdef", "ifndef"):
            self.branches.append(replace(self.state))
        elif word in ("else", "elif", "elifdef", "elifndef") and self.branches:
            self.state = replace(self.branches[-1])
        elif word == "endif" and self.branches:
            self.branches.pop()

    def _open(self, token: Token) -> None:
        declaration = _without_template(list(self.state.declaration))
        kind = _kind_of_brace(declaration)
        if kind in ("scope", "type"):
            self.state.declaration = ()
            return
        self.state.depth = 1
        if kind == "function":
            kernel = any(part.text == "__global__" for part in declaration)
            self.state.function = (_function_name(declaration), token.line, kernel)

    def _skip(self, token: Token) -> None:
        self.state.depth += (token.text == "{") - (token.text == "}")
        if self.state.depth or token.text != "}":
            return
        if self.state.function:
            name, first, kernel = self.state.function
            lines = sum(1 for line in range(first + 1, token.line) if line in self.code)
            self.functions.append(Function(name.text, name.line, max(lines, 1), kernel))
            self.state.declaration = ()
        else:
            self.state.declaration += (token,)
        self.state.function = None


def find_functions(text: str) -> list[Function]:
    """Returns the functions that a C, C++ or CUDA source defines, member functions included, in their order.

    A lambda belongs to the function that contains it. The lines of the two outermost braces do not count, unless the
    body is on them.
    """
    tokens, code = tokenize(text)
    scan = _Scan(code)
    for token in tokens:
        scan.take(token)
    return scan.functions


def find_declarations(text: str, mark: str) -> dict[str, int]:
    """Returns the functions that are declared with the macro `mark` in front, and how many parameters each has."""
    tokens = [token for token in tokenize(text)[0] if token.kind != "directive"]
    found = {}
    for start, token in enumerate(tokens):
        if token.text != mark:
            continue
        stop = next(at for at in range(start, len(tokens)) if tokens[at].text in (";", "{"))
        declaration = tokens[start + 1 : stop]
        name = _function_name(declaration)
        place = declaration.index(name) + 1
        depth, parameters, commas = 0, 0, 0
        for part in declaration[place:]:
            depth += (part.text == "(") - (part.text == ")")
            if depth == 0:
                break
            commas += depth == 1 and part.text == ","
            parameters += part.text not in ("(", ")", "void")
        found[name.text] = commas + 1 if parameters else 0
    return found

# SPDX-License-Identifier: Apache-2.0
"""Makes mutants of a C source: copies that differ in one token or statement, as a slip of the programmer would.

Mutated is what stands in functions, but for directives and the texts and arguments of messages. It works on tokens, so
some mutants do not compile; whoever tries them leaves those out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import c_tokens

# Each operator that stands between two operands, and what it becomes.
_OPERATORS = {
    "<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",), "!=": ("==",),
    "&&": ("||",), "||": ("&&",), "+": ("-",), "-": ("+",), "*": ("/",), "/": ("*",), "%": ("/",), "<<": (">>",),
    ">>": ("<<",), "&": ("|",), "|": ("&",), "^": ("|",), "+=": ("-=",), "-=": ("+=",), "*=": ("/=",), "/=": ("*=",),
    "%=": ("/=",), "<<=": (">>=",), ">>=": ("<<=",), "&=": ("|=",), "|=": ("&=",), "^=": ("|=",),
}  # fmt: skip
_STEPS = {"++": "--", "--": "++"}
_WORDS = sorted([*_OPERATORS, *_STEPS, "->"], key=len, reverse=True)
_KEYWORDS = {"if", "for", "while", "switch", "do", "else", "case", "default", "goto", "break", "continue", "return"}
_QUALIFIERS = {"const", "static", "struct", "enum", "union", "unsigned", "signed", "volatile"}
# Calls whose format string, and what follows it, is text for people.
_MESSAGES = {"trf_fail", "HEADER_FAIL", "EXTENSION_FAIL", "TILE_FAIL", "trf_fail_memory"}
_NUMBER = re.compile(r"(0[xX][0-9a-fA-F]+|[0-9]+)([uUlL]*)$")
_CONSTANT = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+$")


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes [start, end) of the file become `text`. `name` outlives changes elsewhere in the file."""

    name: str
    line: int
    start: int
    end: int
    text: str

    def apply(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


@dataclass(frozen=True)
class _Word:
    kind: str
    text: str
    line: int
    at: int

    @property
    def end(self) -> int:
        return self.at + len(self.text)


def _join_operators(source: str) -> list[_Word]:
    words: list[_Word] = []
    for token in c_tokens.tokenize(source)[0]:
        if words and token.at < words[-1].end:
            continue  # a part of the operator before
        text = token.text
        if token.kind == "other":
            text = next((word for word in _WORDS if source.startswith(word, token.at)), text)
        words.append(_Word(token.kind, text, token.line, token.at))
    return [word for word in words if word.kind != "directive"]


def _closing(words: list[_Word], opening: int) -> int:
    """Returns the index of the bracket that closes the one at `opening`."""
    depth = 0
    for i in range(opening, len(words)):
        depth += (words[i].text in ("(", "[", "{")) - (words[i].text in (")", "]", "}"))
        if depth == 0:
            return i
    raise ValueError(f"line {words[opening].line}: no bracket closes this one")


def _function_bodies(words: list[_Word]) -> list[tuple[int, int]]:
    """Returns the indices of each function's braces: those outside of all others, behind a parenthesis."""
    found, i = [], 0
    while i < len(words):
        if words[i].text == "{":
            end = _closing(words, i)
            if i and words[i - 1].text == ")":
                found.append((i, end))
            i = end
        i += 1
    return found


def _message_words(words: list[_Word], first: int, last: int) -> set[int]:
    """Returns the indices of what is said in messages: from the argument with the format string on."""
    found: set[int] = set()
    for i in range(first, last):
        if words[i].text not in _MESSAGES or words[i + 1].text != "(":
            continue
        end, depth, argument = _closing(words, i + 1), 0, i + 2
        for k in range(i + 1, end):
            depth += (words[k].text in ("(", "[", "{")) - (words[k].text in (")", "]", "}"))
            if depth == 1 and words[k].text == ",":
                argument = k + 1
            if words[k].kind == "string" or words[i].text == "trf_fail_memory":
                found.update(range(argument, end))
                break
    return found


def _is_spaced(source: str, word: _Word) -> bool:
    """Whether blanks surround an operator: the formatter writes binary ones so, unary ones and pointers never."""
    return source[word.at - 1].isspace() and source[word.end : word.end + 1].isspace()


def _changes_of_word(source: str, words: list[_Word], i: int) -> list[tuple[int, int, str]]:
    word = words[i]
    if word.text in _OPERATORS:
        texts = _OPERATORS[word.text] if _is_spaced(source, word) else ()
        return [(word.at, word.end, text) for text in texts]
    if word.text in _STEPS:
        return [(word.at, word.end, _STEPS[word.text])]
    if word.text in ("!", "~"):
        return [(word.at, word.end, "")]
    if word.text == "?":
        return [(word.at, word.end, "== 0 ?")]
    number = _NUMBER.match(word.text) if word.kind == "number" else None
    if number:
        value = int(number[1], 0) if not re.match(r"0[0-9]", number[1]) else int(number[1], 8)
        return [(word.at, word.end, f"{n}{number[2]}") for n in (value + 1, value - 1) if n >= 0]
    if word.kind == "name" and _CONSTANT.match(word.text) and words[i + 1].text != "(" and words[i - 1].text != "case":
        steps = "+" if word.text.startswith(("TRF_OK", "TRF_ERR_")) else "+-"
        return [(word.at, word.end, f"({word.text} {step} 1)") for step in steps]
    if word.text in ("if", "while") and words[i + 1].text == "(":
        opening, closing = words[i + 1], words[_closing(words, i + 1)]
        return [(opening.at, closing.end, f"(!{source[opening.at : closing.end]})")]
    return []


def _is_expression(source: str, words: list[_Word], start: int) -> bool:
    first, second = words[start], words[start + 1]
    if first.kind != "name":
        return first.text in ("*", "(", "++", "--")
    if first.text in _KEYWORDS:
        return first.text in ("goto", "break", "continue")
    declares = second.kind == "name" or (second.text == "*" and not _is_spaced(source, second))
    return not declares and first.text not in _QUALIFIERS


def _changes_of_statement(source: str, words: list[_Word], start: int, last: int) -> list[tuple[int, int, str]]:
    """Returns the changes of the statement that begins at `start`; last: the brace that ends the function."""
    end, depth = start, 0
    while end < last and (depth or words[end].text != ";"):
        depth += (words[end].text in ("(", "[", "{")) - (words[end].text in (")", "]", "}"))
        end += 1
    if words[start].text == "return":
        if end + 1 != last:
            return [(words[start].at, words[end].at, "")]
        return (
            [(words[start].at, words[end].at, "return 0")] if words[start + 1].text not in ("0", ";", "TRF_OK") else []
        )
    return [(words[start].at, words[end].at, "")] if _is_expression(source, words, start) else []


def _statement_starts(words: list[_Word], first: int, last: int) -> list[int]:
    """Returns where the statements between two braces may begin, but for those that are in parentheses."""
    found, depth, i = [], 0, first
    while i < last:
        text = words[i].text
        depth += (text in ("(", "[")) - (text in (")", "]"))
        if depth == 0 and i + 1 < last:
            if text in (";", "{", "}", "else", "do") or (text == ":" and words[i - 2].text in ("case", "default", ";")):
                found.append(i + 1)
            elif text in ("if", "for", "while", "switch"):
                found.append(_closing(words, i + 1) + 1)
        i += 1
    return sorted(set(found))


@dataclass(frozen=True)
class Definition:
    """A function's definition: where its declaration, its name, its body and its end are; its parameters' names."""

    name: str
    start: int
    name_at: int
    body: int
    end: int
    parameters: tuple[str, ...]
    returns: bool


def _parameters(words: list[_Word], opening: int, closing: int) -> tuple[str, ...]:
    """Returns the last name of each parameter: what stands before a bracket, a comma, or the end."""
    found, depth = [], 0
    for i in range(opening + 1, closing):
        depth += (words[i].text in ("(", "[")) - (words[i].text in (")", "]"))
        if depth == 0 and words[i].kind == "name" and words[i + 1].text in (",", "[", ")"):
            found.append(words[i].text)
    return tuple(name for name in found if name != "void")


def find_definitions(source: str) -> list[Definition]:
    """Returns the functions that a source defines, in their order."""
    words, found = _join_operators(source), []
    names = {(function.name, function.line) for function in c_tokens.find_functions(source)}
    for first, last in _function_bodies(words):
        start = first
        while start and words[start - 1].text not in (";", "}"):
            start -= 1
        name = next(i for i in range(start, first) if (words[i].text, words[i].line) in names)
        found.append(
            Definition(
                words[name].text,
                words[start].at,
                words[name].at,
                words[first].at,
                words[last].end,
                _parameters(words, name + 1, _closing(words, name + 1)),
                not (words[name - 1].text == "void" and words[name - 2].text != "*"),
            )
        )
    return found


def write_switched(source: str, mutants: dict[int, Mutant]) -> tuple[str, dict[int, int]]:
    """Returns the source with all mutants in it, and which lines are whose.

    A function of which there are mutants is there as often, each time under a name of its own, and what has its true
    name calls the one that the variable trf_mutant picks, by the number in `mutants`; the one without a change if it
    picks none of them. Functions that are to be inlined (TRF_HD) are not.
    """
    text, owners, at = ["extern int trf_mutant;\n"], {}, 0

    def add(part: str, number: int = 0) -> None:
        line = sum(piece.count("\n") for piece in text) + 1 if number else 0
        text.append(part)
        owners.update({line + i: number for i in range(part.count("\n"))} if number else {})

    for definition in find_definitions(source):
        inside = {n: m for n, m in mutants.items() if definition.body <= m.start < definition.end}
        if not inside:
            continue
        add(source[at : definition.start])
        add("\n#undef TRF_HD\n#define TRF_HD static __attribute__((unused))\n")
        before, behind = source[definition.start : definition.name_at], definition.name_at + len(definition.name)
        add(f"{before}{definition.name}_mutant_0{source[behind : definition.end]}\n")
        for number, mutant in inside.items():
            body = source[behind : mutant.start] + mutant.text + source[mutant.end : definition.end]
            add(f"{before}{definition.name}_mutant_{number}{body}\n", number)
        arguments, value = ", ".join(definition.parameters), "return " if definition.returns else ""
        calls = [f"case {n}: {value}{definition.name}_mutant_{n}({arguments}); break;\n" for n in (*inside, 0)]
        calls[-1] = calls[-1].replace("case 0", "default")
        add(source[definition.start : definition.body] + "{\nswitch (trf_mutant) {\n" + "".join(calls) + "}\n}\n")
        at = definition.end
    return "".join(text) + source[at:], owners


def make_mutants(source: str) -> list[Mutant]:
    """Returns all mutants of a source, in its order."""
    words, lines = _join_operators(source), source.split("\n")
    functions = [(function.line, function.name) for function in c_tokens.find_functions(source)]
    changes: list[tuple[int, int, int, str]] = []
    for first, last in _function_bodies(words):
        silent = _message_words(words, first, last)
        for i in range(first + 1, last):
            if i not in silent:
                changes += [(words[i].line, *change) for change in _changes_of_word(source, words, i)]
        for i in _statement_starts(words, first, last):
            changes += [(words[i].line, *change) for change in _changes_of_statement(source, words, i, last)]
    mutants, seen = [], {}
    for line, start, end, text in sorted(set(changes)):
        function = [name for at, name in functions if at <= line][-1]
        was = " ".join(source[start:end].split())
        was = was if len(was) <= 40 else was[:37] + "..."
        will = "negated" if text.startswith("(!") else f"to '{text}'" if text else "deleted"
        name = f"{function}: {lines[line - 1].strip()} | '{was}' {will}"
        seen[name] = seen.get(name, 0) + 1
        mutants.append(Mutant(f"{name} #{seen[name]}" if seen[name] > 1 else name, line, start, end, text))
    return mutants

# SPDX-License-Identifier: Apache-2.0
"""Holds everyone to the rule on who may depend on whom, which is the table in docs/architecture.md.

It looks at the #include lines of all sources and, if there is a build folder, at the symbols of its object files or of
the static library. It reports dependencies against the rule, circles between source files, file names that are not
unique, and sources in no room.

Usage: test_dependencies.py [--root DIR] [--build DIR] [--nm NM]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import c_tokens
from repository_files import C_SUFFIXES, ROOT, find_public_functions, list_files, read_text, report

EVERYTHING = "everything"
PUBLIC = "the public API"
INCLUDE = "include"
# What compilers' instrumentation defines for each object.
_INSTRUMENTATION = re.compile(r"_*(asan|odr_asan|tsan|ubsan|sancov|sanitizer|gcov|llvm)_|__odr_asan|__start_|__stop_")

# From a file to the files that it uses, with the reason of each: a symbol's name, or "" for an include.
Graph = dict[str, dict[str, set[str]]]


def room_of(name: str, rooms: Iterable[str] = ()) -> str:
    """Returns the innermost of the rooms that a file is in; if it is in none of them, its first folder, or ""."""
    folders = [folder.as_posix() for folder in PurePosixPath(name).parents][:-1]
    return next((folder for folder in folders if folder in rooms), folders[-1] if folders else "")


def unit_of(name: str) -> str:
    """A header and the source of the same name are one unit: the path up to the first dot of the file's name."""
    path = PurePosixPath(name)
    return (path.parent / path.name.split(".")[0]).as_posix()


def is_source(name: str) -> bool:
    return name.endswith((*C_SUFFIXES, ".inc"))


def is_named_freely(name: str) -> bool:
    """Whether a file has to be in a room and to have a name of its own, which Python itself decides of some."""
    return is_source(name) or (name.endswith(".py") and PurePosixPath(name).name not in ("__init__.py", "conftest.py"))


# ---- the rule ----


def read_rule(text: str) -> dict[str, set[str]]:
    """Returns what each room may depend on, from the one table whose first row is `| room | depends on |`."""
    lines = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.split("\n")]
    starts = [number for number, cells in enumerate(lines) if cells == ["room", "depends on"]]
    if len(starts) != 1:
        raise ValueError(f"{len(starts)} tables begin with '| room | depends on |', there has to be one")
    rule = {}
    for cells in lines[starts[0] + 2 :]:
        if len(cells) != 2:
            break
        room, uses = cells[0].strip("`"), cells[1]
        named = set(re.findall(r"`([\w/]+)`", uses))
        rest = re.sub(r"`[\w/]+`|[\s,]", " ", uses).split()
        words = " ".join(rest)
        if (words and named) or words not in ("", "nothing", PUBLIC, EVERYTHING) or room in rule:
            raise ValueError(f"the row of {room} is not understood: {uses}")
        rule[room] = named | ({words} if words in (PUBLIC, EVERYTHING) else set())
    unknown = set().union(*rule.values()) - set(rule) - {PUBLIC, EVERYTHING}
    if unknown:
        raise ValueError(f"rooms without a row: {', '.join(sorted(unknown))}")
    return rule


def may_include(rule: dict[str, set[str]], source: str, target: str) -> bool:
    return source == target or target == INCLUDE or bool(rule[source] & {target, EVERYTHING})


def may_call(rule: dict[str, set[str]], source: str, target: str, is_public: bool) -> bool:
    return may_include(rule, source, target) or (is_public and PUBLIC in rule[source])


# ---- includes ----


def find_includes(root: Path, names: list[str]) -> tuple[Graph, list[str]]:
    """Returns which source includes which, and a line for each quoted include of a file that is not there."""
    known = set(names)
    by_file_name = defaultdict(list)
    for name in names:
        by_file_name[PurePosixPath(name).name].append(name)
    graph, missing = defaultdict(dict), []
    for name in names:
        for number, quote, target in _include_lines(read_text(root / name)):
            found = _resolve(name, target, known, by_file_name)
            if found:
                graph[name].setdefault(found, set()).add("")
            elif quote == '"':
                missing.append(f"{name}:{number}: includes {target}, which is not in the repository")
    return graph, missing


def _include_lines(text: str) -> list[tuple[int, str, str]]:
    found = []
    for token in c_tokens.tokenize(text)[0]:
        match = token.kind == "directive" and re.match(r'#\s*include\s*(["<])([^">]+)[">]', token.text)
        if match:
            found.append((token.line, match[1], match[2]))
    return found


def _resolve(name: str, target: str, known: set[str], by_file_name: dict[str, list[str]]) -> str | None:
    for start in (PurePosixPath(name).parent, PurePosixPath(INCLUDE), PurePosixPath()):
        path = os.path.normpath(start / target)
        if path in known:
            return path
    # By an include folder of the build.
    ends = [path for path in by_file_name[PurePosixPath(target).name] if f"/{path}".endswith(f"/{target}")]
    return ends[0] if ends else None


# ---- symbols ----


def find_objects(root: Path, build: Path) -> dict[Path, str]:
    """Returns the build's object files with the source of each, relative to `root`.

    A compilation database says which objects the build has; without one, objects whose source is gone are left out.
    Without objects it is the members of the static library, as `libtransfuse.a(member.o)`.
    """
    objects = {}
    database = build / "compile_commands.json"
    if database.is_file():
        for entry in json.loads(database.read_text(encoding="utf-8")):
            # CMake before 3.26 does not say the output apart.
            match = re.search(r"\s-o\s+(\S+)", entry.get("command", ""))
            path = Path(entry["directory"], entry.get("output") or (match[1] if match else ""))
            if path.suffix == ".o" and path.is_file():
                objects[path] = Path(entry["directory"], entry["file"])
    else:
        for path in build.rglob("CMakeFiles/*.dir/**/*.o"):
            folder, _, rest = path.relative_to(build).as_posix().rpartition("CMakeFiles/")
            source = rest.partition("/")[2].removesuffix(".o").replace("__/", "../")
            objects[path] = root / folder / source
    top = root.resolve()
    resolved = {path: source.resolve() for path, source in objects.items()}
    return {
        path: source.relative_to(top).as_posix()
        for path, source in resolved.items()
        if source.is_file() and source.is_relative_to(top)
    }


def read_symbols(nm: str, paths: Iterable[Path]) -> dict[str, tuple[set[str], set[str]]]:
    """Returns the strong symbols that each object defines and those that it needs, by what nm calls the object."""
    paths = [str(path) for path in paths]
    text = ""
    for start in range(0, len(paths), 200):
        call = [nm, "-A", "-P", "-g", *paths[start : start + 200]]
        text += subprocess.run(call, stdout=subprocess.PIPE, text=True, check=True).stdout
    return parse_symbols(text)


def parse_symbols(text: str) -> dict[str, tuple[set[str], set[str]]]:
    """Understands the output of `nm -A -P -g`.

    Weak definitions do not count: they are instantiations and inline functions that stand in each object that uses
    them, so that nobody depends on one of these objects.
    """
    symbols = {}
    for line in text.splitlines():
        place, _, rest = line.rpartition(": ")
        name, kind, *_ = rest.split()
        place = re.sub(r".*\[(.+)\]$", r"\1", place)
        defined, needed = symbols.setdefault(place, (set(), set()))
        if _INSTRUMENTATION.match(name):
            continue
        if kind in "Uw":
            needed.add(name)
        elif kind not in "VWvu":
            defined.add(name)
    return symbols


def find_calls(objects: dict[str, str], symbols: dict[str, tuple[set[str], set[str]]]) -> Graph:
    """Returns which source needs which symbols of which. Tests are left out, as each has symbols of the same names."""
    definers = defaultdict(set)
    for place, (defined, _) in symbols.items():
        if place in objects:
            for name in defined:
                definers[name].add(objects[place])
    graph = defaultdict(dict)
    for place, (_, needed) in symbols.items():
        for name in needed if place in objects else ():
            source = objects[place]
            # Of several programs' functions of one name, such as main, the own room's is meant.
            own = {target for target in definers[name] if room_of(target) == room_of(source)}
            for target in (own or definers[name]) - {source}:
                graph[source].setdefault(target, set()).add(name)
    return graph


def calls_of_build(root: Path, build: Path, nm: str) -> Graph:
    objects = {path: source for path, source in find_objects(root, build).items() if room_of(source) != "tests"}
    if objects:
        symbols = read_symbols(nm, objects)
        return find_calls({str(path): source for path, source in objects.items()}, symbols)
    library = build / "libtransfuse.a"
    if not library.is_file():
        raise FileNotFoundError(f"{build} has no object files of these sources, and no libtransfuse.a")
    symbols = read_symbols(nm, [library])
    by_file_name = {PurePosixPath(name).name + ".o": name for name in list_files(root) if room_of(name) != "tests"}
    return find_calls({member: by_file_name[member] for member in symbols if member in by_file_name}, symbols)


# ---- what is against the rule ----


def find_violations(rule: dict[str, set[str]], includes: Graph, calls: Graph, public: set[str]) -> list[str]:
    """Returns a line for each dependency that the rule forbids."""
    lines = []
    for source, targets in sorted(includes.items()):
        for target in sorted(targets):
            rooms = room_of(source, rule), room_of(target, rule)
            if set(rooms) <= set(rule) and not may_include(rule, *rooms):
                lines.append(f"{rooms[0]} -> {rooms[1]}: {source} includes {target}")
    for source, targets in sorted(calls.items()):
        for target, names in sorted(targets.items()):
            rooms = room_of(source, rule), room_of(target, rule)
            if set(rooms) <= set(rule):
                bad = [name for name in sorted(names) if not may_call(rule, *rooms, name in public)]
                if bad:
                    lines.append(f"{rooms[0]} -> {rooms[1]}: {source} calls {', '.join(bad)} of {target}")
    return lines


def find_circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Returns the strongly connected components of more than one node (Tarjan's algorithm, without recursion)."""
    order, low, stack, on_stack, circles = {}, {}, [], set(), []
    for root in sorted(graph):
        work = [] if root in order else [(root, iter(sorted(graph[root])))]
        if work:
            order[root] = low[root] = len(order)
            stack.append(root)
            on_stack.add(root)
        while work:
            node, targets = work[-1]
            target = next(targets, None)
            if target is not None and target not in order:
                order[target] = low[target] = len(order)
                stack.append(target)
                on_stack.add(target)
                work.append((target, iter(sorted(graph.get(target, ())))))
            elif target is not None:
                low[node] = min(low[node], order[target]) if target in on_stack else low[node]
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    at = stack.index(node)
                    if len(stack) - at > 1:
                        circles.append(sorted(stack[at:]))
                    on_stack -= set(stack[at:])
                    del stack[at:]
    return circles


def describe_circles(graph: Graph, kind: str) -> list[str]:
    """Returns the circles between units, each with the dependencies that it consists of.

    Includes count that stand in a header or in a source: what either needs, the unit needs.
    """
    units = defaultdict(lambda: defaultdict(set))
    for source, targets in graph.items():
        for target, names in targets.items():
            if unit_of(source) != unit_of(target):
                units[unit_of(source)][unit_of(target)] |= names
    lines = []
    for circle in find_circles({unit: set(targets) for unit, targets in units.items()}):
        lines.append(f"{len(circle)} files in a circle of {kind}: {', '.join(circle)}")
        for source in circle:
            for target in sorted(set(units[source]) & set(circle)):
                names = ", ".join(sorted(units[source][target] - {""}))
                lines.append(f"    {source} -> {target}{': ' + names if names else ''}")
    return lines


def find_stray_files(rule: dict[str, set[str]], names: list[str]) -> list[str]:
    """Returns a line for each source in no room, and for each name that stands in two folders or twice in one."""
    lines = [f"{name} is in no room" for name in names if room_of(name, rule) not in rule]
    folders = defaultdict(set)
    for name in names:
        folders[PurePosixPath(name).name.split(".")[0]].add(unit_of(name))
    for units in sorted(map(sorted, folders.values())):
        if len(units) > 1:
            lines.append(f"one name for several files: {', '.join(units)}")
    return lines


# ---- self-test ----

_RULE = """
| room | depends on |
| --- | --- |
| `include` | nothing |
| `low` | nothing |
| `high` | `low` |
| `tools` | the public API |
| `tests` | everything |

Some text.
"""


def test_reads_rule() -> None:
    rule = read_rule(_RULE)
    assert rule == {"include": set(), "low": set(), "high": {"low"}, "tools": {PUBLIC}, "tests": {EVERYTHING}}
    for wrong in (_RULE.replace("nothing", "most"), _RULE.replace("`low` |\n", "`deep` |\n"), _RULE + _RULE, ""):
        try:
            read_rule(wrong)
        except ValueError:
            continue
        raise AssertionError(f"accepted: {wrong}")


def test_finds_includes() -> None:
    files = {
        "include/api.h": "#pragma once\n",
        "low/one.h": '#include <api.h>\n# include "two.h" /* and back */\n',
        "low/two.h": '/*\n#include "three.h"\n*/\n#include "api.h"\n',
        "low/two.c": '#include "two.h"\n#include "one.h"\n#include <math.h>\n',
        "high/three.h": '#include "one.h"\n#include "absent.h"\n',
        "low/four.cu": '#include "high/three.h"\n',
        "tools/main.c": '#include <api.h>\n#include "one.h"\n',
        "tests/one.c": '#include "three.h"\n',
        "stray/five.cuh": "",
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).parent.mkdir(exist_ok=True)
            (Path(folder) / name).write_text(text, encoding="utf-8")
        graph, missing = find_includes(Path(folder), sorted(files))
    assert missing == ["high/three.h:2: includes absent.h, which is not in the repository"], missing
    rule = read_rule(_RULE)
    assert find_violations(rule, graph, {}, set()) == [
        "low -> high: low/four.cu includes high/three.h",
        "tools -> low: tools/main.c includes low/one.h",
    ]
    assert describe_circles(graph, "includes") == [
        "2 files in a circle of includes: low/one, low/two",
        "    low/one -> low/two",
        "    low/two -> low/one",
    ]
    assert find_stray_files(rule, sorted(files)) == [
        "stray/five.cuh is in no room",
        "one name for several files: low/one, tests/one",
    ]


def test_rooms_in_rooms() -> None:
    rule = read_rule(
        """
| room | depends on |
| --- | --- |
| `base` | nothing |
| `high/low` | `base` |
| `high/top` | `high/low` |
"""
    )
    assert room_of("high/top/deeper/one.c", rule) == "high/top" and room_of("high/top/one.c") == "high"
    assert room_of("high/one.c", rule) == "high" and room_of("one.c", rule) == ""
    includes = {
        "high/top/one.c": {"high/low/two.h": {""}, "base/three.h": {""}},
        "high/low/two.c": {"high/top/one.h": {""}, "base/three.h": {""}},
    }
    assert find_violations(rule, includes, {}, set()) == [
        "high/low -> high/top: high/low/two.c includes high/top/one.h",
        "high/top -> base: high/top/one.c includes base/three.h",
    ]
    assert find_stray_files(rule, ["high/one.c", "high/top/two.c"]) == ["high/one.c is in no room"]


def test_finds_calls() -> None:
    text = """
one.o: trf_one T 0 10
one.o: trf_two U
one.o: __asan_init U
one.o: inlined W 0 4
/build/libx.a[two.o]: trf_two T 0 10
/build/libx.a[two.o]: trf_data D 0 10
/build/libx.a[two.o]: inlined U
three.o: trf_two U
three.o: trf_public T 0 8
three.o: trf_one w
main.o: main T 0 1
main.o: trf_public U
main.o: trf_data U
other.o: main T 0 1
"""
    sources = {"one.o": "low/one.c", "two.o": "low/two.c", "three.o": "high/three.cu", "main.o": "tools/main.c"}
    calls = find_calls(sources, parse_symbols(text.strip()))
    assert calls == {
        "low/one.c": {"low/two.c": {"trf_two"}},
        "high/three.cu": {"low/two.c": {"trf_two"}, "low/one.c": {"trf_one"}},
        "tools/main.c": {"high/three.cu": {"trf_public"}, "low/two.c": {"trf_data"}},
    }, calls
    lines = find_violations(read_rule(_RULE), {}, calls, {"trf_public"})
    assert lines == ["tools -> low: tools/main.c calls trf_data of low/two.c"], lines
    calls["low/two.c"] = {"high/three.cu": {"trf_public"}}
    lines = find_violations(read_rule(_RULE), {}, calls, {"trf_public"})
    assert lines[0] == "low -> high: low/two.c calls trf_public of high/three.cu" and len(lines) == 2, lines


def test_finds_circles() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"d", "f"}, "g": {"a", "g"}}
    assert find_circles(graph) == [["d", "e"], ["a", "b", "c"]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--build", type=Path, help="the build folder whose symbols are looked at")
    parser.add_argument("--nm", default="nm")
    options = parser.parse_args()
    test_reads_rule()
    test_finds_includes()
    test_rooms_in_rooms()
    test_finds_calls()
    test_finds_circles()

    rule = read_rule(read_text(options.root / "docs" / "architecture.md"))
    files = list_files(options.root)
    names = [name for name in files if is_source(name)]
    includes, lines = find_includes(options.root, names)
    calls = calls_of_build(options.root, options.build, options.nm) if options.build else {}
    lines += find_violations(rule, includes, calls, set(find_public_functions(options.root)))
    # Nobody includes a source file, so that only headers can be in a circle of includes.
    headers = {name: uses for name, uses in includes.items() if name.endswith((".h", ".cuh"))}
    lines += describe_circles(headers, "includes") + describe_circles(calls, "calls")
    lines += find_stray_files(rule, [name for name in files if is_named_freely(name)])
    return report(
        lines,
        f"{len(names)} files, {sum(map(len, includes.values()))} includes, {sum(map(len, calls.values()))} "
        f"pairs of files with calls; {len([line for line in lines if not line.startswith(' ')])} findings",
    )


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""What pages say of the repository is true: names and files that they mention exist, links and their anchors lead
somewhere, commands have the options that pages give them, presets and labels of tests exist, and lines are not longer
than 120 characters. No text of the repository, pages and messages alike, tells people to install transfuse from PyPI,
where there is no package.

A name is `trf_...` or `TRF_...` between backticks; it has to stand in some source. A file is a path between backticks
whose first folder is one of the repository's, or a file name with a suffix of sources; in a code block it is a word of
that sort. Options of the transfuse command are looked up in its --help, which takes a build that has it; without one
that part is left out, with a message. CHANGELOG.md and pages of the notebook tell of what is gone, too: their lines
and links are checked alone. Tables and addresses may be longer.
Usage: test_pages.py [--root DIR] [--build DIR]
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

from repository_files import C_SUFFIXES, ROOT, list_files, read_text, report

MAX_COLUMNS = 120
# Options of other programs that pages speak of, and that no script of ours passes.
OPTIONS_OF_OTHERS = {"--launch-skip", "--launch-count", "--enable-sleep-mode", "--safetensors-load-strategy"}
_FILE = re.compile(r"[\w./*-]+\.(?:c|h|cu|cuh|inc|py|sh|md|cmake|txt)|[\w-]+(?:/[\w.*-]+)+/?")
_NAME = re.compile(r"\b(?:trf|TRF)_\w+\*?")
_OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")


def is_page(name: str) -> bool:
    return (
        "/" not in name
        and name.endswith(".md")
        or name == "format/FORMAT.md"
        or bool(re.fullmatch(r"docs/[^/]+\.md", name))
    )


def is_page_or_notebook(name: str) -> bool:
    return is_page(name) or name.startswith("docs/") and name.endswith(".md")


# ---- the parts of a page ----


def find_long_lines(text: str) -> list[int]:
    return [
        number
        for number, line in enumerate(text.split("\n"), 1)
        if len(line) > MAX_COLUMNS and "://" not in line and not line.startswith("|")
    ]


def split_code(text: str) -> tuple[str, str, str]:
    """Returns prose with its tables, the lines of code blocks that are shell's or nobody's, and those of other code."""
    prose, shell, other, fence = [], [], [], None
    for line in text.split("\n"):
        if line.startswith("```"):
            fence = None if fence is not None else line[3:].strip()
        elif fence is not None:
            (shell if fence in ("", "sh") else other).append(line)
        else:
            (shell if line.startswith("    ") else prose).append(line)
    return "\n".join(prose), "\n".join(shell), "\n".join(other)


def find_spans(prose: str) -> list[str]:
    """Returns what stands between backticks, on one line or two."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


def find_names(text: str) -> set[str]:
    """Returns the names in code spans and code blocks; of `trf_job_*` the part before the star."""
    spans = re.findall(r"```.*?```|`[^`\n]+`", text, re.S)
    return {name for span in spans for name in _NAME.findall(span)}


def find_mentioned_files(text: str, folders: set[str]) -> set[str]:
    """Returns the paths between backticks, and the words of code blocks that are scripts or paths of the repository."""
    prose, shell, _ = split_code(text)
    words = {word for line in shell.split("\n") for word in line.split("#")[0].split() if _FILE.fullmatch(word)}
    ours = {word for word in words if word.split("/")[0] in folders or ("/" not in word and word.endswith(".sh"))}
    return {span for span in find_spans(prose) if _FILE.fullmatch(span)} | ours


def find_links(text: str) -> set[str]:
    return {target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target}


def find_anchors(text: str) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub and others make them."""
    anchors: set[str] = set()
    prose = split_code(text)[0]
    for heading in re.findall(r"^#+ +(.*?) *$", prose, re.M):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        while anchor in anchors:
            anchor += "-1"
        anchors.add(anchor)
    return anchors


# ---- commands ----


def find_commands(text: str, commands: set[str]) -> list[tuple[str, list[str]]]:
    """Returns the calls of transfuse that a page shows: the command, and its options. In spans `bench --mode moe` is a
    call, too."""
    prose, shell, _ = split_code(text)
    # There it is the package's name.
    shell = "\n".join(line for line in shell.split("\n") if not re.search(r"\bpip install\b|--pyargs\b", line))
    spans = find_spans(prose)
    called = re.findall(r"(?:^|[\s/])transfuse +([^\n]+)", "\n".join([shell.replace("\\\n", " "), *spans]))
    called += [span for span in spans if span.split()[0] in commands]
    calls = []
    for call in called:
        command, *words = re.sub(r"'[^']*'", "''", call.split(" #")[0]).split()
        if command != command.upper():  # COMMAND stands for each of them
            calls.append((command, _OPTION.findall(" ".join(words))))
    return calls


def find_bare_options(prose: str) -> set[str]:
    """Returns the long options that stand between backticks without their command, such as `--favor size`."""
    return {span.split()[0].split("=")[0] for span in find_spans(prose) if re.match(r"--[a-z]", span)}


def find_installs(text: str) -> list[str]:
    """Returns the calls of pip that would ask PyPI for transfuse; paths and wheels (./transfuse-0.2.whl) do not."""
    found = []
    for call in re.findall(r"\bpip3? install\b[^\n`;#]*", text):
        words = re.findall(r"[^\s'\"\\]+", call)[2:]
        if any(re.fullmatch(r"transfuse(\[[\w,-]*\])?([=<>~!].*)?[.,:)]*", word) for word in words):
            found.append(call.strip())
    return found


class Transfuse:
    """The options of each command, by its own --help."""

    def __init__(self, binary: Path) -> None:
        self.binary = binary
        listed = re.findall(r"^  ([a-z]+) ", self._ask("--help"), re.M)
        self.options = {command: set(_OPTION.findall(self._ask(command, "--help"))) | {"--help"} for command in listed}
        self.options["doctor"] = {"--help", "--gpus", "--context", "--memory-gb"}  # the Python package's
        self.own = {"--help", "--version"}

    def _ask(self, *arguments: str) -> str:
        return subprocess.run([self.binary, *arguments], capture_output=True, text=True, check=True).stdout

    def find_faults(self, text: str) -> list[str]:
        faults = []
        for command, options in find_commands(text, set(self.options)):
            if command not in self.options and command not in self.own:
                faults.append(f"there is no command 'transfuse {command}'")
            faults += [
                f"'transfuse {command}' has no option {option}"
                for option in options
                if option not in self.options.get(command, self.own)
            ]
        return faults


# ---- what there is ----


class Repository:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = set(list_files(root))
        self.folders = {
            "/".join(file.split("/")[:depth]) for file in self.files for depth in range(1, file.count("/") + 1)
        }
        sources = [
            file
            for file in self.files
            if file.endswith((*C_SUFFIXES, ".inc", ".cmake", ".py", ".sh", "CMakeLists.txt"))
        ]
        # This file's own text has names that there are not.
        sources = [file for file in sources if Path(file).name != Path(__file__).name]
        texts = {file: read_text(root / file) for file in sources}
        self.words = {word for text in texts.values() for word in re.findall(r"\w+", text)}
        self.words |= {word for file in sources for word in re.findall(r"\w+", Path(file).name)}
        scripts = [text for file, text in texts.items() if file.endswith((".sh", ".py"))]
        self.script_options = {option for text in scripts for option in _OPTION.findall(text)}
        presets = json.loads(read_text(root / "CMakePresets.json"))
        self.presets = {preset["name"] for preset in presets["configurePresets"]}
        lists = "\n".join(text for file, text in texts.items() if file.startswith("tests/") and file.endswith(".txt"))
        self.labels = set(re.findall(r"\bLABELS \"?(\w+)", lists))
        self.tests = self._find_tests(lists)

    def _find_tests(self, lists: str) -> set[str]:
        tests = set(re.findall(r"trf_add_test\(([a-z]+\.\w+) ", lists))
        for file in self.files:
            found = re.fullmatch(r"tests/(\w+)/test_(\w+)\.(?:c|sh|py)", file)
            if found:
                tests.add(f"{found[1]}.{found[2].removeprefix('gpu_')}")
        return tests

    def knows_name(self, name: str) -> bool:
        if name.endswith(("_", "*")):
            start = name.rstrip("*")
            return any(word.startswith(start) for word in self.words)
        return name in self.words

    def knows_file(self, name: str) -> bool:
        """Whether a path, or the end of one, is in the repository; paths of other things than ours are known, too."""
        top = name.split("/")[0]
        if "/" in name and top not in self.folders:
            return True
        if "*" in name:
            pattern = re.compile(re.escape(name).replace(r"\*", "[^/]*"))
            return any(pattern.fullmatch(file) for file in self.files)
        path = name.rstrip("/")
        return path in self.folders or any(file == path or file.endswith("/" + path) for file in self.files)

    def find_build_faults(self, text: str) -> list[str]:
        """Presets, and what ctest is to run."""
        _, shell, _ = split_code(text)
        code = shell + "\n" + "\n".join(find_spans(split_code(text)[0]))
        faults = [
            f"there is no preset {preset}"
            for preset in re.findall(r"--preset ([a-z]\w*)", code)
            if preset not in self.presets
        ]
        for line in code.split("\n"):
            if not re.search(r"\bctest\b", line):
                continue
            faults += [
                f"no test has the label {label}"
                for label in re.findall(r" -L '?(\w+)", line)
                if label not in self.labels
            ]
            faults += [
                f"no test has a name like {pattern}"
                for pattern in re.findall(r" -R '?([^\s']+)", line)
                if not any(re.search(pattern, test) for test in self.tests)
            ]
        return faults

    def find_link_faults(self, page: str, text: str) -> list[str]:
        faults = []
        for link in sorted(find_links(text)):
            path, _, anchor = link.partition("#")
            target = (self.root / page).parent.joinpath(path) if path else self.root / page
            if not target.exists():
                faults.append(f"leads to {link}, which there is not")
            elif anchor and anchor not in find_anchors(read_text(target)):
                faults.append(f"leads to {link}, a page without that heading")
        return faults

    def find_faults(self, page: str, transfuse: Transfuse | None) -> list[str]:
        text = read_text(self.root / page)
        faults = self.find_link_faults(page, text)
        faults += [f"line {number} is longer than {MAX_COLUMNS} columns" for number in find_long_lines(text)]
        if not is_page(page) or page == "CHANGELOG.md":
            return faults
        faults += [f"there is no {name}" for name in sorted(find_names(text)) if not self.knows_name(name)]
        faults += [
            f"there is no file {name}"
            for name in sorted(find_mentioned_files(text, self.folders))
            if not self.knows_file(name)
        ]
        faults += self.find_build_faults(text)
        if transfuse:
            known = set().union(*transfuse.options.values()) | self.script_options | OPTIONS_OF_OTHERS
            faults += transfuse.find_faults(text)
            faults += [
                f"nothing has an option {option}"
                for option in sorted(find_bare_options(split_code(text)[0]))
                if option not in known
            ]
        return faults


# ---- tests of this test ----


def test_finds_names_and_files(repository: Repository) -> None:
    text = (
        "Of `trf_one` and `TRF_TWO`, not trf_four.\n`a/b.c`, `x y.c`, `trf_five.h`, `make`\n"
        "```c\ntrf_three(x) a/d.c\n```\n"
    )
    assert find_names(text) == {"trf_one", "TRF_TWO", "trf_three", "trf_five"}, find_names(text)
    text += "\n\n    sh do.sh a/e.py # a/f.py\n    cc x.c\n"
    assert find_mentioned_files(text, {"a"}) == {"a/b.c", "trf_five.h", "do.sh", "a/e.py"}
    repository.words, repository.files, repository.folders = {"trf_one"}, {"a/b.c", "a/cmd_x.c"}, {"a"}
    assert repository.knows_name("trf_on*") and not repository.knows_name("trf_on")
    assert all(repository.knows_file(name) for name in ("b.c", "a/b.c", "a/", "a/cmd_*.c", "other/b.h"))
    assert not any(repository.knows_file(name) for name in ("c.c", "a/c.c", "a/dmd_*.c"))


def test_finds_long_lines() -> None:
    long = "é" * (MAX_COLUMNS + 1)
    assert find_long_lines(f"{long}\n| {long}\n```\n{long}\n```\n    {long}\nhttps://{long}\n{long[1:]}") == [1, 4, 6]


def test_finds_links() -> None:
    assert find_links("[a](b.md#c) [d](https://e.org) [f](#g) ![h](i.svg)") == {"b.md#c", "#g", "i.svg"}
    assert find_anchors("# A `b`, C-d\n    # code\n```\n# code\n```\n## A b c-d\n") == {"a-b-c-d", "a-b-c-d-1"}


def test_finds_installs() -> None:
    right = "`pip install .` brings transfuse\npip install -U torch  # not transfuse\npip install './transfuse-0.2.whl'"
    assert find_installs(right) == [], find_installs(right)
    for words in ("transfuse", "'transfuse[torch]'", "-q --upgrade transfuse==0.2", "torch transfuse   # or so"):
        assert len(find_installs(f"run: pip install {words}")) == 1, words


def test_finds_commands(repository: Repository) -> None:
    text = (
        "    build/transfuse pack a/ -o b --fast 2 --glob '*--x'   # or --slow\n    cmake --preset other\n"
        "    ctest --preset release -L gpus -R '^unit\\.nothing'\n`pack --small`, `--bits 4` and `transfuse`"
    )
    assert find_commands(text, {"pack"}) == [("pack", ["-o", "--fast", "--glob"]), ("pack", ["--small"])]
    assert find_bare_options(text) == {"--bits"}
    assert repository.find_build_faults(text) == [
        "there is no preset other",
        "no test has the label gpus",
        "no test has a name like ^unit\\.nothing",
    ]
    assert repository.find_build_faults("`ctest --preset asan -L gpu -R '^structure.pages'`") == []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--build", type=Path, help="where the transfuse command is looked for")
    parser.add_argument("--nm", help="not used: every test of this folder gets it")
    options = parser.parse_args()
    repository = Repository(options.root)
    test_finds_long_lines()
    test_finds_links()
    test_finds_installs()
    test_finds_commands(repository)
    test_finds_names_and_files(Repository(options.root))

    binary = options.build / "transfuse" if options.build else None
    transfuse = Transfuse(binary) if binary and binary.is_file() else None
    if not transfuse:
        print("skipped: the options of the command, as this build has none")
    lines = [
        f"{page}: {fault}"
        for page in sorted(filter(is_page_or_notebook, repository.files))
        for fault in repository.find_faults(page, transfuse)
    ]
    lines += [
        f"{file}: '{call}', and there is no such package"
        for file in sorted(repository.files)
        if Path(file).name != Path(__file__).name and not file.endswith(".trf")
        for call in find_installs(read_text(options.root / file))
    ]
    return report(lines, f"{len(lines)} findings")


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The library's tables of crossovers against the cards that they are made of."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "runtime" / "tuning" / "crossovers" / "make_crossovers.py"
LAYER = '"codec": "int", "class_bits": 4, "raw_bits": 3, "scale_groups": true, "rows": 64, "cols": 128'


def run(tool: Path, *arguments: object) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, str(tool), *map(str, arguments)], capture_output=True, text=True)


def make_tuning(folder: Path, times: list[tuple], **card: object) -> Path:
    """Writes a tuning of one layer. times: batch, fused, two-step and wide; None where a path does not take it."""
    batches = [
        f'{{"to": {m}, "path": "fused", "microseconds": {{'
        + ", ".join(f'"{name}": {time}' for name, time in zip(("fused", "two-step", "wide"), of_paths) if time)
        + "}}"
        for m, *of_paths in times
    ]
    fields = "".join(f'"{name}": {value}, ' for name, value in card.items())
    tuning = folder / "tuning.json"
    tuning.write_text(f'{{"device": "A Card", {fields}"layers": [{{{LAYER}, "batches": [{", ".join(batches)}]}}]}}')
    return tuning


def test_committed_tables_are_what_the_script_makes() -> None:
    made = run(TOOL)
    assert made.returncode == 0, made.stderr
    assert made.stdout == (ROOT / "runtime" / "tuning" / "trf_crossovers.inc").read_text()


def test_tunings_become_cards_and_cards_tables(tmp_path: Path) -> None:
    tool = shutil.copy(TOOL, tmp_path / "make_crossovers.py")
    # Noise at 3 rows, where paths are alike, makes no island; nothing takes 9; fused ends before 8.
    times = [(1, 10, 30, 20), (2, 10, 30, 20), (3, 20.1, 30, 20), (4, 21, 40, 22), (6, 30, 40, 20), (8, None, 25, 30)]
    tuning = make_tuning(tmp_path, times, capability=80, multiprocessors=100, memory_gb_per_second=2000)
    made = run(tool, "--card", tuning)
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines() == [
        "name,capability,multiprocessors,memory_gb_per_second,packed_to",
        "A Card,80,100,2000,",
        "codec,class_bits,raw_bits,scale_groups,rows,cols,path,1,2,3,4,6,8",
        "int,4,3,1,64,128,fused,10.00,10.00,20.10,21.00,30.00,",
        "int,4,3,1,64,128,wide,20.00,20.00,20.00,22.00,20.00,30.00",
        "int,4,3,1,64,128,two-step,30.00,30.00,30.00,40.00,40.00,25.00",
    ]
    (tmp_path / "b.csv").write_text(made.stdout.replace("2000,\n", "2000,0\n"))
    (tmp_path / "a.csv").write_text(made.stdout.replace("A Card,80,100,2000,", "Another,90,50,1000,4095"))
    made = run(tool)
    assert made.returncode == 0, made.stderr
    layer = "    {{TRF_LAYOUT_CODED, TRF_CODEC_INT, 4, 3, 1, 64, 128}, 4, 6},"
    assert "*/" in made.stdout.splitlines()[3]
    assert made.stdout.splitlines()[4:] == [
        "static const trf_layer_crossovers kOfAnother[] = {",
        layer,
        "};",
        "static const trf_layer_crossovers kOfACard[] = {",
        layer,
        "};",
        "static const trf_crossover_table kTables[] = {",
        '    {{"Another", 90, 50, 1000},',
        "     kOfAnother,",
        "     sizeof kOfAnother / sizeof kOfAnother[0],",
        "     4095},",
        '    {{"A Card", 80, 100, 2000},',
        "     kOfACard,",
        "     sizeof kOfACard / sizeof kOfACard[0],",
        "     0},",
        "};",
    ]


def test_what_a_tuning_does_not_say_is_asked_for(tmp_path: Path) -> None:
    tool = shutil.copy(TOOL, tmp_path / "make_crossovers.py")
    card = run(tool, "--card", make_tuning(tmp_path, [(1, 10, 30, 20)], capability=90, multiprocessors=100))
    assert card.returncode == 0 and card.stdout.splitlines()[1] == "A Card,90,100,,"
    (tmp_path / "card.csv").write_text(card.stdout)
    made = run(tool)
    assert made.returncode == 1 and "card.csv: 'memory_gb_per_second'" in made.stderr
    (tmp_path / "card.csv").write_text(card.stdout.replace("A Card,90,100,,", "A Card,90,100,2000,"))
    made = run(tool)
    assert made.returncode == 1 and "card.csv: 'packed_to'" in made.stderr
    (tmp_path / "card.csv").write_text("something else\n")
    made = run(tool)
    assert made.returncode == 1 and "card.csv: not a card" in made.stderr


def test_command_says_how_it_is_used() -> None:
    made = run(TOOL, "90")
    assert made.returncode == 1 and "make_crossovers.py --card" in made.stderr

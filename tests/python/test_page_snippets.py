# SPDX-License-Identifier: Apache-2.0
"""Everything that the pages show as Python or as a command runs unchanged, in order, beside the sample model.

The wheel with the ops for PyTorch is tried, on the CPU: it has no device code, so that "cuda" in a snippet becomes
"cpu". C is compiled by tests/installed; here the README's program is built and run as that says. What is not run
stands in SKIPPED, with the reason. Without torch and transformers (tests/torch_requirements.txt) this skips.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

try:
    import torch  # noqa: F401
    import transformers  # noqa: F401
except ImportError as failure:
    pytest.skip(f"there is no torch, which 'sh test.sh' installs: {failure}", allow_module_level=True)
from wheel_environment import BUILD, ROOT, make_environment, run

HERE = Path(__file__).resolve().parent
MODELS = {  # what is there before a page begins
    "README.md": [],
    "docs/guide.md": [],
    "docs/python.md": ["llama", "pipeline"],
    "docs/torch.md": ["llama", "llama-trf"],
}
# Lines of shell that begin so, and why they are not run.
SKIPPED = {
    "sh demo.sh": "installs packages; tests/cli/test_demo.sh has its program",
    "sh test.sh": "is what runs this",
    "cmake ": "takes minutes; the build that runs this stands for it",
    "ctest ": "is what runs this",
    "sudo ": "needs root; the fixture installs the build to a folder of its own",
    "python3 -m venv": "is for the pip that follows",
    "pip install": "wants the network; wheel_environment.py does the same without it",
    "transfuse doctor": "takes half a minute, and tests/python/test_torch.py runs it",
    "transfuse matmul up.trf x.npy -o y.npy -f --device cuda --tuning": "a tuning is for a GPU",
}
# Commands that would take minutes on a CPU are made small; each must be in some page.
SMALLER = {
    "--layers 8192x8192": "--layers 256x256",
    "--layers 4096x4096": "--layers 256x256",
    "-o h200.json": "-o h200.json --max-batch 2",
}
LOADS_LIKE_ITS_SOURCE = """
import sys, torch, transfuse
from transformers import AutoModelForCausalLM, AutoTokenizer
source = AutoModelForCausalLM.from_pretrained("llama", device_map="cpu")
assert source.dtype == torch.bfloat16 and source.lm_head.weight is source.model.embed_tokens.weight
for options in ({"exact": True}, {"exact": True, "layout": "packed"}):
    config = transfuse.TransfuseConfig(**options)
    model, loading = AutoModelForCausalLM.from_pretrained(
        "llama-trf", device_map="cpu", quantization_config=config, output_loading_info=True
    )
    assert not any(loading.values()), loading
    assert type(model.model.layers[0].mlp.up_proj).__name__ == "TransfuseLinear"
    for folder in ("llama", "llama-trf"):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        for text in ("Entropy coding is", "Grüße, 世界 🙂\\n\\ttwo  spaces ", "</s> of the theatre", "\\0\\x7f\\u00ad"):
            ids = tokenizer(text, return_tensors="pt")
            assert tokenizer.decode(ids["input_ids"][0]) == text, text
            assert torch.equal(model(**ids).logits, source(**ids).logits)
    written = model.generate(**ids, max_new_tokens=12)
    assert torch.equal(written, source.generate(**ids, max_new_tokens=12))
    assert len(tokenizer) == model.config.vocab_size and tokenizer.decode(written[0])
print("the same")
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment with the wheel installed."""
    return make_environment(tmp_path_factory.mktemp("wheel"), "wheel-torch-models", "TRF_TORCH=ON")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `cmake --install` makes of the build that runs this."""
    folder = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", BUILD, "--prefix", folder)
    return folder


def make_folder(environment: Path, folder: Path, models: list[str]) -> None:
    """What a reader has: the clone's examples, the Python environment, and the models that a page speaks of."""
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / ".venv").symlink_to(environment.parent)
    sample = [environment / "python", ROOT / "examples" / "make_sample_checkpoint.py", "--small", "llama"]
    commands = {
        "llama": sample,
        "llama-trf": [environment / "transfuse", "compress", "llama", "-o", "llama-trf"],
        "pipeline": [environment / "python", HERE / "make_tiny_pipeline.py", "llama", "pipeline"],
    }
    for model in models:
        if model != "pipeline" or importlib.util.find_spec("diffusers"):
            done = subprocess.run(commands[model], cwd=folder, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr


def find_blocks(text: str) -> list[tuple[str, int, str]]:
    """Returns the snippets of a page: the language, the line in front of the first one, and the text."""
    blocks: list[tuple[str, int, list[str]]] = []
    fence, last = None, ""
    for number, line in enumerate(text.splitlines()):
        if line.startswith("```"):
            fence = None if fence is not None else line[3:].strip()
            if fence is not None:
                blocks.append((fence or "sh", number + 1, []))
        elif fence is not None:
            blocks[-1][2].append(line)
        elif line.startswith("    "):
            if not last.startswith("    "):
                blocks.append(("sh", number, []))
            blocks[-1][2].append(line[4:])
        last = line
    return [(language, number, "\n".join(lines) + "\n") for language, number, lines in blocks]


def shorten(script: str) -> str:
    """Returns a shell snippet without what is skipped, and with small layers for large ones."""
    lines = [line for line in script.replace("\\\n", " ").splitlines() if not line.startswith(tuple(SKIPPED))]
    text = "\n".join(lines)
    for large, small in SMALLER.items():
        text = text.replace(large, small)
    return text.strip()


def page_blocks(page: str) -> list[dict[str, object]]:
    """Returns the parts of a page that are run."""
    blocks = []
    for language, line, text in find_blocks((ROOT / page).read_text(encoding="utf-8")):
        if language == "sh":
            text = shorten(text)
        needs_diffusers = page == "docs/python.md" and "pipeline" in text
        if language == "c" or not text or needs_diffusers and not importlib.util.find_spec("diffusers"):
            continue
        text = re.sub(r"\bcuda\b", "cpu", text)
        blocks.append({"language": language, "line": line, "page": page, "text": text})
    return blocks


def test_the_sample_loads_like_its_source(environment: Path, tmp_path: Path) -> None:
    make_folder(environment, tmp_path, ["llama", "llama-trf"])
    command = [environment / "python", "-c", LOADS_LIKE_ITS_SOURCE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("the same\n"), done.stdout + done.stderr


@pytest.mark.parametrize("page", MODELS)
def test_the_page_runs(environment: Path, prefix: Path, tmp_path: Path, page: str) -> None:
    make_folder(environment, tmp_path, MODELS[page])
    libraries = [path.parent for path in prefix.rglob("pkgconfig")]
    environ = {
        **os.environ,
        "PATH": f"{environment}:{os.environ['PATH']}",
        "PKG_CONFIG_PATH": ":".join(f"{path}/pkgconfig" for path in libraries),
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
    }
    (tmp_path / "blocks.json").write_text(json.dumps(page_blocks(page)))
    command = [environment / "python", "-B", HERE / "run_page_blocks.py", "blocks.json"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_blocks_of_pages_are_found_and_the_exceptions_are_needed() -> None:
    text = "a\n\n    b\n    c \\\n      d\n\n```python\ne\n\nf\n```\n```\nsudo g\nh\n```\n"
    found = [("sh", 2, "b\nc \\\n  d\n"), ("python", 7, "e\n\nf\n"), ("sh", 12, "sudo g\nh\n")]
    assert find_blocks(text) == found and shorten(found[0][2]) == "b\nc    d" and shorten(found[2][2]) == "h"
    shells = [
        block
        for page in MODELS
        for language, _, block in find_blocks((ROOT / page).read_text(encoding="utf-8"))
        if language == "sh"
    ]
    lines = [line for shell in shells for line in shell.replace("\\\n", " ").splitlines()]
    assert [start for start in SKIPPED if not any(line.startswith(start) for line in lines)] == []
    assert [large for large in SMALLER if not any(large in line for line in lines)] == []
    for page in MODELS:
        assert len(page_blocks(page)) >= 2, page

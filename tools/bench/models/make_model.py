# SPDX-License-Identifier: Apache-2.0
"""Makes the compressed checkpoint of a model with random weights, one small file at a time.

Usage: make_model.py MODEL FOLDER [--scale tiny] [--layers N] [--repeat] [--no-embeddings] [--keep-source FOLDER]
                     [--overflow FOLDER]

The source never exists as a whole, unless --keep-source names a folder for it: a layer's tensors are made on the device
from the seed, written to a file, compressed to FOLDER, and deleted. With --repeat all layers are the first one, which
is compressed once; its file is then written again under the names of the others. Files for which FOLDER's file system
has no room go to --overflow; FOLDER gets links to them.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

import model_shapes
import torch
import transfuse

INDEX = "model.safetensors.index.json"


def split_to_files(tensors: dict[str, tuple[int, ...]]) -> dict[str, list[str]]:
    """Returns the names of the tensors of each file: one file a layer, and one for what is in no layer."""
    groups: dict[str, list[str]] = {}
    for name in tensors:
        layer = re.search(r"\blayers\.(\d+)\.", name)
        groups.setdefault(layer[1] if layer else "rest", []).append(name)
    return {f"model-{at:05}-of-{len(groups):05}.safetensors": names for at, names in enumerate(groups.values(), 1)}


def read_header(path: Path) -> tuple[dict, int]:
    """Returns the header of a safetensors file, and where its data begins."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(size)), 8 + size


def repeat_layer(path: Path, target: Path, layer: str) -> None:
    """Writes a compressed file of layer 0 again as that of another layer: other names, the same blobs."""
    header, start = read_header(path)
    renamed = json.loads(json.dumps(header).replace("layers.0.", f"layers.{layer}."))
    text = json.dumps(renamed).encode()
    text += b" " * (-(8 + len(text)) % 16)
    with path.open("rb") as old, target.open("wb") as new:
        new.write(len(text).to_bytes(8, "little") + text)
        old.seek(start)
        shutil.copyfileobj(old, new, 16 << 20)


class Maker:
    """Makes one checkpoint."""

    def __init__(self, source: model_shapes.Source, target: Path, options: argparse.Namespace) -> None:
        self.source, self.target, self.options = source, target, options
        self.tensors = model_shapes.list_disk_tensors(source.config)
        self.files = split_to_files(self.tensors)
        self.work = Path(tempfile.mkdtemp(dir=target.parent, prefix="making-"))

    def find_place(self, file: str, size: int) -> Path:
        """Returns where to write a file of the checkpoint; if that is another folder, it has already made a link."""
        place = self.target / file
        # The sources that are being compressed need room, too.
        if self.options.overflow and shutil.disk_usage(self.target).free < 8 * size:
            folder = self.options.overflow / self.target.name
            folder.mkdir(parents=True, exist_ok=True)
            place.symlink_to(folder / file)
            return folder / file
        return place

    def write_source(self, file: str) -> Path:
        """Writes one file of the source into a folder of its own, beside the config; returns the folder."""
        folder = self.work / file
        folder.mkdir()
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name in self.files[file]:
            start, end = end, end + 2 * torch.Size(self.tensors[name]).numel()
            header[name] = {"dtype": "BF16", "shape": self.tensors[name], "data_offsets": [start, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / file).open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for name in self.files[file]:
                weights = self.source.make(name, self.tensors[name], self.options.device).cpu()
                out.write(weights.view(torch.uint8).flatten().numpy().data)
        self.source.config.save_pretrained(folder)
        return folder

    def compress(self, file: str, folder: Path) -> None:
        """Compresses a folder of `write_source`; its file, and the first time its config, go to the target."""
        done = self.work / f"{file}.done"
        transfuse.compress(folder, done, embeddings=self.options.embeddings, verify=self.options.verify)
        shutil.move(done / file, self.find_place(file, (done / file).stat().st_size))
        if not (self.target / "config.json").exists():
            shutil.move(done / "config.json", self.target / "config.json")
        if self.options.keep_source:
            shutil.move(folder / file, self.options.keep_source / file)
            shutil.copy(folder / "config.json", self.options.keep_source / "config.json")
        shutil.rmtree(folder)
        shutil.rmtree(done)

    def write_files(self) -> None:
        """Writes all files; the next one's weights are made while one is compressed."""
        layer = {file: re.search(r"\blayers\.(\d+)\.", names[0]) for file, names in self.files.items()}
        first = next(file for file, match in layer.items() if match)
        made = [file for file, match in layer.items() if not (self.source.repeat and match and file != first)]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            # The layers come first: if nothing in the rest is compressed, its config.json does not say so.
            made.sort(key=lambda file: (layer[file] is None, file))
            ahead = pool.submit(self.write_source, made[0])
            for at, file in enumerate(made):
                folder = ahead.result()
                if at + 1 < len(made):
                    ahead = pool.submit(self.write_source, made[at + 1])
                self.compress(file, folder)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            size = (self.target / first).stat().st_size
            rest = [file for file in self.files if file not in made]
            for _ in pool.map(lambda f: repeat_layer(self.target / first, self.find_place(f, size), layer[f][1]), rest):
                pass

    def write_index(self) -> int:
        """Writes the index, and the source's if that is kept; returns the bytes of all tensors of the checkpoint."""
        total = sum(2 * torch.Size(shape).numel() for shape in self.tensors.values())
        by_name = {name: file for file, names in self.files.items() for name in names}
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": by_name}, indent=2, sort_keys=True)
        if self.options.keep_source:
            (self.options.keep_source / INDEX).write_text(text)
        coded, size = {}, 0
        for file in self.files:
            header, start = read_header(self.target / file)
            coded |= dict.fromkeys((name for name in header if name != "__metadata__"), file)
            size += (self.target / file).stat().st_size - start
        metadata = {"total_size": size, "transfuse_source_index": text}
        (self.target / INDEX).write_text(json.dumps({"metadata": metadata, "weight_map": coded}, indent=2))
        return size


def make(options: argparse.Namespace) -> dict[str, object]:
    """Makes the checkpoint that the options ask for, unless it exists; returns what the rows need to know about it."""
    target: Path = options.folder
    made = target / "made.json"
    if made.exists():
        return json.loads(made.read_text()) | {"seconds": 0.0}
    start = time.perf_counter()
    config = model_shapes.make_config(options.model, options.scale, options.layers)
    shutil.rmtree(target, ignore_errors=True)
    for folder in filter(None, (target, options.keep_source)):
        folder.mkdir(parents=True, exist_ok=True)
    maker = Maker(model_shapes.Source(config, options.seed, options.repeat), target, options)
    try:
        maker.write_files()
        size = maker.write_index()
    finally:
        shutil.rmtree(maker.work)
    report = {
        "model": options.model,
        "layers": config.num_hidden_layers,
        "repeat": options.repeat,
        "weights": sum(torch.Size(shape).numel() for shape in maker.tensors.values()),
        "compressed_bytes": size,
        "seconds": round(time.perf_counter() - start, 2),
    }
    made.write_text(json.dumps(report))
    return report


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say which model it is."""
    parser.add_argument("--scale", choices=("real", "tiny"), default="real")
    parser.add_argument("--layers", type=int, help="so many layers in place of the model's own number")
    parser.add_argument("--repeat", action="store_true", help="all layers are the first one again")
    parser.add_argument("--seed", type=int, default=model_shapes.SEED)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-embeddings", dest="embeddings", action="store_false")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=model_shapes.SHAPES)
    parser.add_argument("folder", type=Path)
    add_model_options(parser)
    parser.add_argument("--keep-source", type=Path, help="where the uncompressed checkpoint is to be kept")
    parser.add_argument("--overflow", type=Path, help="where files go for which FOLDER's file system has no room")
    parser.add_argument("--verify", action="store_true", help="decode and compare each tile while compressing")
    options = parser.parse_args()
    print(json.dumps(make(options)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

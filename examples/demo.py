# SPDX-License-Identifier: Apache-2.0
"""Takes a checkpoint through the transfuse command and checks every result with numpy. demo.sh calls it.

Usage: demo.py [--gpu] TRANSFUSE CHECKPOINT WORK_FOLDER      CHECKPOINT: a .safetensors file or a folder of them
--gpu: products on the GPU, too, and a table of what they take there beside cuBLASLt on the plain weights
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

try:
    import ml_dtypes
    import numpy as np
except ImportError:  # --help does without them
    ml_dtypes = np = None

# By the names that NumPy has for them, ml_dtypes' as well.
DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
BITS = "4.25"
# Elements converted to float64 at a time.
CHUNK = 1 << 22
# The multiplied layer is converted whole.
MAX_LAYER_WEIGHTS = 1 << 26
# What is timed on a GPU: layers as large models have them, made up, as the checkpoint's may be too small to tell.
GPU_LAYERS, GPU_BATCHES = "4096x4096,8192x8192", "1,8,16"
# Of a product on a GPU against the CPU's: sums have another order, and two-step rounds weights to F16 that the CPU does
# not.
GPU_ERROR = 1e-3
# Exit status of the command where there is no device, or no code for it.
NO_DEVICE = 3
# Seconds without a line after which one says that a command is still running.
REPORT_SECONDS = 5


class Failure(Exception):
    pass


class NoDevice(Failure):
    pass


class Tensor:
    """One tensor of a safetensors file, mapped, not read."""

    def __init__(self, path, data_start, entry):
        begin, end = entry["data_offsets"]
        self.dtype, self.shape = entry["dtype"], tuple(entry["shape"])
        # numpy does not map nothing.
        empty = np.empty(0, np.uint8)
        self.bytes = np.memmap(path, np.uint8, "r", data_start + begin, (end - begin,)) if end > begin else empty
        self.is_float = self.dtype in FLOATS

    def flat(self):
        return self.bytes.view(DTYPES[self.dtype])

    def matrix(self):
        return self.flat().astype(np.float64).reshape(self.shape)


def read_checkpoint(path):
    tensors = {}
    for file in sorted(path.glob("*.safetensors")) if path.is_dir() else [path]:
        with open(file, "rb") as stream:
            header_bytes = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(header_bytes))
        header.pop("__metadata__", None)
        tensors.update({name: Tensor(file, 8 + header_bytes, entry) for name, entry in header.items()})
    if not tensors:
        raise Failure(f"{path} holds no tensor")
    return tensors


def check_equal(source, copy):
    if source.keys() != copy.keys():
        raise Failure(f"names differ after the round trip: {sorted(source.keys() ^ copy.keys())[:5]}")
    for name, tensor in source.items():
        other = copy[name]
        if (tensor.dtype, tensor.shape) != (other.dtype, other.shape) or not np.array_equal(tensor.bytes, other.bytes):
            raise Failure(f"{name} differs after the round trip")


def relative_error(source, copy):
    """Root of the summed squared differences over that of the squares, over the float tensors that were quantized."""
    noise = signal = 0.0
    for name, tensor in source.items():
        if not tensor.is_float or np.array_equal(tensor.bytes, copy[name].bytes):
            continue
        a, b = tensor.flat(), copy[name].flat()
        for i in range(0, a.size, CHUNK):
            source_values = a[i : i + CHUNK].astype(np.float64)
            noise += np.sum((source_values - b[i : i + CHUNK]) ** 2, dtype=np.float64)
            signal += np.sum(source_values**2)
    return (noise / signal) ** 0.5 if signal else 0.0


def rms_ratio(difference, reference):
    return float(np.linalg.norm(difference) / np.linalg.norm(reference))


class Command:
    """Runs transfuse, showing each command line as a user would type it."""

    def __init__(self, path):
        self.path = path

    def __call__(self, *args):
        args = [str(arg) for arg in args]
        print("$ transfuse", *args, flush=True)
        start = time.perf_counter()
        with subprocess.Popen([self.path, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            while True:
                try:
                    output, errors = process.communicate(timeout=REPORT_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    print(f"  {time.perf_counter() - start:.0f} s", flush=True)
        seconds = time.perf_counter() - start
        if process.returncode == NO_DEVICE:
            raise NoDevice(errors.strip())
        if process.returncode != 0:
            raise Failure(f"exit status {process.returncode}\n{output}{errors}")
        return output, seconds


def choose_layer(info):
    """The largest compressed float matrix that is no embedding (nothing multiplies by those)."""
    matrices = [
        t
        for t in info["tensors"]
        if len(t["shape"]) == 2
        and t["dtype"] in ("BF16", "F16", "F32")
        and t.get("codec") in ("bf16", "fp16", "int")
        and np.prod(t["shape"]) <= MAX_LAYER_WEIGHTS
    ]
    matrices.sort(key=lambda t: ("embed" in t["name"], -np.prod(t["shape"]), t["name"]))
    return matrices[0]["name"] if matrices else None


def multiply_on_gpu(transfuse, stem):
    """The layer that `multiply` left, by the same x. @return how far the product is, relatively, from the CPU's."""
    y_path = f"{stem}-Y-gpu.npy"
    output, _ = transfuse("matmul", f"{stem}-layer.trf", f"{stem}-X.npy", "-o", y_path, "--device", "cuda")
    y = np.load(f"{stem}-Y.npy")
    error = rms_ratio(np.load(y_path) - y, y)
    if not error < GPU_ERROR:
        raise Failure(f"the product on the GPU is off by {error:.2e}: {output}")
    return error


def gpu_table(bench):
    """@return the lines of a table of what products took, from the JSON of `transfuse bench --device cuda`."""
    lines = [
        f"{bench['gpu']}, BF16 layers; microseconds a product, medians of {bench['runs']}, weights not in the cache",
        f"{'':<14}{'rows of x':>10}{'cuBLASLt, plain':>18}{'fused':>10}{'two-step':>10}{'cuBLASLt : fused':>18}",
    ]
    for result in bench["results"]:
        if any(blob["wrong_weights"] for blob in result["blobs"]):
            raise Failure(f"the GPU decodes {result['rows']}x{result['cols']} to other weights than the CPU")
        # Of what a path does not take there is a reason instead of a time.
        times = {(m["what"], m["batch"]): m.get("median_seconds") for m in result["measurements"]}
        for batch in sorted({batch for what, batch in times if what == "cublaslt"}):
            plain, fused, two_step = (times.get((what, batch)) for what in ("cublaslt", "fused", "two-step"))
            cells = [f"{1e6 * seconds:.1f}" if seconds else "-" for seconds in (plain, fused, two_step)]
            ratio = f"{plain / fused:.2f}" if plain and fused else "-"
            lines.append(
                f"{result['rows']}x{result['cols']:<{13 - len(str(result['rows']))}}{batch:>10}"
                f"{cells[0]:>18}{cells[1]:>10}{cells[2]:>10}{ratio:>18}"
            )
    return lines


def show_gpu(transfuse, work, stems):
    """Multiplies on the GPU the layers of these files, and prints what products take there."""
    print("\n-- on the GPU")
    try:
        errors = [multiply_on_gpu(transfuse, stem) for stem in stems]
        record = work / "bench.json"
        transfuse(
            "bench",
            "--device",
            "cuda",
            "--layers",
            GPU_LAYERS,
            "--codec",
            "bf16",
            "--favor",
            "speed",
            "--batch",
            GPU_BATCHES,
            "--json",
            record,
        )
    except NoDevice as reason:
        print(f"left out: {reason}")
        return
    if errors:
        print("y from the GPU against y from the CPU, relative: " + ", ".join(f"{error:.1e}" for error in errors))
    print("\n" + "\n".join(gpu_table(json.loads(record.read_text(encoding="utf-8")))))


def multiply(transfuse, compressed_path, name, stem, weights, source_weights, rounding):
    """rounding: how far `weights` may be, relatively, from what the layer multiplies by.
    @return relative errors of the command's product: against `weights`, what it holds, and against the source's."""
    layer, x_path, y_path = f"{stem}-layer.trf", f"{stem}-X.npy", f"{stem}-Y.npy"
    # Sixteenths up to 8 are exact in every type that x may be rounded to.
    x = np.clip(np.rint(np.random.default_rng(1).normal(0, 16, (8, weights.shape[1]))), -128, 128) / 16
    np.save(x_path, x.astype(np.float32))
    transfuse("extract", compressed_path, name, "-o", layer)
    _, seconds = transfuse("matmul", layer, x_path, "-o", y_path)
    y = np.load(y_path)
    limit = 1e-5 + rounding
    if y.dtype.itemsize == 2:
        limit = 0.005
        y = y if y.dtype.kind == "f" else y.view(ml_dtypes.bfloat16)
    error = rms_ratio(y - x @ weights.T, x @ weights.T)
    if not error < limit:
        raise Failure(f"the product of {name} is off by {error:.2e}")
    return error, rms_ratio(y - x @ source_weights.T, x @ source_weights.T), seconds


def take_through(transfuse, checkpoint, source, work, title, options):
    """Compress, verify, decompress, compare, multiply. @return the table's column."""
    print(f"\n-- {title}")
    suffix = "" if checkpoint.is_dir() else ".safetensors"
    compressed_path, decompressed_path = work / f"{title}{suffix}", work / f"unpacked{suffix}"
    _, compress_seconds = transfuse("compress", checkpoint, "-o", compressed_path, *options)
    _, verify_seconds = transfuse("verify", compressed_path, "--against", checkpoint)
    _, decompress_seconds = transfuse("decompress", compressed_path, "-o", decompressed_path)
    copy = read_checkpoint(decompressed_path)
    if options:
        outcome = f"error {100 * relative_error(source, copy):.2f} %"
    else:
        check_equal(source, copy)
        outcome = "bit for bit"
    info = json.loads(transfuse("info", compressed_path, "--json")[0])

    product = product_of_source = matmul_time = "-"
    name = choose_layer(info)
    if name:
        # Integer codes are multiplied as they are and scaled in F32; the decompressed ones were rounded to the source's
        # type.
        rounding = {"BF16": 2**-8, "F16": 2**-11, "F32": 0}[copy[name].dtype] if options else 0
        error, source_error, seconds = multiply(
            transfuse, compressed_path, name, work / title, copy[name].matrix(), source[name].matrix(), rounding
        )
        product, product_of_source, matmul_time = f"{error:.1e}", f"{source_error:.1e}", f"{seconds:.2f} s"
    del copy
    shutil.rmtree(decompressed_path) if decompressed_path.is_dir() else decompressed_path.unlink()

    weights = sum(int(np.prod(t.shape)) for t in source.values())
    compressed = [t for t in info["tensors"] if t["compressed"]]
    compressed_weights = sum(int(np.prod(t["shape"])) for t in compressed)
    compressed_bytes = sum(t["bytes"] for t in compressed)
    return [
        title,
        f"{info['bytes'] / 1e6:.2f} MB",
        f"{info['source_bytes'] / info['bytes']:.3f}",
        f"{8 * info['bytes'] / weights:.2f}",
        f"{8 * compressed_bytes / compressed_weights:.2f}" if compressed else "-",
        outcome,
        f"{compress_seconds:.2f} s",
        f"{verify_seconds:.2f} s",
        f"{decompress_seconds:.2f} s",
        matmul_time,
        product,
        product_of_source,
    ], name


def main():
    parser = argparse.ArgumentParser(description="Takes a checkpoint through the transfuse command.")
    parser.add_argument("--gpu", action="store_true", help="products on the GPU, too")
    parser.add_argument("transfuse", help="the command")
    parser.add_argument("checkpoint", type=Path, help="a .safetensors file or a folder of them")
    parser.add_argument("work", type=Path, help="a folder for what comes out; what is in it goes away")
    args = parser.parse_args()
    if np is None:
        raise Failure("this needs NumPy and ml_dtypes")
    checkpoint, work = args.checkpoint, args.work
    if checkpoint.suffix == ".json":  # an index stands for its folder
        checkpoint = checkpoint.parent
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    # The command looks first: it says what is wrong with a file, and where.
    looked = subprocess.run([args.transfuse, "info", checkpoint], capture_output=True, text=True)
    if looked.returncode != 0:
        raise Failure(looked.stderr.strip())
    source = read_checkpoint(checkpoint)
    transfuse = Command(args.transfuse)
    titles = ["lossless", f"bits-{BITS}"]
    lossless, name = take_through(transfuse, checkpoint, source, work, titles[0], [])
    lossy, lossy_name = take_through(transfuse, checkpoint, source, work, titles[1], ["--bits", BITS])
    if args.gpu:
        multiplied = zip(titles, (name, lossy_name))
        show_gpu(transfuse, work, [work / title for title, layer in multiplied if layer])

    source_bytes = sum(t.bytes.size for t in source.values())
    weights = sum(int(np.prod(t.shape)) for t in source.values())
    labels = [
        "",
        "size",
        "ratio",
        "bits a weight",
        "  of the tensors compressed",
        "weights against the source",
        "compress",
        "verify",
        "decompress",
        "matmul, 8 rows of x",
        "  error of y, decompressed weights",
        "  error of y, source weights",
    ]
    plain = ["source", f"{source_bytes / 1e6:.2f} MB", "1.000", f"{8 * source_bytes / weights:.2f}"] + [""] * 8
    print(
        f"\n{checkpoint}: {len(source)} tensors, {weights / 1e6:.1f} million weights"
        + (f"; multiplied: {name}" if name else "")
    )
    for label, *cells in zip(labels, plain, lossless, lossy):
        print(f"{label:<36}" + "".join(f"{cell:>15}" for cell in cells))


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"demo failed: {failure}")

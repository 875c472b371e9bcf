"""Makes runtime/trf_crossovers.inc of tunings.

For each layer that was measured it says up to which batch the fused path is the fastest, and up to which the wide one;
the two-step path has the rest.

    python3 tools/bench/crossovers.py 90 docs/performance/2026-11-23-gpu-tuning.json > runtime/trf_crossovers.inc

Arguments: compute capability and tunings (transfuse tune), in turns. Of all pairs of batches that were measured the one
with the least time over all of them is taken, each batch's times counting by their ratio to its fastest: so noise where
paths are alike makes no islands.
"""

import json
import math
import sys

HEADING = ("/* Made by tools/bench/crossovers.py: capability; codec, class bits, raw bits, scale groups, rows, columns;"
           " batches to which FUSED and WIDE are chosen. */")
CODECS = {"bf16": "TRF_CODEC_BF16", "fp16": "TRF_CODEC_FP16", "int": "TRF_CODEC_INT", "fp8_e4m3": "TRF_CODEC_E4M3",
          "fp8_e5m2": "TRF_CODEC_E5M2"}


def loss(batch, path):
    times = {name: time for name, time in batch["microseconds"].items() if time > 0}
    return math.log(times[path] / min(times.values())) if path in times else math.inf


def path_of(m, fused_to, wide_to):
    return "fused" if m <= fused_to else "wide" if m <= wide_to else "two-step"


def crossovers(batches):
    ends = [0] + [batch["to"] for batch in batches]
    best = (math.inf, 0, 0)
    for fused_to in ends:
        for wide_to in ends:
            if wide_to < fused_to:
                continue
            total = sum(loss(batch, path_of(batch["to"], fused_to, wide_to)) for batch in batches)
            best = min(best, (total, fused_to, wide_to))
    return best[1], best[2]


def main():
    arguments = sys.argv[1:]
    if not arguments or len(arguments) % 2:
        sys.exit(__doc__)
    print(HEADING)
    for capability, path in zip(arguments[::2], arguments[1::2]):
        with open(path) as file:
            tuning = json.load(file)
        for layer in tuning["layers"]:
            fused_to, wide_to = crossovers(layer["batches"])
            numbers = [layer[key] for key in ("class_bits", "raw_bits", "scale_groups", "rows", "cols")]
            fields = ", ".join(map(str, [CODECS[layer["codec"]], *map(int, numbers)]))
            print(f"{{{capability}, {{{fields}}}, {fused_to}, {wide_to}}},")


main()

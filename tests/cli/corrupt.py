# SPDX-License-Identifier: Apache-2.0
"""Copies a file with one change.

Usage: corrupt.py IN OUT flip OFFSET     inverts the bits of a byte
       corrupt.py IN OUT cut SIZE        keeps the first SIZE bytes; a negative SIZE drops so many at the end
       corrupt.py IN OUT swap OLD NEW    replaces a text that occurs once by one of the same length
"""

import sys
from pathlib import Path


def main():
    data = bytearray(Path(sys.argv[1]).read_bytes())
    change = sys.argv[3]
    if change == "flip":
        data[int(sys.argv[4])] ^= 0xFF
    elif change == "cut":
        data = data[: int(sys.argv[4])]
    else:
        old, new = sys.argv[4].encode(), sys.argv[5].encode()
        assert len(old) == len(new) and data.count(old) == 1, (data.count(old), old, new)
        data = data.replace(old, new)
    Path(sys.argv[2]).write_bytes(data)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""`python -m transfuse` is the `transfuse` command."""

from __future__ import annotations

from transfuse._command import main

if __name__ == "__main__":
    main()

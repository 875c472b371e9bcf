# SPDX-License-Identifier: Apache-2.0
"""Tests of the installed package: pytest --pyargs transfuse."""

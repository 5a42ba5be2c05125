"""Tests of the Python package. The folders share modules by relative imports."""

"""Prints the folders of the headers that an extension includes, for other build systems."""

from tenure.extension import include_paths

if __name__ == "__main__":
    print(*include_paths())

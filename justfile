# All tasks of this project, by name. `just` lists them.

# The environment in which the Python package is installed and tested. If it has PyTorch too, tests that need it run.
venv := env("TENURE_VENV", "target/venv")

# Features of the program and the Python package: `TENURE_FEATURES=milp just test` tests the planner `milp` too.
features := env("TENURE_FEATURES", "")

# The releases of PyTorch that wheels have shims for.
pytorch := "2.11.0 2.12.0 2.12.1 2.13.0 2.14.0 2.14.1 2.15.0"

# `cargo run` and `cargo test --workspace` need Rust and a C compiler, with `milp` also cmake, a C++ compiler and libclang.
# `scripts/test` runs a recipe where `just` is missing, and `.ci/run` installs all that `just ci` needs.

[private]
default:
    @just --list --unsorted

# Trains a small Llama for a few steps within a memory budget, and replays a recorded training step's memory history
demo program="cargo run --release --" steps="20":
    {{ program }} train --model llama-mini --data text:docs/benchmarks.md --steps {{ steps }} --budget 80% --report target/demo.html
    {{ program }} replay tests/data/resnet50_step.pickle.xz

# All tests and the documentation's examples: Rust's, the Python package's, and those under PyTorch if it is installed
test: rust python test-torch

# The Rust tests and the example programs, under nextest if it is installed. With NVRTC, the CUDA kernels are checked too
rust:
    #!/usr/bin/env bash
    set -euo pipefail
    for nvrtc in {{ venv }}/lib/python3*/site-packages/nvidia/cu13/lib; do
        [[ ! -e $nvrtc ]] || export TENURE_CHECK_KERNELS="${TENURE_CHECK_KERNELS:-1}" LD_LIBRARY_PATH="$(realpath "$nvrtc")"
    done
    if cargo nextest --version >/dev/null 2>&1; then
        cargo nextest run --workspace --features "{{ features }}"
        cargo test --workspace --features "{{ features }}" --doc
    else
        cargo test --workspace --features "{{ features }}"
    fi
    for example in crates/tenure/examples/*.rs; do
        program="${CARGO_TARGET_DIR:-target}/debug/examples/$(basename "$example" .rs)"
        "$program" >/dev/null || { echo "$example failed" >&2; exit 1; }
    done

# All tests in their long form, for hours: every kernel is compiled, and more random cases are drawn
soak factor="12":
    NEXTEST_PROFILE=soak TENURE_CHECK_KERNELS=full TENURE_TEST_FACTOR={{ factor }} just test

# The tests that took longest in their last run: Rust's under nextest, Python's, and those under PyTorch
slowest count="20":
    #!/usr/bin/env python3
    import pathlib, xml.etree.ElementTree as xml
    runs = [*pathlib.Path("target/nextest").glob("default/junit.xml"), *pathlib.Path("target").glob("pytest-*.xml")]
    tests = [test for run in runs for test in xml.parse(run).iter("testcase")]
    for test in sorted(tests, key=lambda test: -float(test.get("time")))[:{{ count }}]:
        print(f'{float(test.get("time")):8.1f} s  {test.get("classname")} {test.get("name")}')

# Builds the Rust tests, which takes longest
build:
    cargo test --workspace --features "{{ features }}" --no-run

# The Python package, unoptimised, installed into target/venv: its tests and examples, types, style
python *args: venv
    {{ venv }}/bin/ruff check python tests/oip
    {{ venv }}/bin/ruff format --check python tests/oip
    {{ venv }}/bin/mypy
    {{ venv }}/bin/pytest --numprocesses 2 --junitxml target/pytest-package.xml {{ args }}

# Third parties' clients, each with five models of `tenure serve` in memory for two
clients *args: venv
    cargo build --package tenure-cli --features "{{ features }}"
    {{ venv }}/bin/pip install --quiet --disable-pip-version-check --config-settings build-args="--profile dev --features={{ features }}" '.[clients,test]'
    {{ venv }}/bin/pytest python/tests/serve/test_clients.py {{ args }}

# It fails on a test that python/tests/array_api_failures.txt does not name, and on one there that passes or does not exist.

# The public test suite of the Python array API standard, but for the failures that are known. Clones it once
array-api *args: venv
    #!/usr/bin/env bash
    set -euo pipefail
    suite=target/array-api-tests
    [[ -d $suite ]] || git clone --quiet https://github.com/data-apis/array-api-tests "$suite"
    git -C "$suite" checkout --quiet --force 55fcc60
    git -C "$suite" submodule --quiet update --init
    git -C "$suite" apply "$PWD/python/tests/array_api_suite.patch"
    {{ venv }}/bin/pip install --quiet --disable-pip-version-check --requirement "$suite/requirements.txt"
    python="$(realpath --no-symlinks {{ venv }})/bin/python" list="$PWD/python/tests/array_api_failures.txt"
    cd "$suite"
    export ARRAY_API_TESTS_MODULE=tenure.array_api ARRAY_API_TESTS_SKIP_DTYPES=complex64,complex128
    "$python" -m pytest array_api_tests --derandomize --max-examples 100 --disable-deadline --xfails-file "$list" \
        -o xfail_strict=True -o 'filterwarnings=error:\d+ ids in xfails file' {{ args }}

# TENURE_TEST_ALLOCATOR=native runs the tests of PyTorch's behaviour on its own allocator. Do so when they have changed.

# Tests that need PyTorch on a device, if it is installed: on a GPU, or without one on a simulated CUDA
test-torch *args: venv
    #!/usr/bin/env bash
    set -euo pipefail
    has_cuda='import importlib.util, pathlib, sys
    torch = importlib.util.find_spec("torch")
    sys.exit(torch is None or not pathlib.Path(torch.origin).with_name("lib").joinpath("libtorch_cuda.so").is_file())'
    if ! {{ venv }}/bin/python -c "$has_cuda"; then
        echo "what needs PyTorch on a device is not tested: no PyTorch that is built for CUDA is in {{ venv }}"
        exit
    fi
    # It is no failure if `args` choose no test of a folder. On a GPU, tests measure how much of its memory is in use.
    processes=0
    run() { {{ venv }}/bin/pytest --numprocesses "$processes" --junitxml "target/pytest-${1##*/}.xml" "$@" {{ args }} || (($? == 5)); }
    if ! nvidia-smi -L >/dev/null 2>&1; then
        processes=2
        tests/cudart/build target/cudart {{ venv }}/bin/python
        export LD_PRELOAD="$PWD/target/cudart/libcudart.so.13" LD_LIBRARY_PATH="$PWD/target/cudart"
    fi
    if [[ ${TENURE_TEST_ALLOCATOR:-} == native ]]; then
        run python/tests/pytorch
        exit
    fi
    [[ -z ${LD_PRELOAD:-} ]] || run python/tests/cudart
    run python/tests/pytorch python/tests/tags

# The same under other releases of PyTorch, each in an environment of its own: `just test-torch-on 2.11.0 2.15.0`
test-torch-on +versions: (install-torch versions)
    #!/usr/bin/env bash
    set -euo pipefail
    for version in {{ versions }}; do
        TENURE_VENV="target/torch-$version" just features="{{ features }}" test-torch
    done

# Installs releases of PyTorch, each in an environment of its own
[private]
install-torch +versions:
    #!/usr/bin/env bash
    set -euo pipefail
    for version in {{ versions }}; do
        folder="target/torch-$version"
        [[ -x $folder/bin/python ]] || python3 -m venv "$folder"
        "$folder/bin/pip" install --quiet --disable-pip-version-check "torch==$version" 'nvidia-cuda-crt>=13,<14'
    done

# Installs the Python package and all that its tests need, in target/venv
venv:
    test -x {{ venv }}/bin/python || python3 -m venv {{ venv }}
    {{ venv }}/bin/pip install --quiet --disable-pip-version-check --config-settings build-args="--profile dev --features={{ features }}" '.[test]'

# Compiles the shims that wheels and `just gpu` include: for the PyTorch in target/venv, or for those versions
shim *versions:
    {{ venv }}/bin/python scripts/build-shims {{ versions }}

# Builds the Python package's wheels to publish, in target/wheels: with the program, and with shims for those PyTorch versions
wheels *versions=pytorch:
    scripts/build-wheels {{ versions }}

# Writes docs/reference/operations.md and python/tenure/_operations.pyi, after an operation was added or changed
operations: venv
    TENURE_UPDATE=1 cargo test --package tenure-tensor --test suite table::the_reference
    {{ venv }}/bin/python scripts/operation-stubs

# Format, clippy and documentation, with no warnings
lint:
    cargo fmt --all --check
    cargo fmt --manifest-path fuzz/Cargo.toml --check
    for lock in fuzz bench/cpu bench/gpu; do cargo update --quiet --workspace --locked --manifest-path $lock/Cargo.toml || exit 1; done
    cargo clippy --workspace --all-targets --features "{{ features }}" -- -D warnings
    cargo clippy --package tenure-plan --package tenure-cli --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# Everything that publishing needs, but for sending it: crates are packaged, wheels of `just wheels` checked
publish-check: venv
    cargo publish --workspace --locked --dry-run --no-verify
    {{ venv }}/bin/pip install --quiet --disable-pip-version-check twine
    {{ venv }}/bin/twine check --strict target/wheels/*manylinux*.whl

# The book: guides, design and reference as a site in target/book. `cargo install mdbook` gets the program
book:
    mdbook build

# Licences, duplicates and origins of the dependencies
deny:
    cargo deny --all-features check licenses bans sources

# Model checks of the lock-free parts, over every interleaving
loom:
    RUSTFLAGS="--cfg loom" cargo test --package tenure-alloc --package tenure-device --lib --target-dir target/loom model::

# Benchmarks; `just bench -- NAME` runs those with NAME in their name
bench *args:
    cargo bench --workspace {{ args }}

# Tenure's allocator beside PyTorch's in one process, on a GPU; `--driver sim` runs Tenure's alone, anywhere
bench-pytorch *args:
    cargo build --profile gpu --package tenure-capi
    python3 bench/pytorch/bench.py --library target/gpu/libtenure_capi.so {{ args }}

# Packings beside the lower bound and best fit: `just packings --threads 16 --seconds 10 --random 200 [CSV|FOLDER...]`
packings *args:
    cargo run --release --package tenure-plan --example packings -- {{ args }}

# Compares a disk as Tenure uses it with fio, which must be installed: `just bench-disk FOLDER`
bench-disk *args:
    python3 bench/disk/run.py {{ args }}

# Ten training steps of whole models beside PyTorch's, in target/steps; `just steps resnet50` makes them with one model
steps *models: venv
    {{ venv }}/bin/pip install --quiet 'torch==2.11.*' torchvision transformers safetensors
    {{ venv }}/bin/python crates/tenure-nn/tests/goldens/steps.py target/steps {{ models }}
    cargo run --release --package tenure-nn --example ten_steps -- target/steps {{ models }}

# Builds everything for a machine with a GPU and no Rust into target/gpu; there, `./gpu-run` tests and measures
gpu:
    scripts/gpu-build

# The same for tensors and models, into target/gpu-tensors; there, `./gpu-tensors-run tests models`
gpu-tensors:
    scripts/gpu-tensors

# Fuzzes a parser (unpickle, codec, compact_trace, wire, agent, block_handle, idx, infer, mapping, packing, problem, weights) with hostile bytes
fuzz parser seconds="600":
    # The sanitizer's flags are unstable, hence the bootstrap. pulp has dead code that does not compile, if it must.
    mkdir -p fuzz/corpus/{{ parser }} fuzz/seeds/{{ parser }}
    RUSTC_BOOTSTRAP=1 cargo fuzz run {{ parser }} fuzz/corpus/{{ parser }} fuzz/seeds/{{ parser }} --strip-dead-code -- \
        -max_total_time={{ seconds }} -rss_limit_mb=2048

# Runs `.ci/run`, or another command, on the last commit as on a fresh machine: in a chroot with the base system and Rust
fresh *command:
    scripts/fresh {{ command }}

# What a change must pass beside the tests. The demonstration uses the tests' build: nothing is built for it alone
check: lint loom (demo env("CARGO_TARGET_DIR", "target") / "debug/tenure" "2")
    ! cargo deny --version >/dev/null 2>&1 || just deny
    ! mdbook --version >/dev/null 2>&1 || just book

# Everything that a change must pass
ci: test check

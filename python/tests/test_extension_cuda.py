"""Extensions with kernels in CUDA, on simulated devices, which call functions on the CPU instead.

With `TENURE_TEST_DEVICE=cuda` the tests run on the first real device. Tests that compile need NVRTC or nvcc.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import stat
from pathlib import Path
from types import ModuleType

import pytest

import tenure
from tenure import _native, cuda, extension
from tenure.extension import _building, _cuda, load

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/extensions/lltm_cuda"
IS_REAL = os.environ.get("TENURE_TEST_DEVICE") == "cuda"

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler to build extensions with"
)

KERNELS = """
extern "C" __global__ void scale(float *out, const float *x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = factor * x[i];
}

struct Line { double slope, offset; };
template <typename T> __global__ void line(T *out, Line line, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = T(line.slope * i + line.offset);
}
"""

FUNCTIONS = """
#include <tenure_cuda.hpp>
#include <tenure_extension.hpp>
namespace cuda = tenure::cuda;
using tenure::Tensor;

struct Line { double slope, offset; };

void scale_(const Tensor &out, const Tensor &x, double factor) {
    int n = static_cast<int>(x.numel());
    cuda::kernel("scale").launch((n + 255) / 256, 256, 0, cuda::out(out), cuda::in(x), static_cast<float>(factor), n);
}
void line_(const Tensor &out, double slope, double offset) {
    cuda::kernel("line<float>").launch(1, 128, 0, cuda::out(out), Line{slope, offset}, static_cast<int>(out.numel()));
}
void launch_(const std::string &name, const Tensor &out, int64_t threads) {
    cuda::kernel(name).launch(1, threads, 0, cuda::out(out), 1);
}
void without_tensors() { cuda::kernel("scale").launch(1, 1, 0, 1); }
void stream_(const Tensor &out) { cuda::StreamAccess access({out}, {}); }

TENURE_EXTENSION(module) {
    module.def("scale_", scale_).def("line_", line_).def("launch_", launch_).def("without_tensors", without_tensors);
    module.def("stream_", stream_);
    module.def_operation("only_cpu", [](const Tensor &x) { return x + 1; }, nullptr);
    cuda::kernel("scale").on_cpu([](const Tensor &out, const Tensor &x, float factor, int) {
        if (factor == 13)
            throw std::runtime_error("an unlucky factor");
        out.copy_(x * factor);
    });
    cuda::kernel("line<float>").on_cpu([](const Tensor &out, Line line, int n) {
        out.copy_(tenure::arange(n, tenure::DType::Float64) * line.slope + line.offset);
    });
    cuda::kernel("missing").on_cpu([](const Tensor &, int) {});
}
"""


def open_devices(seed: int = 0) -> None:
    """Gives this process a simulated device, or checks that there is a real one."""
    if not IS_REAL:
        _native.simulate_devices(1, seed)
    elif not cuda.is_available():
        pytest.skip("there is no CUDA device")


def has_nvrtc() -> bool:
    for version in ("13", "12"):
        try:
            ctypes.CDLL(f"libnvrtc.so.{version}")
        except OSError:
            continue
        return True
    return False


on_device = pytest.mark.own_process
needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="there is no NVRTC")


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Gives the tests a cache of their own, and no CUDA toolkit but those that they make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("CUDA_HOME", raising=False)
        patch.delenv("CUDA_PATH", raising=False)
        for cached in (_building.header_folder, _building.extension_cache):
            cached.cache_clear()
        yield None


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "functions.cpp").write_text(FUNCTIONS)
    (folder / "kernels.cu").write_text(KERNELS)
    sources = [folder / "functions.cpp", folder / "kernels.cu"]
    return load("kernels", sources, extra_cflags=["-Wall", "-Wextra", "-Werror"])


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lltm_cuda_example", EXAMPLE / "lltm.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_has_the_gradients_of_its_operation(example: ModuleType) -> None:
    tenure.manual_seed(1)
    given = [tenure.randn(*size, dtype=tenure.float64).requires_grad_() for size in ((4, 15), (4, 5))]
    h, cell = example.lltm.cell(*given)
    gates = given[0].chunk(3, 1)
    expected = given[1] + gates[0].sigmoid() * tenure.nn.functional.elu(gates[2])
    assert tenure.allclose(cell, expected) and tenure.allclose(h, expected.tanh() * gates[1].sigmoid())
    assert tenure.autograd.gradcheck(example.lltm.cell, tuple(given))


@on_device
@pytest.mark.parametrize("dtype", [tenure.float32, tenure.float64])
def test_the_example_computes_on_a_device_what_it_computes_on_the_cpu(example: ModuleType, dtype: tenure.dtype) -> None:
    open_devices()
    tenure.manual_seed(1)
    given = [tenure.randn(*size, dtype=dtype) for size in ((4, 15), (4, 5))]
    results = []
    for device in ("cpu", "cuda"):
        tensors = [tensor.to(device).requires_grad_() for tensor in given]
        h, cell = example.lltm.cell(*tensors)
        assert h.device.type == device
        results.append([h, cell, *tenure.autograd.grad((h * cell.sin()).sum(), tensors)])
    assert all(tenure.allclose(each, other.cpu(), 1e-4, 1e-6) for each, other in zip(*results, strict=True))
    with pytest.raises(tenure.Error, match="three times the columns"):
        example.lltm.cell(given[0][:, :9].cuda(), given[1].cuda())


@on_device
@pytest.mark.parametrize("seed", (0,) if IS_REAL else (0, 1, 2))
def test_kernels_are_ordered_by_their_stream_and_free_memory_in_order(kernels: ModuleType, seed: int) -> None:
    open_devices(seed)
    x = tenure.arange(1000, dtype=tenure.float32).cuda()
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        y = tenure.empty_like(x)
        kernels.scale_(y, x, 2.0)
        z = y + 1
        # The kernel still reads this memory: the next block on another stream must not be the same.
        y.record_stream(cuda.current_stream())
        del y, x
    other = tenure.zeros(1000, device="cuda")
    cuda.current_stream().wait_stream(side)
    assert tenure.equal(z.cpu(), tenure.arange(1000, dtype=tenure.float32) * 2 + 1)
    assert other.sum().item() == 0


@on_device
def test_structures_and_expressions_reach_the_kernel(kernels: ModuleType) -> None:
    open_devices()
    out = tenure.empty(300, device="cuda")
    kernels.line_(out, 0.5, 3.0)
    assert tenure.equal(out.cpu(), tenure.arange(300) * 0.5 + 3)


@on_device
def test_a_kernel_counts_as_a_write_to_what_it_writes(kernels: ModuleType) -> None:
    open_devices()
    x = tenure.ones(3, device="cuda", requires_grad=True)
    y = x.exp()
    versions = (y._version, x._version)
    kernels.scale_(y.detach(), x.detach(), 2.0)
    assert (y._version, x._version) == (versions[0] + 1, versions[1])
    with pytest.raises(RuntimeError, match="scale"):
        y.sum().backward()


@on_device
def test_a_graph_replays_kernels(kernels: ModuleType) -> None:
    open_devices()
    x = tenure.ones(4, device="cuda")
    y = tenure.empty_like(x)
    kernels.scale_(y, x, 2.0)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        kernels.scale_(y, x, 3.0)
    x.fill_(5)
    graph.replay()
    assert y.cpu().tolist() == [15.0] * 4


def refused(message: str) -> pytest.RaisesExc[tenure.Error]:
    return pytest.raises(tenure.Error, match=message)


@on_device
def test_wrong_launches_are_refused(kernels: ModuleType) -> None:
    open_devices()
    x = tenure.ones(3, device="cuda")
    with refused(r"^scale: argument 2 is a tensor on the CPU: a kernel needs tensors on a CUDA device"):
        kernels.scale_(x, tenure.ones(3), 2.0)
    with refused("scale: a kernel needs a tensor among its arguments"):
        kernels.without_tensors()
    with refused("a block of 2000 x 1 x 1 threads has 2000, and this kernel's blocks have 1 to 1024"):
        kernels.launch_("scale", x, 2000)
    with refused("only_cpu is not implemented for CUDA devices"):
        kernels.only_cpu(x)
    assert kernels.only_cpu(x.cpu()).tolist() == [2.0] * 3
    # A launch of no blocks does nothing.
    empty = tenure.empty(0, device="cuda")
    kernels.scale_(empty, empty, 2.0)


@on_device
@pytest.mark.skipif(not IS_REAL, reason="a real device checks parameters")
def test_arguments_that_are_not_the_parameters_are_refused(kernels: ModuleType) -> None:
    open_devices()
    with refused("scale: the kernel has 4 parameters, got 2 arguments"):
        kernels.launch_("scale", tenure.ones(3, device="cuda"), 1)
    kernels.stream_(tenure.ones(3, device="cuda"))


@on_device
@pytest.mark.skipif(IS_REAL, reason="a simulated device only")
def test_a_simulated_device_says_what_it_lacks(kernels: ModuleType) -> None:
    open_devices()
    x = tenure.ones(3, device="cuda")
    with refused("other: a simulated device runs no kernels: give this one a function on the CPU"):
        kernels.launch_("other", x, 1)
    with refused("a simulated device has no stream of CUDA: launch kernels by name there"):
        kernels.stream_(x)
    kernels.launch_("scale", x, 1)
    with pytest.raises(RuntimeError, match="scale: the kernel got 2 arguments, and its function on the CPU has 4"):
        x.cpu()
    kernels.scale_(x, x, 13.0)
    with pytest.raises(RuntimeError, match="scale: an unlucky factor"):
        x.cpu()


@on_device
@needs_nvrtc
def test_nvrtc_compiles_kernels_and_knows_their_names(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_CHECK_KERNELS", "1")
    open_devices()
    x = tenure.ones(3, device="cuda")
    kernels.scale_(x, x, 2.0)
    kernels.line_(x, 1.0, 0.0)
    compiled = list(Path(os.environ["XDG_CACHE_HOME"], "tenure/programs").glob("*.cubin"))
    assert len(compiled) >= 2
    message = r'missing: there is no kernel of this name in kernels.cu; extern "C" kernels there: scale$'
    with refused(message):
        kernels.launch_("missing", x, 1)


@needs_nvrtc
def test_a_mistake_in_a_kernel_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "wrong.cu"
    file.write_text('extern "C" __global__ void wrong(float *x) {\n    x[0] = y;\n}\n')
    with refused(rf'(NVRTC|the compiler) refused: {file}\(2\): error: identifier "y" is undefined'):
        load("wrong", [file])


def test_a_launch_by_brackets_needs_nvcc(tmp_path: Path) -> None:
    file = tmp_path / "brackets.cu"
    file.write_text("// x<<<1, 1>>>()\n__global__ void x() {}\nvoid y() { x<<<1, 1>>>(); }\n")
    if shutil.which("nvcc"):
        pytest.skip("there is nvcc")
    with refused(rf"{file}\(3\): a launch by <<<>>> needs nvcc, and there is none: set CUDA_HOME"):
        load("brackets", [file])


def test_a_folder_without_nvcc_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kernel.cu"
    file.write_text(KERNELS)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with refused(f"there is no bin/nvcc in {tmp_path}, which CUDA_HOME names"):
        load("kernel", [file])


def test_an_extension_without_cuda_has_no_kernels() -> None:
    source = '#include <tenure_cuda.hpp>\nvoid launch() { tenure::cuda::kernel("absent"); }\n'
    module = extension.load_inline("plain", source, "launch")
    with refused("there is no kernel absent: this extension was built without a source in CUDA"):
        module.launch()


@on_device
def test_texts_are_built_as_files_are() -> None:
    source = """
        void scale_(const Tensor &x) {
            auto scale = tenure::cuda::kernel("scale");
            scale.on_cpu([](const Tensor &out, const Tensor &x, float factor, int) { out.copy_(x * factor); });
            scale.launch(1, 32, 0, tenure::cuda::out(x), tenure::cuda::in(x), 3.0f, static_cast<int>(x.numel()));
        }
    """
    module = extension.load_inline("inline_kernels", source, "scale_", cuda_sources=KERNELS)
    open_devices()
    x = tenure.ones(3, device="cuda")
    module.scale_(x)
    assert x.tolist() == [3.0] * 3


def test_a_header_of_kernels_that_changes_changes_the_library(tmp_path: Path) -> None:
    (tmp_path / "factor.h").write_text("#define FACTOR 2\n")
    (tmp_path / "kernel.cu").write_text(f'#include "factor.h"\n{KERNELS}')
    sources = _cuda.CudaSources([tmp_path / "kernel.cu"], ["-O3", "-Xcompiler", "-Wall", "-DX=1"], [])
    before = sources.embedded()
    assert sources.embedded() == before
    assert '"-DX=1"' in before and "-O3" not in before and "-Wall" not in before
    (tmp_path / "factor.h").write_text("#define FACTOR 3\n")
    assert sources.embedded() != before


def test_nvcc_compiles_code_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # This nvcc is a C++ compiler, so the source has no kernels.
    nvcc = tmp_path / "bin/nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(
        '#!/bin/bash\necho "$@" >> "$(dirname "$0")/calls"\nkept=()\nwhile (($#)); do\n'
        "case $1 in -Xcompiler | -ccbin) shift ;; -arch=* | --use_fast_math) ;; *.cu) kept+=(-x c++ $1) ;;\n"
        '*) kept+=("$1") ;; esac\nshift\ndone\nexec c++ -fPIC -fvisibility=hidden "${kept[@]}"\n'
    )
    nvcc.chmod(nvcc.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64/libcudart_static.a").write_bytes(b"!<arch>\n")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    file = tmp_path / "host.cu"
    file.write_text(
        "#include <tenure_extension.hpp>\ndouble twice(double x) { return 2 * x; }\n"
        'TENURE_EXTENSION(module) { module.def("twice", twice); }\n'
    )
    module = load("host", [file], extra_cuda_cflags="--use_fast_math")
    assert module.twice(2.5) == 5.0
    calls = (tmp_path / "bin/calls").read_text()
    assert "--use_fast_math" in calls and "-Xcompiler -fPIC,-fvisibility=hidden" in calls
    file.write_text("#include <tenure_extension.hpp>\nint wrong() { return x; }\n")
    with refused(rf"the compiler refused: {file}:2:.*error: .*x.* was not declared"):
        load("host", [file])


def test_a_tensor_is_an_input_or_an_output(tmp_path: Path) -> None:
    source = tmp_path / "neither.cpp"
    source.write_text(
        "#include <tenure_cuda.hpp>\n"
        'void f(const tenure::Tensor &x) { tenure::cuda::kernel("scale").launch(1, 1, 0, x); }\n'
    )
    with refused("the compiler refused: .*deleted function"):
        load("neither", [source])

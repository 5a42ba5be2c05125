"""Gradients in Python: graphs, hooks, formulas of the user's, checkpoints, and what of them is freed when."""

import gc
import threading
import weakref
from typing import Any

import pytest

import tenure
from tenure import Tensor
from tenure.autograd import Function


class Cube(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        return grad * 3 * x * x


def leaf(*values: float) -> Tensor:
    return tenure.tensor(values, dtype=tenure.float64, requires_grad=True)


def gradient(tensor: Tensor) -> list[float]:
    assert tensor.grad is not None
    values: list[float] = tensor.grad.tolist()
    return values


def test_backward_adds_up_gradients_until_they_are_removed() -> None:
    x = leaf(1.0, 2.0)
    for expected in ([2.0, 4.0], [4.0, 8.0]):
        (x * x).sum().backward()
        assert gradient(x) == expected
    x.grad = None
    (x * x).sum().backward()
    assert gradient(x) == [2.0, 4.0]


def test_backward_takes_a_gradient_for_several_elements() -> None:
    x = leaf(1.0, 2.0)
    with pytest.raises(tenure.Error, match="one element"):
        (x * x).backward()
    (x * x).backward(tenure.tensor([1.0, 10.0], dtype=tenure.float64))
    assert gradient(x) == [2.0, 40.0]


def test_backward_changes_only_the_given_inputs() -> None:
    x, y = leaf(2.0), leaf(3.0)
    (x * y).sum().backward(inputs=[x])
    assert gradient(x) == [3.0]
    assert y.grad is None


def test_a_graph_is_freed_by_backward_unless_it_is_retained() -> None:
    x = leaf(2.0)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert gradient(x) == [8.0]
    with pytest.raises(tenure.Error, match="second time"):
        y.backward()


def test_grad_returns_gradients_of_gradients() -> None:
    x = leaf(2.0)
    (first,) = tenure.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = tenure.autograd.grad(first.sum(), x)
    assert (first.tolist(), second.tolist(), x.grad) == ([12.0], [12.0], None)
    with pytest.raises(tenure.Error, match="not used"):
        tenure.autograd.grad(first.sum(), leaf(1.0))
    (unused,) = tenure.autograd.grad((x * 2).sum(), leaf(1.0), allow_unused=True)
    assert unused is None


def test_no_graph_is_recorded_within_no_grad() -> None:
    x = leaf(1.0)

    @tenure.no_grad()
    def double(x: Tensor) -> Tensor:
        return x * 2

    with tenure.no_grad():
        assert not tenure.is_grad_enabled()
        assert not (x * 2).requires_grad
        with tenure.enable_grad():
            assert (x * 2).requires_grad
    assert not double(x).requires_grad
    assert (x * 2).requires_grad
    with tenure.set_grad_enabled(False):
        assert not (x * 2).requires_grad
    assert tenure.is_grad_enabled()


def modes(library: Any) -> list[bool]:
    """Returns whether graphs are recorded at places of a program that calls `set_grad_enabled`."""
    found = []

    def note() -> None:
        found.append(library.is_grad_enabled())

    library.set_grad_enabled(False)
    note()
    library.set_grad_enabled(True)
    with library.no_grad():
        library.set_grad_enabled(True)
        note()
        with library.enable_grad():
            library.set_grad_enabled(False)
            note()
        note()
    note()
    setting = library.set_grad_enabled(False)
    note()
    with setting:
        note()
    note()
    with setting:
        note()
    note()
    decorated = library.set_grad_enabled(False)(note)
    note()
    decorated()
    note()
    library.set_grad_enabled(True)
    return found


def test_set_grad_enabled_holds_as_in_pytorch() -> None:
    torch = pytest.importorskip("torch")
    assert modes(tenure) == modes(torch)


def test_set_grad_enabled_called_as_a_function_keeps_nothing() -> None:
    def entered() -> int:
        number = tenure._native.enter_gradient_mode(True)
        tenure._native.leave_setting(number)
        return number

    before = entered()
    for mode in (False, True, False, True):
        tenure.set_grad_enabled(mode)
    assert entered() == before + 1


def test_a_generator_is_not_decorated() -> None:
    with pytest.raises(TypeError, match="generator"):

        @tenure.no_grad()
        def values() -> Any:
            yield 1


def test_settings_belong_to_their_thread() -> None:
    enabled = []
    with tenure.no_grad():
        thread = threading.Thread(target=lambda: enabled.append(tenure.is_grad_enabled()))
        thread.start()
        thread.join()
    assert enabled == [True]


def test_hooks_see_and_replace_gradients() -> None:
    x = leaf(1.0, 2.0)
    seen = []
    handle = x.register_hook(lambda grad: seen.append(grad.tolist()))
    x.register_hook(lambda grad: grad * 10)
    x.sum().backward()
    assert (seen, gradient(x)) == ([[1.0, 1.0]], [10.0, 10.0])
    handle.remove()
    x.sum().backward()
    assert len(seen) == 1


def test_a_hook_after_accumulation_gets_the_leaf_itself() -> None:
    x = leaf(1.0)
    seen: list[bool] = []
    x.register_post_accumulate_grad_hook(lambda tensor: seen.append(tensor is x))
    (x * 2 + x * 3).sum().backward()
    assert seen == [True]
    assert gradient(x) == [5.0]


def test_an_exception_of_a_hook_reaches_the_caller_of_backward() -> None:
    x = leaf(1.0)

    class Mine(Exception):
        pass

    def fail(grad: Tensor) -> None:
        raise Mine("here")

    handle = x.register_hook(fail)
    with pytest.raises(Mine, match="here"):
        x.sum().backward()
    handle.remove()
    x.sum().backward()
    assert gradient(x) == [1.0]


def test_retain_grad_keeps_the_gradient_of_a_result() -> None:
    x = leaf(3.0)
    y = x * x
    y.retain_grad()
    (y * 2).sum().backward()
    assert gradient(y) == [2.0]


def test_graphs_can_be_looked_at() -> None:
    x = leaf(1.0)
    y = (x * 2).sum()
    assert x.grad_fn is None
    assert x.is_leaf and not y.is_leaf
    node = y.grad_fn
    assert node is not None and node.name() == "sum"
    ((previous, output),) = node.next_functions
    assert previous is not None and previous.name() == "mul"
    assert output == 0


def test_a_write_in_place_to_what_backward_needs_is_an_error() -> None:
    x = leaf(1.0)
    y = x * 2
    z = y * y
    y.add_(1)
    with pytest.raises(tenure.Error, match="modified in place"):
        z.sum().backward()


def test_a_formula_of_the_user_s_is_used() -> None:
    x = leaf(2.0)
    y = Cube.apply(x)
    assert y.grad_fn is not None and y.grad_fn.name() == "CubeBackward"
    y.sum().backward()
    assert gradient(x) == [12.0]
    tenure.autograd.gradcheck(Cube.apply, [leaf(1.0, -2.0)])
    tenure.autograd.gradgradcheck(Cube.apply, [leaf(1.0, -2.0)])


def test_a_formula_gets_other_arguments_and_results_as_they_are() -> None:
    class ScaleAndSign(Function):
        @staticmethod
        def forward(x: Tensor, factor: float) -> tuple[Tensor, Tensor, str]:
            return x * factor, x > 0, "text"

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.factor = inputs[1]

        @staticmethod
        def backward(ctx: Any, grad: Tensor, of_sign: Any, of_text: Any) -> tuple[Tensor, None]:
            assert of_text is None
            return grad * ctx.factor, None

    x = leaf(1.0, -1.0)
    scaled, sign, text = ScaleAndSign.apply(x, 3.0)
    assert (sign.tolist(), sign.requires_grad, text) == ([True, False], False, "text")
    scaled.sum().backward()
    assert gradient(x) == [3.0, 3.0]


def test_a_formula_gets_zeros_for_results_that_nothing_depends_on() -> None:
    given: list[list[Any]] = []

    class Two(Function):
        materializes = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            ctx.set_materialize_grads(Two.materializes)
            return x * 1, x * 2

        @staticmethod
        def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Tensor | None:
            given.append([None if grad is None else grad.tolist() for grad in (first, second)])
            return first

    x = leaf(1.0)
    Two.apply(x)[0].sum().backward()
    Two.materializes = False
    Two.apply(x)[0].sum().backward()
    assert given == [[[1.0], [0.0]], [[1.0], None]]


@pytest.mark.parametrize("count", [0, 2])
def test_a_formula_with_another_number_of_gradients_is_an_error(count: int) -> None:
    class Wrong(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
            return (grad,) * count

    with pytest.raises(RuntimeError, match=f"{count} gradients for 1 arguments"):
        Wrong.apply(leaf(1.0)).sum().backward()


def test_an_exception_of_a_formula_reaches_the_caller_of_backward() -> None:
    class Failing(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Failing.apply(leaf(1.0)).sum().backward()


def test_saved_tensors_go_through_hooks() -> None:
    packed: list[list[float]] = []

    def pack(tensor: Tensor) -> Any:
        packed.append(tensor.tolist())
        return ("packed", tensor.tolist())

    def unpack(kept: Any) -> Tensor:
        return tenure.tensor(kept[1], dtype=tenure.float64)

    x = leaf(3.0)
    with tenure.autograd.saved_tensors_hooks(pack, unpack):
        y = (x * x).sum()
    assert packed and all(values == [3.0] for values in packed)
    y.backward()
    assert gradient(x) == [6.0]


def test_a_checkpoint_runs_its_function_again_with_the_same_random_numbers() -> None:
    runs: list[list[float]] = []

    def layer(x: Tensor, factor: float, *, offset: float) -> Tensor:
        noise = tenure.rand(2, dtype=tenure.float64)
        runs.append(noise.tolist())
        return (x * noise * factor + offset).exp()

    x = leaf(1.0, 2.0)
    y = tenure.autograd.checkpoint(layer, x, 0.5, offset=0.25)
    assert len(runs) == 1
    y.sum().backward()
    assert runs[0] == runs[1]
    expected = [factor * 0.5 * value for factor, value in zip(runs[0], y.tolist(), strict=True)]
    assert gradient(x) == pytest.approx(expected, rel=1e-12)


def test_gradcheck_finds_a_wrong_formula() -> None:
    class Wrong(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad

    with pytest.raises(tenure.Error, match="gradcheck"):
        tenure.autograd.gradcheck(Wrong.apply, [leaf(3.0)])


def test_anomaly_mode_names_the_operation_that_made_a_nan() -> None:
    x = leaf(0.0)
    with pytest.raises(tenure.Error, match="not a number"), tenure.autograd.detect_anomaly():
        (x / x).sum().backward()


class Watched:
    """An object whose end can be watched."""


@pytest.mark.parametrize("kind", ["leaf", "result", "accumulated"])
def test_a_hook_that_refers_to_its_tensor_is_freed(kind: str) -> None:
    watched = Watched()
    end = weakref.ref(watched)
    x = leaf(1.0)
    tensor = x * 2 if kind == "result" else x

    def hook(grad: Tensor, tensor: Tensor = tensor, kept: Watched = watched) -> None:
        del tensor, kept

    if kind == "accumulated":
        tensor.register_post_accumulate_grad_hook(hook)
    else:
        tensor.register_hook(hook)
    del x, tensor, hook, watched
    assert end() is not None
    gc.collect()
    assert end() is None


@pytest.mark.parametrize("register", [Tensor.register_hook, Tensor.register_post_accumulate_grad_hook])
def test_a_hook_that_was_removed_is_freed_at_once(register: Any) -> None:
    watched = Watched()
    end = weakref.ref(watched)
    x = leaf(1.0)
    handle = register(x, lambda _, kept=watched: None)
    del watched
    assert end() is not None
    handle.remove()
    assert end() is None


def test_a_checkpoint_that_ran_again_keeps_nothing() -> None:
    ends: list[weakref.ref[Watched]] = []

    def function(x: Tensor) -> Tensor:
        watched = Watched()
        ends.append(weakref.ref(watched))
        return (x * x).sin()

    tenure.autograd.checkpoint(function, leaf(1.0)).sum().backward()
    assert len(ends) == 2
    assert [end() for end in ends] == [None, None]


def test_a_context_that_refers_to_its_result_is_freed() -> None:
    class Keeping(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.watched = Watched()
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            ctx.result = results[0]
            return grad * 2

    x = leaf(1.0)
    results = [Keeping.apply(x)]
    results[0].sum().backward(retain_graph=True)
    contexts = [held for held in gc.get_objects() if isinstance(held, tenure.autograd.FunctionContext)]
    ends = [weakref.ref(context.watched) for context in contexts if hasattr(context, "watched")]
    assert len(ends) == 1
    del contexts
    results.clear()
    gc.collect()
    assert ends[0]() is None


@pytest.mark.parametrize("kept", [0, 1])
def test_a_context_that_refers_to_one_of_its_results_is_freed(kept: int) -> None:
    class Two(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            ctx.watched = watched.pop()
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            ctx.result = results[kept]
            return grads[0] * 2 + grads[1] * 3

    watched = [Watched()]
    end = weakref.ref(watched[0])
    x = leaf(1.0)
    results = list(Two.apply(x))
    (results[0] + results[1]).sum().backward(retain_graph=True)
    gc.collect()
    assert end() is not None
    results.clear()
    gc.collect()
    assert end() is None


def test_a_graph_is_freed_with_its_last_tensor() -> None:
    x = leaf(1.0)
    watched = Watched()
    end = weakref.ref(watched)
    y = Cube.apply(x)

    def hook(grad: Tensor, kept: Watched = watched) -> None:
        del kept

    y.register_hook(hook)
    z = y.sum()
    del y, hook, watched
    assert end() is not None
    del z
    assert end() is None

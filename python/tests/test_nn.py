"""`tenure.nn` against `torch.nn`: results, gradients, names and texts of each module."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from typing import Any

import pytest

import tenure
from tenure import nn

torch = pytest.importorskip("torch")

from .module_comparison import as_ours, close, compare, flat, given  # noqa: E402

ACTIVATIONS: list[tuple[str, tuple[Any, ...]]] = [
    ("CELU", (1.5,)),
    ("ELU", (0.7,)),
    ("ELU", (0.7, True)),
    ("GELU", ()),
    ("GELU", ("tanh",)),
    ("GLU", (1,)),
    ("Hardshrink", (0.4,)),
    ("Hardsigmoid", ()),
    ("Hardswish", ()),
    ("Hardtanh", (-0.5, 0.6)),
    ("LeakyReLU", (0.2,)),
    ("LogSigmoid", ()),
    ("LogSoftmax", (1,)),
    ("Mish", ()),
    ("PReLU", (4,)),
    ("PReLU", ()),
    ("ReLU", ()),
    ("ReLU6", ()),
    ("SELU", ()),
    ("SiLU", ()),
    ("Sigmoid", ()),
    ("Softmax", (-1,)),
    ("Softmin", (1,)),
    ("Softplus", (2.0, 3.0)),
    ("Softshrink", (0.3,)),
    ("Softsign", ()),
    ("Tanh", ()),
    ("Tanhshrink", ()),
    ("Threshold", (0.1, 20.0)),
]


@pytest.mark.parametrize(("name", "arguments"), ACTIVATIONS, ids=str)
def test_an_activation_computes_as_pytorchs(name: str, arguments: tuple[Any, ...]) -> None:
    ours, theirs = getattr(nn, name)(*arguments), getattr(torch.nn, name)(*arguments)
    if arguments and arguments[-1] is True:
        ours, theirs = nn.Sequential(nn.Identity(), ours), torch.nn.Sequential(torch.nn.Identity(), theirs)
        x, y = given(3, 4), as_ours(given(3, 4))
        theirs(x), ours(y)
        assert close(y, x)
    else:
        compare(ours, theirs, given(3, 4))


def test_an_activation_in_place_passes_gradients_of_its_old_input() -> None:
    x = as_ours(given(5)).requires_grad_()
    y = x * 1.0
    nn.ELU(inplace=True)(y).sum().backward()
    z = given(5).requires_grad_()
    torch.nn.functional.elu(z).sum().backward()
    assert close(x.grad, z.grad)


LAYERS: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("Linear", dict(in_features=4, out_features=3), (2, 5, 4)),
    ("Linear", dict(in_features=4, out_features=3, bias=False), (4,)),
    ("Conv1d", dict(in_channels=4, out_channels=6, kernel_size=3, stride=2, padding=1, groups=2), (2, 4, 9)),
    ("Conv2d", dict(in_channels=3, out_channels=4, kernel_size=(3, 2), padding="same", dilation=2), (2, 3, 6, 7)),
    ("Conv2d", dict(in_channels=3, out_channels=4, kernel_size=3, padding=1, padding_mode="reflect"), (2, 3, 6, 7)),
    ("Conv2d", dict(in_channels=3, out_channels=4, kernel_size=3, padding=(1, 2), padding_mode="circular"), (3, 6, 7)),
    ("Conv3d", dict(in_channels=2, out_channels=3, kernel_size=2, bias=False), (1, 2, 4, 5, 4)),
    ("ConvTranspose1d", dict(in_channels=4, out_channels=6, kernel_size=3, stride=2, output_padding=1), (2, 4, 5)),
    ("ConvTranspose2d", dict(in_channels=4, out_channels=6, kernel_size=3, groups=2, padding=1), (2, 4, 5, 6)),
    ("ConvTranspose3d", dict(in_channels=2, out_channels=3, kernel_size=2, dilation=2), (1, 2, 4, 3, 4)),
    ("BatchNorm1d", dict(num_features=4), (6, 4)),
    ("BatchNorm2d", dict(num_features=4, momentum=None), (3, 4, 3, 2)),
    ("BatchNorm3d", dict(num_features=4, affine=False), (2, 4, 3, 2, 2)),
    ("BatchNorm2d", dict(num_features=4, track_running_stats=False), (3, 4, 3, 2)),
    ("InstanceNorm1d", dict(num_features=4, affine=True), (3, 4, 5)),
    ("InstanceNorm2d", dict(num_features=4, track_running_stats=True), (3, 4, 5, 2)),
    ("InstanceNorm3d", dict(num_features=4), (4, 5, 2, 2)),
    ("LayerNorm", dict(normalized_shape=(3, 4)), (2, 3, 4)),
    ("LayerNorm", dict(normalized_shape=4, bias=False), (2, 3, 4)),
    ("RMSNorm", dict(normalized_shape=4), (2, 3, 4)),
    ("GroupNorm", dict(num_groups=2, num_channels=4), (2, 4, 3)),
    ("LocalResponseNorm", dict(size=3, alpha=0.5), (2, 5, 3, 3)),
]


@pytest.mark.parametrize(("name", "arguments", "sizes"), LAYERS, ids=str)
def test_a_layer_computes_as_pytorchs(name: str, arguments: dict[str, Any], sizes: tuple[int, ...]) -> None:
    ours, theirs = getattr(nn, name)(**arguments), getattr(torch.nn, name)(**arguments)
    compare(ours, theirs, given(*sizes))
    compare(ours.eval(), theirs.eval(), given(*sizes))


def test_averages_of_batches_go_on_over_several_batches() -> None:
    for momentum in (0.3, None):
        ours, theirs = nn.BatchNorm1d(3, momentum=momentum), torch.nn.BatchNorm1d(3, momentum=momentum)
        for seed in range(3):
            batch = given(5, 3, seed=seed)
            theirs(batch)
            ours(as_ours(batch))
        for name, tensor in theirs.state_dict().items():
            assert close(ours.state_dict()[name], tensor)


def test_bilinear_layers_compute_as_pytorchs() -> None:
    compare(nn.Bilinear(3, 4, 5), torch.nn.Bilinear(3, 4, 5), given(2, 3), given(2, 4, seed=3))


def test_layers_draw_their_weight_and_then_their_bias() -> None:
    tenure.manual_seed(5)
    layer, conv = nn.Linear(4, 3), nn.Conv2d(2, 3, 3)
    tenure.manual_seed(5)
    for parameter, fan_in in ((layer.weight, 4), (layer.bias, 4), (conv.weight, 18), (conv.bias, 18)):
        # Kaiming's bound for a slope of √5 is 1 / √fan_in, up to rounding.
        bound = fan_in**-0.5
        drawn = tenure.empty(tuple(parameter.shape)).uniform_(-bound, bound)
        assert tenure.allclose(parameter, drawn, rtol=1e-6)


def test_skipped_initial_values_draw_nothing() -> None:
    tenure.manual_seed(5)
    before = tenure.get_rng_state()
    layer = nn.utils.skip_init(nn.Linear, 4, 3)
    assert tenure.equal(tenure.get_rng_state(), before)
    nn.init.normal_(layer.weight)
    tenure.manual_seed(5)
    assert tenure.equal(layer.weight, tenure.randn(3, 4))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("constant_", (0.3,)),
        ("ones_", ()),
        ("zeros_", ()),
        ("eye_", ()),
    ],
)
def test_initial_values_without_chance_are_pytorchs(name: str, arguments: tuple[float, ...]) -> None:
    ours = getattr(nn.init, name)(tenure.empty(3, 4), *arguments)
    assert close(ours, getattr(torch.nn.init, name)(torch.empty(3, 4), *arguments))


def test_initial_values_have_pytorchs_distributions() -> None:
    tenure.manual_seed(0)
    torch.manual_seed(0)
    for name in ("kaiming_normal_", "kaiming_uniform_", "xavier_normal_", "xavier_uniform_", "trunc_normal_"):
        ours, theirs = getattr(nn.init, name)(tenure.empty(80, 90)), getattr(torch.nn.init, name)(torch.empty(80, 90))
        assert ours.std().item() == pytest.approx(theirs.std().item(), rel=0.05), name
        assert abs(ours).max().item() == pytest.approx(theirs.abs().max().item(), rel=0.3), name
    assert close(nn.init.dirac_(tenure.empty(4, 2, 3), 2), torch.nn.init.dirac_(torch.empty(4, 2, 3), 2))
    basis = nn.init.orthogonal_(tenure.empty(5, 3), gain=2.0)
    assert close(basis.t() @ basis, 4 * torch.eye(3))
    assert nn.init.sparse_(tenure.empty(10, 4), 0.25).eq(0).sum(0).tolist() == [3] * 4
    for gain in ("relu", "tanh", "linear", "selu"):
        assert nn.init.calculate_gain(gain) == torch.nn.init.calculate_gain(gain)


def model(of: Any) -> Any:
    return of.Sequential(of.Linear(4, 8), of.ReLU(), of.BatchNorm1d(8), of.ModuleDict({"a": of.Linear(8, 2)})["a"])


def test_state_that_does_not_fit_is_refused_with_pytorchs_text() -> None:
    ours, theirs = model(nn), model(torch.nn)
    state = theirs.state_dict()
    state["0.weight"] = torch.zeros(3, 3)
    state["else.where"] = torch.zeros(1)
    del state["2.running_mean"]
    with pytest.raises(RuntimeError) as wanted:
        theirs.load_state_dict(state)
    with pytest.raises(RuntimeError) as found:
        ours.load_state_dict({name: as_ours(tensor) for name, tensor in state.items()})
    assert str(found.value) == str(wanted.value).replace("torch.Size([", "[").replace("])", "]")
    del state["0.weight"]
    assert ours.load_state_dict(state, strict=False).missing_keys == ["0.weight", "2.running_mean"]
    assert str(ours.load_state_dict(theirs.state_dict())) == "<All keys matched successfully>"


def test_state_is_on_the_memory_of_the_parameters() -> None:
    layer = nn.Linear(2, 2)
    state = layer.state_dict(prefix="x.")
    assert list(state) == ["x.weight", "x.bias"] and not state["x.bias"].requires_grad
    state["x.bias"].fill_(7.0)
    assert layer.bias.tolist() == [7.0, 7.0]


def test_modules_convert_copy_and_pickle() -> None:
    ours = model(nn)
    ours(tenure.ones(3, 4)).sum().backward()
    weight = ours[0].weight
    ours.double()
    assert ours[0].weight is weight and weight.dtype == weight.grad.dtype == tenure.float64
    assert ours[2].num_batches_tracked.dtype == tenure.int64
    with pytest.raises(TypeError, match="only accepts floating point"):
        ours.to(tenure.int64)
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert isinstance(other[0].weight, nn.Parameter) and other[0].weight is not weight
        assert tenure.equal(other[0].weight, weight)
    ours.zero_grad()
    assert weight.grad is None
    assert not any(module.training for module in ours.eval().modules())
    assert not any(parameter.requires_grad for parameter in ours.requires_grad_(False).parameters())


def test_attributes_of_modules_are_refused_as_in_pytorch() -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="cannot assign 'Tensor' as parameter 'weight'"):
        layer.weight = tenure.zeros(2, 2)  # type: ignore[assignment]
    with pytest.raises(KeyError, match="attribute 'forward' already exists"):
        layer.register_buffer("forward", None)
    with pytest.raises(AttributeError, match="'Linear' object has no attribute 'other'"):
        _ = layer.other
    with pytest.raises(NotImplementedError, match='missing the required "forward"'):
        nn.Module()(1)
    layer.scale = nn.Buffer(tenure.ones(1), persistent=False)
    assert dict(layer.named_buffers()).keys() == {"scale"} and "scale" not in layer.state_dict()
    del layer.scale
    assert not list(layer.buffers())


def test_a_tied_parameter_is_yielded_once() -> None:
    tied = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    tied[1].weight = tied[0].weight
    assert [name for name, _ in tied.named_parameters()] == ["0.weight", "0.bias", "1.bias"]
    assert len(list(tied.named_parameters(remove_duplicate=False))) == 4


def test_forward_hooks_run_in_order_and_replace_values() -> None:
    layer = nn.Linear(2, 2)
    before = layer.register_forward_pre_hook(lambda module, args: (args[0] * 0,))
    after = layer.register_forward_hook(lambda module, args, result: result + args[0].sum() + 1)
    assert tenure.equal(layer(tenure.ones(1, 2))[0], layer.bias.detach() + 1)
    before.remove()
    after.remove()
    kwargs = layer.register_forward_pre_hook(lambda module, args, given: ((), {"input": args[0]}), with_kwargs=True)
    assert layer(tenure.ones(1, 2)).shape == (1, 2)
    kwargs.remove()
    called = []
    layer.register_forward_hook(lambda *arguments: called.append(arguments[-1]), always_call=True)
    with pytest.raises(tenure.Error):
        layer(tenure.ones(1, 3))
    assert called == [None]


def test_backward_hooks_see_and_replace_gradients_as_in_pytorch() -> None:
    seen: dict[str, list[Any]] = {"ours": [], "theirs": []}
    grads = []
    linear = nn.Linear(2, 2)
    state = {name: torch.from_dlpack(tensor) for name, tensor in linear.state_dict().items()}
    their_linear = torch.nn.Linear(2, 2)
    their_linear.load_state_dict(state)
    for name, layer, x in (("ours", linear, as_ours(given(3, 2))), ("theirs", their_linear, given(3, 2))):
        layer.register_full_backward_pre_hook(lambda module, grads: (grads[0] * 2,))

        def note(module: Any, inputs: Any, outputs: Any, name: str = name) -> Any:
            seen[name].append((inputs[0] * 1, outputs[0] * 1))
            return (inputs[0] * 3,)

        layer.register_full_backward_hook(note)
        layer(x.requires_grad_()).sum().backward()
        grads.append(x.grad)
    assert close(*grads)
    for mine, other in zip(flat(seen["ours"]), flat(seen["theirs"]), strict=True):
        assert close(mine, other)


def containers(of: Any, zeros: Any) -> list[Any]:
    return [
        of.ModuleList([of.Linear(2, 2), of.Linear(2, 2), of.ReLU(), of.Sequential(of.Linear(2, 3), of.ReLU())]),
        of.ModuleDict({"a": of.Linear(2, 3), "b": of.ReLU()}),
        of.ParameterList([zeros(2), zeros(3, 4)]),
        of.ParameterDict({"a": zeros(2)}),
        of.Sequential(OrderedDict([("first", of.Linear(2, 3)), ("then", of.ReLU())]))[1:],
        of.ModuleList(),
    ]


def test_containers_have_pytorchs_names_and_texts() -> None:
    for ours, theirs in zip(containers(nn, tenure.zeros), containers(torch.nn, torch.zeros), strict=True):
        assert list(ours.state_dict()) == list(theirs.state_dict())
        text = repr(theirs).replace("torch.float32", "tenure.float32").replace("torch.FloatTensor", "tenure.float32")
        assert repr(ours) == text


def test_lists_of_modules_change_as_lists() -> None:
    modules = nn.ModuleList([nn.ReLU(), nn.Tanh()])
    modules.insert(1, nn.GELU())
    modules += [nn.SiLU()]
    del modules[0]
    assert [type(module).__name__ for module in modules] == ["GELU", "Tanh", "SiLU"]
    assert list(modules._modules) == ["0", "1", "2"] and isinstance(modules.pop(-1), nn.SiLU)
    modules[0] = nn.ReLU()
    assert isinstance(modules[-2], nn.ReLU) and isinstance(modules[:1], nn.ModuleList)
    with pytest.raises(IndexError, match="out of range"):
        _ = modules[2]


MORE_LAYERS: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("MaxPool1d", dict(kernel_size=3, stride=2, padding=1), (2, 4, 9)),
    ("MaxPool2d", dict(kernel_size=(3, 2), dilation=(1, 2), ceil_mode=True), (2, 3, 7, 8)),
    ("MaxPool3d", dict(kernel_size=2), (1, 2, 4, 5, 4)),
    ("AvgPool1d", dict(kernel_size=3), (2, 4, 9)),
    ("AvgPool2d", dict(kernel_size=3, stride=2, padding=1, count_include_pad=False), (2, 3, 7, 8)),
    ("AvgPool2d", dict(kernel_size=2, divisor_override=3), (2, 3, 7, 8)),
    ("AvgPool3d", dict(kernel_size=2), (1, 2, 4, 5, 4)),
    ("AdaptiveAvgPool1d", dict(output_size=3), (2, 4, 7)),
    ("AdaptiveAvgPool2d", dict(output_size=(None, 3)), (2, 4, 7, 5)),
    ("AdaptiveAvgPool3d", dict(output_size=2), (1, 2, 4, 5, 3)),
    ("AdaptiveMaxPool1d", dict(output_size=3), (2, 4, 7)),
    ("AdaptiveMaxPool2d", dict(output_size=(2, 3)), (2, 4, 7, 5)),
    ("AdaptiveMaxPool3d", dict(output_size=2), (1, 2, 4, 5, 3)),
    ("Flatten", dict(), (2, 3, 4)),
    ("Unflatten", dict(dim=1, unflattened_size=(2, 3)), (2, 6, 4)),
    ("PixelShuffle", dict(upscale_factor=2), (2, 8, 3, 4)),
    ("PixelUnshuffle", dict(downscale_factor=2), (2, 2, 4, 6)),
    ("ChannelShuffle", dict(groups=2), (2, 6, 3)),
]


@pytest.mark.parametrize(("name", "arguments", "sizes"), MORE_LAYERS, ids=str)
def test_a_layer_without_parameters_computes_as_pytorchs(
    name: str, arguments: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    compare(getattr(nn, name)(**arguments), getattr(torch.nn, name)(**arguments), given(*sizes))


@pytest.mark.parametrize("padding", [None, -2])
def test_embeddings_compute_as_pytorchs(padding: int | None) -> None:
    ours, theirs = nn.Embedding(5, 3, padding), torch.nn.Embedding(5, 3, padding)
    assert padding is None or ours.weight[padding].tolist() == [0.0] * 3
    compare(ours, theirs, torch.tensor([[1, 3], [3, 0]]))


@pytest.mark.parametrize("name", ["Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout"])
def test_dropout_drops_its_share_in_training_alone(name: str) -> None:
    tenure.manual_seed(0)
    layer = getattr(nn, name)(0.3)
    assert repr(layer) == repr(getattr(torch.nn, name)(0.3))
    x = tenure.ones(40, 50, 2, 2, 2)
    kept = layer(x)
    dropped = kept.ne(kept.max()).to(tenure.float32).mean().item()
    assert dropped == pytest.approx(0.3, abs=0.05)
    if name.endswith("d"):
        channels = kept.flatten(0, -int(name[-2]) - 1).flatten(1)
        assert tenure.equal(channels.amax(1), channels.amin(1))
    assert layer.eval()(x).eq(1).all().item()


def classes() -> Any:
    return torch.tensor([1, 0, 3])


def signs(*sizes: int) -> Any:
    return given(*sizes, seed=9).sign()


def shares(*sizes: int) -> Any:
    return given(*sizes, seed=9).softmax(-1)


WEIGHTS = [0.5, 1.0, 2.0, 0.7]
LOSSES: list[tuple[str, dict[str, Any], Any]] = [
    ("L1Loss", {}, lambda: (given(3, 4), given(3, 4, seed=2))),
    ("MSELoss", {}, lambda: (given(3, 4), given(3, 4, seed=2))),
    ("SmoothL1Loss", {"beta": 0.5}, lambda: (given(3, 4), given(3, 4, seed=2))),
    ("HuberLoss", {"delta": 0.5}, lambda: (given(3, 4), given(3, 4, seed=2))),
    ("CrossEntropyLoss", {"label_smoothing": 0.1, "weight": WEIGHTS}, lambda: (given(3, 4), classes())),
    ("CrossEntropyLoss", {"ignore_index": 0}, lambda: (given(3, 4), classes())),
    ("NLLLoss", {"weight": WEIGHTS}, lambda: (given(3, 4), classes())),
    ("BCELoss", {}, lambda: (given(3, 4).sigmoid(), shares(3, 4))),
    ("BCEWithLogitsLoss", {"pos_weight": WEIGHTS}, lambda: (given(3, 4), shares(3, 4))),
    ("KLDivLoss", {}, lambda: (given(3, 4), shares(3, 4))),
    ("KLDivLoss", {"log_target": True}, lambda: (given(3, 4), shares(3, 4))),
    ("PoissonNLLLoss", {"full": True}, lambda: (given(3, 4), shares(3, 4) * 4)),
    ("GaussianNLLLoss", {"full": True}, lambda: (given(3, 4), given(3, 4, seed=2), shares(3, 4))),
    ("MarginRankingLoss", {"margin": 0.2}, lambda: (given(3), given(3, seed=2), signs(3))),
    ("HingeEmbeddingLoss", {}, lambda: (given(3, 4), signs(3, 4))),
    ("SoftMarginLoss", {}, lambda: (given(3, 4), signs(3, 4))),
    ("MultiLabelSoftMarginLoss", {"weight": WEIGHTS}, lambda: (given(3, 4), shares(3, 4))),
    ("CosineEmbeddingLoss", {"margin": 0.1}, lambda: (given(3, 4), given(3, 4, seed=2), signs(3))),
    ("TripletMarginLoss", {"swap": True}, lambda: (given(3, 4), given(3, 4, seed=2), given(3, 4, seed=3))),
]


def name_of(value: Any) -> str:
    """Returns a name that is the same in each process."""
    return "" if callable(value) else str(value)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none", "batchmean"])
@pytest.mark.parametrize(
    ("name", "settings", "inputs"), LOSSES, ids=lambda value: "" if callable(value) else str(value)
)
def test_a_loss_is_pytorchs(name: str, settings: dict[str, Any], inputs: Any, reduction: str) -> None:
    if reduction == "batchmean" and name != "KLDivLoss":
        pytest.skip("only this loss has it")
    losses = []
    for of, tensor in ((nn, tenure.tensor), (torch.nn, torch.tensor)):
        made = {key: tensor(value) if isinstance(value, list) else value for key, value in settings.items()}
        losses.append(getattr(of, name)(reduction=reduction, **made))
    first, *others = inputs()
    theirs, ours = first.clone().requires_grad_(), as_ours(first).requires_grad_()
    expected = losses[1](theirs, *others)
    found = losses[0](ours, *(as_ours(other) for other in others))
    assert close(found, expected)
    expected.sum().backward()
    found.sum().backward()
    assert close(ours.grad, theirs.grad)
    assert repr(losses[0]) == repr(losses[1])

//! Tests that image models equal torchvision's: names, outputs, gradients.

use tenure_nn::layers::Layer;
use tenure_nn::models::{DenseNet, DenseNetConfig, InceptionConfig, InceptionV3, R3d, R3dConfig, ResNet, ResNetConfig};
use tenure_nn::{Module, Scope};
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Device, Tensor, autograd};

use crate::common::{assert_close, check, configs, golden, images, on_devices, with_scope};

on_devices! {
    resnet_is_torchvisions
    r3d_is_torchvisions
    inception_is_torchvisions
    densenet_is_torchvisions
}

fn resnet_is_torchvisions() {
    let input = images(&[2, 3, 33, 24]);
    let config = ResNetConfig { blocks: [1, 2, 1, 1], ..configs::RESNET_BASIC };
    let mut model = with_scope(|scope| ResNet::new(&scope.zeroed(), config).unwrap());
    check(&golden("models", "resnet_basic"), &model, 1e-8, || model.forward(&input));
    model.eval();
    let found = model.forward(&input).unwrap().to_vec::<f64>().unwrap();
    assert_close("eval", &found, &golden("models", "resnet_basic")["eval"], 1e-8);

    let model = with_scope(|scope| ResNet::new(&scope.zeroed(), configs::RESNET_BOTTLENECK).unwrap());
    // The forward pass alone, which is most of the test's time.
    autograd::no_grad(|| check(&golden("models", "resnet_bottleneck"), &model, 1e-8, || model.forward(&input)));
}

fn r3d_is_torchvisions() {
    let model = with_scope(|scope| R3d::new(&scope.zeroed(), configs::R3D).unwrap());
    let input = images(&[2, 3, 4, 20, 24]);
    autograd::no_grad(|| check(&golden("models", "r3d"), &model, 1e-8, || model.forward(&input)));
}

fn inception_is_torchvisions() {
    let config = InceptionConfig { classes: 5, ..InceptionConfig::V3 };
    let mut model = with_scope(|scope| InceptionV3::new(&scope.zeroed(), config).unwrap());
    model.eval();
    let input = images(&[1, 3, 75, 75]);
    autograd::no_grad(|| check(&golden("models", "inception"), &model, 1e-8, || model.forward(&input)));
}

fn densenet_is_torchvisions() {
    let input = images(&[2, 3, 40, 33]);
    let mut model = with_scope(|scope| DenseNet::new(&scope.zeroed(), configs::DENSENET).unwrap());
    check(&golden("models", "densenet"), &model, 1e-8, || model.forward(&input));
    model.eval();
    let found = model.forward(&input).unwrap().to_vec::<f64>().unwrap();
    assert_close("eval", &found, &golden("models", "densenet")["eval"], 1e-8);
}

#[test]
fn models_have_as_many_parameters_as_theirs() {
    let scope = Scope::new(&Generator::new(0)).with_dtype(DType::BF16).zeroed();
    let resnet = |config| ResNet::new(&scope, config).unwrap().parameter_count();
    assert_eq!(resnet(ResNetConfig::RESNET18), 11_689_512);
    assert_eq!(resnet(ResNetConfig::RESNET50), 25_557_032);
    assert_eq!(R3d::new(&scope, R3dConfig::R3D18).unwrap().parameter_count(), 33_371_472);
    assert_eq!(InceptionV3::new(&scope, InceptionConfig::V3).unwrap().parameter_count(), 27_161_264);
    let densenet = DenseNet::new(&scope, DenseNetConfig::DENSENET121).unwrap();
    assert_eq!(densenet.parameter_count(), 7_978_856);
}

#[test]
fn images_may_have_one_channel() {
    let config = ResNetConfig { channels: 1, classes: 10, ..configs::RESNET_BASIC };
    let scope = Scope::new(&Generator::new(0)).at("net").zeroed();
    let model = ResNet::new(&scope, config).unwrap();
    assert_eq!(model.state()[0].0, "net.conv1.weight");
    let input = Tensor::zeros(&[2, 1, 28, 28], DType::F32, Device::CPU).unwrap();
    assert_eq!(model.forward(&input).unwrap().sizes(), [2, 10]);
}

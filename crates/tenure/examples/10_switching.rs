//! Calls three models in turn in memory for two: each comes from its file when it is called, and the one that is worth
//! least leaves.
//!
//! `cargo run --release -p tenure --example 10_switching`

use tenure::nn::checkpoint;
use tenure::nn::models::{ResNet, ResNetConfig};
use tenure::nn::networks::Architectures;
use tenure::nn::switched::{Switcher, SwitcherOptions};
use tenure::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let config = ResNetConfig { width: 16, classes: 10, ..ResNetConfig::RESNET18 };
    let mut paths = Vec::new();
    let mut model_bytes = 0;
    for seed in 0..3 {
        let model = ResNet::new(&Scope::new(&Generator::new(seed)), config)?;
        model_bytes = model.state().iter().map(|(_, tensor)| tensor.numel() * tensor.dtype().size()).sum::<usize>();
        let path = folder.path().join(format!("{seed}.safetensors"));
        let state = model.state().into_iter().map(|(name, tensor)| (name.to_owned(), tensor));
        checkpoint::save(&path, state, ("made", "by an example"))?;
        paths.push(path);
    }

    let device_bytes = 2 * model_bytes as u64 + (1 << 20);
    let switcher = Switcher::new(Device::CPU, SwitcherOptions::new(device_bytes, 0))?;
    let options: serde_json::Map<_, _> = serde_json::from_str(r#"{"width": 16, "classes": 10}"#)?;
    let mut models = Vec::new();
    for path in &paths {
        let network = Architectures::default().build("resnet18", options.clone())?;
        models.push(switcher.add(&path.display().to_string(), network, &[path])?); // reads nothing yet
    }
    let image = Tensor::ones(&[1, 3, 32, 32], DType::F32, Device::CPU)?;
    for model in models.iter().cycle().take(9) {
        let scores = &model.forward(std::slice::from_ref(&image))?[0];
        let resident = models.iter().filter(|model| model.is_resident().is_ok_and(|is| is)).count();
        println!("class {}, {resident} of 3 models in memory", scores.argmax(Some(-1), false)?.item::<i64>()?);
    }
    println!("{:?}", switcher.report());
    Ok(())
}

//! `tenure models export`: writes a stored model as an ONNX model.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tenure::onnx::{DynamicAxis, ExportOptions, export_network};
use tenure::tensor::{Device, Tensor};
use tenure::units::Bytes;
use tenure_nn::Module;
use tenure_nn::checkpoint::Weights;
use tenure_nn::networks::{Architectures, Network};
use tenure_serve::dtype_of;
use tenure_serve::repository::{Dimension, Repository, StoredModel, TensorSpec};

use crate::files;

/// The size of the batch when the model is run.
const BATCH: usize = 2;

/// Write a model that `tenure serve` serves as an ONNX model
#[derive(clap::Args)]
#[command(after_help = "\
Sizes of -1 in the model's config.toml become axes of any size: `batch`, and `axis_1` and so on for the others, which \
inputs share. Parameters of more than 2 GB are written to FILE.data.

Example:
  tenure models export models digits --onnx digits.onnx")]
pub(crate) struct ExportArgs {
    /// The folder of models
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// The model's name
    #[arg(value_name = "MODEL")]
    model: String,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    onnx: PathBuf,
    /// The version of ONNX's operators, from 18 to 23
    #[arg(long, default_value_t = 18, value_name = "N")]
    opset: i64,
    /// The size of axes of any size while the model is run: one that it accepts. Some models take texts up to this
    /// length only
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..), value_name = "N")]
    free_size: u16,
}

pub(crate) fn export(args: &ExportArgs) -> anyhow::Result<String> {
    let mut repository = Repository::new(&args.folder);
    repository.scan()?;
    let Some(model) = repository.model(&args.model) else {
        if let Some(broken) = repository.broken().find(|broken| broken.name.as_str() == args.model) {
            bail!("{}: {}", args.model, broken.reason);
        }
        bail!("{}: no model is called {:?}", args.folder.display(), args.model);
    };
    let network = network(model)?;
    let free = usize::from(args.free_size);
    let inputs = model.config.inputs.iter().map(|input| example(input, free)).collect::<anyhow::Result<Vec<_>>>()?;
    let names = |specs: &[TensorSpec]| specs.iter().map(|spec| spec.name.clone()).collect();
    let options = ExportOptions {
        input_names: names(&model.config.inputs),
        output_names: names(&model.config.outputs),
        dynamic_axes: model.config.inputs.iter().flat_map(dynamic_axes).collect(),
        opset: args.opset,
        ..ExportOptions::default()
    };
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    export_network(&args.onnx, &*network, &inputs, &options)?;
    let bytes = written(&args.onnx)?;
    Ok(format!("{}: {} in {}\n", args.onnx.display(), args.model, Bytes(bytes)))
}

/// Builds a model's network with its weights.
fn network(model: &StoredModel) -> anyhow::Result<Box<dyn Network>> {
    let Some(weights) = &model.config.weights else {
        bail!("{}: the model is a PyTorch module: export it with torch.onnx", model.name.as_str());
    };
    let mut network = Architectures::default().build(&model.config.architecture, model.config.options.clone())?;
    // The network has shapes alone.
    network.change(&Tensor::contiguous)?;
    let missing = network.load_known(&Weights::open(&model.folder.join(weights))?)?;
    if let [first, ..] = &missing[..] {
        bail!("{weights} has no {first}");
    }
    Ok(network)
}

/// Returns an input of ones.
fn example(input: &TensorSpec, free_size: usize) -> anyhow::Result<Tensor> {
    let mut sizes = Vec::new();
    for (axis, size) in input.shape.iter().enumerate() {
        sizes.push(match size {
            Dimension::Fixed(size) => usize::try_from(*size).context("a size is too large")?,
            Dimension::Free if axis == 0 => BATCH,
            Dimension::Free => free_size,
        });
    }
    let dtype = dtype_of(input.datatype).with_context(|| {
        format!("the input {} is of {}, which tensors do not have", input.name, input.datatype.name())
    })?;
    Ok(Tensor::ones(&sizes, dtype, Device::CPU)?)
}

fn dynamic_axes(input: &TensorSpec) -> Vec<DynamicAxis> {
    let free = input.shape.iter().enumerate().filter(|(_, size)| **size == Dimension::Free);
    let name = |axis| if axis == 0 { "batch".to_owned() } else { format!("axis_{axis}") };
    free.map(|(axis, _)| DynamicAxis::new(&input.name, axis as isize, name(axis))).collect()
}

/// Returns the bytes of the model's files.
fn written(path: &Path) -> anyhow::Result<u64> {
    let bytes = |path: &Path| std::fs::metadata(path).map(|file| file.len());
    let mut data = path.as_os_str().to_owned();
    data.push(".data");
    let model = bytes(path).map_err(|error| files::about(path, error))?;
    Ok(model + bytes(Path::new(&data)).unwrap_or(0))
}

//! A network with weights from a file, computed without a switcher.

use std::collections::HashMap;
use std::path::Path;

use tenure::nn::Source as _;
use tenure::nn::checkpoint::Weights;
use tenure::nn::networks::Network;
use tenure::tensor::autograd::no_grad;
use tenure::tensor::{Device, Tensor};

use super::workload::Workload;

/// A network with its own weights.
pub(super) struct Plain {
    pub(super) network: Box<dyn Network>,
    /// Tensors on the host, each with the one that is in the network now.
    values: Vec<(Tensor, Tensor)>,
}

impl Plain {
    pub(super) fn open(workload: Workload, path: &Path, device: Device) -> anyhow::Result<Self> {
        let mut network = workload.network()?;
        let weights = Weights::open(path)?;
        let mut values = HashMap::new();
        for (name, shape) in network.state() {
            if weights.sizes(name).is_some() {
                values.insert(shape.id(), weights.tensor(name)?);
            }
        }
        network.change(&|shape| Ok(values.get(&shape.id()).unwrap_or(shape).clone()))?;
        let values = values.into_values().map(|value| (value.clone(), value)).collect();
        let mut plain = Self { network, values };
        plain.come(device)?;
        Ok(plain)
    }

    /// Copies each tensor to the device.
    pub(super) fn come(&mut self, device: Device) -> anyhow::Result<()> {
        self.put(|host| host.to_device(device))
    }

    /// Puts the host's tensors back in place of those on the device.
    pub(super) fn leave(&mut self) -> anyhow::Result<()> {
        self.put(|host| Ok(host.clone()))
    }

    fn put(&mut self, of: impl Fn(&Tensor) -> tenure::tensor::Result<Tensor>) -> anyhow::Result<()> {
        let mut by_id = HashMap::new();
        for (host, there) in &mut self.values {
            let next = of(host)?;
            by_id.insert(there.id(), next.clone());
            *there = next;
        }
        Ok(self.network.change(&|tensor| Ok(by_id.get(&tensor.id()).unwrap_or(tensor).clone()))?)
    }

    pub(super) fn forward(&self, inputs: &[Tensor]) -> anyhow::Result<Vec<Tensor>> {
        Ok(no_grad(|| self.network.forward(inputs))?)
    }
}

/// Returns the bytes of each tensor.
pub(super) fn bytes(answers: &[Tensor]) -> anyhow::Result<Vec<Vec<u8>>> {
    Ok(answers.iter().map(Tensor::to_bytes).collect::<tenure::tensor::Result<_>>()?)
}

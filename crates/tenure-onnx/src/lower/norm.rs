//! Normalisations.

use super::{Lower, Lowered, Refusal, one};
use crate::graph::{float, int};
use crate::size::Size;

pub(super) fn lower(call: &mut Lower<'_, '_>) -> Lowered {
    match call.operation() {
        "batch_norm" => one(call.batch_norm()?),
        "batch_norm_relu" => {
            let mut result = call.batch_norm()?;
            if let Some(carried) = call.optional("carried")? {
                result = call.op("Add", &[&result, &carried.name], vec![]);
            }
            one(call.op("Relu", &[&result], vec![]))
        }
        "layer_norm" => call.layer_norm(),
        "rms_norm" => call.rms_norm(),
        "group_norm" => call.group_norm(),
        _ => Err(Refusal::Unmapped),
    }
}

impl Lower<'_, '_> {
    fn batch_norm(&mut self) -> Result<String, Refusal> {
        if self.is_none("running_mean") {
            return self.normalised_by_batch();
        }
        if self.flag("training")? {
            return Err(
                "it normalises by the batch, and changes running averages: call eval() on the module first".into()
            );
        }
        let input = self.input()?;
        let mean = self.tensor("running_mean")?;
        let variance = self.tensor("running_var")?;
        let channels = self.fixed("the number of channels", mean.sizes[0])?;
        let weight = match self.optional("weight")? {
            Some(weight) => weight.name,
            None => self.graph().filled(1, channels, mean.dtype),
        };
        let bias = match self.optional("bias")? {
            Some(bias) => bias.name,
            None => self.graph().filled(0, channels, mean.dtype),
        };
        let attributes = vec![float("epsilon", self.float("eps")?)];
        Ok(self.op("BatchNormalization", &[&input.name, &weight, &bias, &mean.name, &variance.name], attributes))
    }

    /// Normalises each channel by the mean and variance of the batch, without running averages.
    fn normalised_by_batch(&mut self) -> Result<String, Refusal> {
        let input = self.input()?;
        let dims: Vec<i64> = std::iter::once(0).chain(2..input.rank() as i64).collect();
        let axes = self.graph().ints(&dims);
        let eps = self.float("eps")?;
        let eps = self.constant(eps, input.dtype);
        let mean = self.op("ReduceMean", &[&input.name, &axes], vec![]);
        let distance = self.op("Sub", &[&input.name, &mean], vec![]);
        let square = self.op("Mul", &[&distance, &distance], vec![]);
        let variance = self.op("ReduceMean", &[&square, &axes], vec![]);
        let sum = self.op("Add", &[&variance, &eps], vec![]);
        let root = self.op("Sqrt", &[&sum], vec![]);
        let normal = self.op("Div", &[&distance, &root], vec![]);
        self.scaled_channels(normal, input.rank())
    }

    /// Multiplies each channel with its weight and adds its bias, where they are given.
    fn scaled_channels(&mut self, mut result: String, rank: usize) -> Result<String, Refusal> {
        let axes: Vec<i64> = (1..rank as i64 - 1).collect();
        for (name, operator) in [("weight", "Mul"), ("bias", "Add")] {
            if let Some(factor) = self.optional(name)? {
                let axes = self.graph().ints(&axes);
                let factor = self.op("Unsqueeze", &[&factor.name, &axes], vec![]);
                result = self.op(operator, &[&result, &factor], vec![]);
            }
        }
        Ok(result)
    }

    fn layer_norm(&mut self) -> Lowered {
        let input = self.input()?;
        let shape = self.ints("normalized_shape")?;
        let weight = match self.optional("weight")? {
            Some(weight) => weight.name,
            None => {
                let ones = self.graph().filled(1, shape.iter().product(), input.dtype);
                let sizes: Vec<Size> = shape.iter().map(|size| Size::fixed(*size)).collect();
                let flat = [Size::fixed(shape.iter().product())];
                self.reshape(&ones, &flat, &sizes)?
            }
        };
        let bias = self.optional("bias")?.map(|bias| bias.name).unwrap_or_default();
        let attributes = vec![int("axis", -(shape.len() as i64)), float("epsilon", self.float("eps")?)];
        one(self.op("LayerNormalization", &[&input.name, &weight, &bias], attributes))
    }

    fn rms_norm(&mut self) -> Lowered {
        let input = self.input()?;
        let dims = self.ints("normalized_shape")?.len() as i64;
        let axes: Vec<i64> = (-dims..0).collect();
        let axes = self.graph().ints(&axes);
        let eps = self.float("eps")?;
        let eps = self.constant(eps, input.dtype);
        let square = self.op("Mul", &[&input.name, &input.name], vec![]);
        let mean = self.op("ReduceMean", &[&square, &axes], vec![]);
        let sum = self.op("Add", &[&mean, &eps], vec![]);
        let root = self.op("Sqrt", &[&sum], vec![]);
        let mut result = self.op("Div", &[&input.name, &root], vec![]);
        if let Some(weight) = self.optional("weight")? {
            result = self.op("Mul", &[&result, &weight.name], vec![]);
        }
        one(result)
    }

    /// Lowers a group's norm to that of an instance whose channels are the groups.
    fn group_norm(&mut self) -> Lowered {
        let input = self.input()?;
        let groups = self.int("num_groups")?;
        let shape = self.graph().ints(&[0, groups, -1]);
        let grouped = self.op("Reshape", &[&input.name, &shape], vec![]);
        let ones = self.graph().filled(1, groups, input.dtype);
        let zeros = self.graph().filled(0, groups, input.dtype);
        let attributes = vec![float("epsilon", self.float("eps")?)];
        let normal = self.op("InstanceNormalization", &[&grouped, &ones, &zeros], attributes);
        let sizes = self.op("Shape", &[&input.name], vec![]);
        let result = self.op("Reshape", &[&normal, &sizes], vec![]);
        one(self.scaled_channels(result, input.rank())?)
    }
}

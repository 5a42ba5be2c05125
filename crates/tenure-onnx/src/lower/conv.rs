//! Convolutions.

use super::{Lower, Lowered, Refusal, one};
use crate::graph::{int, ints};

pub(super) fn lower(call: &mut Lower<'_, '_>) -> Lowered {
    match call.operation() {
        "conv1d" | "conv2d" | "conv3d" | "conv1d_padded" | "conv2d_padded" | "conv3d_padded" => call.conv(),
        "conv_transpose1d" | "conv_transpose2d" | "conv_transpose3d" => call.conv_transpose(),
        _ => Err(Refusal::Unmapped),
    }
}

impl Lower<'_, '_> {
    fn conv(&mut self) -> Lowered {
        let (input, weight) = self.pair("input", "weight")?;
        self.check_dtypes(&[&input, &weight])?;
        let spatial = weight.rank() - 2;
        let dilation = self.spatial("dilation", spatial, 1)?;
        let kernel =
            weight.sizes[2..].iter().map(|size| self.fixed("the kernel", *size)).collect::<Result<Vec<_>, _>>()?;
        let padding = match self.text("padding") {
            Some("same") => {
                let total: Vec<i64> = kernel.iter().zip(&dilation).map(|(size, step)| step * (size - 1)).collect();
                let begins = total.iter().map(|total| total / 2);
                begins.chain(total.iter().map(|total| total - total / 2)).collect()
            }
            Some(_) => vec![0; 2 * spatial],
            None => self.spatial("padding", spatial, 0)?.repeat(2),
        };
        let attributes = vec![
            ints("kernel_shape", &kernel),
            ints("strides", &self.spatial("stride", spatial, 1)?),
            ints("pads", &padding),
            ints("dilations", &dilation),
            int("group", self.int("groups")?),
        ];
        let bias = self.optional("bias")?.map(|bias| bias.name).unwrap_or_default();
        one(self.batched(spatial, |call, x| call.op("Conv", &[x, &weight.name, &bias], attributes))?)
    }

    fn conv_transpose(&mut self) -> Lowered {
        let (input, weight) = self.pair("input", "weight")?;
        self.check_dtypes(&[&input, &weight])?;
        let spatial = weight.rank() - 2;
        let attributes = vec![
            ints("strides", &self.spatial("stride", spatial, 1)?),
            ints("pads", &self.spatial("padding", spatial, 0)?.repeat(2)),
            ints("output_padding", &self.spatial("output_padding", spatial, 0)?),
            ints("dilations", &self.spatial("dilation", spatial, 1)?),
            int("group", self.int("groups")?),
        ];
        let bias = self.optional("bias")?.map(|bias| bias.name).unwrap_or_default();
        one(self.batched(spatial, |call, x| call.op("ConvTranspose", &[x, &weight.name, &bias], attributes))?)
    }

    /// Returns one number for each spatial dimension: one that is given is for all.
    pub(super) fn spatial(&self, name: &str, spatial: usize, default: i64) -> Result<Vec<i64>, Refusal> {
        Ok(match self.ints(name)?[..] {
            [] => vec![default; spatial],
            [one] => vec![one; spatial],
            ref numbers => numbers.to_vec(),
        })
    }

    /// Computes with a batch of images, also where the input is one image.
    pub(super) fn batched(
        &mut self,
        spatial: usize,
        compute: impl FnOnce(&mut Self, &str) -> String,
    ) -> Result<String, Refusal> {
        let input = self.input()?;
        if input.rank() == spatial + 2 {
            return Ok(compute(self, &input.name));
        }
        let axes = self.graph().ints(&[0]);
        let images = self.op("Unsqueeze", &[&input.name, &axes], vec![]);
        let result = compute(self, &images);
        Ok(self.op("Squeeze", &[&result, &axes], vec![]))
    }

    /// Returns the one result of a call that has others without a counterpart.
    pub(super) fn only_first(&self, name: String) -> Lowered {
        let others = self.first.results.len().saturating_sub(1);
        Ok(std::iter::once(Some(name)).chain(std::iter::repeat_n(None, others)).collect())
    }
}

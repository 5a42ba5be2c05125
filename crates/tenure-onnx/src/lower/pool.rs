//! Pooling of images.

use super::{Lower, Lowered, Refusal, one};
use crate::graph::{int, ints};

pub(super) fn lower(call: &mut Lower<'_, '_>) -> Lowered {
    match call.operation() {
        "max_pool1d" | "max_pool2d" | "max_pool3d" => call.max_pool(),
        "avg_pool1d" | "avg_pool2d" | "avg_pool3d" => call.avg_pool(),
        "adaptive_avg_pool1d" | "adaptive_avg_pool2d" | "adaptive_avg_pool3d" | "adaptive_avg_pool" => {
            call.adaptive_pool("AveragePool", "ReduceMean")
        }
        "adaptive_max_pool1d" | "adaptive_max_pool2d" | "adaptive_max_pool3d" => {
            call.adaptive_pool("MaxPool", "ReduceMax")
        }
        _ => Err(Refusal::Unmapped),
    }
}

impl Lower<'_, '_> {
    /// Returns the number of spatial dimensions that the operation's name says, or that the input has.
    fn spatial_rank(&mut self) -> Result<usize, Refusal> {
        let named = self.operation().trim_end_matches('d').chars().last().and_then(|last| last.to_digit(10));
        match named {
            Some(rank) => Ok(rank as usize),
            None => Ok(self.input()?.rank().saturating_sub(2)),
        }
    }

    fn windows(&self, spatial: usize) -> Result<Vec<crate::proto::AttributeProto>, Refusal> {
        let (kernel, stride) = self.kernel_and_stride(spatial)?;
        Ok(vec![
            ints("kernel_shape", &kernel),
            ints("strides", &stride),
            ints("pads", &self.spatial("padding", spatial, 0)?.repeat(2)),
            int("ceil_mode", i64::from(self.flag("ceil_mode")?)),
        ])
    }

    /// Returns the sizes of a window, and the steps from one to the next: windows side by side if none are given.
    fn kernel_and_stride(&self, spatial: usize) -> Result<(Vec<i64>, Vec<i64>), Refusal> {
        let kernel = self.spatial("kernel_size", spatial, 1)?;
        let stride = if self.ints("stride")?.is_empty() { kernel.clone() } else { self.spatial("stride", spatial, 1)? };
        Ok((kernel, stride))
    }

    /// Refuses windows that begin in the padding after the image. With `ceil_mode`, ONNX Runtime counts such a window,
    /// and PyTorch does not.
    fn check_last_windows(&mut self, spatial: usize, dilation: &[i64]) -> Result<(), Refusal> {
        if !self.flag("ceil_mode")? {
            return Ok(());
        }
        let input = self.input()?;
        let (kernel, stride) = self.kernel_and_stride(spatial)?;
        let padding = self.spatial("padding", spatial, 0)?;
        for (dim, size) in input.sizes[input.rank() - spatial..].iter().enumerate() {
            let extent = dilation[dim] * (kernel[dim] - 1) + 1;
            let (stride, padding) = (stride[dim], padding[dim]);
            let begins_beyond = size.known().is_none_or(|size| {
                let steps = (size + 2 * padding - extent + stride - 1).div_euclid(stride);
                steps * stride >= size + padding
            });
            if stride + padding > extent && begins_beyond {
                let reason = "ceil_mode may add a window that is in the padding only: pad the image before, or leave \
                              ceil_mode out";
                return Err(reason.into());
            }
        }
        Ok(())
    }

    fn max_pool(&mut self) -> Lowered {
        let spatial = self.spatial_rank()?;
        let mut attributes = self.windows(spatial)?;
        let dilation = self.spatial("dilation", spatial, 1)?;
        self.check_last_windows(spatial, &dilation)?;
        attributes.push(ints("dilations", &dilation));
        one(self.batched(spatial, |call, x| call.op("MaxPool", &[x], attributes))?)
    }

    fn avg_pool(&mut self) -> Lowered {
        let spatial = self.spatial_rank()?;
        let mut attributes = self.windows(spatial)?;
        self.check_last_windows(spatial, &vec![1; spatial])?;
        if self.flag("ceil_mode")? && self.flag("count_include_pad")? && self.all.opset < 19 {
            return Err("ceil_mode with count_include_pad needs an opset of at least 19".into());
        }
        attributes.push(int("count_include_pad", i64::from(self.flag("count_include_pad")?)));
        one(self.batched(spatial, |call, x| call.op("AveragePool", &[x], attributes))?)
    }

    fn adaptive_pool(&mut self, pool: &str, reduction: &str) -> Lowered {
        let input = self.input()?;
        let spatial = self.spatial_rank()?;
        let output = self.spatial("output_size", spatial, 1)?;
        let first = input.rank() - spatial;
        if output.iter().all(|size| *size == 1) {
            let axes: Vec<i64> = (first as i64..input.rank() as i64).collect();
            let axes = self.graph().ints(&axes);
            let name = self.op(reduction, &[&input.name, &axes], vec![]);
            return self.only_first(name);
        }
        let mut kernel = Vec::new();
        for (size, to) in input.sizes[first..].iter().zip(&output) {
            match self.fixed("the size of the image", *size)? {
                from if from % to == 0 => kernel.push(from / to),
                from => {
                    let reason = format!("{to} windows of {from} pixels differ in size: use multiples, or avg_pool");
                    return Err(reason.into());
                }
            }
        }
        let attributes = vec![ints("kernel_shape", &kernel), ints("strides", &kernel)];
        let pooled = self.batched(spatial, |call, x| call.op(pool, &[x], attributes))?;
        self.only_first(pooled)
    }
}

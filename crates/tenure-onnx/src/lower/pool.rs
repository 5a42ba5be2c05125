//! Pooling of images.

use super::{Lower, Lowered, Refusal};
use crate::graph::{int, ints};

pub(super) fn lower(call: &mut Lower<'_, '_>) -> Lowered {
    match call.operation() {
        "max_pool1d" => call.max_pool(1),
        "max_pool2d" => call.max_pool(2),
        "max_pool3d" => call.max_pool(3),
        "avg_pool1d" => call.avg_pool(1),
        "avg_pool2d" => call.avg_pool(2),
        "avg_pool3d" => call.avg_pool(3),
        "adaptive_avg_pool1d" => call.adaptive_pool(Some(1), "AveragePool", "ReduceMean"),
        "adaptive_avg_pool2d" => call.adaptive_pool(Some(2), "AveragePool", "ReduceMean"),
        "adaptive_avg_pool3d" => call.adaptive_pool(Some(3), "AveragePool", "ReduceMean"),
        "adaptive_avg_pool" => call.adaptive_pool(None, "AveragePool", "ReduceMean"),
        "adaptive_max_pool1d" => call.adaptive_pool(Some(1), "MaxPool", "ReduceMax"),
        "adaptive_max_pool2d" => call.adaptive_pool(Some(2), "MaxPool", "ReduceMax"),
        "adaptive_max_pool3d" => call.adaptive_pool(Some(3), "MaxPool", "ReduceMax"),
        _ => Err(Refusal::Unmapped),
    }
}

impl Lower<'_, '_> {
    fn windows(&self, spatial: usize) -> Result<Vec<crate::proto::AttributeProto>, Refusal> {
        let kernel = self.spatial("kernel_size", spatial, 1)?;
        let stride = match self.ints("stride")?[..] {
            [] => kernel.clone(),
            _ => self.spatial("stride", spatial, 1)?,
        };
        Ok(vec![
            ints("kernel_shape", &kernel),
            ints("strides", &stride),
            ints("pads", &self.spatial("padding", spatial, 0)?.repeat(2)),
            int("ceil_mode", i64::from(self.flag("ceil_mode")?)),
        ])
    }

    /// Refuses windows that begin in the padding after the image. With `ceil_mode`, ONNX Runtime counts such a window,
    /// and PyTorch does not.
    fn check_last_windows(&mut self, spatial: usize, dilation: &[i64]) -> Result<(), Refusal> {
        if !self.flag("ceil_mode")? {
            return Ok(());
        }
        let input = self.input()?;
        let kernel = self.spatial("kernel_size", spatial, 1)?;
        let stride = if self.ints("stride")?.is_empty() { kernel.clone() } else { self.spatial("stride", spatial, 1)? };
        let padding = self.spatial("padding", spatial, 0)?;
        for (dim, size) in input.sizes[input.rank() - spatial..].iter().enumerate() {
            let [extent, stride, padding] = [dilation[dim] * (kernel[dim] - 1) + 1, stride[dim], padding[dim]];
            let is_beyond = |size: i64| {
                let steps = (size + 2 * padding - extent + stride - 1).div_euclid(stride);
                steps * stride >= size + padding
            };
            if stride + padding > extent && size.known().is_none_or(is_beyond) {
                let reason = "ceil_mode may add a window that is in the padding only: pad the image before, or leave \
                              ceil_mode out";
                return Err(reason.into());
            }
        }
        Ok(())
    }

    fn max_pool(&mut self, spatial: usize) -> Lowered {
        let mut attributes = self.windows(spatial)?;
        let dilation = self.spatial("dilation", spatial, 1)?;
        self.check_last_windows(spatial, &dilation)?;
        attributes.push(ints("dilations", &dilation));
        self.batched(spatial, |call, x| Ok(vec![call.op("MaxPool", &[x], attributes)]))
    }

    fn avg_pool(&mut self, spatial: usize) -> Lowered {
        let mut attributes = self.windows(spatial)?;
        self.check_last_windows(spatial, &vec![1; spatial])?;
        if self.flag("ceil_mode")? && self.flag("count_include_pad")? && self.all.opset < 19 {
            return Err("ceil_mode with count_include_pad needs an opset of at least 19".into());
        }
        attributes.push(int("count_include_pad", i64::from(self.flag("count_include_pad")?)));
        self.batched(spatial, |call, x| Ok(vec![call.op("AveragePool", &[x], attributes)]))
    }

    fn adaptive_pool(&mut self, spatial: Option<usize>, pool: &str, reduction: &str) -> Lowered {
        let input = self.input()?;
        let spatial = spatial.unwrap_or(input.rank().saturating_sub(2));
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
        let pooled = self.batched(spatial, |call, x| Ok(vec![call.op(pool, &[x], attributes)]))?;
        match pooled.into_iter().next().flatten() {
            Some(name) => self.only_first(name),
            None => Err(Refusal::Unmapped),
        }
    }
}

//! Images of other sizes: padded, or interpolated.

use tenure_tensor::{DType, Scalar};

use super::{Lower, Lowered, Refusal, one};
use crate::graph::{float, int, text};
use crate::size::Size;

pub(super) fn lower(call: &mut Lower<'_, '_>) -> Lowered {
    match call.operation() {
        "pad" => call.pad(),
        "interpolate" => call.interpolate(),
        _ => Err(Refusal::Unmapped),
    }
}

impl Lower<'_, '_> {
    fn pad(&mut self) -> Lowered {
        let input = self.input()?;
        let mode = match self.text("mode") {
            Some("reflect") => "reflect",
            Some("replicate") => "edge",
            Some("circular") if self.all.opset < 19 => {
                return Err("mode circular needs an opset of at least 19".into());
            }
            Some("circular") => "wrap",
            _ => "constant",
        };
        // Two numbers for each dimension, the last dimension's first; ONNX wants all numbers before, then all after.
        let given = self.sizes("pad")?;
        let rank = input.rank();
        let mut pads = vec![Size::fixed(0); 2 * rank];
        for (index, both) in given.chunks(2).enumerate() {
            pads[rank - 1 - index] = both[0];
            pads[2 * rank - 1 - index] = both[1];
        }
        let pads = self.graph().sizes(&pads)?;
        let value = self.scalar("value")?.unwrap_or(Scalar::Int(0));
        let value = self.constant(value, input.dtype);
        one(self.op("Pad", &[&input.name, &pads, &value], vec![text("mode", mode)]))
    }

    fn interpolate(&mut self) -> Lowered {
        let mode = self.text("mode").unwrap_or("nearest").to_owned();
        let align_corners = self.flag("align_corners")?;
        let scale = self.scalar("scale_factor")?.map(|scale| scale.to_f64());
        let (onnx_mode, transformation) = match mode.as_str() {
            // Other operators round the places of pixels otherwise.
            "nearest" if !scale.is_some_and(is_power_of_two) => return self.nearest(scale),
            "nearest" => ("nearest", "asymmetric"),
            "bicubic" if align_corners => ("cubic", "align_corners"),
            "bicubic" => ("cubic", "half_pixel"),
            _ if align_corners => ("linear", "align_corners"),
            _ => ("linear", "half_pixel"),
        };
        let mut attributes = vec![text("mode", onnx_mode), text("coordinate_transformation_mode", transformation)];
        match onnx_mode {
            "nearest" => attributes.push(text("nearest_mode", "floor")),
            "cubic" => attributes.push(float("cubic_coeff_a", -0.75)),
            _ => {}
        }
        let input = self.input()?;
        let results = self.result_sizes(0);
        if let Some(scale) = scale {
            let narrow = scale as f32;
            let mut sizes = input.sizes.iter().zip(&results).skip(2);
            let is_exact = f64::from(narrow) == scale;
            // Resize multiplies the sizes in float32.
            let differs = sizes.any(|(from, to)| {
                let resized = from.known().map(|from| (from as f32 * narrow).floor() as i64);
                resized != to.known() || from.is_dynamic()
            });
            if !is_exact && differs {
                let reason = format!(
                    "ONNX rounds scale_factor={scale} to {narrow}, and the sizes with it: give size, or a factor such as \
                     1.25 that is the same in float32"
                );
                return Err(reason.into());
            }
            let scales: Vec<f32> = (0..input.rank()).map(|dim| if dim < 2 { 1.0 } else { narrow }).collect();
            let scales = self.graph().floats(&scales);
            return one(self.op("Resize", &[&input.name, "", &scales], attributes));
        }
        let sizes = self.graph().sizes(&results)?;
        one(self.op("Resize", &[&input.name, "", "", &sizes], attributes))
    }

    /// Picks the nearest pixels, at the places that the operation computes in `float32`.
    fn nearest(&mut self, scale: Option<f64>) -> Lowered {
        let input = self.input()?;
        let results = self.result_sizes(0);
        // In two dimensions, a factor has no effect where it rounds to the same size, or to twice the size.
        let is_plane = input.rank() == 4;
        let mut image = input.name;
        for (dim, (from, to)) in input.sizes.iter().zip(results).enumerate().skip(2) {
            if *from == to && (scale.is_none() || is_plane) {
                continue;
            }
            let places = match (from.known(), to.known()) {
                (Some(from), Some(to)) => self.graph().ints(&nearest_places(from, to, scale, is_plane)),
                _ => self.computed_places(*from, to, scale, is_plane)?,
            };
            image = self.op("Gather", &[&image, &places], vec![int("axis", dim as i64)]);
        }
        one(image)
    }

    /// Returns the places of the nearest pixels, computed of sizes that depend on dynamic axes.
    fn computed_places(&mut self, from: Size, to: Size, scale: Option<f64>, is_plane: bool) -> Result<String, Refusal> {
        let from = self.graph().size(from)?;
        let wide = self.graph().cast(&from, DType::I64, DType::F64);
        let (to, mut ratio) = match scale {
            Some(scale) => {
                let factor = self.graph().number(scale, DType::F64);
                let to = self.op("Mul", &[&wide, &factor], vec![]);
                let to = self.op("Floor", &[&to], vec![]);
                let to = self.graph().cast(&to, DType::F64, DType::I64);
                (to, self.graph().number(scale.recip(), DType::F32))
            }
            None => {
                let to = self.graph().size(to)?;
                let wide_to = self.graph().cast(&to, DType::I64, DType::F64);
                let ratio = self.op("Div", &[&wide, &wide_to], vec![]);
                (to, self.graph().cast(&ratio, DType::F64, DType::F32))
            }
        };
        if scale.is_some() && is_plane {
            let two = self.graph().int(2);
            let double = self.op("Mul", &[&from, &two], vec![]);
            for (size, special) in [(&from, 1.0), (&double, 0.5)] {
                let is_special = self.op("Equal", &[&to, size], vec![]);
                let special = self.graph().number(special, DType::F32);
                ratio = self.op("Where", &[&is_special, &special, &ratio], vec![]);
            }
        }
        let count = self.only_number(&to);
        let zero = self.graph().int(0);
        let step = self.graph().int(1);
        let pixels = self.op("Range", &[&zero, &count, &step], vec![]);
        let pixels = self.graph().cast(&pixels, DType::I64, DType::F32);
        let places = self.op("Mul", &[&pixels, &ratio], vec![]);
        let places = self.op("Floor", &[&places], vec![]);
        let places = self.graph().cast(&places, DType::F32, DType::I64);
        let one = self.graph().ints(&[1]);
        let last = self.op("Sub", &[&from, &one], vec![]);
        Ok(self.op("Min", &[&places, &last], vec![]))
    }
}

/// Returns the places of the nearest pixels, as the operation rounds them.
fn nearest_places(from: i64, to: i64, scale: Option<f64>, is_plane: bool) -> Vec<i64> {
    let ratio = match scale {
        Some(scale) if !is_plane || ![from, 2 * from].contains(&to) => scale.recip(),
        _ => from as f64 / to as f64,
    };
    (0..to).map(|pixel| ((pixel as f32 * ratio as f32).floor() as i64).min(from - 1)).collect()
}

/// Returns whether products with a number, and with its reciprocal, are exact.
fn is_power_of_two(number: f64) -> bool {
    number > 0.0 && number.log2().fract() == 0.0
}

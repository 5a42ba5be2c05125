//! Text of tensors, as PyTorch prints them.

use std::fmt;

use super::Tensor;
use crate::autograd::no_grad;
use crate::element::with_element;
use crate::ops::cat;
use crate::{DType, Device, Element, Result, Scalar};

/// The number of elements above which a tensor is shown in part.
const THRESHOLD: usize = 1000;
/// The number of elements shown at either end of a dimension then.
const EDGE: usize = 3;
/// The characters in a line.
const LINE: usize = 80;
const DIGITS: usize = 4;
const PREFIX: &str = "tensor(";

impl fmt::Debug for Tensor {
    /// Writes one line without the elements.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dtype = self.dtype();
        let device = self.device();
        write!(f, "Tensor({dtype} {:?}, strides {:?}, {device})", self.sizes(), self.strides())
    }
}

impl fmt::Display for Tensor {
    /// Writes the tensor as PyTorch prints it, except that `grad_fn` has the name of the operation.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_whole = self.numel() <= THRESHOLD;
        let shown = no_grad(|| {
            let part = if is_whole { self.clone() } else { self.cut()? };
            Shown::of(&part.to_device(Device::CPU)?, is_whole)
        });
        let shown = match shown {
            Ok(shown) => shown,
            Err(error) => return write!(f, "{self:?}: {error}"),
        };
        let mut text = PREFIX.to_owned();
        if self.numel() == 0 {
            text.push_str("[]");
        } else {
            shown.write(&Style::of(&shown, self.dtype()), self.rank(), PREFIX.len(), &mut text);
        }
        for note in self.notes() {
            let line = text.len() - text.rfind('\n').map_or(0, |end| end + 1);
            // PyTorch counts two characters more, for a comma and a bracket.
            if line + 2 + note.len() + 2 > LINE {
                text.push_str(",\n");
                text.extend(std::iter::repeat_n(' ', PREFIX.len()));
            } else {
                text.push_str(", ");
            }
            text.push_str(&note);
        }
        write!(f, "{text})")
    }
}

impl Tensor {
    /// Copies the elements that are shown of a large tensor, and one more along each dimension that is cut. Only these
    /// have to be copied from a device.
    fn cut(&self) -> Result<Self> {
        let mut cut = self.clone();
        for (dim, size) in self.sizes().iter().enumerate().filter(|(_, size)| **size > 2 * EDGE + 1) {
            let dim = dim as isize;
            let ends = [cut.narrow(dim, 0, EDGE)?, cut.narrow(dim, size - EDGE - 1, EDGE + 1)?];
            cut = cat(&[&ends[0], &ends[1]], dim)?;
        }
        Ok(cut)
    }

    /// Returns the notes after the elements: device, sizes, dtype and gradient, if they are not obvious.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.device().is_cpu() {
            notes.push(format!("device='{}'", self.device()));
        }
        if self.numel() == 0 && self.rank() != 1 {
            let sizes: Vec<String> = self.sizes().iter().map(usize::to_string).collect();
            notes.push(format!("size=({})", sizes.join(", ")));
        }
        // The dtypes that PyTorch would infer from the text.
        let is_default = match self.dtype() {
            DType::F32 => true,
            DType::I64 | DType::Bool => self.numel() > 0,
            _ => false,
        };
        if !is_default {
            notes.push(format!("dtype=torch.{}", self.dtype()));
        }
        match self.grad_fn() {
            Some(node) => notes.push(format!("grad_fn=<{}>", node.name())),
            None if self.requires_grad() => notes.push("requires_grad=True".to_owned()),
            None => {}
        }
        notes
    }
}

/// The elements that are shown.
enum Shown {
    One(Scalar),
    /// The parts of a dimension, and whether some are left out in the middle.
    Many(Vec<Self>, bool),
}

impl Shown {
    fn of(tensor: &Tensor, is_whole: bool) -> Result<Self> {
        let Some(length) = tensor.sizes().first().copied() else {
            return Ok(Self::One(tensor.item_scalar()?));
        };
        if tensor.numel() == 0 {
            return Ok(Self::Many(Vec::new(), false));
        }
        let has_gap = !is_whole && length > 2 * EDGE;
        let (head, tail) = if has_gap { (EDGE, EDGE) } else { (length, 0) };
        let ends = [tensor.narrow(0, 0, head)?, tensor.narrow(0, length - tail, tail)?];
        let mut parts = Vec::with_capacity(head + tail);
        for end in ends {
            if tensor.rank() == 1 {
                parts.extend(scalars(&end)?.into_iter().map(Self::One));
            } else {
                for part in end.unbind(0)? {
                    parts.push(Self::of(&part, is_whole)?);
                }
            }
        }
        Ok(Self::Many(parts, has_gap))
    }

    fn for_each(&self, look: &mut impl FnMut(Scalar)) {
        match self {
            Self::One(value) => look(*value),
            Self::Many(parts, _) => parts.iter().for_each(|part| part.for_each(look)),
        }
    }

    /// Writes a part of `rank` dimensions, after `indent` characters of the line.
    fn write(&self, style: &Style, rank: usize, indent: usize, text: &mut String) {
        let (parts, has_gap) = match self {
            Self::One(value) => return text.push_str(&style.padded(*value)),
            Self::Many(parts, has_gap) => (parts, *has_gap),
        };
        let per_line = if rank == 1 { (LINE.saturating_sub(indent) / (style.width + 2)).max(1) } else { 1 };
        let mut count = 0;
        let mut separate = |text: &mut String| {
            match count {
                0 => {}
                count if count % per_line > 0 => text.push_str(", "),
                _ => {
                    text.push(',');
                    text.extend(std::iter::repeat_n('\n', (rank - 1).max(1)));
                    text.extend(std::iter::repeat_n(' ', indent + 1));
                }
            }
            count += 1;
        };
        text.push('[');
        for (index, part) in parts.iter().enumerate() {
            if has_gap && index == EDGE {
                separate(text);
                text.push_str(if rank == 1 { " ..." } else { "..." });
            }
            separate(text);
            part.write(style, rank.saturating_sub(1), indent + 1, text);
        }
        text.push(']');
    }
}

/// The notation and width that all elements of a tensor are written in.
struct Style {
    notation: Notation,
    width: usize,
}

#[derive(Clone, Copy)]
enum Notation {
    /// Integers and `bool`.
    Plain,
    /// Floats that are integers: `2.`
    Whole,
    /// `2.5000`
    Fixed,
    /// `2.5000e+00`
    Scientific,
}

impl Style {
    /// Chooses the style for all elements. Zeros and elements that are not finite do not count.
    fn of(shown: &Shown, dtype: DType) -> Self {
        let mut least = f64::INFINITY;
        let mut most = 0.0_f64;
        let mut is_whole = true;
        shown.for_each(&mut |value| {
            let value = value.to_f64();
            if value.is_finite() && value != 0.0 {
                (least, most) = (least.min(value.abs()), most.max(value.abs()));
                is_whole &= value.fract() == 0.0;
            }
        });
        let is_any = most > 0.0;
        let notation = match (dtype.is_floating(), is_any && (most / least > 1e3 || most > 1e8 || least < 1e-4)) {
            (false, _) => Notation::Plain,
            (true, true) => Notation::Scientific,
            (true, false) if is_whole => Notation::Whole,
            (true, false) => Notation::Fixed,
        };
        let mut style = Self { notation, width: 1 };
        shown.for_each(&mut |value| {
            let number = value.to_f64();
            if !dtype.is_floating() || (number.is_finite() && number != 0.0) {
                style.width = style.width.max(style.text(value).len());
            }
        });
        style
    }

    fn text(&self, value: Scalar) -> String {
        let number = match value {
            Scalar::Bool(true) => return "True".to_owned(),
            Scalar::Bool(false) => return "False".to_owned(),
            Scalar::Int(value) => return value.to_string(),
            Scalar::Unsigned(value) => return value.to_string(),
            Scalar::Float(number) => number,
        };
        match self.notation {
            _ if number.is_nan() => "nan".to_owned(),
            _ if number.is_infinite() => number.to_string(),
            Notation::Whole | Notation::Plain => format!("{number:.0}."),
            Notation::Fixed => format!("{number:.DIGITS$}"),
            Notation::Scientific => {
                // Rust writes 1e5 where Python writes 1e+05.
                let text = format!("{number:.DIGITS$e}");
                let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
                format!("{digits}e{sign}{exponent:0>2}")
            }
        }
    }

    fn padded(&self, value: Scalar) -> String {
        format!("{:>1$}", self.text(value), self.width)
    }
}

fn scalars(tensor: &Tensor) -> Result<Vec<Scalar>> {
    with_element!(tensor.dtype(), T => Ok(tensor.to_vec::<T>()?.into_iter().map(Element::to_scalar).collect()))
}

//! Dtypes that operators lack, in ONNX or in ONNX Runtime on the CPU.

use tenure_tensor::DType;

/// The way in which an operator computes a dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Support {
    /// In this dtype.
    Own,
    /// In 32 bits, so that values are converted before and after.
    InF32,
    /// In no dtype that has as many digits.
    Lacking,
}

/// Returns how an operator computes a dtype.
pub(crate) fn support(operator: &str, dtype: DType) -> Support {
    match operator {
        // They only move elements, which are of any dtype.
        "Cast" | "Concat" | "Gather" | "GatherElements" | "GatherND" | "Identity" | "Reshape" | "Shape" | "Slice"
        | "Split" | "Squeeze" | "Transpose" | "Unsqueeze" => Support::Own,
        _ if dtype == DType::BF16 => Support::InF32,
        "Celu" | "IsInf" | "ScatterElements" if dtype == DType::F16 => Support::InF32,
        // ONNX Runtime does not have them in 64 bits.
        "Acos"
        | "Acosh"
        | "Asin"
        | "Asinh"
        | "Atan"
        | "Atanh"
        | "AveragePool"
        | "Celu"
        | "Conv"
        | "ConvTranspose"
        | "Cosh"
        | "Erf"
        | "InstanceNormalization"
        | "Mish"
        | "Resize"
        | "Sinh"
        | "Tan"
            if dtype == DType::F64 =>
        {
            Support::Lacking
        }
        _ => Support::Own,
    }
}

/// Returns the input of an operator that has indices.
pub(crate) fn indices(operator: &str) -> Option<usize> {
    match operator {
        "Gather" | "GatherElements" | "ScatterElements" => Some(1),
        "OneHot" => Some(0),
        _ => None,
    }
}

/// Returns the dtype of an operator's output, where its inputs tell it.
pub(crate) fn output_dtype(operator: &str, output: usize, inputs: &[Option<DType>]) -> Option<DType> {
    let input = match operator {
        "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" | "And" | "Or" | "Xor" | "Not" | "IsNaN"
        | "IsInf" => return Some(DType::Bool),
        "Shape" | "ArgMax" | "ArgMin" => return Some(DType::I64),
        "TopK" | "MaxPool" if output == 1 => return Some(DType::I64),
        "Where" => 1,
        "OneHot" => 2,
        // Their attributes tell.
        "Cast" | "ConstantOfShape" => return None,
        _ => 0,
    };
    inputs.get(input).copied().flatten()
}

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

/// Operators that only move elements, which are of any dtype.
const MOVES: [&str; 13] = [
    "Cast",
    "Concat",
    "Gather",
    "GatherElements",
    "GatherND",
    "Identity",
    "Reshape",
    "Shape",
    "Slice",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
];

/// Operators that ONNX Runtime does not have in 64 bits.
const WITHOUT_F64: [&str; 17] = [
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "AveragePool",
    "Celu",
    "Conv",
    "ConvTranspose",
    "Cosh",
    "Erf",
    "InstanceNormalization",
    "Mish",
    "Resize",
    "Sinh",
    "Tan",
];

/// Operators without a dtype of 16 bits.
const WITHOUT_F16: [&str; 3] = ["Celu", "IsInf", "ScatterElements"];

/// Returns how an operator computes a dtype.
pub(crate) fn support(operator: &str, dtype: DType) -> Support {
    match dtype {
        DType::BF16 if !MOVES.contains(&operator) => Support::InF32,
        DType::F16 if WITHOUT_F16.contains(&operator) => Support::InF32,
        DType::F64 if WITHOUT_F64.contains(&operator) => Support::Lacking,
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
    let of = |input: usize| inputs.get(input).copied().flatten();
    match operator {
        "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" | "And" | "Or" | "Xor" | "Not" | "IsNaN"
        | "IsInf" => Some(DType::Bool),
        "Shape" | "ArgMax" | "ArgMin" => Some(DType::I64),
        "TopK" | "MaxPool" if output == 1 => Some(DType::I64),
        "Where" => of(1),
        "OneHot" => of(2),
        // Their attributes tell.
        "Cast" | "ConstantOfShape" => None,
        _ => of(0),
    }
}

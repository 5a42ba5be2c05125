//! The dtypes of results compared with PyTorch's, for every pair of operands.

use std::collections::BTreeMap;

use tenure_tensor::ops::cat;
use tenure_tensor::{DType, Device, Result, Scalar, Tensor, Value};

use crate::harness::dtype;

/// The result's dtype by kind of operands, left dtype and right dtype, as written by `promotion.py`.
type Table = BTreeMap<String, BTreeMap<String, BTreeMap<String, String>>>;

fn ones(name: &str, sizes: &[usize]) -> Tensor {
    Tensor::ones(sizes, dtype(name), Device::CPU).unwrap()
}

fn number(name: &str) -> Scalar {
    match name {
        "bool" => true.into(),
        "int" => 1.into(),
        _ => 1.0.into(),
    }
}

#[test]
fn results_have_the_dtypes_of_pytorch() {
    let table: Table = serde_json::from_str(include_str!("promotion.json")).unwrap();
    let mut wrong = Vec::new();
    for (kind, rows) in &table {
        for (left, row) in rows {
            let a = ones(left, if ["both 0-d", "0-d and number"].contains(&&kind[..]) { &[] } else { &[2] });
            for (right, expected) in row {
                let tensor = match &kind[..] {
                    "tensors" => Some(ones(right, &[2])),
                    "tensor and 0-d" | "both 0-d" => Some(ones(right, &[])),
                    _ => None,
                };
                for (operation, found, expected) in results(
                    &a,
                    &|| tensor.as_ref().map_or_else(|| Value::Number(number(right)), Value::Tensor),
                    dtype(expected),
                ) {
                    let found = found.map(|tensor| tensor.dtype());
                    if found.as_ref().ok() != Some(&expected) {
                        wrong
                            .push(format!("{operation} of {kind}, {left} and {right}: {found:?}, expected {expected}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Returns results of two operands that promote to `common`, each with the dtype that it should have.
fn results<'a>(a: &'a Tensor, b: &dyn Fn() -> Value<'a>, common: DType) -> Vec<(&'static str, Result<Tensor>, DType)> {
    let quotient = if common.is_floating() { common } else { DType::F32 };
    let condition = Tensor::ones(a.sizes(), DType::Bool, Device::CPU).unwrap();
    let chosen = condition.where_(a, b());
    let mut all = vec![
        ("mul", a.mul(b()), common),
        ("add", a.add(b()), common),
        ("maximum", a.maximum(b()), common),
        ("div", a.div(b()), quotient),
        ("eq", a.eq(b()), DType::Bool),
        ("where", chosen, common),
    ];
    if let Value::Tensor(b) = b()
        && a.rank() == 1
        && b.rank() == 1
    {
        all.push(("cat", cat(&[a, b], 0), common));
    }
    all
}

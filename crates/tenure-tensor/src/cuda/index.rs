//! Positions among elements.

use super::elementwise::{self, Expression};
use super::late;
use crate::cpu;
use crate::cpu::index::{Coordinate, Position};
use crate::{DType, DeviceKind, Elementwise, Entry, Result, Scalar};

pub(crate) const POSITION: &[Entry<Position>] = &[(DeviceKind::Cuda, DType::I64, position)];
pub(crate) const COORDINATE: &[Entry<Coordinate>] = &[(DeviceKind::Cuda, DType::I64, coordinate)];

fn position(iter: &Elementwise<'_>, size: usize, dim: usize) -> Result<()> {
    static EXPRESSION: Expression = Expression {
        name: "position",
        lanes: &["T", "T", "T"],
        numbers: 2,
        value: "a * n0 + (b < -n0 || b >= n0 ? (report(fault, code, b, n1, n0), (T)0) : b < 0 ? b + n0 : b)",
        fault: Some(late::INDEX),
    };
    let host = elementwise::on_cpu(cpu::index::POSITION, DType::I64);
    let host = move |iter: &Elementwise<'_>| host.map_or(Ok(()), |host| host(iter, size, dim));
    let numbers = [size, dim].map(|number| Scalar::Int(number as i64));
    elementwise::run(iter, DType::I64, &EXPRESSION, &numbers, host)
}

fn coordinate(iter: &Elementwise<'_>, stride: usize, size: usize) -> Result<()> {
    static EXPRESSION: Expression =
        Expression { name: "coordinate", lanes: &["T", "T"], numbers: 2, value: "a / n0 % n1", fault: None };
    let host = elementwise::on_cpu(cpu::index::COORDINATE, DType::I64);
    let host = move |iter: &Elementwise<'_>| host.map_or(Ok(()), |host| host(iter, stride, size));
    let numbers = [stride, size].map(|number| Scalar::Int(number as i64));
    elementwise::run(iter, DType::I64, &EXPRESSION, &numbers, host)
}

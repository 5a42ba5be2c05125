//! Einstein summation: sums of products, written with a letter for each dimension.

use std::collections::BTreeMap;

use super::matmul::check_operands;
use super::view::signed;
use crate::autocast::lower;
use crate::observe::observed;
use crate::operation::{arguments, operations};
use crate::{Result, Tensor, TensorError};

const OP: &str = "einsum";

operations! {
    static OPERATIONS;
    Function for front_ends {
        /// Sums products of elements, by Einstein's convention: [`einsum`].
        ///
        /// # Errors
        /// An equation that does not parse or does not match the operands.
        einsum(equation: Text, operands: Tensors) -> Tensor = einsum;
    }
}

/// Computes sums of products by an equation such as `"bij,bjk->bik"`: a letter for each dimension, those of the
/// operands before the arrow and those of the result after it. Letters that the result does not have are summed over; a
/// letter that an operand has twice selects its diagonal. `...` stands for leading dimensions, which are broadcast.
/// Without an arrow the result has the letters that occur once, in alphabetical order. Operands are multiplied from
/// left to right. PyTorch's `torch.einsum`.
///
/// ```
/// use tenure_tensor::{Tensor, einsum};
///
/// let x = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// assert_eq!(einsum("ii", &[&x])?.item::<f32>()?, 5.0);
/// assert_eq!(einsum("ij,kj->ik", &[&x, &x])?.to_vec::<f32>()?, [5.0, 11.0, 11.0, 25.0]);
/// # Ok::<(), tenure_tensor::TensorError>(())
/// ```
///
/// # Errors
/// An equation that cannot be parsed or has another number of operands, sizes of one letter that differ, different
/// dtypes or devices.
pub fn einsum(equation: &str, operands: &[&Tensor]) -> Result<Tensor> {
    observed("einsum", || arguments![equation, operands], || computed(equation, operands))
}

fn computed(equation: &str, operands: &[&Tensor]) -> Result<Tensor> {
    let equation = Equation::parse(equation, operands)?;
    let operands = operands.iter().map(|operand| lower(operand)).collect::<Result<Vec<_>>>()?;
    check_operands(OP, &operands.iter().collect::<Vec<_>>())?;
    let mut terms = Vec::new();
    for (tensor, labels) in operands.into_iter().zip(&equation.inputs) {
        terms.push(Term { tensor, labels: labels.clone() }.diagonals()?);
    }
    equation.check_sizes(&terms)?;
    let mut terms = terms.into_iter();
    let mut product = terms.next().ok_or_else(|| error("an operand is needed"))?;
    let mut rest: Vec<Term> = terms.collect();
    while !rest.is_empty() {
        let next = rest.remove(0);
        let is_needed =
            |label: &Label| equation.output.contains(label) || rest.iter().any(|term| term.labels.contains(label));
        product = product.times(next, is_needed)?;
    }
    product.sum_but(|label| equation.output.contains(label))?.ordered(&equation.output).map(|term| term.tensor)
}

/// A dimension: a letter, or one of the dimensions that `...` stands for, counted from the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Ellipsis(usize),
    Letter(char),
}

struct Equation {
    inputs: Vec<Vec<Label>>,
    output: Vec<Label>,
}

impl Equation {
    fn parse(equation: &str, operands: &[&Tensor]) -> Result<Self> {
        let text: String = equation.chars().filter(|letter| !letter.is_whitespace()).collect();
        let (left, right) = match text.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (&text[..], None),
        };
        let subscripts: Vec<&str> = left.split(',').collect();
        if subscripts.len() != operands.len() {
            let reason =
                format!("the equation {equation:?} is of {} operands, got {}", subscripts.len(), operands.len());
            return Err(error(reason));
        }
        let mut inputs = Vec::new();
        for (index, (subscript, operand)) in subscripts.iter().zip(operands).enumerate() {
            let letters = subscript.replacen("...", "", 1).chars().count();
            let has_ellipsis = subscript.contains("...");
            let rank = operand.rank();
            if letters > rank || letters < rank && !has_ellipsis {
                let reason = format!(
                    "{subscript:?} of the equation {equation:?} has {letters} letters, but operand {index} has sizes \
                     {:?}",
                    operand.sizes()
                );
                return Err(error(reason));
            }
            inputs.push(labels(subscript, rank - letters)?);
        }
        let widest = inputs.iter().flatten().filter(|label| matches!(label, Label::Ellipsis(_))).max();
        let ellipsis = widest.map_or(0, |label| if let Label::Ellipsis(place) = label { place + 1 } else { 0 });
        let output = match right {
            Some(subscript) => labels(subscript, ellipsis)?,
            None => {
                let mut counts: BTreeMap<Label, usize> = BTreeMap::new();
                inputs.iter().flatten().for_each(|label| *counts.entry(*label).or_default() += 1);
                (0..ellipsis)
                    .rev()
                    .map(Label::Ellipsis)
                    .chain(counts.into_iter().filter_map(|(label, count)| match label {
                        Label::Letter(_) => (count == 1).then_some(label),
                        Label::Ellipsis(_) => None,
                    }))
                    .collect()
            }
        };
        for (index, label) in output.iter().enumerate() {
            if !inputs.iter().flatten().any(|input| input == label) {
                return Err(error(format!(
                    "the result of the equation {equation:?} has {label}, which no operand has"
                )));
            }
            if output[..index].contains(label) {
                return Err(error(format!("the result of the equation {equation:?} has {label} twice")));
            }
        }
        Ok(Self { inputs, output })
    }

    /// Checks that a letter has one size everywhere, except sizes of 1, which are broadcast.
    fn check_sizes(&self, terms: &[Term]) -> Result<()> {
        let mut sizes: BTreeMap<Label, usize> = BTreeMap::new();
        for term in terms {
            for (label, size) in term.labels.iter().zip(term.tensor.sizes()) {
                let known = sizes.entry(*label).or_insert(*size);
                if *known == 1 {
                    *known = *size;
                } else if *size != 1 && *size != *known {
                    let reason = format!("{label} has size {known} in one operand and {size} in another");
                    return Err(error(reason));
                }
            }
        }
        Ok(())
    }
}

impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Letter(letter) => write!(f, "{letter:?}"),
            Self::Ellipsis(place) => write!(f, "dimension {} of \"...\", from the end,", place + 1),
        }
    }
}

/// Returns the labels of a subscript whose `...` stands for `ellipsis` dimensions.
fn labels(subscript: &str, ellipsis: usize) -> Result<Vec<Label>> {
    let mut labels = Vec::new();
    let (before, after) =
        subscript.split_once("...").map_or((subscript, None), |(before, after)| (before, Some(after)));
    let mut add = |letters: &str| {
        letters.chars().try_for_each(|letter| {
            labels.push(Label::Letter(letter));
            if letter.is_ascii_alphabetic() {
                return Ok(());
            }
            Err(error(format!("{letter:?} in {subscript:?} is neither a letter nor part of one \"...\"")))
        })
    };
    add(before)?;
    let place = before.len();
    add(after.unwrap_or_default())?;
    if after.is_some() {
        labels.splice(place..place, (0..ellipsis).rev().map(Label::Ellipsis));
    }
    Ok(labels)
}

/// A tensor with a label for each dimension.
struct Term {
    tensor: Tensor,
    labels: Vec<Label>,
}

impl Term {
    /// Replaces dimensions of one label by their diagonal.
    fn diagonals(mut self) -> Result<Self> {
        while let Some((first, second)) = self.repeated_label() {
            let sizes = self.tensor.sizes();
            if sizes[first] != sizes[second] {
                let label = self.labels[first];
                let reason = format!("{label} has sizes {} and {} in one operand", sizes[first], sizes[second]);
                return Err(error(reason));
            }
            // The diagonal comes last.
            self.tensor = self.tensor.diagonal(0, first as isize, second as isize)?;
            let label = self.labels.remove(second);
            self.labels.remove(first);
            self.labels.push(label);
        }
        Ok(self)
    }

    /// Computes the product with another term, summed over labels that both have and that are not needed.
    fn times(self, other: Self, is_needed: impl Fn(&Label) -> bool) -> Result<Self> {
        // A label that is not needed is summed before the product if only one term has it, or if its size is 1 in one
        // of them.
        let shared = self.labels.iter().copied().filter(|label| self.size(label) == other.size(label));
        let shared: Vec<Label> = shared.collect();
        let left = self.sum_but(|label| is_needed(label) || shared.contains(label))?;
        let right = other.sum_but(|label| is_needed(label) || shared.contains(label))?;
        let in_both = |label: &Label| left.labels.contains(label) && right.labels.contains(label);
        let (batch, summed): (Vec<Label>, Vec<Label>) =
            left.labels.iter().copied().filter(in_both).partition(|label| is_needed(label));
        let only =
            |term: &Self| -> Vec<Label> { term.labels.iter().copied().filter(|label| !in_both(label)).collect() };
        let rows = only(&left);
        let columns = only(&right);
        let inner: usize = left.sizes(&summed).iter().product();
        let row_sizes = left.sizes(&rows);
        let column_sizes = right.sizes(&columns);
        let left_batch = left.sizes(&batch);
        let right_batch = right.sizes(&batch);
        let a = left.ordered(&[&batch[..], &rows, &summed].concat())?.tensor;
        let b = right.ordered(&[&batch[..], &summed, &columns].concat())?.tensor;
        let a = a.reshape(&signed(&[&left_batch[..], &[row_sizes.iter().product(), inner]].concat()))?;
        let b = b.reshape(&signed(&[&right_batch[..], &[inner, column_sizes.iter().product()]].concat()))?;
        let out = a.matmul(&b)?;
        let out_batch = &out.sizes()[..batch.len()];
        let tensor = out.reshape(&signed(&[out_batch, &row_sizes, &column_sizes].concat()))?;
        Ok(Self { tensor, labels: [batch, rows, columns].concat() })
    }

    fn size(&self, label: &Label) -> Option<usize> {
        self.labels.iter().position(|own| own == label).map(|dim| self.tensor.sizes()[dim])
    }

    /// Returns the sizes of the dimensions with these labels.
    fn sizes(&self, labels: &[Label]) -> Vec<usize> {
        labels.iter().filter_map(|label| self.size(label)).collect()
    }

    /// Sums over all dimensions except the ones with a label that `keeps` accepts.
    fn sum_but(&self, keeps: impl Fn(&Label) -> bool) -> Result<Self> {
        let dims: Vec<isize> =
            (0..self.labels.len()).filter(|dim| !keeps(&self.labels[*dim])).map(|dim| dim as isize).collect();
        let tensor = if dims.is_empty() { self.tensor.clone() } else { self.tensor.sum(&dims, false)? };
        Ok(Self { tensor, labels: self.labels.iter().copied().filter(|label| keeps(label)).collect() })
    }

    /// Returns two dimensions of the same label.
    fn repeated_label(&self) -> Option<(usize, usize)> {
        let labels = &self.labels;
        let second = (0..labels.len()).find(|at| labels[..*at].contains(&labels[*at]))?;
        Some((labels.iter().position(|label| *label == labels[second])?, second))
    }

    /// Permutes the dimensions into this order.
    fn ordered(&self, labels: &[Label]) -> Result<Self> {
        let order: Vec<isize> = labels
            .iter()
            .filter_map(|label| self.labels.iter().position(|own| own == label).map(|dim| dim as isize))
            .collect();
        Ok(Self { tensor: self.tensor.permute(&order)?, labels: labels.to_vec() })
    }
}

fn error(reason: impl Into<String>) -> TensorError {
    TensorError::argument(OP, reason)
}

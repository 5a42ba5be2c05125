//! Inputs with other sizes of dynamic axes, for more traces.

use tenure_tensor::Tensor;

use crate::error::{Error, Result};
use crate::size::{Size, TRACES};

/// The number of traces with other sizes.
const OTHERS: usize = TRACES - 1;

/// Sizes from this one on become smaller first, since many functions have a largest size.
const LARGE: i64 = 12;

/// The size that one trace adds to a small size, if the trace fits into memory.
const FAR: i64 = 67;

/// The size that one trace adds to a small size at least.
const NEAREST_FAR: i64 = 11;

/// An axis whose size varies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DynamicAxis {
    /// The name of the input or output.
    pub tensor: String,
    /// The axis, from 0 on, or backwards from -1.
    pub axis: isize,
    /// The name of the size. Axes of one name have the same size.
    pub name: String,
}

impl DynamicAxis {
    /// Returns the axis `axis` of a tensor, with a name for its size.
    pub fn new(tensor: impl Into<String>, axis: isize, name: impl Into<String>) -> Self {
        Self { tensor: tensor.into(), axis, name: name.into() }
    }
}

/// The sizes of the dynamic axes, by name, in the order in which they were found.
pub(crate) type Symbols = Vec<(String, Size)>;

/// The dynamic axes of a function's inputs.
pub(crate) struct Axes {
    inputs: Vec<Tensor>,
    /// The axes, with the sizes that they are given.
    axes: Vec<(String, i64)>,
    /// The input, the dimension and the axis of each dynamic dimension.
    places: Vec<(usize, usize, usize)>,
}

/// Other sizes of one axis.
type Sizes = [i64; OTHERS];

impl Axes {
    /// Finds the axes in the inputs.
    ///
    /// # Errors
    /// An axis is out of range, is empty, or has several sizes.
    pub(crate) fn new(inputs: &[&Tensor], names: &[String], given: &[DynamicAxis]) -> Result<Self> {
        let mut axes: Vec<(String, i64)> = Vec::new();
        let mut places = Vec::new();
        for axis in given {
            let Some(input) = names.iter().position(|name| *name == axis.tensor) else { continue };
            let rank = inputs[input].rank() as isize;
            let dim = if axis.axis < 0 { axis.axis + rank } else { axis.axis };
            if !(0..rank).contains(&dim) {
                let (axis, name) = (axis.axis, &axis.tensor);
                return Err(Error::Function(format!(
                    "{name} has {rank} dimensions, but the dynamic axis {axis} is named"
                )));
            }
            let name = &axis.name;
            let size = inputs[input].sizes()[dim as usize] as i64;
            if size == 0 {
                return Err(Error::Function(format!("the axis {name} must have elements")));
            }
            // An axis of size 1 would be broadcast.
            let size = size.max(2);
            let index = axes.iter().position(|(other, _)| other == name).unwrap_or(axes.len());
            match axes.get(index) {
                None => axes.push((name.clone(), size)),
                Some((_, other)) if *other != size => {
                    let reason =
                        format!("the axis {name} has the sizes {size} and {other}: give other axes other names");
                    return Err(Error::Function(reason));
                }
                Some(_) => {}
            }
            places.push((input, dim as usize, index));
        }
        Ok(Self { inputs: inputs.iter().map(|input| (*input).clone()).collect(), axes, places })
    }

    /// Returns whether no axis is dynamic.
    pub(crate) fn is_empty(&self) -> bool {
        self.axes.is_empty()
    }

    /// Returns the inputs with the given sizes.
    pub(crate) fn given(&self) -> Result<Vec<Tensor>> {
        self.sized(&self.axes.iter().map(|(_, size)| *size).collect::<Vec<_>>())
    }

    /// Returns the inputs with the sizes of a trace with other sizes.
    pub(crate) fn other(&self, symbols: &Symbols, other: usize) -> Result<Vec<Tensor>> {
        self.sized(&symbols.iter().map(|(_, size)| size.0[other + 1]).collect::<Vec<_>>())
    }

    /// Returns copies of the inputs with these sizes of the axes. Elements are repeated, so that they stay valid.
    fn sized(&self, sizes: &[i64]) -> Result<Vec<Tensor>> {
        // Copies, so that an input is no tensor that the function has otherwise, nor another input.
        let mut tensors = self.inputs.iter().map(Tensor::copy).collect::<Result<Vec<Tensor>, _>>()?;
        for (input, dim, axis) in &self.places {
            let count = sizes[*axis];
            let size = tensors[*input].sizes()[*dim] as i64;
            if count != size {
                let indices: Vec<i64> = (0..count).map(|index| index % size).collect();
                let indices = Tensor::from_slice(&indices, &[indices.len()])?.to_device(tensors[*input].device())?;
                tensors[*input] = tensors[*input].index_select(*dim as isize, &indices)?;
            }
        }
        Ok(tensors)
    }

    /// Runs a function with other sizes, all of them different and not together, and returns its results and the sizes.
    /// If it fails, each axis alone tries sizes that are nearer, smaller, or multiples. One size of an axis is up to
    /// `growth` times as large as the given one.
    ///
    /// # Errors
    /// The function fails with all other sizes of an axis; it fails otherwise than by an error of its own.
    pub(crate) fn vary<T>(
        &self,
        growth: i64,
        run: &mut dyn FnMut(Vec<Tensor>) -> Result<T>,
    ) -> Result<(Vec<T>, Symbols)> {
        // All axes may grow in one trace.
        let growth = (growth as f64).powf(1.0 / self.axes.len().max(1) as f64) as i64;
        let candidates: Vec<Vec<Sizes>> =
            self.axes.iter().enumerate().map(|(axis, (_, given))| candidates(*given, axis, growth)).collect();
        let first: Vec<Sizes> = candidates.iter().map(|candidates| candidates[0]).collect();
        let (results, sizes) = match self.run_all(&first, run) {
            Ok(results) => (results, first),
            Err(Error::Tensor(_)) => {
                let sizes = candidates.iter().enumerate().map(|(axis, candidates)| self.alone(axis, candidates, run));
                let sizes = sizes.collect::<Result<Vec<Sizes>>>()?;
                let results = self.run_all(&sizes, run).map_err(|error| self.explained(error, None))?;
                (results, sizes)
            }
            Err(error) => return Err(error),
        };
        let axes = self.axes.iter().zip(sizes);
        let symbols: Symbols = axes
            .map(|((name, given), others)| {
                let numbers = std::array::from_fn(|trace| trace.checked_sub(1).map_or(*given, |other| others[other]));
                (name.clone(), Size(numbers))
            })
            .collect();
        for (index, (name, size)) in symbols.iter().enumerate() {
            if let Some((other, _)) = symbols[..index].iter().find(|(_, other)| other == size) {
                let reason = format!("the function runs with no sizes that tell the axes {other} and {name} apart");
                return Err(Error::Function(reason));
            }
        }
        Ok((results, symbols))
    }

    /// Runs a function with all other sizes.
    fn run_all<T>(&self, sizes: &[Sizes], run: &mut dyn FnMut(Vec<Tensor>) -> Result<T>) -> Result<Vec<T>> {
        (0..OTHERS)
            .map(|trace| {
                let sizes: Vec<i64> = sizes.iter().map(|sizes| sizes[trace]).collect();
                run(self.sized(&sizes)?)
            })
            .collect()
    }

    /// Returns the first sizes of an axis with which a function works while other axes have the given sizes.
    fn alone<T>(
        &self,
        axis: usize,
        candidates: &[Sizes],
        run: &mut dyn FnMut(Vec<Tensor>) -> Result<T>,
    ) -> Result<Sizes> {
        let mut failed = None;
        for sizes in candidates {
            let mut all: Vec<Sizes> = self.axes.iter().map(|(_, given)| [*given; OTHERS]).collect();
            all[axis] = *sizes;
            match self.run_all(&all, run) {
                Ok(_) => return Ok(*sizes),
                Err(Error::Tensor(error)) => drop(failed.get_or_insert(Error::Tensor(error))),
                Err(error) => return Err(error),
            }
        }
        let error = failed.unwrap_or_else(|| Error::Function("the axis has no other sizes".to_owned()));
        Err(self.explained(error, Some(axis)))
    }

    /// Returns an error of a function with other sizes.
    fn explained(&self, error: Error, axis: Option<usize>) -> Error {
        let Error::Tensor(error) = error else { return error };
        let mut axes: Vec<String> = self.axes.iter().map(|(name, given)| format!("{name} ({given})")).collect();
        let axes = match axis {
            Some(axis) => format!("axis {}", axes.swap_remove(axis)),
            None => format!("axes {}", axes.join(", ")),
        };
        Error::Function(format!(
            "the function fails with other sizes of the {axes} than those given: {error}. Give axes of equal sizes one \
             name, and leave out those whose size is fixed"
        ))
    }
}

/// Returns other sizes of an axis, in the order in which they are tried. They are even and odd, near and far, and those
/// of no other axis.
fn candidates(given: i64, axis: usize, growth: i64) -> Vec<Sizes> {
    let divisors = (1..=given).filter(|divisor| given % divisor == 0);
    let mut all: Vec<Sizes> = Vec::new();
    for divisor in divisors {
        // The axis has so many parts of which none may be divided, and this many at least.
        let parts = given / divisor;
        let least = if divisor == 1 { 2 } else { 1 };
        let far = (parts * growth - parts).clamp(NEAREST_FAR, FAR);
        let wide = match parts >= LARGE {
            true => {
                let double = if growth > 1 { 2 * parts + 3 } else { parts + 5 };
                [parts - 1, parts - parts / 3, double, (parts / 8).max(least), parts / 4]
            }
            false => [parts + 1, parts + 4, parts + 9, parts + far, parts + 6],
        };
        let larger = [1, 3, 6, 4, 2].map(|more| parts + more);
        let mut rows = Vec::new();
        if parts.saturating_mul(growth) >= 97 {
            let smallest = if parts > least { least } else { parts + 4 };
            let small = if parts >= LARGE { parts / 8 + 1 } else { parts + 4 };
            let next = if parts >= LARGE { parts / 3 } else { parts + 1 };
            // Numbers before, at and after a multiple of 48 tell quotients by its divisors from all others.
            rows.extend([smallest, small].map(|small| [47, 97, small, 48, next]));
        }
        rows.extend([wide, larger]);
        if parts - least >= 2 {
            let smaller = match parts >= LARGE {
                true => [1, parts / 3, 3, parts / 2, 4],
                false => [0, 2, 4, 1, 3].map(|less| 1 + less % (parts - least)),
            };
            rows.push(smaller.map(|less| parts - less));
        }
        for mut row in rows {
            // Each axis has another order.
            row.rotate_left(axis % OTHERS);
            row[1..].rotate_left(axis / OTHERS % (OTHERS - 1));
            all.push(row.map(|parts| parts * divisor));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_of_axes_are_even_and_odd_and_do_not_move_together() {
        for given in [3, 5, 12, 24, 224] {
            let [one, other] = [0, 1].map(|axis| candidates(given, axis, 64)[0]);
            assert!(one.iter().any(|size| size % 2 == 0) && one.iter().any(|size| size % 2 == 1), "{one:?}");
            assert!(one.iter().all(|size| *size > 1), "{one:?}");
            assert!(one.iter().zip(other).all(|(one, other)| *one != other), "{one:?} {other:?}");
        }
    }

    #[test]
    fn an_axis_that_must_be_a_multiple_has_sizes_that_are() {
        assert!(candidates(32, 0, 4).iter().any(|sizes| sizes.iter().all(|size| size % 16 == 0)));
    }

    #[test]
    fn an_axis_with_a_largest_size_has_smaller_sizes() {
        assert!(candidates(6, 0, 4).iter().any(|sizes| sizes.iter().all(|size| (2..6).contains(size))));
    }
}

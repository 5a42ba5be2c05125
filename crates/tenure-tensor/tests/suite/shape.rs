//! Tests of views, indexing and writes by index against a model that knows only which element comes from where.

use proptest::prelude::*;
use tenure_tensor::ops::{Index, NEW, cat};
use tenure_tensor::{DType, Device, Result, Tensor};

/// A model of a tensor: its elements in the order of dimensions.
#[derive(Clone, Debug, PartialEq)]
struct Model {
    sizes: Vec<usize>,
    values: Vec<i32>,
}

impl Model {
    /// Returns a model with different numbers.
    fn numbered(sizes: &[usize]) -> Self {
        Self { sizes: sizes.to_vec(), values: (0..sizes.iter().product::<usize>() as i32).collect() }
    }

    fn tensor(&self) -> Tensor {
        Tensor::from_slice(&self.values, &self.sizes).unwrap()
    }

    fn of(tensor: &Tensor) -> Self {
        Self { sizes: tensor.sizes().to_vec(), values: tensor.to_vec().unwrap() }
    }

    fn at(&self, index: &[usize]) -> i32 {
        self.values[index.iter().zip(&self.sizes).fold(0, |place, (index, size)| place * size + index)]
    }

    /// Returns the model of these sizes whose elements come from where `source` says.
    fn mapped(&self, sizes: Vec<usize>, source: impl Fn(&[usize]) -> Vec<usize>) -> Self {
        let mut values = Vec::new();
        for place in 0..sizes.iter().product::<usize>() {
            let mut rest = place;
            let mut index: Vec<usize> = sizes.iter().rev().map(|size| (rest % size, rest /= size).0).collect();
            index.reverse();
            values.push(self.at(&source(&index)));
        }
        Self { sizes, values }
    }
}

/// A change of shape: its kind, and three numbers for its arguments.
type Step = (u8, usize, usize, usize);

/// Applies a step to tensor and model, if the shape permits it.
fn apply((kind, a, b, c): Step, tensor: &Tensor, model: &Model) -> Result<(Tensor, Model)> {
    let rank = model.sizes.len();
    let sizes = &model.sizes;
    if rank == 0 || model.values.is_empty() || model.values.len() > 2000 {
        return Ok((tensor.unsqueeze(0)?, Model { sizes: [&[1], &sizes[..]].concat(), ..model.clone() }));
    }
    let x = a % rank;
    let y = b % rank;
    let dim = x as isize;
    let size = sizes[x];
    let with = |size: usize| {
        let mut sizes = sizes.clone();
        sizes[x] = size;
        sizes
    };
    let moved = |index: &[usize], to: usize| {
        let mut index = index.to_vec();
        index[x] = to;
        index
    };
    Ok(match kind % 12 {
        0 => {
            let mut swapped = sizes.clone();
            swapped.swap(x, y);
            (
                tensor.transpose(dim, y as isize - rank as isize)?,
                model.mapped(swapped, |index| {
                    let mut index = index.to_vec();
                    index.swap(x, y);
                    index
                }),
            )
        }
        1 => {
            let start = b % (size + 1);
            let step = c % 3 + 1;
            let length = (size - start).div_ceil(step);
            let found = tensor.slice(dim, start as isize - size as isize, isize::MAX, step);
            // A start of 0 from the end means the end.
            let found = if start == size { tensor.slice(dim, start as isize, isize::MAX, step) } else { found };
            (found?, model.mapped(with(length), |index| moved(index, start + index[x] * step)))
        }
        2 => {
            let mut fewer = sizes.clone();
            fewer.remove(x);
            let at = b % size;
            (
                tensor.select(dim, at as isize - size as isize)?,
                model.mapped(fewer, |index| [&index[..x], &[at], &index[x..]].concat()),
            )
        }
        3 => {
            let window = b % size + 1;
            let step = c % 2 + 1;
            let mut more = with((size - window) / step + 1);
            more.push(window);
            (
                tensor.unfold(dim, window, step)?,
                model.mapped(more, |index: &[usize]| moved(&index[..rank], index[x] * step + index[rank])),
            )
        }
        4 => (tensor.flip(&[dim])?, model.mapped(sizes.clone(), |index| moved(index, size - 1 - index[x]))),
        5 => {
            let shift = b as isize - 7;
            (
                tensor.roll(&[shift], &[dim])?,
                model.mapped(sizes.clone(), |index: &[usize]| {
                    moved(index, (index[x] as isize - shift).rem_euclid(size as isize) as usize)
                }),
            )
        }
        6 => {
            let flat = Model { sizes: vec![model.values.len()], ..model.clone() };
            (tensor.flatten(0, -1)?, flat)
        }
        7 => {
            let wide = [&[2], &sizes[..]].concat();
            let target: Vec<isize> = std::iter::once(2).chain(sizes.iter().map(|_| -1)).collect();
            (tensor.expand(&target)?, model.mapped(wide, |index| index[1..].to_vec()))
        }
        8 if rank > 1 && x != y => {
            let offset = c as isize - 2;
            let down = (-offset).max(0) as usize;
            let right = offset.max(0) as usize;
            let length = sizes[x].saturating_sub(down).min(sizes[y].saturating_sub(right));
            let mut kept: Vec<usize> = (0..rank).filter(|other| *other != x && *other != y).collect();
            let out: Vec<usize> = kept.iter().map(|other| sizes[*other]).chain([length]).collect();
            kept.push(rank);
            (
                tensor.diagonal(offset, dim, y as isize)?,
                model.mapped(out, |index| {
                    let along = index[index.len() - 1];
                    (0..rank)
                        .map(|place| match place {
                            place if place == x => along + down,
                            place if place == y => along + right,
                            place => index[kept.iter().position(|kept| *kept == place).unwrap()],
                        })
                        .collect()
                }),
            )
        }
        9 => {
            let target = with(2 * size);
            (cat(&[tensor, tensor], dim)?, model.mapped(target, |index| moved(index, index[x] % size)))
        }
        10 => {
            let found = tensor.repeat_interleave(2, dim)?;
            (found, model.mapped(with(2 * size), |index| moved(index, index[x] / 2)))
        }
        _ => {
            let places: Vec<i64> = [b, c, b + c].iter().map(|place| (place % size) as i64).collect();
            let index = Tensor::from_slice(&places, &[3])?;
            let found = tensor.index_select(dim, &index)?;
            (found, model.mapped(with(3), |index| moved(index, places[index[x]] as usize)))
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn any_changes_of_shape_bring_elements_where_they_belong(
        sizes in proptest::collection::vec(1_usize..5, 0..4),
        steps in proptest::collection::vec((any::<u8>(), 0_usize..15, 0_usize..15, 0_usize..5), 1..6),
    ) {
        let mut model = Model::numbered(&sizes);
        let mut tensor = model.tensor();
        for step in steps {
            (tensor, model) = apply(step, &tensor, &model).unwrap();
            prop_assert_eq!(&Model::of(&tensor), &model, "{:?}", step);
        }
    }

    #[test]
    fn indices_of_all_kinds_take_the_elements_that_they_say(
        sizes in proptest::collection::vec(1_usize..5, 1..4),
        kinds in proptest::collection::vec((0_u8..5, 0_usize..8, 0_usize..8), 3),
        is_added in any::<bool>(),
    ) {
        let model = Model::numbered(&sizes);
        let tensor = model.tensor();
        // For each dimension of the view: where it comes from, as the index of the source.
        let mut indices: Vec<Index> = Vec::new();
        let mut fixed: Vec<Option<usize>> = vec![None; sizes.len()];
        // For each dimension of the view: (source dimension, start, length). A new dimension has no source, and
        // one of an index tensor has `usize::MAX` as its start.
        let mut dims: Vec<(Option<usize>, usize, usize)> = Vec::new();
        let mut picks: Vec<(usize, Vec<i64>)> = Vec::new();
        for (dim, size) in sizes.iter().enumerate() {
            let (kind, a, b) = kinds[dim];
            match kind {
                0 => {
                    let at = a % size;
                    fixed[dim] = Some(at);
                    indices.push((at as i64 - *size as i64).into());
                }
                1 => {
                    let start = a % size;
                    let end = size - b % (size - a % size).max(1);
                    dims.push((Some(dim), start, end.saturating_sub(start)));
                    indices.push((start..end).into());
                }
                2 => {
                    dims.extend([(None, 0, 1), (Some(dim), 0, *size)]);
                    indices.extend([NEW, (..).into()]);
                }
                _ => {
                    let places: Vec<i64> = [a, b].iter().map(|place| (place % size) as i64).collect();
                    indices.push(Tensor::from_slice(&places, &[2]).unwrap().into());
                    picks.push((dims.len(), places));
                    dims.push((Some(dim), usize::MAX, 0));
                }
            }
        }
        let at = match &picks[..] {
            [] => None,
            [first, rest @ ..] => {
                let is_run = rest.iter().enumerate().all(|(i, pick)| pick.0 == first.0 + i + 1);
                Some(if is_run { first.0 } else { 0 })
            }
        };
        let others: Vec<&(Option<usize>, usize, usize)> = dims.iter().filter(|dim| dim.1 != usize::MAX).collect();
        let mut out: Vec<usize> = others.iter().map(|dim| dim.2).collect();
        if let Some(at) = at {
            out.insert(at, 2);
        }
        let expected = model.mapped(out.clone(), |index| {
            let mut rest = index.to_vec();
            let pick = at.map(|at| rest.remove(at));
            let mut place: Vec<usize> = fixed.iter().map(|at| at.unwrap_or(0)).collect();
            for (dim, along) in others.iter().zip(rest) {
                if let (Some(source), start, _) = **dim {
                    place[source] = start + along;
                }
            }
            for (dim, places) in &picks {
                place[dims[*dim].0.unwrap()] = places[pick.unwrap()] as usize;
            }
            place
        });
        prop_assert_eq!(&Model::of(&tensor.index(indices.clone()).unwrap()), &expected);

        // Now the elements that were read are written.
        let written = Model { sizes: out.clone(), values: (1000..).take(expected.values.len()).collect() };
        let mut after = model.clone();
        for (place, value) in expected.values.iter().zip(&written.values) {
            let element = &mut after.values[*place as usize];
            *element = if is_added { *element + value } else { *value };
        }
        let found = tensor.index_put(indices, &written.tensor(), is_added).unwrap();
        prop_assert_eq!(&Model::of(&found), &after);
        prop_assert_eq!(&Model::of(&tensor), &model);
    }
}

#[test]
fn a_view_in_another_dtype_shares_the_bytes_and_the_count_of_writes() {
    let x = Tensor::from_slice(&[1.0_f32, -2.0, 0.5, 4.0], &[2, 2]).unwrap();
    let bits = x.view_dtype(DType::I32).unwrap();
    assert_eq!(bits.to_vec::<i32>().unwrap(), [1.0_f32, -2.0, 0.5, 4.0].map(|number| number.to_bits() as i32));
    let bytes = x.view_dtype(DType::U8).unwrap();
    assert_eq!(bytes.sizes(), [2, 8]);
    bytes.narrow(1, 4, 4).unwrap().fill_(0).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 0.0, 0.5, 0.0]);
    assert_eq!(x.version(), 1);
    let wide = bytes.narrow(0, 1, 1).unwrap().view_dtype(DType::I64).unwrap();
    assert_eq!((wide.sizes(), wide.layout().offset()), (&[1, 1][..], 1));
}

fn refused(tensor: Tensor, dtype: DType) -> String {
    tensor.view_dtype(dtype).unwrap_err().to_string()
}

#[test]
fn a_view_in_another_dtype_has_whole_elements_and_valid_values() {
    let bytes = Tensor::zeros(&[3, 8], DType::U8, Device::CPU).unwrap();
    assert!(refused(bytes.narrow(1, 0, 6).unwrap(), DType::I32).contains("do not make whole elements"));
    assert!(
        refused(bytes.narrow(1, 2, 4).unwrap(), DType::I32).contains("do not make whole elements"),
        "the offset is 2 bytes"
    );
    assert!(
        refused(bytes.t().unwrap(), DType::I16).contains("do not make whole elements"),
        "the last dimension is not dense"
    );
    assert!(
        refused(bytes.select(0, 0).unwrap().select(0, 0).unwrap(), DType::I16).contains("do not make whole elements")
    );
    assert!(refused(bytes, DType::Bool).contains("ne(0)"), "a byte of 2 is not a truth value");
}

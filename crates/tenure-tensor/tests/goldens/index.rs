//! Indexing, selection and writes by index, and padding, compared with PyTorch.

use tenure_tensor::ops::{ELLIPSIS, Index, NEW, PadMode};
use tenure_tensor::{Result, Scalar, Tensor};

use crate::harness::Case;

fn every(start: isize, step: usize) -> Index {
    Index::Slice { start, end: None, step }
}

pub(crate) const INDEX: &[Case] = &[
    ("basic", |x| Ok(vec![x[0].index((1, .., 1..3))?])),
    ("negative", |x| Ok(vec![x[0].index((ELLIPSIS, -2, -3..=-2))?])),
    ("new", |x| Ok(vec![x[0].index((.., NEW, ELLIPSIS, 0, NEW))?])),
    ("steps", |x| Ok(vec![x[0].index((.., every(0, 2), every(1, 2)))?])),
    ("nothing", |x| Ok(vec![x[0].index(ELLIPSIS)?])),
    ("one", |x| Ok(vec![x[0].index(&x[1])?])),
    ("middle", |x| Ok(vec![x[0].index((.., &x[1]))?])),
    ("last", |x| Ok(vec![x[0].index((ELLIPSIS, &x[1]))?])),
    ("empty", |x| Ok(vec![x[0].index((.., &x[1]))?])),
    ("pair", |x| Ok(vec![x[0].index((&x[1], &x[2]))?])),
    ("apart", |x| Ok(vec![x[0].index((&x[1], .., &x[2]))?])),
    ("last_pair", |x| Ok(vec![x[0].index((.., &x[1], &x[2]))?])),
    ("number_and_index", |x| Ok(vec![x[0].index((1, .., &x[1]))?])),
    ("single", |x| Ok(vec![x[0].index(&x[1])?])),
    ("mask", |x| Ok(vec![x[0].index(&x[1])?])),
    ("mask_of_all", |x| Ok(vec![x[0].index(&x[1])?])),
    ("mask_of_last", |x| Ok(vec![x[0].index((ELLIPSIS, &x[1]))?])),
    ("mask_and_index", |x| Ok(vec![x[0].index((&x[1], &x[2]))?])),
    ("put", |x| {
        let index = |places: [i64; 2]| Tensor::from_slice(&places, &[2])?.to_device(x[0].device());
        Ok(vec![x[0].index_put((index([1, 0])?, index([2, 0])?), &x[1], false)?])
    }),
    ("put_added", |x| Ok(vec![x[0].index_put((&x[1], &x[2]), &x[3], true)?])),
    ("put_masked", |x| Ok(vec![x[0].index_put(&x[1], &x[2], false)?])),
    ("nonzero", |x| Ok(vec![x[0].nonzero()?])),
    ("masked_select", |x| Ok(vec![x[0].masked_select(&x[1])?])),
];

/// Replaces each row by different numbers, as the script does.
fn once(index: &Tensor) -> Result<Tensor> {
    let mut places = Vec::new();
    for row in index.to_vec::<i64>()?.chunks(3) {
        let mut order: Vec<usize> = (0..3).collect();
        order.sort_by_key(|place| row[*place]);
        places.extend(order.into_iter().map(|place| (place as i64 + 1) % 4));
    }
    Tensor::from_slice(&places, index.sizes())?.to_device(index.device())
}

fn order_of(index: &Tensor) -> Result<Tensor> {
    let values = index.to_vec::<i64>()?;
    let mut order: Vec<i64> = (0..values.len() as i64).collect();
    order.sort_by_key(|place| values[*place as usize]);
    Tensor::from_slice(&order, index.sizes())?.to_device(index.device())
}

pub(crate) const GATHER: &[Case] = &[
    ("gather", |x| Ok(vec![x[0].gather(-1, &x[1])?])),
    ("gather_whole", |x| Ok(vec![x[0].gather(0, &x[1])?])),
    ("gather_first", |x| Ok(vec![x[0].gather(-2, &x[1])?])),
    ("gather_integers", |x| Ok(vec![x[0].gather(0, &x[1])?])),
    ("take_along_dim", |x| Ok(vec![x[0].take_along_dim(&x[1], 1)?])),
    ("take", |x| Ok(vec![x[0].take(&x[1])?])),
    ("gather_of_one", |x| Ok(vec![x[0].gather(0, &x[1])?])),
    ("scatter_of_one", |x| Ok(vec![x[0].scatter(0, &x[1], &x[2])?])),
    ("scatter_add_of_one", |x| Ok(vec![x[0].scatter_add(0, &x[1], &x[2])?])),
    ("take_from_end", |x| Ok(vec![x[0].take(&x[1].sub(12)?)?])),
    ("take_of_one", |x| Ok(vec![x[0].take(&x[1])?])),
    ("scatter", |x| Ok(vec![x[0].scatter(1, &once(&x[1])?, &x[2])?])),
    ("scatter_number", |x| Ok(vec![x[0].scatter(0, &x[1], 2.5)?])),
    ("scatter_add", |x| Ok(vec![x[0].scatter_add(-1, &x[1], &x[2])?])),
    ("scatter_add_first", |x| Ok(vec![x[0].scatter_add(0, &x[1], &x[2])?])),
    ("index_select", |x| Ok(vec![x[0].index_select(1, &x[1])?])),
    ("index_select_last", |x| Ok(vec![x[0].index_select(-1, &x[1])?])),
    ("index_add", |x| Ok(vec![x[0].index_add(1, &x[1], &x[2])?])),
    ("index_copy", |x| Ok(vec![x[0].index_copy(0, &order_of(&x[1])?, &x[2])?])),
    ("index_fill", |x| Ok(vec![x[0].index_fill(1, &x[1], -1.5)?])),
    ("embedding", |x| Ok(vec![x[0].embedding(&x[1])?])),
    ("embedding_padded", |x| Ok(vec![x[0].embedding_padded(&x[1], 1)?])),
    ("one_hot", |x| Ok(vec![x[0].one_hot(4)?])),
    ("pad_constant", |x| Ok(vec![x[0].pad(&[1, 2, 0, 1], PadMode::Constant(Scalar::Float(1.5)))?])),
    ("pad_negative", |x| Ok(vec![x[0].pad(&[-1, 2, 1, -1], PadMode::Constant(Scalar::Int(0)))?])),
    ("pad_reflect", |x| Ok(vec![x[0].pad(&[2, 1, 1, 2], PadMode::Reflect)?])),
    ("pad_replicate", |x| Ok(vec![x[0].pad(&[2, 3], PadMode::Replicate)?])),
    ("pad_circular", |x| Ok(vec![x[0].pad(&[2, 3], PadMode::Circular)?])),
    ("pad_nothing", |x| Ok(vec![x[0].pad(&[], PadMode::Constant(Scalar::Int(0)))?])),
];

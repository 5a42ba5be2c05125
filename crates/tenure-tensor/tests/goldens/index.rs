//! Indexing compared with PyTorch.

use tenure_tensor::Tensor;
use tenure_tensor::ops::{ELLIPSIS, Index, NEW};

use crate::harness::Case;

fn every(start: isize, step: usize) -> Index {
    Index::Slice { start, end: None, step }
}

pub(crate) const CASES: &[Case] = &[
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

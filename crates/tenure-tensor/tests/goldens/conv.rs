//! Convolutions and pooling compared with PyTorch.

use tenure_tensor::{Conv, Pool};

use crate::harness::Case;

const PAIR: Conv<'_> = Conv { stride: &[2, 1], padding: &[1, 0], dilation: &[1, 2], groups: 1 };
const PLAIN: Conv<'_> = Conv { stride: &[1], padding: &[0], dilation: &[1], groups: 1 };
const WINDOW: Pool<'_> = Pool { kernel: &[], stride: &[], padding: &[0], dilation: &[1], ceil: false };
const THREE: Pool<'_> = Pool { kernel: &[3, 3], stride: &[2], padding: &[1], ..WINDOW };

pub(crate) const CASES: &[Case] = &[
    ("conv1d", |x| Ok(vec![x[0].conv(&x[1], Some(&x[2]), &Conv { stride: &[2], padding: &[1], ..PLAIN })?])),
    ("conv2d", |x| Ok(vec![x[0].conv(&x[1], Some(&x[2]), &Conv { padding: &[1], ..PLAIN })?])),
    ("conv2d_pair", |x| Ok(vec![x[0].conv(&x[1], None, &PAIR)?])),
    ("conv2d_groups", |x| Ok(vec![x[0].conv(&x[1], None, &Conv { groups: 2, ..PLAIN })?])),
    ("conv2d_depthwise", |x| Ok(vec![x[0].conv(&x[1], None, &Conv { padding: &[1], groups: 3, ..PLAIN })?])),
    ("conv2d_pointwise", |x| Ok(vec![x[0].conv(&x[1], None, &Conv { stride: &[2], ..PLAIN })?])),
    ("conv2d_unbatched", |x| Ok(vec![x[0].conv(&x[1], Some(&x[2]), &PLAIN)?])),
    ("conv3d", |x| Ok(vec![x[0].conv(&x[1], None, &Conv { stride: &[1, 2, 1], padding: &[1], ..PLAIN })?])),
    ("conv_transpose1d", |x| {
        let how = Conv { stride: &[3], padding: &[1], ..PLAIN };
        Ok(vec![x[0].conv_transpose(&x[1], Some(&x[2]), &how, &[2])?])
    }),
    ("conv_transpose2d", |x| Ok(vec![x[0].conv_transpose(&x[1], None, &Conv { groups: 2, ..PAIR }, &[0])?])),
    ("conv_transpose3d", |x| Ok(vec![x[0].conv_transpose(&x[1], None, &Conv { stride: &[2], ..PLAIN }, &[0])?])),
    ("max_pool1d", |x| Ok(vec![x[0].max_pool(&Pool { kernel: &[3], ..THREE })?])),
    ("max_pool2d", |x| Ok(vec![x[0].max_pool(&Pool { kernel: &[2, 3], ..THREE })?])),
    ("max_pool2d_dilated", |x| {
        Ok(vec![x[0].max_pool(&Pool { kernel: &[2, 2], stride: &[1], dilation: &[2], ..WINDOW })?])
    }),
    ("max_pool2d_ceil", |x| Ok(vec![x[0].max_pool(&Pool { kernel: &[2, 2], ceil: true, ..WINDOW })?])),
    ("max_pool3d", |x| Ok(vec![x[0].max_pool(&Pool { kernel: &[2; 3], stride: &[1], ..WINDOW })?])),
    ("avg_pool1d", |x| Ok(vec![x[0].avg_pool(&Pool { kernel: &[3], ..THREE }, true)?])),
    ("avg_pool2d", |x| Ok(vec![x[0].avg_pool(&THREE, true)?])),
    ("avg_pool2d_inside", |x| Ok(vec![x[0].avg_pool(&THREE, false)?])),
    ("avg_pool2d_ceil", |x| Ok(vec![x[0].avg_pool(&Pool { ceil: true, ..THREE }, true)?])),
    ("avg_pool3d", |x| Ok(vec![x[0].avg_pool(&Pool { kernel: &[2; 3], stride: &[1], ..WINDOW }, true)?])),
    ("adaptive_avg_pool1d", |x| Ok(vec![x[0].adaptive_avg_pool(&[3])?])),
    ("adaptive_avg_pool2d", |x| Ok(vec![x[0].adaptive_avg_pool(&[2, 7])?])),
];

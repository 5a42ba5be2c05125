//! Tests against PyTorch's lists of autocast operations (`aten/src/ATen/autocast_mode.h`): CUDA's, and the CPU's
//! additions.

use tenure_tensor::autocast::Autocast;
use tenure_tensor::ops::{self, CrossEntropy, LossReduction, einsum};
use tenure_tensor::{Attention, Conv, DType, Result, Tensor};

struct Given {
    /// Values from 0 to 1, `[2, 2]`, in `float32` and in `bfloat16`.
    x: Tensor,
    half: Tensor,
    /// The values of `x` as `[1, 2, 2]`.
    batch: Tensor,
    /// The values of `x` as `[1, 1, 2, 2]`.
    image: Tensor,
    /// Zeros, `[2, 2]` and `[2]`.
    places: Tensor,
    rows: Tensor,
}

type Operation = (&'static str, fn(&Given) -> Result<Tensor>);

/// PyTorch's list `lower_precision_fp`, called with `float32`.
const LOWERED: &[Operation] = &[
    ("matmul", |g| g.x.matmul(&g.x)),
    ("bmm", |g| g.batch.bmm(&g.batch)),
    ("mv", |g| g.x.mv(&g.x.select(0, 0)?)),
    ("addmm", |g| g.x.addmm(&g.x, &g.x, 1.0, 1.0)),
    ("baddbmm", |g| g.batch.baddbmm(&g.batch, &g.batch, 1.0, 1.0)),
    ("linear", |g| g.x.linear(&g.x, None)),
    ("conv", |g| g.image.conv(&g.image, None, &Conv::default())),
    ("conv_transpose", |g| g.image.conv_transpose(&g.image, None, &Conv::default(), &[0, 0])),
    ("attention", |g| g.batch.attention(&g.batch, &g.batch, &Attention { mask: Some(&g.x), ..Attention::default() })),
    ("einsum", |g| einsum("ij,jk->ik", &[&g.x, &g.x])),
    ("prelu", |g| g.x.prelu(&g.x.select(0, 0)?)),
];

/// PyTorch's lists `fp32` and `fp32_set_opt_dtype`, called with `bfloat16`.
const RAISED: &[Operation] = &[
    ("acos", |g| g.half.acos()),
    ("asin", |g| g.half.asin()),
    ("cosh", |g| g.half.cosh()),
    ("erfinv", |g| g.half.erfinv()),
    ("exp", |g| g.half.exp()),
    ("expm1", |g| g.half.expm1()),
    ("log", |g| g.half.log()),
    ("log10", |g| g.half.log10()),
    ("log2", |g| g.half.log2()),
    ("log1p", |g| g.half.log1p()),
    ("reciprocal", |g| g.half.reciprocal()),
    ("rsqrt", |g| g.half.rsqrt()),
    ("sinh", |g| g.half.sinh()),
    ("tan", |g| g.half.tan()),
    ("pow", |g| g.half.pow(3)),
    ("softplus", |g| g.half.softplus(1.0, 20.0)),
    ("layer_norm", |g| g.half.layer_norm(&[2], None, None, 1e-5)),
    ("rms_norm", |g| g.half.rms_norm(&[2], None, 1e-5)),
    ("group_norm", |g| g.half.unsqueeze(0)?.group_norm(1, None, None, 1e-5)),
    ("norm", |g| g.half.norm(2.0, &[0], false)),
    ("cdist", |g| g.half.cdist(&g.half, 2.0)),
    ("norm of infinity", |g| g.half.norm(f64::INFINITY, &[0], false)),
    ("softmax", |g| g.half.softmax(0)),
    ("log_softmax", |g| g.half.log_softmax(0)),
    ("logsumexp", |g| g.half.logsumexp(&[0], false)),
    ("sum", |g| g.half.sum(&[0], false)),
    ("prod", |g| g.half.prod(&[0], false)),
    ("cumsum", |g| g.half.cumsum(0)),
    ("cumprod", |g| g.half.cumprod(0)),
    ("nll_loss", |g| g.half.nll_loss(&g.rows, None, -100, LossReduction::Mean)),
    ("cross_entropy", |g| g.half.cross_entropy(&g.rows, &CrossEntropy::default())),
    ("mse_loss", |g| g.half.mse_loss(&g.half, LossReduction::Mean)),
    ("l1_loss", |g| g.half.l1_loss(&g.half, LossReduction::Mean)),
    ("smooth_l1_loss", |g| g.half.smooth_l1_loss(&g.half, 1.0, LossReduction::Mean)),
    ("huber_loss", |g| g.half.huber_loss(&g.half, 1.0, LossReduction::Mean)),
    ("kl_div", |g| g.half.kl_div(&g.half, false, LossReduction::Mean)),
    ("binary_cross_entropy", |g| g.half.binary_cross_entropy(&g.half, None, LossReduction::Mean)),
    ("binary_cross_entropy_with_logits", |g| {
        g.half.binary_cross_entropy_with_logits(&g.half, None, None, LossReduction::Mean)
    }),
];

/// PyTorch's list `promote`, called with both dtypes.
const WIDENED: &[Operation] = &[
    ("dot", |g| g.half.select(0, 0)?.dot(&g.x.select(0, 0)?)),
    ("cat", |g| ops::cat(&[&g.half, &g.x], 0)),
    ("stack", |g| ops::stack(&[&g.half, &g.x], 0)),
    ("scatter_add", |g| g.half.scatter_add(0, &g.places, &g.x)),
    ("index_copy", |g| g.half.index_copy(0, &Tensor::from_slice(&[0_i64, 1], &[2])?, &g.x)),
    ("index_put", |g| g.half.index_put((&g.rows,), &g.x, true)),
    ("addcmul", |g| g.half.addcmul(&g.x, &g.half, 1.0)),
    ("addcdiv", |g| g.half.addcdiv(&g.x, &g.half, 1.0)),
    ("atan2", |g| g.half.atan2(&g.x)),
];

/// Some operations on no list, called with `bfloat16`.
const LEFT: &[Operation] = &[
    ("add", |g| g.half.add(&g.half)),
    ("tanh", |g| g.half.tanh()),
    ("sigmoid", |g| g.half.sigmoid()),
    ("gelu", |g| g.half.gelu()),
    ("sqrt", |g| g.half.sqrt()),
    ("mean", |g| g.half.mean(&[0], false)),
    ("amax", |g| g.half.amax(&[0], false)),
];

fn given() -> Given {
    let x = Tensor::from_slice(&[0.1_f32, 0.3, 0.5, 0.9], &[2, 2]).unwrap().requires_grad_(true).unwrap();
    Given {
        half: x.detach().to_dtype(DType::BF16).unwrap().requires_grad_(true).unwrap(),
        batch: x.unsqueeze(0).unwrap(),
        image: x.view(&[1, 1, 2, 2]).unwrap(),
        places: Tensor::from_slice(&[0_i64; 4], &[2, 2]).unwrap(),
        rows: Tensor::from_slice(&[0_i64; 2], &[2]).unwrap(),
        x,
    }
}

/// Checks that the result inside autocast has this dtype, and that gradients come back in the dtypes of the inputs.
fn check(operations: &[Operation], expected: DType) {
    for (name, operation) in operations {
        let given = given();
        let result = {
            let _autocast = Autocast::enter(DType::BF16);
            operation(&given).unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        assert_eq!(result.dtype(), expected, "{name}");
        result.sum_all().unwrap().backward().unwrap_or_else(|error| panic!("{name}: {error}"));
        let grads = [&given.x, &given.half].map(|leaf| leaf.grad().map(|grad| (grad.dtype(), leaf.dtype())));
        assert!(grads.iter().any(Option::is_some), "{name}");
        assert!(grads.iter().flatten().all(|(found, expected)| found == expected), "{name}");
    }
}

#[test]
fn operations_that_are_fast_in_half_the_bits_are_lowered() {
    check(LOWERED, DType::BF16);
}

#[test]
fn operations_that_need_precision_are_raised() {
    check(RAISED, DType::F32);
}

#[test]
fn operations_on_several_tensors_are_as_wide_as_the_widest() {
    check(WIDENED, DType::F32);
}

#[test]
fn the_others_are_left_alone() {
    check(LEFT, DType::BF16);
}

#[test]
fn outside_nothing_changes() {
    let given = given();
    for (name, operation) in LOWERED {
        assert_eq!(operation(&given).unwrap().dtype(), DType::F32, "{name}");
    }
    for (name, operation) in RAISED {
        assert_eq!(operation(&given).unwrap().dtype(), DType::BF16, "{name}");
    }
}

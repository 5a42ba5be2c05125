//! Tests of users' mistakes, and of the messages that they get. A comment before each has the message of PyTorch 2.11,
//! if that refuses it too.

use tenure_core::{DataPtr, Storage};
use tenure_tensor::ops::{self, CrossEntropy, LossReduction};
use tenure_tensor::{Attention, Conv, DType, Device, Layout, Pool, Result, Tensor, autograd, einsum, random};

fn of(dtype: DType, sizes: &[usize]) -> Tensor {
    Tensor::ones(sizes, dtype, Device::CPU).unwrap()
}

fn ones(sizes: &[usize]) -> Tensor {
    of(DType::F32, sizes)
}

fn leaf(sizes: &[usize]) -> Tensor {
    ones(sizes).requires_grad_(true).unwrap()
}

fn integers(values: &[i64]) -> Tensor {
    Tensor::from_slice(values, &[values.len()]).unwrap()
}

/// Returns a tensor that claims to be on another device.
fn elsewhere(sizes: &[usize]) -> Tensor {
    let layout = Layout::contiguous(sizes).unwrap();
    let mut memory = vec![0.0_f32; layout.numel()];
    let data = DataPtr::foreign(memory.as_mut_ptr().cast(), Device::cuda(0), {
        let bytes = memory;
        move || drop(bytes)
    });
    // SAFETY: the memory has this many bytes, and the closure that frees them owns it.
    let storage = unsafe { Storage::from_data_ptr(data, layout.numel() * size_of::<f32>(), None) };
    Tensor::from_storage(storage, layout, DType::F32).unwrap()
}

/// Returns a tensor on memory that must not be written to.
fn constant(sizes: &[usize]) -> Tensor {
    static ONES: [f32; 6] = [1.0; 6];
    let layout = Layout::contiguous(sizes).unwrap();
    let data = DataPtr::foreign(ONES.as_ptr().cast_mut().cast(), Device::CPU, || ());
    // SAFETY: the elements are constant, and live as long as the process.
    let storage = unsafe { Storage::read_only(data, layout.numel() * size_of::<f32>()) };
    Tensor::from_storage(storage, layout, DType::F32).unwrap()
}

#[track_caller]
fn says<T>(result: Result<T>, expected: &str) {
    assert_eq!(result.err().expect("a mistake").to_string(), expected);
}

#[test]
fn sizes_that_do_not_go_together() {
    // The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 1
    says(
        ones(&[2, 3]).add(&ones(&[2, 4])),
        "add: sizes [2, 3] and [2, 4] do not broadcast: at dimension 1 from the end, 3 and 4 differ and neither \
         is 1",
    );
    // mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)
    says(
        ones(&[2, 3]).matmul(&ones(&[4, 5])),
        "matmul: sizes [2, 3] and [4, 5] cannot be multiplied: 3 columns on the left and 4 rows on the right \
         must be as many",
    );
    // both arguments to matmul need to be at least 1D, but they are 0D and 2D
    says(
        ones(&[]).matmul(&ones(&[4, 5])),
        "matmul: both must have dimensions, got sizes [] and [4, 5]: use mul() for a product with a number",
    );
    // Expected size for first two dimensions of batch2 tensor to be: [2, 3] but got: [3, 3].
    says(
        ones(&[2, 2, 3]).bmm(&ones(&[3, 3, 2])),
        "bmm: two batches of as many matrices are needed, (b, m, k) and (b, k, n), got sizes [2, 2, 3] and [3, \
         3, 2]: matmul() broadcasts batches",
    );
    // size mismatch, got input (2), mat (2x3), vec (4)
    says(
        ones(&[2, 3]).mv(&ones(&[4])),
        "mv: sizes [2, 3] and [4] cannot be multiplied: 3 columns on the left and 4 elements on the right must \
         be as many",
    );
    // inconsistent tensor size, expected tensor [2] and src [3] to have the same number of elements, but got 2 and 3
    // elements respectively
    says(
        ones(&[2]).dot(&ones(&[3])),
        "dot: sizes [2] and [3] cannot be multiplied: 2 elements on the left and 3 elements on the right must be \
         as many",
    );
    // mat1 and mat2 shapes cannot be multiplied (2x3 and 5x4)
    says(
        ones(&[2, 3]).linear(&ones(&[4, 5]), None),
        "linear: an input of sizes [2, 3] has 3 features, but a weight of sizes [4, 5] takes 5",
    );
    // The expanded size of the tensor (4) must match the existing size (5) at non-singleton dimension 1.  Target
    // sizes: [2, 4].  Tensor sizes: [5]
    says(
        ones(&[2, 3]).linear(&ones(&[4, 3]), Some(&ones(&[5]))),
        "linear: a bias of sizes [5] was given for 4 outputs",
    );
    // Given groups=1, weight of size [4, 2, 3, 3], expected input[1, 3, 8, 8] to have 2 channels, but got 3 channels
    // instead
    says(
        ones(&[1, 3, 8, 8]).conv(&ones(&[4, 2, 3, 3]), None, &Conv::default()),
        "conv: an input of sizes [1, 3, 8, 8] has 3 channels, but a weight of sizes [4, 2, 3, 3] takes 2, with \
         groups = 1",
    );
    // Calculated padded input size per channel: (2 x 2). Kernel size: (3 x 3). Kernel size can't be greater than
    // actual input size
    says(
        ones(&[1, 3, 2, 2]).conv(&ones(&[4, 3, 3, 3]), None, &Conv::default()),
        "conv: a kernel of sizes [3, 3], dilated by [1], is larger than images of sizes [2, 2], padded by [0]",
    );
    // Expected 3D (unbatched) or 4D (batched) input to conv2d, but got input of size: [3]
    says(
        ones(&[3]).conv(&ones(&[4, 3, 3, 3]), None, &Conv::default()),
        "conv: an input (images, channels, ...) and a weight (outputs, channels, ...) of the same one to three \
         spatial dimensions are needed, got sizes [3] and [4, 3, 3, 3]",
    );
    // Given input size: (1x2x2). Calculated output size: (1x0x0). Output size is too small
    says(
        ones(&[1, 1, 2, 2]).max_pool(&Pool { kernel: &[3, 3], ..Pool::default() }),
        "max_pool: a window of sizes [3, 3], dilated by [1], is larger than images of sizes [2, 2], padded by [0]",
    );
    // pad should be smaller than or equal to half of kernel size, but got padW = 2, padH = 2, kW = 2, kH = 2
    says(
        ones(&[1, 1, 4, 4]).max_pool(&Pool { kernel: &[2, 2], padding: &[2], ..Pool::default() }),
        "max_pool: padding [2] may be at most half of the kernel, [2, 2]",
    );
    // stride should not be zero
    says(
        ones(&[1, 1, 4, 4]).avg_pool(&Pool { kernel: &[2, 2], stride: &[0], ..Pool::default() }, true),
        "avg_pool: kernel [2, 2], stride [0] and dilation [1] must be at least 1 everywhere",
    );
    // output padding must be smaller than either stride or dilation, but got output_padding_height: 2
    // output_padding_width: 2 stride_height: 1 stride_width: 1 dilation_height: 1 dilation_width: 1
    says(
        ones(&[1, 1, 2, 2]).conv_transpose(&ones(&[1, 1, 2, 2]), None, &Conv::default(), &[2]),
        "conv_transpose: output_padding [2] must be smaller than the stride, [1], or the dilation, [1]",
    );
    // Given input size per channel: (2 x 2). Calculated output size per channel: (-1 x -1). Output size is too small
    says(
        ones(&[1, 1, 2, 2]).conv_transpose(
            &ones(&[1, 1, 2, 2]),
            None,
            &Conv { padding: &[2], ..Conv::default() },
            &[0],
        ),
        "conv_transpose: images of sizes [2, 2] and a kernel of sizes [2, 2], with a stride of [1], dilated by [1] and \
         with a padding of [2], leave no pixel",
    );
    says(
        ones(&[0, 1, 1 << 32]).conv_transpose(
            &ones(&[1, 1, 2]),
            None,
            &Conv { stride: &[u32::MAX as usize], ..Conv::default() },
            &[0],
        ),
        "conv_transpose: images of sizes [4294967296] and a kernel of sizes [2], with a stride of [4294967295], dilated \
         by [1] and with a padding of [0], make more pixels than there can be",
    );
    // cannot reshape tensor of 0 elements into shape [-1, 0] because the unspecified dimension size -1 can be any value
    // and is ambiguous
    says(ones(&[0, 3]).view(&[-1, 0]), "view: the -1 of sizes [-1, 0] may be any size, as another is 0: say which");
    // einsum(): output subscript z does not appear in the equation for any input operand
    says(
        einsum("ij,jk->iz", &[&ones(&[2, 3]), &ones(&[3, 4])]),
        "einsum: the result of the equation \"ij,jk->iz\" has 'z', which no operand has",
    );
    // einsum(): output subscript j appears more than once in the output
    says(
        einsum("ij,j->ijj", &[&ones(&[2, 3]), &ones(&[3])]),
        "einsum: the result of the equation \"ij,j->ijj\" has 'j' twice",
    );
    // Argument #4: Padding size should be less than the corresponding input dimension, but got: padding (1, 1) at
    // dimension 2 of input [1, 2, 1]
    says(
        ones(&[1, 2, 1]).pad(&[1, 1], ops::PadMode::Reflect),
        "pad: Reflect adds at most 0 elements at either end of dimension 2 of sizes [1, 2, 1], got 1 and 1",
    );
    // argmax(): Expected reduction dim to be specified for input.numel() == 0.
    says(ones(&[0, 3]).argmax(None, false), "argmax: sizes [0, 3] have no element to find");
    // linalg.vector_norm cannot compute the inf norm on the dimension 0because this dimension is empty and the
    // operation does not have an identity
    says(ones(&[0, 3]).norm(f64::INFINITY, &[0], false), "norm: sizes [0, 3] have no element to find along [0]");
    // output with shape [2] doesn't match the broadcast shape [3, 2]
    says(
        ones(&[2]).binary_cross_entropy_with_logits(&ones(&[2]), Some(&ones(&[3, 1])), None, LossReduction::Mean),
        "binary_cross_entropy_with_logits: a weight of sizes [3, 1] does not broadcast to losses of sizes [2]",
    );
    // The size of tensor a (2) must match the size of tensor b (3) at non-singleton dimension 0
    says(
        ones(&[2]).binary_cross_entropy(&ones(&[2]), Some(&ones(&[3])), LossReduction::Mean),
        "binary_cross_entropy: a weight of sizes [3] does not broadcast to losses of sizes [2]",
    );
    // The expanded size of the tensor (2) must match the existing size (3) at non-singleton dimension 0.  Target sizes:
    // [2].  Tensor sizes: [3]
    says(
        ones(&[2, 2]).index_put_(0, &ones(&[3]), false),
        "index_put: sizes [2] and [3] do not broadcast: at dimension 1 from the end, 2 and 3 differ and neither is 1",
    );
    // Sizes of tensors must match except in dimension 0. Expected size 3 but got size 4 for tensor number 1 in the
    // list.
    says(
        ops::cat(&[&ones(&[2, 3]), &ones(&[3, 4])], 0),
        "cat: tensor 1 of sizes [3, 4] does not continue sizes [2, 3]: they may differ in dimension 0 only",
    );
    // torch.cat(): expected a non-empty list of Tensors
    says(ops::cat(&[], 0), "cat: at least one tensor is needed, got none");
    // stack expects each tensor to be equal size, but got [2, 3] at entry 0 and [3, 4] at entry 1
    says(ops::stack(&[&ones(&[2, 3]), &ones(&[3, 4])], 0), "stack: tensor 1 has sizes [3, 4], and tensor 0 [2, 3]");
    // shape '[4, 2]' is invalid for input of size 6
    says(ones(&[2, 3]).view(&[4, 2]), "view: sizes [4, 2] do not hold the 6 elements of sizes [2, 3]");
    // view size is not compatible with input tensor's size and stride (at least one dimension spans across two
    // contiguous subspaces). Use .reshape(...) instead.
    says(
        ones(&[2, 3]).t().unwrap().view(&[6]),
        "view: sizes [3, 2] with strides [1, 3] cannot be viewed as [6]: a dimension would span two that are not \
         contiguous with each other; reshape, which copies, or copy first",
    );
    // only one dimension can be inferred
    says(ones(&[2, 3]).view(&[-1, -1]), "view: sizes [-1, -1] may have one -1 and no other negative number");
    // shape '[4, -1]' is invalid for input of size 6
    says(ones(&[2, 3]).reshape(&[4, -1]), "reshape: sizes [4, -1] do not hold the 6 elements of sizes [2, 3]");
    // The expanded size of the tensor (4) must match the existing size (3) at non-singleton dimension 1.  Target
    // sizes: [2, 4].  Tensor sizes: [2, 3]
    says(
        ones(&[2, 3]).expand(&[2, 4]),
        "expand: sizes [2, 3] do not expand to [2, 4]: aligned at the last dimension, each size must equal its \
         target or be 1",
    );
    // expand(torch.FloatTensor{[2, 3]}, size=[3]): the number of sizes provided (1) must be greater or equal to the
    // number of dimensions in the tensor (2)
    says(
        ones(&[2, 3]).expand(&[3]),
        "expand: sizes [2, 3] do not expand to [3]: aligned at the last dimension, each size must equal its \
         target or be 1",
    );
    // split_with_sizes expects split_sizes to sum exactly to 3 (input tensor's size at dimension 1), but got
    // split_sizes=[1, 1]
    says(
        ones(&[2, 3]).split_sizes(&[1, 1], 1),
        "split: parts of [1, 1] do not add up to the 3 elements of dimension 1",
    );
    // Given normalized_shape=[4], expected input with shape [*, 4], but got input of size[2, 3]
    says(
        ones(&[2, 3]).layer_norm(&[4], None, None, 1e-5),
        "layer_norm: the last dimensions of sizes [2, 3] are not [4]",
    );
    // Expected size for first two dimensions of batch2 tensor to be: [1, 3] but got: [1, 4].
    says(
        ones(&[1, 2, 3]).attention(&ones(&[1, 2, 4]), &ones(&[1, 2, 4]), &Attention::default()),
        "attention: queries (..., heads, n, width), keys (..., heads, m, width) and values (..., heads, m, value \
         width) of the same sizes, or a multiple of heads of queries, are needed, got [1, 2, 3], [1, 2, 4] and \
         [1, 2, 4]",
    );
    // einsum(): subscript j has size 4 for operand 1 which does not broadcast with previously seen size 3
    says(
        einsum("ij,jk->ik", &[&ones(&[2, 3]), &ones(&[4, 5])]),
        "einsum: 'j' has size 3 in one operand and 4 in another",
    );
    says(
        ones(&[2, 3]).mse_loss(&ones(&[3]), LossReduction::Mean),
        "mse_loss: sizes [2, 3] need a target of the same, got [3]",
    );
    // Expected input batch_size (2) to match target batch_size (3).
    says(
        ones(&[2, 3]).cross_entropy(&integers(&[0, 1, 2]), &CrossEntropy::default()),
        "cross_entropy: scores of sizes [2, 3] need a target of [2], got [3]",
    );
    // a Tensor with 2 elements cannot be converted to Scalar
    says(ones(&[2]).item::<f32>(), "item: one element is needed, got sizes [2]: to_vec() gives all of them");
    // max(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the 'dim'
    // argument.
    says(ones(&[0]).max_all(), "max_all: sizes [0] have no element to find");
}

#[test]
fn an_index_out_of_range_is_refused() {
    // index 5 is out of bounds for dimension 0 with size 2
    says(ones(&[2, 3]).index(5), "index: index 5 is out of range for dimension 0 of size 2");
    // slice step cannot be zero
    says(
        ones(&[2, 3]).index(ops::Index::Slice { start: 0, end: None, step: 0 }),
        "index: a slice's step must be at least 1, got 0",
    );
    // out of range: tried to access index -7 on a tensor of 6 elements.
    says(ones(&[2, 3]).take(&integers(&[-7])), "take: index -7 is out of range for dimension 0 of size 6");
    // index 5 is out of bounds for dimension 0 with size 2
    says(ones(&[2, 3]).index((&integers(&[0, 5]),)), "index: index 5 is out of range for dimension 0 of size 2");
    // too many indices for tensor of dimension 2
    says(
        ones(&[2, 3]).index((0, 0, 0)),
        "index: too many indices for tensor of dimension 2: they are for 3 dimensions",
    );
    // select(): index 3 out of range for tensor of size [2, 3] at dimension 1
    says(ones(&[2, 3]).select(1, 3), "select: index 3 is out of range for dimension 1 of size 3");
    // index 3 is out of bounds for dimension 1 with size 3
    says(
        ones(&[2, 3]).gather(1, &integers(&[3, 0]).view(&[2, 1]).unwrap()),
        "gather: index 3 is out of range for dimension 1 of size 3",
    );
    // index out of range in self
    says(ones(&[5, 2]).embedding(&integers(&[7])), "embedding: index 7 is out of range for dimension 0 of size 5");
    // Target 3 is out of bounds.
    says(
        ones(&[2, 3]).cross_entropy(&integers(&[0, 3]), &CrossEntropy::default()),
        "cross_entropy: the target has class 3, but scores of sizes [2, 3] have classes 0 to 2, and what is \
         ignored is -100 (ignore_index)",
    );
    // Dimension out of range (expected to be in range of [-2, 1], but got 2)
    says(
        ones(&[2, 3]).sum(&[2], false),
        "sum: dimension 2 is out of range for a tensor of 2 dimensions: expected -2 to 1",
    );
    // Dimension out of range (expected to be in range of [-1, 0], but got 1)
    says(ones(&[]).softmax(1), "softmax: dimension 1 is out of range for a tensor of 0 dimensions: expected -1 to 0");
    // Dimension out of range (expected to be in range of [-2, 1], but got -3)
    says(
        ones(&[2, 3]).transpose(0, -3),
        "transpose: dimension -3 is out of range for a tensor of 2 dimensions: expected -2 to 1",
    );
    // Dimension out of range (expected to be in range of [-3, 2], but got 4)
    says(
        ones(&[2, 3]).unsqueeze(4),
        "unsqueeze: dimension 4 is out of range for a tensor of 3 dimensions: expected -3 to 2",
    );
    // permute(): duplicate dims are not allowed.
    says(ones(&[2, 3]).permute(&[0, 0]), "permute: [0, 0] is not a permutation of 0..2");
    // selected index k out of range
    says(ones(&[3]).topk(4, 0, true), "topk: k is 4, but dimension 0 of sizes [3] has 3 elements");
    // upper bound and lower bound inconsistent with step sign
    says(
        Tensor::arange(0, -3, 1, DType::I64, Device::CPU),
        "arange: steps of 1 do not lead from 0 to -3: a step to a smaller number must be negative",
    );
    // step must be nonzero
    says(
        Tensor::arange(0, 3, 0, DType::I64, Device::CPU),
        "arange: steps of 0 do not lead from 0 to 3: a step must not be 0",
    );
    // unsupported range: 0 -> inf
    says(
        Tensor::arange(0.0, f64::INFINITY, 1.0, DType::F32, Device::CPU),
        "arange: steps of 1 do not lead from 0 to inf: all three must be finite",
    );
    // all elements of input should be between 0 and 1
    says(
        ones(&[2]).mul(1.5).unwrap().binary_cross_entropy(&ones(&[2]), None, LossReduction::Mean),
        "binary_cross_entropy: all elements of the input must be between 0 and 1, but at [0] is 1.5: of scores, \
         sigmoid() makes probabilities, and binary_cross_entropy_with_logits() takes them as they are",
    );
    // all elements of target should be between 0 and 1
    says(
        {
            let target = ones(&[2, 3000]);
            target.index_put_((1, 2000), &ones(&[]).mul(f32::NAN).unwrap(), false).unwrap();
            ones(&[2, 3000]).binary_cross_entropy(&target, None, LossReduction::Mean)
        },
        "binary_cross_entropy: all elements of the target must be between 0 and 1, but at [1, 2000] is NaN",
    );
    // value cannot be converted to type uint8_t without overflow
    for (op, result) in [
        ("full", Tensor::full(&[2], 300, DType::U8, Device::CPU)),
        ("full_like", of(DType::U8, &[2]).full_like(300)),
        ("masked_fill", of(DType::U8, &[2]).masked_fill(&of(DType::Bool, &[2]), 300)),
        ("index_fill", of(DType::U8, &[2]).index_fill(0, &integers(&[0]), 300)),
        ("scatter", of(DType::U8, &[2]).scatter(0, &integers(&[0]), 300)),
        ("pad", of(DType::U8, &[2]).pad(&[1, 1], ops::PadMode::Constant(300.into()))),
    ] {
        let expected = "300 does not fit uint8, which holds 0 to 255: take another dtype";
        says(result, &format!("{op}: {expected}"));
    }
    for (value, said) in [(-129.0, "-129"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
        let expected = format!("{said} does not fit int8, which holds -128 to 127: take another dtype");
        says(of(DType::I8, &[2]).fill_(value), &format!("fill_: {expected}"));
    }
    says(
        of(DType::I8, &[2]).masked_fill_(&of(DType::Bool, &[2]), 200),
        "masked_fill_: 200 does not fit int8, which holds -128 to 127: take another dtype",
    );
    // to - 1 is out of bounds for unsigned char
    says(
        Tensor::randint(0, 300, &[2], DType::U8, Device::CPU, &random::Generator::default()),
        "randint: integers from 0 to below 300 do not fit uint8, which holds 0 to 255",
    );
    for probability in [-0.1, f64::NAN] {
        says(
            ones(&[2, 3]).attention(
                &ones(&[2, 3]),
                &ones(&[2, 3]),
                &Attention { dropout: probability, ..Attention::default() },
            ),
            &format!("attention: a probability is between 0 and 1, got {probability}"),
        );
    }
    // dropout probability has to be between 0 and 1, but got 1.5
    says(ones(&[2]).dropout(1.5, true), "dropout: a probability is between 0 and 1, got 1.5");
}

#[test]
fn dtypes() {
    // "check_uniform_bounds" not implemented for 'Long'
    says(
        Tensor::rand(&[2], DType::I64, Device::CPU, &random::Generator::default()),
        "rand: got int64, but a floating dtype is needed",
    );
    // Found dtype Long but expected Float
    says(
        ones(&[2]).binary_cross_entropy(&integers(&[0, 1]), None, LossReduction::Mean),
        "binary_cross_entropy: got int64, but a floating dtype is needed: convert first with to_dtype(DType::F32)",
    );
    // expected m1 and m2 to have the same dtype, but got: float != long int
    says(
        ones(&[2, 3]).matmul(&of(DType::I64, &[3, 2])),
        "matmul: got int64, but float32 as of the first operand is needed: convert one with to_dtype()",
    );
    // expected m1 and m2 to have the same dtype, but got: float != double
    says(
        ones(&[2, 3]).linear(&of(DType::F64, &[4, 3]), None),
        "linear: got float64, but float32 as of the first operand is needed: convert one with to_dtype()",
    );
    // expected scalar type Float but found BFloat16
    says(
        ones(&[1, 1, 3, 3]).conv(&of(DType::BF16, &[1, 1, 3, 3]), None, &Conv::default()),
        "conv: got bfloat16, but float32 as of the first operand is needed: convert one with to_dtype()",
    );
    // mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. Got: Long
    says(
        of(DType::I64, &[2]).mean_all(),
        "mean: got int64, but a floating dtype is needed: convert first with to_dtype(DType::F32)",
    );
    // "softmax_lastdim_kernel_impl" not implemented for 'Long'
    says(
        of(DType::I64, &[2]).softmax(0),
        "softmax: got int64, but a floating dtype is needed: convert first with to_dtype(DType::F32)",
    );
    // result type Float can't be cast to the desired output type Long
    says(
        of(DType::I64, &[2]).add_(&ones(&[2])),
        "add_: got int64, but the result is float32, which it cannot hold: use the operation that is not in place",
    );
    // "bitwise_and_cpu" not implemented for 'Float'
    says(
        ones(&[2]).bitwise_and(&ones(&[2])),
        "bitwise_and is not implemented for float32 on cpu: convert first, or register a kernel",
    );
    // masked_fill_ only supports boolean masks, but got mask with dtype float
    says(
        ones(&[2, 3]).masked_fill(&ones(&[2, 3]), 0.0),
        "masked_fill: got float32, but the condition must be bool: compare with ne(0)",
    );
    // where expected condition to be a boolean tensor, but got a tensor with dtype Float
    says(ones(&[2, 3]).where_(1.0, 2.0), "where_: got float32, but the condition must be bool: compare with ne(0)");
    // tensors used as indices must be long, int, byte or bool tensors
    says(
        ones(&[2, 3]).index((&ones(&[2]),)),
        "index: got float32, but an index is of integers: convert with to_dtype(DType::I64)",
    );
    // expected scalar type Long but found Double
    says(
        ones(&[2, 3]).cross_entropy(&of(DType::F64, &[2]), &CrossEntropy::default()),
        "cross_entropy: a target of float64 is one of probabilities and needs the sizes of the scores, [2, 3], \
         got [2]: convert classes with to_dtype(DType::I64)",
    );
    // only Tensors of floating point dtype can require gradients
    says(
        of(DType::I64, &[2]).requires_grad_(true),
        "only tensors of floating dtypes can require a gradient, got int64",
    );
    says(ones(&[2]).to_vec::<f64>(), "to_vec: got float32, but float64 is asked for: convert with to_dtype() first");
}

#[test]
fn devices() {
    // Tensor on device meta is not on the expected device cpu!
    says(
        ones(&[2]).add(&elsewhere(&[2])),
        "add: tensors are on cpu and on cuda:0: move one of them with to_device() first",
    );
    says(
        ones(&[2, 2]).matmul(&elsewhere(&[2, 2])),
        "matmul: tensors are on cpu and on cuda:0: move one of them with to_device() first",
    );
    says(
        ops::cat(&[&elsewhere(&[2]), &ones(&[2])], 0),
        "cat: tensors are on cuda:0 and on cpu: move one of them with to_device() first",
    );
    says(
        ones(&[2]).add_(&elsewhere(&[2])),
        "add_: tensors are on cpu and on cuda:0: move one of them with to_device() first",
    );
    says(
        ones(&[2, 2]).linear(&elsewhere(&[2, 2]), None),
        "linear: tensors are on cpu and on cuda:0: move one of them with to_device() first",
    );
}

#[test]
fn writes_in_place() {
    // one of the variables needed for gradient computation has been modified by an inplace operation:
    // [torch.FloatTensor [2, 3]], which is output 0 of ExpBackward0, is at version 1; expected version 0 instead.
    // Hint: enable anomaly detection to find the operation that failed to compute its gradient, with
    // torch.autograd.set_detect_anomaly(True, check_nan=False).
    says(
        {
            let y = leaf(&[2, 3]).exp().unwrap();
            y.add_(1.0).unwrap();
            y.sum_all().unwrap().backward()
        },
        "exp: a tensor that its gradient needs was modified in place by add_: float32 [2, 3], output 0 of exp, \
         is at version 1, expected 0. Use an operation that is not in place, or copy() the tensor before it is \
         changed",
    );
    // one of the variables needed for gradient computation has been modified by an inplace operation:
    // [torch.FloatTensor [2, 3]], which is output 0 of torch::autograd::CopySlices, is at version 1; expected version
    // 0 instead. Hint: enable anomaly detection to find the operation that failed to compute its gradient, with
    // torch.autograd.set_detect_anomaly(True, check_nan=False).
    says(
        {
            let y = leaf(&[2, 3]).neg().unwrap();
            let w = leaf(&[2, 3]);
            let z = y.mul(&w).unwrap();
            y.select(0, 1).unwrap().zero_().unwrap();
            z.sum_all().unwrap().backward()
        },
        "mul: a tensor that its gradient needs was modified in place by fill_: float32 [2, 3], which neg made, \
         is at version 1, expected 0. Use an operation that is not in place, or copy() the tensor before it is \
         changed",
    );
    says(
        {
            let w = leaf(&[2]);
            let z = w.mul(&w).unwrap();
            autograd::no_grad(|| w.sub_(0.5)).unwrap();
            z.sum_all().unwrap().backward()
        },
        "mul: a tensor that its gradient needs was modified in place by sub_: float32 [2] is at version 1, \
         expected 0. Use an operation that is not in place, or copy() the tensor before it is changed",
    );
    // a leaf Variable that requires grad is being used in an in-place operation.
    says(
        leaf(&[2]).add_(1.0),
        "add_: a leaf that requires a gradient, float32 [2], cannot be modified in place: do it inside no_grad(), or \
         to a copy",
    );
    // a view of a leaf Variable that requires grad is being used in an in-place operation.
    says(
        leaf(&[2]).select(0, 0).unwrap().fill_(1.0),
        "fill_: a view of a leaf that requires a gradient, float32 [2], cannot be modified in place: do it inside \
         no_grad(), or to a copy",
    );
    // unsupported operation: more than one element of the written-to tensor refers to a single memory location. Please
    // clone() the tensor before performing the operation.
    says(
        ones(&[1, 3]).expand(&[2, 3]).unwrap().add_(1.0),
        "add_: more than one element of the output of sizes [2, 3] is at one place; write to a copy \
         (contiguous() of an expanded tensor, or copy() of one that overlaps) instead",
    );
}

fn refusal(op: &str, sizes: &str) -> String {
    format!(
        "{op}: the memory of float32 {sizes} is read-only, since it belongs to an array of another library that must not \
         change: write to a copy of the tensor instead"
    )
}

#[test]
fn writes_to_read_only_memory() {
    let constant = constant(&[2, 3]);
    says(constant.add_(1.0), &refusal("add_", "[2, 3]"));
    says(constant.select(0, 1).unwrap().fill_(2.0), &refusal("fill_", "[3]"));
    says(constant.copy_(&ones(&[2, 3])), &refusal("copy", "[2, 3]"));
    says(constant.exp_(), &refusal("exp_", "[2, 3]"));
    // Reads and results are as usual, and copies can be written to.
    let copy = constant.copy().unwrap();
    copy.add_(&constant).unwrap();
    assert_eq!(copy.to_vec::<f32>().unwrap(), [2.0; 6]);
    assert_eq!(constant.to_vec::<f32>().unwrap(), [1.0; 6]);
    assert_eq!(constant.version(), 0);
}

#[test]
fn backward() {
    // Trying to backward through the graph a second time (or directly access saved tensors after they have already
    // been freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad().
    // Specify retain_graph=True if you need to backward through the graph a second time or if you need to access saved
    // tensors after calling backward.
    says(
        {
            let x = leaf(&[2]);
            let y = x.mul(&x).unwrap().sum_all().unwrap();
            y.backward().unwrap();
            y.backward()
        },
        "mul: backward goes through this graph a second time, but its saved tensors were freed after the first: pass \
         retain_graph=True to that one",
    );
    // grad can be implicitly created only for scalar outputs
    says(
        leaf(&[2]).mul(2.0).unwrap().backward(),
        "backward: a gradient can be left out for a tensor of one element only, got sizes [2]: reduce it with \
         sum_all() or mean_all(), or pass one to autograd::backward()",
    );
    // element 0 of tensors does not require grad and does not have a grad_fn
    says(
        ones(&[1]).backward(),
        "backward: output 0 does not require a gradient and has no grad_fn: nothing it was computed from requires one, \
         or it was computed inside no_grad()",
    );
    // element 1 of tensors does not require grad and does not have a grad_fn
    says(
        autograd::backward(&[&leaf(&[1]), &ones(&[1])], &[], autograd::BackwardOptions::default()),
        "backward: output 1 does not require a gradient and has no grad_fn: nothing it was computed from requires one, \
         or it was computed inside no_grad()",
    );
    // Mismatch in shape: grad_output[1] has a shape of torch.Size([3]) and output[1] has a shape of torch.Size([2]).
    says(
        autograd::backward(
            &[&leaf(&[2]), &leaf(&[2])],
            &[Some(&ones(&[2])), Some(&ones(&[3]))],
            autograd::BackwardOptions::default(),
        ),
        "backward: gradient 1 has sizes [3], expected [2]",
    );
    // assigned grad has data of a different size
    says(
        leaf(&[3]).set_grad(Some(ones(&[2, 3]))),
        "set_grad: a gradient of float32 [2, 3] on cpu was given for a tensor of float32 [3] on cpu",
    );
    // assigned grad has data of a different type
    says(
        leaf(&[3]).set_grad(Some(of(DType::F64, &[3]))),
        "set_grad: a gradient of float64 [3] on cpu was given for a tensor of float32 [3] on cpu",
    );
    // can't assign Variable as its own grad
    says(
        {
            let x = leaf(&[3]);
            x.set_grad(Some(x.clone()))
        },
        "set_grad: a tensor cannot be its own gradient",
    );
    // Mismatch in shape: grad_output[0] has a shape of torch.Size([3]) and output[0] has a shape of torch.Size([2]).
    says(
        autograd::backward(
            &[&leaf(&[2]).mul(2.0).unwrap()],
            &[Some(&ones(&[3]))],
            autograd::BackwardOptions::default(),
        ),
        "backward: gradient 0 has sizes [3], expected [2]",
    );
    // you can only change requires_grad flags of leaf variables. If you want to use a computed variable in a subgraph
    // that doesn't require differentiation use var_no_grad = var.detach().
    says(
        leaf(&[2]).mul(2.0).unwrap().requires_grad_(false),
        "requires_grad can be changed on leaves only: detach() first",
    );
    // One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True if this is
    // the desired behavior.
    says(
        autograd::grad(
            &[&leaf(&[2]).sum_all().unwrap()],
            &[&leaf(&[2])],
            &[None],
            autograd::BackwardOptions::default(),
        ),
        "grad: input 0 is not used by the outputs: allow_unused gives none for it",
    );
    // One of the differentiated Tensors does not require grad
    says(
        autograd::grad(
            &[&leaf(&[2]).sum_all().unwrap()],
            &[&ones(&[2])],
            &[None],
            autograd::BackwardOptions { allow_unused: true, ..autograd::BackwardOptions::default() },
        ),
        "grad: input 0 does not require a gradient: say requires_grad_(true) before the outputs are computed of it",
    );
}

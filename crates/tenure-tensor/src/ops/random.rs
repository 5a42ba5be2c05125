//! Random tensors. The conversion of random bits to numbers is described in [`crate::random`].

use super::entered;
use super::reduce::floating;
use super::view::signed;
use crate::autograd::{Context, attach, attach_in_place, recipe};
use crate::cpu::random::{self as kernels, Bernoulli, BernoulliEach, Dropout, Integers, Permutation, Reals};
use crate::operation::operations;
use crate::random::{DEFAULT, Generator, GeneratorState};
use crate::scalar::integers;
use crate::{DType, Device, Kernel, Result, Tensor, TensorError, cuda};

static UNIFORM: Kernel<Reals> = Kernel::new("uniform", &[kernels::UNIFORM, cuda::random::UNIFORM]);
static NORMAL: Kernel<Reals> = Kernel::new("normal", &[kernels::NORMAL, cuda::random::NORMAL]);
static INTEGERS: Kernel<Integers> = Kernel::new("randint", &[kernels::INTEGERS, cuda::random::INTEGERS]);
static BERNOULLI: Kernel<Bernoulli> = Kernel::new("bernoulli", &[kernels::BERNOULLI, cuda::random::BERNOULLI]);
static BERNOULLI_EACH: Kernel<BernoulliEach> =
    Kernel::new("bernoulli", &[kernels::BERNOULLI_EACH, cuda::random::BERNOULLI_EACH]);
static DROPOUT: Kernel<Dropout> = Kernel::new("dropout", &[kernels::DROPOUT, cuda::random::DROPOUT]);
static PERMUTATION: Kernel<Permutation> = Kernel::new("randperm", &[kernels::PERMUTATION, cuda::random::PERMUTATION]);

operations! {
    static OPERATIONS;
    Method for all {
        /// Returns uniformly distributed numbers as [`rand`](Self::rand) does, with the sizes, dtype and device of this
        /// tensor.
        ///
        /// # Errors
        /// The dtype is not floating; no memory.
        rand_like(input: Tensor, generator: Generator = &DEFAULT) -> Tensor;

        /// Returns normally distributed numbers as [`randn`](Self::randn) does, with the sizes, dtype and device of
        /// this tensor.
        ///
        /// # Errors
        /// The dtype is not floating; no memory.
        randn_like(input: Tensor, generator: Generator = &DEFAULT) -> Tensor;

        /// Draws 1 with the probability that the element of this tensor states, else 0. It has no gradient.
        ///
        /// # Errors
        /// The dtype is not floating; an element is no probability.
        bernoulli(input: Tensor, generator: Generator = &DEFAULT) -> Tensor;

        /// Replaces each element by 1 with the probability `p`, else by 0.
        ///
        /// # Errors
        /// `p` is no probability; the tensor requires a gradient, unless inside
        /// [`no_grad`](crate::autograd::no_grad).
        bernoulli_(input: Tensor, p: Float = 0.5, generator: Generator = &DEFAULT) -> ();

        /// Replaces all elements by uniformly distributed numbers from `from` up to but without `to`.
        ///
        /// # Errors
        /// The range is negative or not finite; the dtype is not floating; the tensor requires a gradient, unless
        /// inside [`no_grad`](crate::autograd::no_grad).
        uniform_(input: Tensor, from: Float = 0.0, to: Float = 1.0, generator: Generator = &DEFAULT) -> ();

        /// Replaces all elements by normally distributed numbers with this mean and standard deviation.
        ///
        /// # Errors
        /// A negative deviation; the dtype is not floating; the tensor requires a gradient, unless inside
        /// [`no_grad`](crate::autograd::no_grad).
        normal_(input: Tensor, mean: Float = 0.0, std: Float = 1.0, generator: Generator = &DEFAULT) -> ();

        /// If `train`, sets each element to 0 with the probability `p`, and divides the others by 1 - `p`; else returns
        /// the tensor itself. The numbers come from the device's
        /// [default generator](crate::random::default_generator).
        ///
        /// # Errors
        /// `p` is no probability; the dtype is not floating.
        dropout(input: Tensor, p: Float = 0.5, train: Bool = true) -> Tensor;
    }
    Function for all {
        /// Returns uniformly distributed numbers from 0 up to but without 1.
        ///
        /// # Errors
        /// The dtype is not floating; no memory.
        rand(size: Sizes, dtype: DType = DType::F32, device: Device = Device::CPU, generator: Generator = &DEFAULT) -> Tensor;

        /// Returns normally distributed numbers with mean 0 and standard deviation 1.
        ///
        /// # Errors
        /// The dtype is not floating; no memory.
        randn(size: Sizes, dtype: DType = DType::F32, device: Device = Device::CPU, generator: Generator = &DEFAULT) -> Tensor;

        /// Returns uniformly distributed integers from `low` up to but without `high`.
        ///
        /// # Errors
        /// The range is empty, or has integers that do not fit the dtype; no memory.
        randint(low: Int64, high: Int64, size: Sizes, dtype: DType = DType::I64, device: Device = Device::CPU, generator: Generator = &DEFAULT) -> Tensor;

        /// Returns the numbers from 0 up to but without `n` in a random order, as `int64`.
        ///
        /// # Errors
        /// No memory.
        randperm(n: Size, device: Device = Device::CPU, generator: Generator = &DEFAULT) -> Tensor;
    }
    Function for front_ends {
        /// Returns uniformly distributed integers from 0 up to but without `high`: [`Tensor::randint`].
        ///
        /// # Errors
        /// The errors of [`Tensor::randint`].
        #[name(randint)]
        randint_to(
            high: Int64,
            size: Sizes,
            dtype: DType = DType::I64,
            device: Device = Device::CPU,
            generator: Generator = &DEFAULT,
        ) -> Tensor = |high, size, dtype, device, generator: &Generator| Tensor::randint(0, high, size, dtype, device, generator);
    }
    Method for front_ends {
        /// Draws 1 with the probability `p`, else 0, for each element of a tensor of these sizes, dtype and device.
        ///
        /// # Errors
        /// `p` is no probability; no memory.
        #[name(bernoulli)]
        bernoulli_of(input: Tensor, p: Float, generator: Generator = &DEFAULT) -> Tensor;

        /// Replaces each element by 1 with the probability that `p`, broadcast, has at its place, else by 0.
        ///
        /// # Errors
        /// An element of `p` is no probability; sizes that do not broadcast; the tensor requires a gradient, unless
        /// inside [`no_grad`](crate::autograd::no_grad).
        #[name(bernoulli_)]
        bernoulli_each_(input: Tensor, p: Tensor, generator: Generator = &DEFAULT) -> () = |input: &Tensor, p: &Tensor, generator| {
            input.copy_(&p.expand(&signed(input.sizes()))?.bernoulli(generator)?)
        };
    }
}

fn rand(sizes: &[usize], dtype: DType, device: Device, generator: &Generator) -> Result<Tensor> {
    reals("rand", &UNIFORM, sizes, dtype, device, generator)
}

fn randn(sizes: &[usize], dtype: DType, device: Device, generator: &Generator) -> Result<Tensor> {
    reals("randn", &NORMAL, sizes, dtype, device, generator)
}

fn rand_like(input: &Tensor, generator: &Generator) -> Result<Tensor> {
    Tensor::rand(input.sizes(), input.dtype(), input.device(), generator)
}

fn randn_like(input: &Tensor, generator: &Generator) -> Result<Tensor> {
    Tensor::randn(input.sizes(), input.dtype(), input.device(), generator)
}

fn randint(
    low: i64,
    high: i64,
    sizes: &[usize],
    dtype: DType,
    device: Device,
    generator: &Generator,
) -> Result<Tensor> {
    if low >= high {
        let reason = format!("no integer is at least {low} and below {high}");
        return Err(TensorError::argument("randint", reason));
    }
    if let Some((min, max)) = integers(dtype)
        && !(min <= i128::from(low) && i128::from(high) <= max + 1)
    {
        let reason = format!("integers from {low} to below {high} do not fit {dtype}, which holds {min} to {max}");
        return Err(TensorError::argument("randint", reason));
    }
    let count = high.abs_diff(low);
    drawn(&INTEGERS, sizes, dtype, device, generator, |kernel, out, state| kernel(out, state, low, count))
}

fn randperm(count: usize, device: Device, generator: &Generator) -> Result<Tensor> {
    drawn(&PERMUTATION, &[count], DType::I64, device, generator, |kernel, out, state| kernel(out, state))
}

fn bernoulli(input: &Tensor, generator: &Generator) -> Result<Tensor> {
    let dense = input.detach().contiguous()?;
    drawn(&BERNOULLI_EACH, input.sizes(), input.dtype(), input.device(), generator, |kernel, out, state| {
        kernel(out, &dense, state)
    })
}

fn bernoulli_of(input: &Tensor, probability: f64, generator: &Generator) -> Result<Tensor> {
    let drawn = input.empty_like()?;
    drawn.bernoulli_(probability, generator)?;
    Ok(drawn)
}

fn bernoulli_(input: &Tensor, probability: f64, generator: &Generator) -> Result<()> {
    check_probability("bernoulli_", probability)?;
    input.redrawn("bernoulli_", &BERNOULLI, generator, |kernel, out, state| kernel(out, state, probability))
}

fn uniform_(input: &Tensor, low: f64, high: f64, generator: &Generator) -> Result<()> {
    if low > high || !(high - low).is_finite() {
        let reason = format!("a finite range is needed, got {low} to {high}");
        return Err(TensorError::argument("uniform_", reason));
    }
    floating("uniform_", input)?;
    input.redrawn("uniform_", &UNIFORM, generator, |kernel, out, state| kernel(out, state, low, high))
}

fn normal_(input: &Tensor, mean: f64, deviation: f64, generator: &Generator) -> Result<()> {
    if deviation.is_nan() || deviation < 0.0 {
        let reason = format!("a deviation is 0 or more, got {deviation}");
        return Err(TensorError::argument("normal_", reason));
    }
    floating("normal_", input)?;
    input.redrawn("normal_", &NORMAL, generator, |kernel, out, state| kernel(out, state, mean, deviation))
}

fn dropout(input: &Tensor, probability: f64, training: bool) -> Result<Tensor> {
    check_probability("dropout", probability)?;
    if !training || probability == 0.0 {
        return Ok(input.clone());
    }
    let state = Generator::default().reserve_for("dropout", input.device(), blocks(input.numel()))?;
    input.dropped(probability, state)
}

impl Tensor {
    /// Applies dropout by the random numbers from `state`. It saves no mask: the gradient draws the same numbers again.
    pub(super) fn dropped(&self, probability: f64, state: GeneratorState) -> Result<Self> {
        let _op = entered("dropout");
        let dense = self.contiguous()?;
        let out = Self::empty(self.sizes(), self.dtype(), self.device())?;
        DROPOUT.find(self.device().kind(), self.dtype())?(&out, &dense, state, probability)?;
        recipe::note(&out, "dropout", [&dense], [], || move |[x], []| x.dropped(probability, state));
        attach(out, "dropout", &[&dense], |_| {
            Ok(move |context: &Context<'_>| {
                Ok([Some(context.grad(0)?.dropped(probability, state)?)].into_iter().collect())
            })
        })
    }

    /// Replaces all elements. They are drawn in the order of dimensions, independent of the layout.
    fn redrawn<F: Copy>(
        &self,
        op: &'static str,
        kernel: &'static Kernel<F>,
        generator: &Generator,
        draw: impl FnOnce(F, &Self, GeneratorState) -> Result<()>,
    ) -> Result<()> {
        let _op = entered(op);
        let kernel = kernel.find(self.device().kind(), self.dtype())?;
        attach_in_place(
            self,
            op,
            &[self],
            || {
                let state = generator.reserve_for(op, self.device(), blocks(self.numel()))?;
                if self.is_contiguous() {
                    return draw(kernel, self, state);
                }
                let fresh = Self::empty(self.sizes(), self.dtype(), self.device())?;
                draw(kernel, &fresh, state)?;
                self.copy_raw(&fresh)
            },
            |_| Ok(|context: &Context<'_>| Ok([context.zeros(0)?].into_iter().collect())),
        )
    }
}

fn reals(
    op: &'static str,
    kernel: &'static Kernel<Reals>,
    sizes: &[usize],
    dtype: DType,
    device: Device,
    generator: &Generator,
) -> Result<Tensor> {
    if !dtype.is_floating() {
        let expected = "a floating dtype is needed".to_owned();
        return Err(TensorError::DType { op, found: dtype, expected });
    }
    drawn(kernel, sizes, dtype, device, generator, |kernel, out, state| kernel(out, state, 0.0, 1.0))
}

fn drawn<F: Copy>(
    kernel: &'static Kernel<F>,
    sizes: &[usize],
    dtype: DType,
    device: Device,
    generator: &Generator,
    draw: impl FnOnce(F, &Tensor, GeneratorState) -> Result<()>,
) -> Result<Tensor> {
    let name = kernel.name();
    let _op = entered(name);
    let out = Tensor::empty(sizes, dtype, device)?;
    let kernel = kernel.find(device.kind(), dtype)?;
    draw(kernel, &out, generator.reserve_for(name, device, blocks(out.numel()))?)?;
    Ok(out)
}

/// Returns a number of blocks that suffices for `count` numbers of any kind.
pub(super) fn blocks(count: usize) -> u64 {
    count.div_ceil(2) as u64
}

pub(super) fn check_probability(op: &'static str, probability: f64) -> Result<()> {
    if (0.0..=1.0).contains(&probability) {
        return Ok(());
    }
    Err(TensorError::argument(op, format!("a probability is between 0 and 1, got {probability}")))
}

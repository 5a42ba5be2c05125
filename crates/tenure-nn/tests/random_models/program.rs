//! Random models: programs of a few registers, whose values are freed as soon as they are overwritten.

use std::mem;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use proptest::prelude::*;
use tenure_nn::train::{Score, Task};
use tenure_nn::{Module, Parameter, module};
use tenure_tensor::autocast::Autocast;
use tenure_tensor::autograd::{self, BackwardOptions, no_grad};
use tenure_tensor::ops::{Attention, Conv, cat};
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Device, Result, Tensor, TensorError};

const REGISTERS: usize = 3;
/// The number of columns of most operations' inputs, and the sides of an image of so many pixels.
pub(crate) const WIDTH: usize = 32;
const SIDES: [isize; 2] = [4, 8];

/// An operation on registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instruction {
    pub(crate) operation: Operation,
    pub(crate) a: usize,
    pub(crate) b: usize,
    pub(crate) to: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Add,
    Sub,
    Mul,
    Tanh,
    Relu,
    Gelu,
    Exp,
    Softmax,
    Linear {
        is_second: bool,
        has_bias: bool,
    },
    Products,
    LayerNorm,
    RmsNorm,
    Dropout,
    Conv,
    Attention,
    Cat,
    /// In half precision.
    Lower,
    Transpose,
    Flat,
    Part {
        is_last: bool,
    },
    Expand,
    AddInPlace,
    MulInPlace,
    TanhInPlace,
    CopyInPlace,
    FillPart,
    Checkpoint,
    Detach,
    Unrecorded,
    /// Keeps a tensor beyond the step.
    Keep,
    /// Adds the norm of a gradient to the loss.
    Penalty {
        is_second: bool,
    },
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let linear = (any::<bool>(), any::<bool>()).prop_map(|(is_second, has_bias)| Linear { is_second, has_bias });
    prop_oneof![
        4 => prop::sample::select(vec![Add, Sub, Mul, Mul]),
        6 => prop::sample::select(vec![Tanh, Relu, Gelu, Exp, Softmax]),
        6 => linear,
        6 => prop::sample::select(vec![Products, LayerNorm, RmsNorm, Dropout, Conv, Attention, Cat, Lower]),
        4 => prop::sample::select(vec![Transpose, Flat, Expand]),
        1 => any::<bool>().prop_map(|is_last| Part { is_last }),
        2 => prop::sample::select(vec![AddInPlace, MulInPlace, TanhInPlace, CopyInPlace, FillPart]),
        3 => prop::sample::select(vec![Checkpoint, Detach, Unrecorded, Keep]),
        1 => any::<bool>().prop_map(|is_second| Penalty { is_second }),
    ]
}

/// Draws a program with so many operations.
pub(crate) fn program(lengths: Range<usize>) -> impl Strategy<Value = Vec<Instruction>> {
    let register = || 0..REGISTERS;
    let instruction = (operation(), register(), register(), register());
    let instruction = instruction.prop_map(|(operation, a, b, to)| Instruction { operation, a, b, to });
    prop::collection::vec(instruction, lengths)
}

/// The parameters and buffers that programs share.
pub(crate) struct Model {
    first: Parameter,
    second: Parameter,
    bias: Parameter,
    scale: Parameter,
    filter: Parameter,
}

module!(Model { first, second, bias, scale, filter });

impl Model {
    fn new(device: Device) -> Self {
        let generator = Generator::new(7);
        let parameter = |name: &str, sizes: &[usize]| {
            let values = Tensor::randn(sizes, DType::F32, device, &generator).unwrap().mul(0.2).unwrap();
            Parameter::new(name, values).unwrap()
        };
        Self {
            first: parameter("first", &[WIDTH, WIDTH]),
            second: parameter("second", &[WIDTH, WIDTH]),
            bias: parameter("bias", &[WIDTH]),
            scale: parameter("scale", &[WIDTH]),
            filter: parameter("filter", &[4, 1, 3, 3]),
        }
    }

    fn weight(&self, is_second: bool) -> &Parameter {
        if is_second { &self.second } else { &self.first }
    }
}

/// A program, and its model.
pub(crate) struct Program {
    model: Model,
    instructions: Vec<Instruction>,
    /// The number of rows of the model for each row of a batch.
    rows: usize,
    /// The step from which on the first operation is left out, which makes it another model.
    changes_at: usize,
    steps: AtomicUsize,
    kept: Mutex<Vec<Tensor>>,
}

impl Program {
    pub(crate) fn new(device: Device, instructions: Vec<Instruction>, rows: usize, changes_at: usize) -> Self {
        let model = Model::new(device);
        Self { model, instructions, rows, changes_at, steps: AtomicUsize::new(0), kept: Mutex::default() }
    }

    /// Returns the tensors that outlive the step, for comparison.
    pub(crate) fn kept(&self) -> Vec<Tensor> {
        self.kept.lock().clone()
    }

    fn run(&self, input: &Tensor) -> Result<Tensor> {
        let mut state = State { model: &self.model, losses: Vec::new(), kept: Vec::new(), rows: input.sizes()[0] };
        self.kept.lock().clear();
        let mut registers = vec![input.clone(); REGISTERS];
        let left_out = usize::from(self.steps.fetch_add(1, Ordering::Relaxed) >= self.changes_at);
        for instruction in &self.instructions[left_out..] {
            let Instruction { operation, a, b, to } = *instruction;
            match state.take(operation, &registers[a], &registers[b]) {
                Ok(Some(made)) => registers[to] = made,
                // An operation that refuses its inputs' sizes is left out.
                Ok(None)
                | Err(TensorError::Argument { .. } | TensorError::Shape { .. } | TensorError::Overlap { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let mut loss = self.model.bias.square()?.mean_all()?;
        for register in registers {
            state.losses.push(register.tanh()?.mean_all()?);
        }
        for part in mem::take(&mut state.losses) {
            loss = loss.add(&part)?;
        }
        *self.kept.lock() = state.kept;
        Ok(loss)
    }
}

/// The state of a run beside the registers.
struct State<'a> {
    model: &'a Model,
    losses: Vec<Tensor>,
    kept: Vec<Tensor>,
    rows: usize,
}

impl State<'_> {
    fn take(&mut self, operation: Operation, a: &Tensor, b: &Tensor) -> Result<Option<Tensor>> {
        let Model { bias, scale, filter, .. } = self.model;
        let rows = self.rows;
        Ok(Some(match operation {
            Operation::Add => self.table(a)?.add(&self.table(b)?)?,
            Operation::Sub => self.table(a)?.sub(&self.table(b)?)?,
            Operation::Mul => self.table(a)?.mul(&self.table(b)?)?,
            Operation::Tanh => a.tanh()?,
            Operation::Relu => a.relu()?,
            Operation::Gelu => a.gelu()?,
            Operation::Exp => a.tanh()?.exp()?,
            Operation::Softmax => a.softmax(-1)?,
            Operation::Linear { is_second, has_bias } => {
                let bias: Option<&Tensor> = if has_bias { Some(bias) } else { None };
                self.table(a)?.linear(self.model.weight(is_second), bias)?
            }
            Operation::Products => {
                let a = self.table(a)?;
                a.matmul(&a.transpose(0, 1)?.matmul(&self.table(b)?)?.tanh()?)?
            }
            Operation::LayerNorm => self.table(a)?.layer_norm(&[WIDTH], Some(scale), Some(bias), 1e-5)?,
            Operation::RmsNorm => self.table(a)?.rms_norm(&[WIDTH], Some(scale), 1e-5)?,
            Operation::Dropout => a.dropout(0.3, true)?,
            Operation::Conv => {
                let image = self.table(a)?.reshape(&[-1, 1, SIDES[0], SIDES[1]])?;
                let how = Conv { padding: &[1, 1], ..Conv::default() };
                image.conv(filter, None, &how)?.mean(&[1], false)?.reshape(&[-1, WIDTH as isize])?
            }
            Operation::Attention => {
                let heads = |tensor: &Tensor| self.table(tensor)?.reshape(&[-1, 4, 4, 8])?.transpose(1, 2);
                let queries = heads(a)?;
                let keys = heads(b)?;
                let how = Attention { is_causal: true, dropout: 0.1, ..Attention::default() };
                queries.attention(&keys, &keys, &how)?.transpose(1, 2)?
            }
            Operation::Cat => cat(&[&self.table(a)?, &self.table(b)?], 0)?.narrow(0, rows / 2, rows)?,
            Operation::Lower => {
                let _autocast = Autocast::enter(DType::BF16);
                self.table(a)?.linear(&self.model.first, None)?.to_dtype(DType::F32)?
            }
            Operation::Transpose => a.transpose(0, -1)?,
            Operation::Flat => a.view(&[-1])?,
            Operation::Part { is_last } => a.narrow(0, usize::from(is_last), a.sizes()[0] - 1)?,
            Operation::Expand => a.narrow(0, 0, 1)?.expand_as(a)?,
            Operation::AddInPlace => return a.add_(&self.table(b)?).map(|()| None),
            Operation::MulInPlace => return a.mul_(&self.table(b)?).map(|()| None),
            Operation::TanhInPlace => return a.tanh_().map(|()| None),
            Operation::CopyInPlace => return a.copy_(&self.table(b)?).map(|()| None),
            Operation::FillPart => return a.narrow(0, 0, 1)?.fill_(0.5).map(|()| None),
            Operation::Checkpoint => {
                let (weight, norm): (Tensor, Tensor) = ((*self.model.first).clone(), (**scale).clone());
                let inputs = [&self.table(a)?, &self.table(b)?];
                autograd::checkpoint(&inputs, move |x| {
                    let hidden = x[0].linear(&weight, None)?.gelu()?.dropout(0.2, true)?;
                    Ok(vec![hidden.rms_norm(&[WIDTH], Some(&norm), 1e-5)?.mul(&x[1])?])
                })?
                .remove(0)
            }
            Operation::Detach => a.detach(),
            Operation::Unrecorded => no_grad(|| a.tanh())?,
            Operation::Keep => {
                self.kept.push(a.detach());
                return Ok(None);
            }
            Operation::Penalty { is_second } => {
                if a.requires_grad() {
                    let options =
                        BackwardOptions { create_graph: true, allow_unused: true, ..BackwardOptions::default() };
                    let weight: &Tensor = self.model.weight(is_second);
                    let found = autograd::grad(&[&a.tanh()?.sum_all()?], &[weight], &[], options)?.remove(0);
                    self.losses.extend(found.map(|grad| grad.tanh()?.square()?.mean_all()).transpose()?);
                }
                return Ok(None);
            }
        }))
    }

    /// Returns a tensor with as many rows as the input: a view of it if possible.
    fn table(&self, tensor: &Tensor) -> Result<Tensor> {
        let sizes = [self.rows as isize, WIDTH as isize];
        match tensor.sizes() {
            [rows, WIDTH] if *rows == self.rows => Ok(tensor.clone()),
            [WIDTH, rows] if *rows == self.rows => tensor.transpose(0, 1),
            _ if tensor.numel() == self.rows * WIDTH => tensor.reshape(&sizes),
            _ => tensor.mean_all()?.expand(&sizes),
        }
    }
}

impl Task for Program {
    type Batch = (Tensor, Tensor);

    fn examples(&self, (input, _): &Self::Batch) -> usize {
        input.sizes()[0]
    }

    fn model(&self) -> &dyn Module {
        &self.model
    }

    fn model_mut(&mut self) -> &mut dyn Module {
        &mut self.model
    }

    fn loss(&self, (input, _): &Self::Batch) -> tenure_nn::Result<Tensor> {
        let rows = input.to_dtype(DType::F32)?.mul(1.0 / 30.0)?.sub(1)?;
        Ok(self.run(&rows.repeat(&[self.rows, 1])?)?)
    }

    fn score(&self, _: &Self::Batch) -> tenure_nn::Result<Score> {
        Ok(Score::default())
    }
}

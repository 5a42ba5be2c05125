//! Tests of observers: they see each call with arguments that compute the same result again.

use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use tenure_tensor::observe::{self, Observer};
use tenure_tensor::operation::{Argument, Operation, Output};
use tenure_tensor::ops::{BatchNormParameters, CrossEntropy, ELLIPSIS, LossReduction, PadMode, cat, stack};
use tenure_tensor::{Attention, Conv, DType, Device, Pool, Tensor, TensorError, einsum};

/// Writes down what one thread calls.
struct Log {
    thread: ThreadId,
    lines: Mutex<Vec<String>>,
    /// The results of the same calls through the table, which have not been compared yet.
    again: Mutex<Vec<Result<Output, TensorError>>>,
}

impl Log {
    fn new() -> Arc<Self> {
        Arc::new(Self { thread: thread::current().id(), lines: Mutex::default(), again: Mutex::default() })
    }

    fn add(&self, line: String) {
        self.lines.lock().unwrap().push(line);
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}

impl Observer for Log {
    fn begin(&self, operation: &'static Operation, arguments: &[Argument<'_>]) {
        if thread::current().id() == self.thread {
            self.add(operation.own_name.to_owned());
            assert_eq!(arguments.len(), operation.parameters.len());
            self.again.lock().unwrap().push((operation.call)(arguments));
        }
    }

    fn end(&self, operation: &'static Operation, result: Option<Result<&Output, &TensorError>>) {
        if thread::current().id() != self.thread {
            return;
        }
        let name = operation.own_name;
        let again = self.again.lock().unwrap().pop().unwrap();
        match (result, again) {
            (Some(Ok(output)), Ok(again)) => {
                let [output, again] = [output, &again].map(tensors);
                assert_eq!(output.len(), again.len(), "{name}");
                // New elements of `empty` have any values.
                let is_defined = !name.starts_with("empty");
                for (one, other) in output.iter().zip(&again) {
                    assert_eq!((one.sizes(), one.dtype()), (other.sizes(), other.dtype()), "{name}");
                    assert!(!is_defined || one.equal(other).unwrap(), "{name} gives {one} and {other}");
                }
                self.add(format!("/{name}"));
            }
            (Some(Err(error)), Err(again)) => {
                assert_eq!(error.to_string(), again.to_string());
                self.add(format!("/{name}: {error}"));
            }
            (None, _) => self.add(format!("/{name}: no result")),
            (result, again) => panic!("{name} gives {result:?} and {again:?}"),
        }
    }
}

fn tensors(output: &Output) -> Vec<Tensor> {
    match output {
        Output::Tensor(tensor) => vec![tensor.clone()],
        Output::Tensors(tensors) => tensors.to_vec(),
        Output::InPlace | Output::Bool(_) => Vec::new(),
    }
}

/// Returns numbers of both signs, the same ones for the same sizes.
fn filled(sizes: &[usize]) -> Tensor {
    let count = sizes.iter().product::<usize>();
    let numbers: Vec<f32> = (0..count).map(|number| (number * 7 % 11) as f32 - 5.0).collect();
    Tensor::from_slice(&numbers, sizes).unwrap()
}

#[test]
fn the_arguments_that_observers_see_compute_the_same_through_the_table() {
    let log = Log::new();
    let observing = observe::start(log.clone());
    let run = || -> Result<(), TensorError> {
        let image = filled(&[3, 6, 6]);
        let images = image.unsqueeze(0)?;
        let weight = filled(&[4, 3, 3, 3]);
        let bias = filled(&[4]);
        let how = Conv { stride: &[2], padding: &[1, 0], ..Conv::default() };
        image.conv(&weight, Some(&bias), &how)?;
        images.conv_transpose(&filled(&[3, 2, 3, 3]), None, &how, &[1])?;
        images.max_pool(&Pool { kernel: &[2, 3], ceil: true, ..Pool::default() })?;
        images.avg_pool(&Pool { kernel: &[2, 2], padding: &[1], ..Pool::default() }, false)?;
        images.pad(&[1, 2, 0, -1], PadMode::Constant(2.into()))?;
        images.pad(&[1, 2], PadMode::Reflect)?;
        let mean = filled(&[3]);
        let variance = filled(&[3]).abs()?;
        images.batch_norm(Some((&mean, &variance)), Some(&mean), None, false, 0.1, 1e-3)?;
        let norm = BatchNormParameters {
            running: Some((&mean, &variance)),
            weight: None,
            bias: Some(&mean),
            training: false,
            momentum: 0.1,
            eps: 1e-3,
        };
        images.batch_norm_relu(Some(&images), &norm)?;
        let queries = filled(&[1, 4, 5, 8]);
        let keys = filled(&[1, 2, 5, 8]);
        queries.attention(&keys, &keys, &Attention { is_causal: true, ..Attention::default() })?;
        let classes = Tensor::from_slice(&[1_i64, 0], &[2])?;
        filled(&[2, 3]).cross_entropy(&classes, &CrossEntropy { label_smoothing: 0.1, ..CrossEntropy::default() })?;
        let matrix = filled(&[2, 3]);
        matrix.gt(0.0)?.where_(&matrix, -1)?;
        matrix.index((ELLIPSIS, 1..))?.index((-1, &classes))?;
        matrix.index((.., &classes))?;
        matrix.index(matrix.gt(0.0)?)?;
        cat(&[&matrix, &stack(&[&matrix, &matrix], 0)?.select(0, 1)?], 1)?;
        einsum("ij,kj->ik", &[&matrix, &matrix])?.var(&[0], 1.0, true)?;
        matrix.to_dtype(DType::F64)?.clamp(-1.0, &Tensor::full(&[], 2.5, DType::F64, Device::CPU)?)?;
        matrix.mul(2)?.pow(2)?.split(2, 1)?;
        Ok(())
    };
    run().unwrap();
    drop(observing);
    filled(&[2]).exp().unwrap();
    let seen = log.lines();
    for name in [
        "conv2d",
        "conv_transpose2d",
        "max_pool2d",
        "avg_pool2d",
        "pad",
        "batch_norm",
        "batch_norm_relu",
        "scaled_dot_product_attention",
        "cross_entropy",
        "where_",
        "slice",
        "select",
        "index",
        "cat",
        "stack",
        "einsum",
        "var",
        "to_dtype",
        "clamp",
        "mul",
        "pow",
        "split",
    ] {
        assert!(seen.iter().any(|line| line == name), "{name} was not seen");
        assert!(seen.iter().any(|line| *line == format!("/{name}")), "{name} did not end");
    }
    assert!(!seen.iter().any(|line| line == "exp"));
}

#[test]
fn operations_within_an_operation_are_seen_between_its_begin_and_its_end() {
    let log = Log::new();
    let observing = observe::start(log.clone());
    let target = filled(&[2]);
    let probabilities = target.sigmoid().unwrap();
    probabilities.kl_div(&probabilities, true, LossReduction::Sum).unwrap();
    drop(observing);
    let lines = log.lines();
    let at = |line: &str| lines.iter().position(|other| other == line).unwrap();
    assert!(at("kl_div") < at("exp") && at("/exp") < at("/kl_div"), "{lines:?}");
}

#[test]
fn an_error_ends_a_call_too() {
    let log = Log::new();
    let x = filled(&[2, 3]);
    let observing = observe::start(log.clone());
    x.matmul(&x).unwrap_err();
    drop(observing);
    let lines = log.lines();
    assert_eq!(lines[0], "matmul");
    assert!(lines[1].starts_with("/matmul: "), "{lines:?}");
}

#[test]
fn reads_of_elements_are_seen_but_not_those_of_operations() {
    #[derive(Default)]
    struct Reads(Mutex<Vec<(ThreadId, usize)>>);

    impl Observer for Reads {
        fn begin(&self, _: &'static Operation, _: &[Argument<'_>]) {}

        fn read(&self, tensor: &Tensor) {
            self.0.lock().unwrap().push((thread::current().id(), tensor.id()));
        }
    }

    let reads = Arc::new(Reads::default());
    let x = filled(&[1]);
    let observing = observe::start(reads.clone());
    let y = x.exp().unwrap();
    y.item::<f32>().unwrap();
    drop(observing);
    x.item::<f32>().unwrap();
    let this = thread::current().id();
    let seen: Vec<usize> =
        reads.0.lock().unwrap().iter().filter(|(thread, _)| *thread == this).map(|(_, id)| *id).collect();
    assert_eq!(seen, [y.id()]);
}

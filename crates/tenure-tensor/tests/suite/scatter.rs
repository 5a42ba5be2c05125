//! Tests of writes by index: in order, checked before, and the same for any number of threads.

use half::bf16;
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Device, Tensor, TensorError, threads};

const CPU: Device = Device::CPU;

fn index(places: &[i64]) -> Tensor {
    Tensor::from_slice(places, &[places.len()]).unwrap()
}

#[test]
fn the_last_of_two_writes_stays() {
    let zeros = Tensor::zeros(&[3], DType::I32, CPU).unwrap();
    let values = Tensor::from_slice(&[1_i32, 2, 3], &[3]).unwrap();
    let places = index(&[1, 0, 1]);
    assert_eq!(zeros.index_copy(0, &places, &values).unwrap().to_vec::<i32>().unwrap(), [2, 3, 0]);
    assert_eq!(zeros.scatter(0, &places, &values).unwrap().to_vec::<i32>().unwrap(), [2, 3, 0]);
}

#[test]
fn gradients_of_a_table_are_the_same_bits_for_any_number_of_threads() {
    let generator = Generator::new(3);
    let table = Tensor::randn(&[50, 96], DType::F32, CPU, &generator).unwrap().requires_grad_(true).unwrap();
    let rows = Tensor::randint(0, 50, &[20, 300], DType::I64, CPU, &generator).unwrap();
    let weights = Tensor::randn(&[20, 300, 96], DType::F32, CPU, &generator).unwrap();
    let grad = |count| {
        threads::set_threads(count).unwrap();
        table.set_grad(None).unwrap();
        table.embedding(&rows).unwrap().mul(&weights).unwrap().sum_all().unwrap().backward().unwrap();
        table.grad().unwrap().to_vec::<f32>().unwrap()
    };
    let one = grad(1);
    let three = grad(3);
    assert_eq!(one, three);

    let mut expected = vec![0.0_f64; 50 * 96];
    let rows = rows.to_vec::<i64>().unwrap();
    let weights = weights.to_vec::<f32>().unwrap();
    for (row, weights) in rows.iter().zip(weights.chunks(96)) {
        let line = &mut expected[*row as usize * 96..][..96];
        line.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += f64::from(*weight));
    }
    assert!(one.iter().zip(&expected).all(|(found, expected)| (f64::from(*found) - expected).abs() < 1e-4));
}

#[test]
fn many_small_additions_to_a_short_float_are_not_lost() {
    // In bf16, 256 + 1 is 256.
    let one = Tensor::ones(&[1000], DType::BF16, CPU).unwrap();
    let places = index(&[0; 1000]);
    let sum = Tensor::zeros(&[1], DType::BF16, CPU).unwrap().index_add(0, &places, &one).unwrap();
    assert_eq!(sum.to_vec::<bf16>().unwrap(), [bf16::from_f32(1000.0)]);
}

#[test]
fn long_writes_are_those_of_one_after_the_other() {
    let generator = Generator::new(4);
    let places = Tensor::randint(0, 7000, &[60_000], DType::I64, CPU, &generator).unwrap();
    let values = Tensor::randint(-9, 9, &[60_000], DType::I32, CPU, &generator).unwrap();
    let zeros = Tensor::zeros(&[7000], DType::I32, CPU).unwrap();
    let mut sums = vec![0; 7000];
    let mut last = vec![0; 7000];
    for (place, value) in places.to_vec::<i64>().unwrap().iter().zip(values.to_vec::<i32>().unwrap()) {
        sums[*place as usize] += value;
        last[*place as usize] = value;
    }
    assert_eq!(zeros.index_add(0, &places, &values).unwrap().to_vec::<i32>().unwrap(), sums);
    assert_eq!(zeros.scatter_add(0, &places, &values).unwrap().to_vec::<i32>().unwrap(), sums);
    assert_eq!(zeros.index_copy(0, &places, &values).unwrap().to_vec::<i32>().unwrap(), last);
}

#[test]
fn an_index_that_is_not_there_changes_nothing() {
    let target = Tensor::zeros(&[2, 3], DType::F32, CPU).unwrap();
    let ones = Tensor::ones(&[2, 3], DType::F32, CPU).unwrap();
    let error = target.index_add_(0, &index(&[0, 2]), &ones).unwrap_err();
    assert_eq!(error.to_string(), "index_add_: index 2 is out of range for dimension 0 of size 2");
    let wrong = Tensor::from_slice(&[0_i64, 1, 2, 0, 3, 0], &[2, 3]).unwrap();
    let error = target.scatter_(1, &wrong, &ones).unwrap_err();
    assert_eq!(error.to_string(), "scatter_: index 3 is out of range for dimension 1 of size 3");
    assert_eq!(target.to_vec::<f32>().unwrap(), [0.0; 6]);
    assert_eq!(target.version(), 0);
}

fn said(found: Result<Tensor, TensorError>) -> String {
    found.unwrap_err().to_string()
}

#[test]
fn errors_say_what_was_given_and_what_to_do() {
    let x = Tensor::zeros(&[2, 3], DType::F32, CPU).unwrap();
    assert_eq!(said(x.embedding(&index(&[0, 5]))), "embedding: index 5 is out of range for dimension 0 of size 2");
    assert_eq!(said(x.index((index(&[-3]), 0))), "index: index -3 is out of range for dimension 0 of size 2");
    assert_eq!(
        said(x.gather(0, &x)),
        "gather: got float32, but an index is of integers: convert with to_dtype(DType::I64)"
    );
    assert_eq!(
        said(x.index((0, 0, 0))),
        "index: too many indices for tensor of dimension 2: they are for 3 dimensions"
    );
    assert_eq!(
        said(x.index_add(1, &index(&[0]), &x)),
        "index_add: 1 indices along dimension 1 of sizes [2, 3] need a source of sizes [2, 1], got [2, 3]"
    );
    assert_eq!(said(x.view(&[4, -1])), "view: sizes [4, -1] do not hold the 6 elements of sizes [2, 3]");
    assert_eq!(
        said(x.select(2, 0)),
        "select: dimension 2 is out of range for a tensor of 2 dimensions: expected -2 to 1"
    );
    let whole = x.expand(&[4, 2, 3]).unwrap();
    assert!(whole.index_fill(1, &index(&[0]), 1).is_ok());
    assert!(whole.scatter_(0, &Tensor::zeros(&[1, 2, 3], DType::I64, CPU).unwrap(), 1).is_err());
}

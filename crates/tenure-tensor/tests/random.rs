//! Tests of random tensors: their statistics, and that they can be drawn again.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use tenure_tensor::random::{Generator, GeneratorState};
use tenure_tensor::{DType, Device, Tensor, autograd, random, threads};

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// Returns the largest distance between the distribution of `samples` and `expected` (Kolmogorov and Smirnov), times
/// √n. It is below 1.95 in 999 of 1000 cases.
fn distance(mut samples: Vec<f64>, expected: impl Fn(f64) -> f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let n = samples.len() as f64;
    samples
        .iter()
        .enumerate()
        .map(|(index, sample)| {
            let expected = expected(*sample);
            (expected - index as f64 / n).abs().max(((index + 1) as f64 / n - expected).abs())
        })
        .fold(0.0, f64::max)
        * n.sqrt()
}

fn density(x: f64) -> f64 {
    (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt()
}

/// Returns the normal distribution function, by Simpson's rule.
fn normal_below(x: f64) -> f64 {
    let steps = 64;
    let width = x / 64.0;
    let sum = (0..=steps).map(|i| match i {
        0 | 64 => density(f64::from(i) * width),
        i if i % 2 == 1 => 4.0 * density(f64::from(i) * width),
        i => 2.0 * density(f64::from(i) * width),
    });
    0.5 + sum.sum::<f64>() * width / 3.0
}

#[test]
fn rand_is_uniform_and_below_one() {
    for (seed, dtype) in FLOATS.into_iter().enumerate() {
        let drawn = values(&Tensor::rand(&[50_000], dtype, Device::CPU, &Generator::new(seed as u64)).unwrap());
        assert!(drawn.iter().all(|value| (0.0..1.0).contains(value)), "{dtype}");
        // The numbers of the short dtypes are a grid: its width counts as distance.
        let digits = [(DType::F16, 11), (DType::BF16, 8)].into_iter().find(|(short, _)| *short == dtype);
        let width = digits.map_or(0.0, |(_, digits)| (0.5_f64).powi(digits));
        let found = distance(drawn, |x| x + width / 2.0);
        assert!(found < 1.95 + width * 50_000_f64.sqrt(), "{dtype}: {found}");
    }
}

#[test]
fn randn_is_normal() {
    for (seed, dtype) in [DType::F32, DType::F64].into_iter().enumerate() {
        let drawn = values(&Tensor::randn(&[50_000], dtype, Device::CPU, &Generator::new(seed as u64)).unwrap());
        assert!(distance(drawn, normal_below) < 1.95, "{dtype}");
    }
    for dtype in FLOATS {
        let drawn = values(&Tensor::randn(&[99_999], dtype, Device::CPU, &Generator::new(5)).unwrap());
        let moment = |k: i32| drawn.iter().map(|x| x.powi(k)).sum::<f64>() / drawn.len() as f64;
        assert!(moment(1).abs() < 0.012 && (moment(2) - 1.0).abs() < 0.02, "{dtype}");
        assert!(moment(3).abs() < 0.04 && (moment(4) - 3.0).abs() < 0.13, "{dtype}");
    }
}

#[test]
fn neighbours_do_not_depend_on_each_other() {
    let drawn = values(&Tensor::randn(&[100_001], DType::F32, Device::CPU, &Generator::new(9)).unwrap());
    for lag in 1..=8 {
        let products = drawn.iter().zip(&drawn[lag..]).map(|(a, b)| a * b);
        assert!((products.sum::<f64>() / 100_000.0).abs() < 0.013, "lag {lag}");
    }
}

#[test]
fn the_mapping_is_what_is_documented() {
    let state = GeneratorState::new(3, 0);
    let words = state.block(1);
    let generator = Generator::new(3);
    let f32s = Tensor::rand(&[8], DType::F32, Device::CPU, &generator).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(f32s[4..], words.map(|word| (word >> 8) as f32 / 16_777_216.0));
    generator.set_state(state);
    let f64s = Tensor::rand(&[4], DType::F64, Device::CPU, &generator).unwrap().to_vec::<f64>().unwrap();
    let high = u64::from(words[3]) << 32 | u64::from(words[2]);
    assert_eq!(f64s[3], (high >> 11) as f64 / (1_u64 << 53) as f64);
    generator.set_state(state);
    let normals = Tensor::randn(&[8], DType::F32, Device::CPU, &generator).unwrap().to_vec::<f32>().unwrap();
    let [u, v] = [words[2], words[3]].map(|word| (f64::from(word) + 0.5) / (1_u64 << 32) as f64);
    let radius = (-2.0 * u.ln()).sqrt();
    assert!((f64::from(normals[6]) - radius * (std::f64::consts::TAU * v).cos()).abs() < 1e-5);
    assert!((f64::from(normals[7]) - radius * (std::f64::consts::TAU * v).sin()).abs() < 1e-5);
}

#[test]
fn integers_are_in_their_range_and_as_likely() {
    let generator = Generator::new(11);
    for dtype in [DType::I64, DType::I8, DType::F32] {
        let drawn = values(&Tensor::randint(-3, 5, &[80_000], dtype, Device::CPU, &generator).unwrap());
        let counts: Vec<f64> = (-3..5).map(|k| drawn.iter().filter(|x| **x == f64::from(k)).count() as f64).collect();
        assert_eq!(counts.iter().sum::<f64>(), 80_000.0);
        // With seven degrees of freedom, the sum is below 24.3 in 999 of 1000 cases.
        assert!(counts.iter().map(|count| (count - 10_000.0).powi(2) / 10_000.0).sum::<f64>() < 24.3, "{counts:?}");
    }
    let all = Tensor::randint(i64::MIN, i64::MAX, &[64], DType::I64, Device::CPU, &generator).unwrap();
    assert!(all.to_vec::<i64>().unwrap().iter().any(|x| *x < i64::MIN / 2));
    let error = Tensor::randint(2, 2, &[1], DType::I64, Device::CPU, &generator).unwrap_err().to_string();
    assert_eq!(error, "randint: no integer is at least 2 and below 2");
}

#[test]
fn permutations_are_all_as_likely() {
    let generator = Generator::new(13);
    let mut counts = std::collections::BTreeMap::new();
    for _ in 0..24_000 {
        let drawn = Tensor::randperm(4, Device::CPU, &generator).unwrap().to_vec::<i64>().unwrap();
        *counts.entry(drawn).or_insert(0.0) += 1.0;
    }
    assert_eq!(counts.len(), 24);
    // With 23 degrees of freedom, the sum is below 49.7 in 999 of 1000 cases.
    assert!(counts.values().map(|count| (count - 1000.0_f64).powi(2) / 1000.0).sum::<f64>() < 49.7);
    assert_eq!(Tensor::randperm(0, Device::CPU, &generator).unwrap().sizes(), [0]);
}

#[test]
fn bernoulli_has_its_probability_and_none_is_drawn_against_0_or_1() {
    let generator = Generator::new(17);
    let coins = Tensor::empty(&[100_000], DType::Bool, Device::CPU).unwrap();
    for (probability, low, high) in [(0.0, 0, 0), (1.0, 100_000, 100_000), (0.3, 29_500, 30_500)] {
        coins.bernoulli_(probability, &generator).unwrap();
        let heads = coins.to_vec::<bool>().unwrap().into_iter().filter(|head| *head).count();
        assert!((low..=high).contains(&heads), "{probability}: {heads}");
    }
    let each = Tensor::from_slice(&[0.0_f32, 1.0, 0.0, 1.0], &[2, 2]).unwrap();
    assert_eq!(each.bernoulli(&generator).unwrap().to_vec::<f32>().unwrap(), [0.0, 1.0, 0.0, 1.0]);
    let error = Tensor::full(&[3], 1.5, DType::F32, Device::CPU).unwrap().bernoulli(&generator).unwrap_err();
    assert_eq!(error.to_string(), "bernoulli: probabilities are between 0 and 1, got 1.5");
}

#[test]
fn writes_in_place_go_by_index_whatever_the_layout() {
    let dense = Tensor::zeros(&[3, 5], DType::F32, Device::CPU);
    let storage = Tensor::zeros(&[5, 3], DType::F32, Device::CPU);
    let dense = dense.unwrap();
    let turned = storage.unwrap().transpose(0, 1).unwrap();
    dense.normal_(2.0, 0.5, &Generator::new(1)).unwrap();
    let version = turned.version();
    turned.normal_(2.0, 0.5, &Generator::new(1)).unwrap();
    assert_eq!(turned.to_vec::<f32>().unwrap(), dense.to_vec::<f32>().unwrap());
    assert_eq!(turned.version(), version + 1);

    let narrow = Tensor::empty(&[1000], DType::BF16, Device::CPU).unwrap();
    narrow.uniform_(-1.0, -0.999, &Generator::new(1)).unwrap();
    assert!(values(&narrow).into_iter().all(|value| value == -1.0));
}

#[test]
fn a_leaf_that_requires_a_gradient_is_written_only_without_a_graph() {
    let leaf = Tensor::zeros(&[2], DType::F32, Device::CPU).unwrap();
    let generator = Generator::new(1);
    let leaf = leaf.requires_grad_(true).unwrap();
    assert!(leaf.uniform_(0.0, 1.0, &generator).unwrap_err().to_string().contains("no_grad()"));
    autograd::no_grad(|| leaf.uniform_(0.0, 1.0, &generator)).unwrap();
}

#[test]
fn threads_change_nothing() {
    let draw = |count| {
        threads::set_threads(count).unwrap();
        let generator = Generator::new(23);
        let normal = Tensor::randn(&[300, 333], DType::F32, Device::CPU, &generator).unwrap();
        let integers = Tensor::randint(0, 1 << 40, &[100_001], DType::I64, Device::CPU, &generator).unwrap();
        (normal.to_vec::<f32>().unwrap(), integers.to_vec::<i64>().unwrap(), generator.state())
    };
    assert_eq!(draw(1), draw(3));
}

#[test]
fn dropout_drops_the_gradient_where_it_dropped_the_value() {
    random::manual_seed(29);
    let x = Tensor::rand(&[100, 100], DType::F64, Device::CPU, &Generator::new(1)).unwrap().add(1.0).unwrap();
    let x = x.requires_grad_(true).unwrap();
    // A layout with another order has the same elements dropped.
    let y = x.transpose(0, 1).unwrap().dropout(0.25, true).unwrap();
    let grads = autograd::grad(
        &[&y.mul(&y).unwrap().sum_all().unwrap()],
        &[&x],
        &[],
        autograd::BackwardOptions { create_graph: true, ..Default::default() },
    );
    let grad = grads.unwrap().remove(0).unwrap();
    let y = values(&y.transpose(0, 1).unwrap());
    let factor = 1.0 / 0.75;
    for ((x, y), grad) in values(&x).into_iter().zip(&y).zip(values(&grad)) {
        assert!(*y == 0.0 && grad == 0.0 || (y - x * factor).abs() < 1e-12 && (grad - 2.0 * y * factor).abs() < 1e-12);
    }
    let dropped = y.iter().filter(|y| **y == 0.0).count();
    assert!((2300..2700).contains(&dropped), "{dropped}");
    let second = autograd::grad(&[&grad.sum_all().unwrap()], &[&x], &[], Default::default()).unwrap().remove(0);
    for (y, second) in y.iter().zip(values(&second.unwrap())) {
        assert!((second - if *y == 0.0 { 0.0 } else { 2.0 * factor * factor }).abs() < 1e-12);
    }
}

#[test]
fn dropout_of_all_or_nothing() {
    let x = Tensor::ones(&[4], DType::F32, Device::CPU).unwrap();
    assert!(x.dropout(0.5, false).unwrap().is_same(&x) && x.dropout(0.0, true).unwrap().is_same(&x));
    assert_eq!(x.dropout(1.0, true).unwrap().to_vec::<f32>().unwrap(), [0.0; 4]);
    assert_eq!(x.dropout(1.5, true).unwrap_err().to_string(), "dropout: a probability is between 0 and 1, got 1.5");
}

#[test]
fn a_thread_draws_from_a_generator_of_its_own() {
    let generator = Generator::new(9);
    let x = Tensor::ones(&[100], DType::F32, Device::CPU).unwrap();
    let dropped = || x.dropout(0.5, true).unwrap().to_vec::<f32>().unwrap();
    let before = random::default_generator(Device::CPU).state();
    let own = random::DefaultGenerator::enter(generator.clone());
    let first = dropped();
    assert_ne!(dropped(), first);
    generator.manual_seed(9);
    assert_eq!(dropped(), first);
    drop(own);
    assert_eq!(random::default_generator(Device::CPU).state(), before);
}

fn product(factor: u32, word: u32) -> u64 {
    u64::from(factor) * u64::from(word)
}

/// Computes Philox4x32-10 as its paper defines it.
fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let mut words = counter;
    let mut key = key;
    for _ in 0..10 {
        let first = product(0xd251_1f53, words[0]);
        let second = product(0xcd9e_8d57, words[2]);
        words = [
            (second >> 32) as u32 ^ words[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ words[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    words
}

#[test]
fn blocks_are_philox() {
    // The values are from `kat_vectors` of Random123: counter, key, result.
    let known = [
        ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
        ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
        (
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ];
    for (counter, key, expected) in known {
        assert_eq!(philox(counter, key), expected);
    }
    let expected =
        |seed: u64, block: u64| philox([block as u32, (block >> 32) as u32, 0, 0], [seed as u32, (seed >> 32) as u32]);
    // The second seed's blocks carry from the counter's low word to the next.
    for (seed, offset) in [(0, 0), (0x0123_4567_89ab_cdef, u64::from(u32::MAX) - 20), (u64::MAX, u64::MAX - 20)] {
        let state = GeneratorState::new(seed, offset);
        for index in 0..40 {
            assert_eq!(state.block(index), expected(seed, offset.wrapping_add(index)));
        }
        // Many elements are drawn from blocks side by side.
        let generator = Generator::new(seed);
        generator.set_state(state);
        let drawn = Tensor::rand(&[160], DType::F32, Device::CPU, &generator).unwrap().to_vec::<f32>().unwrap();
        for (element, value) in drawn.into_iter().enumerate() {
            let word = expected(seed, offset.wrapping_add(element as u64 / 4))[element % 4];
            assert_eq!(value, (word >> 8) as f32 / (1 << 24) as f32, "element {element}");
        }
    }
}

#[test]
fn a_fork_goes_its_own_way() {
    let generator = Generator::new(1);
    let left = generator.fork();
    let right = generator.fork();
    assert_ne!(left.next_u64(), right.next_u64());
    assert_eq!(generator.state().offset, 2);
}

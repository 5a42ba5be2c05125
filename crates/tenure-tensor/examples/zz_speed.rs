use std::time::Instant;
use tenure_tensor::{DType, Device, Tensor, threads};
fn time(name: &str, mut f: impl FnMut()) {
    for t in [1, 2] {
        threads::set_threads(t).unwrap();
        f();
        let mut best = f64::MAX;
        for _ in 0..7 {
            let s = Instant::now();
            f();
            best = best.min(s.elapsed().as_secs_f64());
        }
        println!("{name} t{t}: {:.2} ms", best * 1e3);
    }
}
fn main() {
    let v: Vec<f32> = (0..16 << 20).map(|i| ((i * 7919) % 1000) as f32 / 500.0 - 1.0).collect();
    let x = Tensor::from_slice(&v, &[4096, 4096]).unwrap();
    time("sum all", || drop(x.sum_all().unwrap()));
    time("sum rows(dim1)", || drop(x.sum(&[1], false).unwrap()));
    time("sum cols(dim0)", || drop(x.sum(&[0], false).unwrap()));
    let y = x.view(&[-1, 64]).unwrap();
    time("sum cols 64", || drop(y.sum(&[0], false).unwrap()));
    time("sum rows 64", || drop(y.sum(&[1], false).unwrap()));
    let y = x.view(&[-1, 8]).unwrap();
    time("sum rows 8", || drop(y.sum(&[1], false).unwrap()));
    let _ = (DType::F32, Device::CPU);
}

//! Synthetic networks: builds the kernels and tensors of one iteration.

use std::collections::HashMap;

use tenure_core::Tag;

use crate::problem::{ProblemAccess, ProblemKernel, ProblemParts, ProblemRecompute, ProblemTensor};

/// The tensors that an operation's backward reads besides the gradient.
#[derive(Clone, Copy)]
enum BackwardReads {
    Inputs,
    Output,
    Nothing,
}

struct Operation {
    inputs: Vec<usize>,
    weight: Option<usize>,
    output: usize,
    backward_reads: BackwardReads,
    flops: f64,
}

/// A network under construction, operation by operation.
pub(super) struct Network<'a> {
    random: &'a mut Random,
    parts: ProblemParts,
    operations: Vec<Operation>,
    bytes_per_second: f64,
    flops: f64,
    /// Whether pointwise operations are separate kernels, as in programs that are not compiled.
    is_fine: bool,
    /// The bytes of one number.
    number: u64,
}

impl<'a> Network<'a> {
    pub(super) fn new(name: &str, random: &'a mut Random) -> Self {
        let bytes_per_second = random.scale(3e11, 4e12);
        let flops = bytes_per_second * random.scale(20.0, 200.0);
        let is_fine = random.chance(0.5);
        let number = random.pick(&[2, 4]);
        let parts = ProblemParts { name: name.into(), source: "generated".into(), ..ProblemParts::default() };
        Self { random, parts, operations: Vec::new(), bytes_per_second, flops, is_fine, number }
    }

    /// Adds layers one after the other, of varying widths; some outputs are added to earlier ones.
    pub(super) fn layered(&mut self) {
        let batch = self.random.between(16, 1024);
        let mut width = self.random.between(16, 1024);
        let mut value = self.tensor(batch * width, Tag::Input);
        for _ in 0..self.random.between(6, 60) {
            let skipped = value;
            let next = if self.random.chance(0.6) { width } else { self.random.between(16, 1024) };
            value = self.dense(value, width, next, batch);
            if self.random.chance(0.6) {
                value = self.norm(value, next);
            }
            value = self.pointwise(&[value], BackwardReads::Output);
            if next == width && self.random.chance(0.4) {
                value = self.pointwise(&[skipped, value], BackwardReads::Nothing);
            }
            width = next;
        }
    }

    /// Adds blocks of attention and two dense layers.
    pub(super) fn transformer(&mut self) {
        let batch = self.random.between(2, 64);
        let length = 16 * self.random.between(4, 64);
        let heads = self.random.between(2, 16);
        let width = 64 * self.random.between(2, 24);
        let rows = batch * length;
        let factor = self.random.between(2, 5);
        let is_norm_first = self.random.chance(0.5);
        let is_flash = self.random.chance(0.3);
        let mut value = self.tensor(rows * width, Tag::Input);
        for _ in 0..self.random.between(2, 16) {
            let skipped = value;
            if is_norm_first {
                value = self.norm(value, width);
            }
            let [query, key, values] = [(); 3].map(|()| self.dense(value, width, width, rows));
            let flops = 2.0 * (rows * length * width) as f64;
            value = if is_flash {
                self.operation("attention", &[query, key, values], 0, rows * width, BackwardReads::Inputs, 2.0 * flops)
            } else {
                let scores = batch * heads * length * length;
                let scores = self.operation("scores", &[query, key], 0, scores, BackwardReads::Inputs, flops);
                let scores = self.pointwise(&[scores], BackwardReads::Output);
                let rows_width = rows * width;
                self.operation("context", &[scores, values], 0, rows_width, BackwardReads::Inputs, flops)
            };
            value = self.dense(value, width, width, rows);
            value = self.pointwise(&[skipped, value], BackwardReads::Nothing);
            let skipped = value;
            value = self.norm(value, width);
            value = self.dense(value, width, factor * width, rows);
            value = self.pointwise(&[value], BackwardReads::Inputs);
            value = self.dense(value, factor * width, width, rows);
            value = self.pointwise(&[skipped, value], BackwardReads::Nothing);
        }
    }

    /// Adds convolutions that halve the image level by level, and others that enlarge it again; each reads the output
    /// of the same level on the way down.
    pub(super) fn unet(&mut self) {
        let batch = self.random.between(1, 32);
        let levels = self.random.between(2, 5);
        let mut pixels = self.random.between(32, 160).pow(2);
        let mut channels = 8 * self.random.between(2, 8);
        let repeats = self.random.between(1, 3);
        let mut value = self.tensor(batch * pixels * 3, Tag::Input);
        let (mut before, mut kept) = (3, Vec::new());
        for _ in 0..levels {
            for _ in 0..repeats {
                value = self.convolution(value, before, channels, batch * pixels);
                before = channels;
            }
            kept.push((value, pixels, channels));
            pixels = (pixels / 4).max(1);
            value = self.operation("pool", &[value], 0, batch * pixels * channels, BackwardReads::Inputs, 0.0);
            channels *= 2;
        }
        value = self.convolution(value, before, channels, batch * pixels);
        while let Some((skipped, pixels, narrower)) = kept.pop() {
            value = self.operation("grow", &[value], 0, batch * pixels * channels, BackwardReads::Nothing, 0.0);
            let both = batch * pixels * (channels + narrower);
            value = self.operation("join", &[value, skipped], 0, both, BackwardReads::Nothing, 0.0);
            value = self.convolution(value, channels + narrower, narrower, batch * pixels);
            for _ in 1..repeats {
                value = self.convolution(value, narrower, narrower, batch * pixels);
            }
            channels = narrower;
        }
    }

    /// Adds layers that read the outputs of all earlier layers of their block.
    pub(super) fn dense_blocks(&mut self) {
        let batch = self.random.between(4, 64);
        let growth = 4 * self.random.between(3, 12);
        let mut pixels = self.random.between(14, 64).pow(2);
        let mut channels = 2 * growth;
        let mut value = self.tensor(batch * pixels * channels, Tag::Input);
        for _ in 0..self.random.between(2, 4) {
            let mut made = vec![value];
            for _ in 0..self.random.between(3, 12) {
                let all = batch * pixels * channels;
                let joined = self.operation("join", &made, 0, all, BackwardReads::Nothing, 0.0);
                made.push(self.convolution(joined, channels, growth, batch * pixels));
                channels += growth;
            }
            value = self.operation("join", &made, 0, batch * pixels * channels, BackwardReads::Nothing, 0.0);
            value = self.convolution(value, channels, channels / 2, batch * pixels);
            (channels, pixels) = (channels / 2, (pixels / 4).max(1));
            value = self.operation("pool", &[value], 0, batch * pixels * channels, BackwardReads::Inputs, 0.0);
        }
    }

    /// Completes the iteration: forward only, or with backward and an optimizer that keeps up to two states for each
    /// weight.
    pub(super) fn finish(mut self) -> ProblemParts {
        if self.random.chance(0.85) {
            self.backward();
        }
        self.parts
    }

    fn dense(&mut self, input: usize, from: u64, to: u64, rows: u64) -> usize {
        let output = self.operation(
            "matmul",
            &[input],
            from * to,
            rows * to,
            BackwardReads::Inputs,
            2.0 * (rows * from * to) as f64,
        );
        if self.is_fine {
            self.operation("bias", &[output], to, rows * to, BackwardReads::Nothing, 0.0)
        } else {
            output
        }
    }

    fn convolution(&mut self, input: usize, from: u64, to: u64, pixels: u64) -> usize {
        let flops = 18.0 * (pixels * from * to) as f64;
        let output = self.operation("convolution", &[input], 9 * from * to, pixels * to, BackwardReads::Inputs, flops);
        let output = self.norm(output, to);
        self.pointwise(&[output], BackwardReads::Output)
    }

    /// Adds a normalization: one kernel, or as many as its formula has parts.
    fn norm(&mut self, input: usize, width: u64) -> usize {
        let numbers = self.numbers(input);
        if !self.is_fine {
            return self.operation("norm", &[input], 2 * width, numbers, BackwardReads::Inputs, 0.0);
        }
        let rows = (numbers / width).max(1);
        let mean = self.operation("mean", &[input], 0, rows, BackwardReads::Nothing, 0.0);
        let centred = self.pointwise(&[input, mean], BackwardReads::Nothing);
        let squared = self.pointwise(&[centred], BackwardReads::Inputs);
        let variance = self.operation("mean", &[squared], 0, rows, BackwardReads::Nothing, 0.0);
        let root = self.pointwise(&[variance], BackwardReads::Output);
        let scaled = self.pointwise(&[centred, root], BackwardReads::Inputs);
        self.operation("affine", &[scaled], 2 * width, numbers, BackwardReads::Inputs, 0.0)
    }

    /// Adds a pointwise operation, with an output as large as the first input.
    fn pointwise(&mut self, inputs: &[usize], backward_reads: BackwardReads) -> usize {
        let numbers = self.numbers(inputs[0]);
        self.operation("pointwise", inputs, 0, numbers, backward_reads, 0.0)
    }

    fn operation(
        &mut self,
        name: &str,
        inputs: &[usize],
        weight_numbers: u64,
        numbers: u64,
        backward_reads: BackwardReads,
        flops: f64,
    ) -> usize {
        let weight = (weight_numbers > 0).then(|| self.tensor(weight_numbers, Tag::Weight));
        let output = self.tensor(numbers, Tag::Activation);
        let read: Vec<usize> = inputs.iter().copied().chain(weight).collect();
        let time_ns = self.kernel(name, &read, &[output], flops);
        self.parts.tensors[output].recompute = Some(ProblemRecompute { time_ns, inputs: read });
        self.operations.push(Operation { inputs: inputs.to_vec(), weight, output, backward_reads, flops });
        output
    }

    fn backward(&mut self) {
        let states = self.random.between(0, 2);
        let is_at_the_end = self.random.chance(0.5);
        let mut gradients = HashMap::new();
        let mut steps = Vec::new();
        for Operation { inputs, weight, output, backward_reads, flops } in
            std::mem::take(&mut self.operations).into_iter().rev()
        {
            let gradient = match gradients.remove(&output) {
                Some(gradient) => gradient,
                // The loss.
                None => {
                    let gradient = self.tensor(self.numbers(output), Tag::Gradient);
                    self.kernel("loss", &[output], &[gradient], 0.0);
                    gradient
                }
            };
            let saved = match backward_reads {
                BackwardReads::Inputs => inputs.clone(),
                BackwardReads::Output => vec![output],
                BackwardReads::Nothing => Vec::new(),
            };
            if let Some(weight) = weight {
                let made = self.tensor(self.numbers(weight), Tag::Gradient);
                let read: Vec<usize> = [gradient].into_iter().chain(saved.iter().copied()).collect();
                self.kernel("weight_gradient", &read, &[made], flops);
                steps.push((weight, made));
                if !is_at_the_end {
                    self.step(states, &mut steps);
                }
            }
            let read: Vec<usize> = [gradient].into_iter().chain(saved).chain(weight).collect();
            for input in inputs {
                if self.parts.tensors[input].tag == Tag::Input {
                    continue;
                }
                let made = self.tensor(self.numbers(input), Tag::Gradient);
                self.kernel("gradient", &read, &[made], flops);
                if let Some(before) = gradients.insert(input, made) {
                    self.kernel("accumulate", &[before, made], &[made], 0.0);
                }
            }
        }
        self.step(states, &mut steps);
    }

    /// Updates weights with their gradients.
    fn step(&mut self, states: u64, steps: &mut Vec<(usize, usize)>) {
        for (weight, gradient) in steps.drain(..) {
            let numbers = self.numbers(weight);
            let mut changed = vec![weight];
            changed.extend((0..states).map(|_| self.tensor(numbers, Tag::OptimizerState)));
            let read: Vec<usize> = [gradient].into_iter().chain(changed.iter().copied()).collect();
            self.kernel("step", &read, &changed, 0.0);
        }
    }

    fn tensor(&mut self, numbers: u64, tag: Tag) -> usize {
        let key = self.parts.tensors.len().to_string();
        let bytes = numbers * self.number;
        self.parts.tensors.push(ProblemTensor { key, bytes, tag, compression: None, recompute: None });
        self.parts.tensors.len() - 1
    }

    fn numbers(&self, tensor: usize) -> u64 {
        self.parts.tensors[tensor].bytes / self.number
    }

    /// Adds a kernel that accesses each tensor whole; returns its nanoseconds.
    fn kernel(&mut self, name: &str, reads: &[usize], writes: &[usize], flops: f64) -> u64 {
        let access = |tensor: &usize| ProblemAccess { tensor: *tensor, bytes: self.parts.tensors[*tensor].bytes };
        let reads: Vec<ProblemAccess> = reads.iter().map(access).collect();
        let writes: Vec<ProblemAccess> = writes.iter().map(access).collect();
        let bytes: u64 = reads.iter().chain(&writes).map(|access| access.bytes).sum();
        let seconds = (bytes as f64 / self.bytes_per_second).max(flops / self.flops) / self.random.uniform(0.4, 1.0);
        let time_ns = 2000 + (seconds * 1e9) as u64;
        self.parts.kernels.push(ProblemKernel { name: name.into(), time_ns, reads, writes });
        time_ns
    }
}

/// Random numbers that are the same on every machine and in every version (splitmix64).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    /// Returns a number from 0 to below 1.
    pub(super) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.share() < probability
    }

    /// Returns a number from `low` to `high`, both included.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    pub(super) fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.share()
    }

    /// Returns a number between two positive numbers, uniform in the logarithm.
    pub(super) fn scale(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.share())
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[(self.next() % from.len() as u64) as usize]
    }
}

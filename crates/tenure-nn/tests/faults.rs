//! Tests of disks that fail during training within a budget. A step is refused with the reason, or its result is as
//! without the failure, and the next step goes on as if nothing had happened.
#![expect(clippy::disallowed_methods, reason = "polls a condition that no event tells of")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod fixtures;

use std::fs::{self, File};
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fixtures::{engine_of, task, text};
use parking_lot::Mutex;
use rustix::io::dup2;
use tempfile::TempDir;
use tenure_nn::data::{DataLoader, LoaderOptions, TextWindows};
use tenure_nn::layers::{Layer, Linear};
use tenure_nn::optim::{Optimizer, Sgd};
use tenure_nn::train::{Pass, Score, Task, Trainer, TrainerOptions};
use tenure_nn::{Module, Result, Scope, module};
use tenure_offload::SpillLink;
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Tensor};
use tenure_tier::{Disk, DiskOptions, Mover, MoverOptions};

const ROWS: usize = 512;
const WIDTH: usize = 64;
const LAYERS: usize = 24;
const STEPS: u64 = 2;

/// A lock for tests with a budget, which belongs to the process.
static ALONE: Mutex<()> = Mutex::new(());

type Trouble = Box<dyn FnOnce() + Send>;

/// Layers that save 128 KiB each.
struct Deep {
    layers: Vec<Linear>,
    /// A fault that happens in the next forward pass, before the layer of that number, or at the end.
    trouble: Mutex<Option<(usize, Trouble)>>,
}

impl Deep {
    fn expect_trouble(&self, layer: usize) {
        let trouble = self.trouble.lock().take_if(|(at, _)| *at == layer);
        trouble.into_iter().for_each(|(_, trouble)| trouble());
    }
}

module!(Deep { layers });

task!(Deep);

impl Deep {
    fn loss_of(&self, input: &Tensor) -> Result<Tensor> {
        let mut hidden = input.to_dtype(DType::F32)?.mul(0.02)?;
        for (number, layer) in self.layers.iter().enumerate() {
            self.expect_trouble(number);
            hidden = layer.forward(&hidden)?.tanh()?;
        }
        let loss = hidden.square()?.mean_all()?;
        self.expect_trouble(LAYERS);
        Ok(loss)
    }
}

type Run = Trainer<Deep, TextWindows>;

fn trainer() -> Run {
    let scope = Scope::new(&Generator::new(1));
    let layers = (0..LAYERS).map(|number| Linear::new(&scope.at(number), WIDTH, WIDTH).unwrap()).collect();
    let task = Deep { layers, trouble: Mutex::default() };
    let optimizer = Optimizer::new(task.model().parameters(), 0.1, Sgd::default());
    let options = LoaderOptions { batch_size: ROWS, workers: 0, ..LoaderOptions::default() };
    let loader = DataLoader::new(text(ROWS, WIDTH, 61), options);
    Trainer::new(task, loader, optimizer, TrainerOptions { steps: STEPS, ..TrainerOptions::default() })
}

/// Finishes a run, and returns its losses and its last weights, as bits.
fn learned(run: &mut Run) -> Vec<u32> {
    while run.step().unwrap().is_some() {}
    let losses = run.history().iter().map(|step| step.loss);
    let weights = run.task().model().parameters();
    let weights = weights.iter().flat_map(|parameter| parameter.to_vec::<f32>().unwrap());
    losses.chain(weights).map(f32::to_bits).collect()
}

/// A folder to spill to, and its file, which has no name there, but a descriptor in this process.
struct Spill {
    folder: TempDir,
    disk: Disk,
    number: RawFd,
}

impl Spill {
    fn new(capacity: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = DiskOptions { staging_bytes: 4 << 20, ..DiskOptions::new(capacity) };
        let disk = Disk::open(&[folder.path().to_owned()], options).unwrap();
        let numbers = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
        let number = numbers
            .filter(|number| fs::read_link(number).is_ok_and(|link| link.starts_with(folder.path())))
            .map(|path| path.file_name().unwrap().to_str().unwrap().parse().unwrap());
        let [number] = number.collect::<Vec<_>>()[..] else { panic!("there is one file") };
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "a file has a name");
        Self { folder, disk, number }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Gives a run a budget of three quarters of a plain step's memory.
    fn within(&self, run: Run) -> Run {
        let mover = Mover::new(None, MoverOptions { disk: Some(self.disk.clone()), ..MoverOptions::new(1 << 30) });
        let mover = mover.unwrap();
        let links = SpillLink::of(&mover);
        let mut run = run.with_engine(engine_of(mover, links)).unwrap();
        let peak = run.rehearse(Pass::Plain).unwrap().peak_bytes.unwrap();
        run.engine().unwrap().set_budget(peak * 3 / 4);
        run
    }

    fn expect_nothing_left(&self) {
        wait_until("nothing is left on disk", || self.disk.statistics().free_bytes == self.disk.capacity_bytes());
        assert_eq!(fs::read_dir(self.path()).unwrap().count(), 0, "a file has a name");
    }

    /// Opens the file, for a test that damages it.
    fn file(&self) -> File {
        File::options().read(true).write(true).open(format!("/proc/self/fd/{}", self.number)).unwrap()
    }
}

/// Waits for a condition. The limit only keeps a failing test from hanging.
fn wait_until(condition: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(300), "never: {condition}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the disk has written all the bytes that it was given.
fn settle(disk: &Disk) {
    wait_until("everything is written", || {
        let statistics = disk.statistics();
        statistics.raw_bytes == statistics.today_bytes
    });
}

/// Returns a fault that puts another file in the place of the disk's, and its repair.
fn instead(spill: &Spill, open: fn() -> File) -> (Trouble, Trouble) {
    let number = spill.number;
    let disk = spill.disk.clone();
    let back = Arc::<Mutex<Option<Trouble>>>::default();
    let put = Arc::clone(&back);
    (
        Box::new(move || {
            settle(&disk);
            *put.lock() = Some(Box::new(replace(number, open())));
        }),
        Box::new(move || back.lock().take().into_iter().for_each(|back| back())),
    )
}

/// Makes a descriptor refer to another file, until the returned function is called.
fn replace(number: RawFd, other: File) -> impl FnOnce() + Send + use<> {
    // SAFETY: the disk has it open for as long as this lasts, and goes on to own it.
    let mut disks = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
    let first = disks.try_clone().unwrap();
    dup2(other, &mut disks).unwrap();
    move || dup2(first, &mut disks).unwrap()
}

/// Causes a fault in a measured step, and in a planned one. Each must be refused with an error that names a tensor and
/// the folder. Training after it must have the same results as without the fault.
fn expect_refusal(layer: usize, trouble: impl Fn(&Spill) -> (Trouble, Trouble), words: &str) {
    let _alone = ALONE.lock();
    let plain = learned(&mut trainer());
    for is_measured in [true, false] {
        let spill = Spill::new(64 << 20);
        let mut run = spill.within(trainer());
        if is_measured {
            run.engine().unwrap().forget();
            // All bytes are written before the fault begins.
            run.engine().unwrap().move_all();
        }
        let (make, repair) = trouble(&spill);
        *run.task().trouble.lock() = Some((layer, make));
        let said = run.step().unwrap_err().to_string();
        let names = said.contains("float32 [512, 64]") && said.contains(spill.path().to_str().unwrap());
        assert!(names && said.contains(words), "measured: {is_measured}: {said}");
        repair();
        assert!(learned(&mut run) == plain, "measured: {is_measured}");
        drop(run);
        spill.expect_nothing_left();
    }
}

#[test]
fn a_flipped_bit() {
    expect_refusal(
        LAYERS,
        |spill| -> (Trouble, Trouble) {
            let file = spill.file();
            let disk = spill.disk.clone();
            (
                Box::new(move || {
                    settle(&disk);
                    for block in 0..2048 {
                        let mut byte = [0];
                        file.read_exact_at(&mut byte, block * 4096 + 77).unwrap();
                        file.write_all_at(&[byte[0] ^ 4], block * 4096 + 77).unwrap();
                    }
                }),
                Box::new(|| ()),
            )
        },
        "bytes came back changed from",
    );
}

#[test]
fn a_file_that_is_cut_short() {
    expect_refusal(
        LAYERS,
        |spill| -> (Trouble, Trouble) {
            let file = spill.file();
            let again = spill.file();
            let disk = spill.disk.clone();
            let whole = file.metadata().unwrap().len();
            (
                Box::new(move || {
                    settle(&disk);
                    file.set_len(70 << 10).unwrap();
                }),
                Box::new(move || again.set_len(whole).unwrap()),
            )
        },
        "failed at byte",
    );
}

#[test]
fn a_disk_that_cannot_be_read() {
    expect_refusal(LAYERS, |spill| instead(spill, || File::open("/proc/self/mem").unwrap()), "Input/output error");
}

#[test]
fn a_disk_that_cannot_be_written() {
    expect_refusal(
        0,
        |spill| instead(spill, || File::options().read(true).write(true).open("/dev/full").unwrap()),
        "No space left on device",
    );
}

#[test]
fn a_folder_that_is_removed_is_not_missed() {
    let _alone = ALONE.lock();
    let plain = learned(&mut trainer());
    let spill = Spill::new(64 << 20);
    let mut run = spill.within(trainer());
    run.engine().unwrap().forget();
    let folder = spill.path().to_owned();
    *run.task().trouble.lock() = Some((LAYERS / 2, Box::new(move || fs::remove_dir(folder).unwrap())));
    assert!(learned(&mut run) == plain);
    assert!(!spill.path().exists());
}

#[test]
fn a_disk_that_is_full_half_way() {
    let _alone = ALONE.lock();
    let plain = learned(&mut trainer());
    let spill = Spill::new(2 << 20);
    let mut run = spill.within(trainer());
    run.engine().unwrap().forget();
    // In the measured step, tensors that find no room stay in memory; a plan uses no more room than there is.
    assert!(learned(&mut run) == plain);
    assert!(spill.disk.statistics().written_bytes > 1 << 20);
    drop(run);
    spill.expect_nothing_left();
}

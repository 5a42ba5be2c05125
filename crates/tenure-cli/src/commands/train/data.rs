//! The training data: names, folders and files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use tenure::nn::data::{Collate, Dataset, FashionMnist, ImageFolder, ImageOptions, LeftOut, Subset, TextWindows};
use tenure::tensor::Tensor;

use super::digest;
use super::models::{Batch, ImageKind, ModelKind};
use crate::values::DataSpec;
use crate::{files, output};

/// The folder in which Debian's package installs Fashion-MNIST.
const FASHION_MNIST: &str = "/usr/share/datasets/fashion-mnist";
/// Names of a folder of images to train on, the preferred ones first. See [`plain_part`].
const TRAINING_FOLDERS: [&str; 2] = ["train", "training"];
/// Names of a folder of images that are held out.
const HELD_OUT_FOLDERS: [&str; 8] = ["val", "valid", "validation", "dev", "eval", "evaluation", "test", "testing"];
/// Words that may come before or after those names, as in `train_images`.
const WORDS_AROUND: [&str; 3] = ["set", "images", "data"];
/// One in this many examples is held out if the data does not say which.
const HELD_OUT_EVERY: usize = 10;
/// The most classes whose names are shown.
const SHOWN_CLASSES: usize = 10;

/// The data that was found.
pub(super) enum Data {
    Images(DataSplit<LabelledImages>, ImageKind),
    Text(DataSplit<TextWindows>),
}

/// A dataset of inputs and classes.
pub(super) trait Examples: Dataset<Item: Collate<Batch = Batch>> + 'static {}
impl<D: Dataset<Item: Collate<Batch = Batch>> + 'static> Examples for D {}

/// The examples to train on, and those held out to measure accuracy.
pub(super) struct DataSplit<D> {
    pub(super) training: D,
    pub(super) held_out: D,
}

/// Images of any format, and their classes.
pub(super) type LabelledImages = Box<dyn Dataset<Item = (Tensor, i64)>>;

/// Returns whether a file belongs to the data, or would if it existed.
pub(super) fn contains(data: &DataSpec, file: &Path) -> bool {
    let file = output::canonical(file);
    match data {
        DataSpec::FashionMnist(folder) => {
            let folder = folder.as_deref().unwrap_or(Path::new(FASHION_MNIST));
            FashionMnist::reads(&file) && file.starts_with(output::canonical(folder))
        }
        DataSpec::Images(folder) => ImageFolder::reads(&file) && file.starts_with(output::canonical(folder)),
        DataSpec::Text(text) => file == output::canonical(text),
    }
}

/// Finds the data, in the form that `model` needs. Returns it with the digest of its contents.
pub(super) fn open(data: &DataSpec, model: ModelKind, seed: u64) -> anyhow::Result<(Data, String)> {
    match data {
        DataSpec::FashionMnist(folder) => open_fashion_mnist(folder.as_deref()),
        DataSpec::Images(folder) => open_images(folder, model.image_options()),
        DataSpec::Text(file) => open_text(file, model.window(), seed),
    }
}

fn open_fashion_mnist(given: Option<&Path>) -> anyhow::Result<(Data, String)> {
    let folder = given.unwrap_or(Path::new(FASHION_MNIST));
    anyhow::ensure!(
        folder.is_dir(),
        "{}: the folder does not exist: `apt-get install dataset-fashion-mnist` (Debian, Ubuntu) brings Fashion-MNIST, and \
         --data fashion-mnist:DIR names a folder that has its four files",
        folder.display()
    );
    let open = |part| Ok::<_, tenure::nn::Error>(Box::new(FashionMnist::open(folder, part)?));
    let parts = DataSplit { training: open("train")? as LabelledImages, held_out: open("t10k")? as LabelledImages };
    let files = ["train", "t10k"].into_iter().map(|part| FashionMnist::files(folder, part));
    let files: Vec<PathBuf> = files.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    let digest = digest::of_unpacked(files).map_err(|error| files::about(folder, error))?;
    Ok((Data::Images(parts, ImageKind { channels: 1, classes: FashionMnist::CLASSES.len() }), digest))
}

fn open_images(folder: &Path, options: ImageOptions) -> anyhow::Result<(Data, String)> {
    // An error of reading the folder is reported by ImageFolder below.
    let names = subfolders(folder).unwrap_or_default();
    let training = part_named(&names, &TRAINING_FOLDERS);
    if let (Some(training), Some(held_out)) = (training, part_named(&names, &HELD_OUT_FOLDERS)) {
        return open_parts(folder, [training, held_out], options);
    }
    if let ([_], Some(training)) = (&names[..], training) {
        anyhow::bail!(
            "{}: there is a folder {training}, but none that is held out ({}) beside it: add one, or name {} to hold out \
             every tenth image there",
            folder.display(),
            HELD_OUT_FOLDERS.join(", "),
            folder.join(training).display()
        );
    }
    let all = ImageFolder::open(folder, options)?;
    expect_classes(folder, &all)?;
    let kind = image_kind(&all);
    let classes = named(all.classes());
    let left_out = all.left_out().clone();
    let digest = digest::of_images(folder, &all.files().collect::<Vec<_>>());
    let DataSplit { training, held_out } = every_tenth(all);
    tell(folder, [(training.len(), ""), (held_out.len(), "")], &classes, &left_out);
    Ok((Data::Images(DataSplit { training: Box::new(training), held_out: Box::new(held_out) }, kind), digest))
}

/// Opens the folders of images to train on and of images that are held out.
fn open_parts(folder: &Path, names: [&str; 2], options: ImageOptions) -> anyhow::Result<(Data, String)> {
    let [training_name, held_out_name] = names;
    let hint = format!("; name {} to hold out every tenth image there", folder.join(training_name).display());
    let training = ImageFolder::open(&folder.join(training_name), options)?;
    let held_out = ImageFolder::open(&folder.join(held_out_name), options);
    let held_out = held_out.map_err(|error| anyhow::anyhow!("{error}{hint}"))?;
    anyhow::ensure!(
        training.classes() == held_out.classes(),
        "{}: {training_name} and {held_out_name} have other classes: a folder for each class is expected in both, of the \
         same names{hint}",
        folder.display()
    );
    expect_classes(folder, &training)?;
    let kind = image_kind(&training);
    let mut left_out = LeftOut::beside(folder, &names)?;
    left_out.extend(training.left_out().clone());
    left_out.extend(held_out.left_out().clone());
    let counts = [(training.len(), training_name), (held_out.len(), held_out_name)];
    tell(folder, counts, &named(training.classes()), &left_out);
    let digest = digest::of_images(folder, &training.files().chain(held_out.files()).collect::<Vec<_>>());
    Ok((Data::Images(DataSplit { training: Box::new(training), held_out: Box::new(held_out) }, kind), digest))
}

/// Returns the names of the folders in a folder, in order, without hidden ones.
fn subfolders(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // The entry may be a link.
        if entry.path().is_dir() && !ImageFolder::is_hidden(name.as_ref()) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Returns the folder whose plain name comes first in `known`.
fn part_named<'a>(folders: &'a [String], known: &[&str]) -> Option<&'a str> {
    let mut found = known.iter().filter_map(|known| folders.iter().find(|folder| plain_part(folder) == *known));
    found.next().map(String::as_str)
}

/// Returns a folder's name in lower case, without numbers at its end and words around the name of a part: `train` for
/// `Train2017` and `train_images`.
fn plain_part(folder: &str) -> String {
    let lower = folder.to_lowercase();
    let mut name = lower.as_str();
    loop {
        let trimmed = name.trim_end_matches(|last: char| last.is_ascii_digit()).trim_matches(['_', '-']);
        match WORDS_AROUND
            .into_iter()
            .find_map(|word| trimmed.strip_suffix(word).or_else(|| trimmed.strip_prefix(word)))
        {
            Some(shorter) => name = shorter,
            None if trimmed == name => return name.to_owned(),
            None => name = trimmed,
        }
    }
}

fn image_kind(folder: &ImageFolder) -> ImageKind {
    ImageKind { channels: 3, classes: folder.classes().len() }
}

/// Prints how many images of a folder are trained on and held out, where they are, their classes, and the files that
/// were not read.
fn tell(folder: &Path, [training, held_out]: [(usize, &str); 2], classes: &str, left_out: &LeftOut) {
    let place = |name: &str| if name.is_empty() { String::new() } else { format!(" ({name})") };
    files::complain(&format!(
        "{}: {} images to train on{} and {} held out{}, of {classes}{left_out}",
        folder.display(),
        training.0,
        place(training.1),
        held_out.0,
        place(held_out.1)
    ));
}

/// Describes the number of classes, and the names of the first.
fn named(classes: &[String]) -> String {
    let shown = &classes[..classes.len().min(SHOWN_CLASSES)];
    let more = if shown.len() < classes.len() { ", ..." } else { "" };
    format!("{} classes ({}{more})", classes.len(), shown.join(", "))
}

fn expect_classes(folder: &Path, images: &ImageFolder) -> anyhow::Result<()> {
    if let [class] = images.classes() {
        anyhow::bail!(
            "{}: {class} is the only class, so there is nothing to learn: a folder for each of several classes is \
             expected, in it or in its folders train and val",
            folder.display()
        );
    }
    Ok(())
}

fn every_tenth<D: Dataset>(all: D) -> DataSplit<Subset<D>> {
    let all = Arc::new(all);
    let last = HELD_OUT_EVERY - 1;
    let training = (0..all.len()).filter(|index| index % HELD_OUT_EVERY != last);
    let held_out = (0..all.len()).filter(|index| index % HELD_OUT_EVERY == last);
    DataSplit { training: Subset::new(Arc::clone(&all), training), held_out: Subset::new(Arc::clone(&all), held_out) }
}

fn open_text(file: &Path, window: usize, seed: u64) -> anyhow::Result<(Data, String)> {
    // The error begins with the file's name.
    let windows = TextWindows::open_bytes(file, window).map_err(|error| anyhow::anyhow!("--data text:{error}"))?;
    let digest = digest::of_text(windows.bytes().unwrap_or_default());
    let count = windows.len();
    let (training, held_out) = windows.split(count - count / HELD_OUT_EVERY);
    Ok((Data::Text(DataSplit { training: training.shifted(seed), held_out }), digest))
}

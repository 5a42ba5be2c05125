//! Image data sets in folders, one folder for each class.

use std::collections::BTreeMap;
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use image::imageops::{FilterType, crop_imm, resize};
use image::{ImageFormat, ImageReader, RgbImage};
use tenure_core::user_files::{expect_fetched, open_regular};
use tenure_tensor::{Tensor, TensorError};

use super::{DataError, Dataset, Result};

/// Options for turning images into tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImageOptions {
    /// The width and height, in pixels, of the part that is cut out.
    pub size: u32,
    /// The length, in pixels, to which the shorter side is scaled before the cut.
    pub resize: u32,
    /// The mean that is subtracted from each channel, whose values are from 0 to 1.
    pub mean: [f32; 3],
    /// The deviation that each channel is divided by.
    pub deviation: [f32; 3],
}

impl Default for ImageOptions {
    /// The values for torchvision's ImageNet models.
    fn default() -> Self {
        Self { size: 224, resize: 256, mean: [0.485, 0.456, 0.406], deviation: [0.229, 0.224, 0.225] }
    }
}

/// The endings of file names that are read, in lower case.
const ENDINGS: [&str; 12] = ["bmp", "gif", "jfif", "jpeg", "jpg", "pbm", "pgm", "png", "ppm", "tif", "tiff", "webp"];

/// Folders that programs and systems add to the user's: Synology's previews, Python's cache, Windows' recycle bin,
/// recovered files, and the folder that macOS adds to archives.
const ADDED: [&str; 5] = ["@eaDir", "__pycache__", "$RECYCLE.BIN", "lost+found", "__MACOSX"];

/// A data set of images (JPEG, PNG, WebP, GIF, BMP, TIFF, PNM) with one folder for each class. A class's folder may
/// have subfolders. torchvision's `ImageFolder`.
///
/// An example is the middle of an image, `[3, size, size]`, and the number of its class. An animation gives its first
/// image.
pub struct ImageFolder {
    classes: Vec<String>,
    images: Vec<(PathBuf, i64)>,
    left_out: LeftOut,
    options: ImageOptions,
}

/// The files and folders that are not read, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut(BTreeMap<Reason, (usize, PathBuf)>);

/// A reason why a file or folder is not read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    Hidden,
    OutsideOfClasses,
    OutsideOfParts,
    /// A file whose name has this ending.
    NoImage(String),
    Loop,
    /// A named pipe, a socket or a device. Reading one could wait forever.
    Special,
    /// A link to a file that is not there, or to itself.
    Dangling,
    /// A file of no bytes with the name of an image.
    Empty,
}

impl ImageFolder {
    /// Finds the images, in the order of their names. Hidden files and folders are left out, and so are pipes, sockets,
    /// devices, empty files, and links to files that are not there or to themselves.
    ///
    /// # Errors
    /// A folder cannot be read; there is no class folder; a class has no image.
    pub fn open(folder: &Path, options: ImageOptions) -> Result<Self> {
        let mut set = Self { classes: Vec::new(), images: Vec::new(), left_out: LeftOut::default(), options };
        for entry in entries(folder)? {
            if Self::is_hidden(&entry) {
                set.left_out.add(Reason::Hidden, entry);
            } else if entry.is_dir() {
                set.add_class(&entry)?;
            } else {
                set.left_out.add(Reason::OutsideOfClasses, entry);
            }
        }
        if set.images.is_empty() {
            let reason = format!(
                "no image is there: a folder for each class, with files that end in {}, is expected{}",
                endings(),
                set.left_out
            );
            return Err(DataError::format(folder, reason));
        }
        Ok(set)
    }

    /// Returns whether a file of this name in a class's folder is one of its images.
    pub fn reads(name: &Path) -> bool {
        !Self::is_hidden(name) && ENDINGS.contains(&&*ending(name))
    }

    /// Returns whether a file or folder of this name is not the user's own, such as `.ipynb_checkpoints` or `@eaDir`.
    pub fn is_hidden(name: &Path) -> bool {
        let name = name.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with('.') || ADDED.contains(&&*name)
    }

    /// Returns the names of the classes, by number.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Returns the paths of the images, in their order.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.images.iter().map(|(path, _)| &**path)
    }

    /// Returns the files and folders that are not read.
    pub fn left_out(&self) -> &LeftOut {
        &self.left_out
    }

    fn add_class(&mut self, folder: &Path) -> Result<()> {
        let before = self.images.len();
        let mut left_out = LeftOut::default();
        self.add_images(folder, &mut Vec::new(), &mut left_out)?;
        if self.images.len() == before {
            let reason = format!(
                "no image is in this folder, which is taken for that of a class: files that end in {} are \
                 expected{left_out}",
                endings()
            );
            return Err(DataError::format(folder, reason));
        }
        self.left_out.extend(left_out);
        self.classes.push(folder.file_name().unwrap_or_default().to_string_lossy().into_owned());
        Ok(())
    }

    /// Adds the images in a folder and its subfolders to the next class. `around` lists the folders that enclose this
    /// one.
    fn add_images(&mut self, folder: &Path, around: &mut Vec<PathBuf>, left_out: &mut LeftOut) -> Result<()> {
        let resolved = fs::canonicalize(folder).map_err(DataError::io(folder))?;
        if around.contains(&resolved) {
            left_out.add(Reason::Loop, folder.to_owned());
            return Ok(());
        }
        around.push(resolved);
        let label = self.classes.len() as i64;
        for entry in entries(folder)? {
            if Self::is_hidden(&entry) {
                left_out.add(Reason::Hidden, entry);
                continue;
            }
            match fs::metadata(&entry) {
                Ok(found) if found.is_dir() => self.add_images(&entry, around, left_out)?,
                Ok(found) if !found.is_file() => left_out.add(Reason::Special, entry),
                Err(error) if is_dangling(&error) => left_out.add(Reason::Dangling, entry),
                Ok(found) if found.len() == 0 && Self::reads(&entry) => left_out.add(Reason::Empty, entry),
                // A file that cannot be looked at is an error for the reader of the image, which has the reason.
                _ if Self::reads(&entry) => self.images.push((entry, label)),
                _ => left_out.add(Reason::NoImage(ending(&entry)), entry),
            }
        }
        around.pop();
        Ok(())
    }
}

impl LeftOut {
    /// Returns the files and folders in `folder` that are not among its `parts`, such as `train` and `val`.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn beside(folder: &Path, parts: &[&str]) -> Result<Self> {
        let mut left_out = Self::default();
        for entry in entries(folder)? {
            if ImageFolder::is_hidden(&entry) {
                left_out.add(Reason::Hidden, entry);
            } else if !parts.iter().any(|part| entry == folder.join(part)) {
                left_out.add(Reason::OutsideOfParts, entry);
            }
        }
        Ok(left_out)
    }

    fn add(&mut self, reason: Reason, path: PathBuf) {
        self.0.entry(reason).or_insert((0, path)).0 += 1;
    }

    /// Adds the files and folders of another list.
    pub fn extend(&mut self, other: Self) {
        for (reason, (count, path)) in other.0 {
            self.0.entry(reason).or_insert((0, path)).0 += count;
        }
    }
}

/// Writes nothing, or `; left out: ` with the number of files or folders for each reason, and the first of each.
impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (reason, (count, path))) in self.0.iter().enumerate() {
            f.write_str(if index == 0 { "; left out: " } else { ", " })?;
            match reason {
                Reason::Hidden => write!(f, "{count} hidden")?,
                Reason::OutsideOfClasses => write!(f, "{count} outside of the folders of classes")?,
                Reason::OutsideOfParts => write!(f, "{count} outside of the folders that are read")?,
                Reason::NoImage(ending) if ending.is_empty() => write!(f, "{count} without an ending")?,
                Reason::NoImage(ending) => write!(f, "{count} .{ending}, not a format that is read")?,
                Reason::Loop => write!(f, "{count} linked to a folder that it is in")?,
                Reason::Special => write!(f, "{count} that are pipes, sockets or devices")?,
                Reason::Dangling => write!(f, "{count} linked to nothing")?,
                Reason::Empty => write!(f, "{count} empty")?,
            }
            write!(f, " ({}{})", if *count > 1 { "such as " } else { "" }, path.display())?;
        }
        Ok(())
    }
}

/// Returns whether a link leads to no file: its target is not there or below a file, or the link leads to itself.
fn is_dangling(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        || error.raw_os_error() == Some(libc::ELOOP)
}

/// Returns the part after the last point of a name, in lower case.
fn ending(name: &Path) -> String {
    name.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase()
}

fn endings() -> String {
    let [others @ .., last] = ENDINGS;
    format!(".{} or .{last}", others.join(", ."))
}

impl Dataset for ImageFolder {
    type Item = (Tensor, i64);

    fn len(&self) -> usize {
        self.images.len()
    }

    fn item(&self, index: usize) -> Result<(Tensor, i64)> {
        let (path, label) = self.images.get(index).ok_or_else(|| TensorError::Index {
            op: "item",
            index: index as i64,
            dim: 0,
            size: self.len(),
        })?;
        Ok((read(path, &self.options)?, *label))
    }
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = fs::read_dir(folder).and_then(|found| found.map(|entry| Ok(entry?.path())).collect());
    let mut entries: Vec<PathBuf> = read.map_err(DataError::io(folder))?;
    entries.sort();
    Ok(entries)
}

fn decode(path: &Path) -> Result<RgbImage> {
    let mut bytes = Vec::new();
    open_regular(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(DataError::io(path))?;
    expect_fetched(&bytes).map_err(DataError::io(path))?;
    let reader = ImageReader::new(Cursor::new(&bytes)).with_guessed_format().map_err(DataError::io(path))?;
    if reader.format() == Some(ImageFormat::Jpeg) && !is_whole_jpeg(&bytes) {
        return Err(DataError::format(path, "the JPEG is cut off: replace it by a whole copy, or remove it"));
    }
    Ok(reader
        .decode()
        .map_err(|error| {
            DataError::format(path, format!("{error}: replace it by an image that can be read, or remove it"))
        })?
        .into_rgb8())
}

/// Returns whether a JPEG has its end marker. Without this check the decoder would invent the missing pixels. A preview
/// in the metadata has an end marker of its own, so segments are skipped by their lengths. ITU-T T.81, annex B.
fn is_whole_jpeg(mut bytes: &[u8]) -> bool {
    while let Some(at) = bytes.iter().position(|byte| *byte == 0xff) {
        bytes = &bytes[at + 1..];
        match bytes {
            [0xd9, ..] => return true,
            // Data, fill bytes, and markers without a length.
            [0x00 | 0x01 | 0xff | 0xd0..=0xd8, ..] => {}
            [_, high, low, ..] => {
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                bytes = bytes.get(1 + length..).unwrap_or_default();
            }
            _ => return false,
        }
    }
    false
}

/// Reads, scales, cuts and normalises an image.
fn read(path: &Path, options: &ImageOptions) -> Result<Tensor> {
    let image = middle(decode(path)?);
    let (width, height) = image.dimensions();
    let [width, height] = [width, height].map(|side| {
        let scaled = u64::from(side) * u64::from(options.resize) / u64::from(width.min(height).max(1));
        u32::try_from(scaled).unwrap_or(u32::MAX).max(options.size)
    });
    let image = resize(&image, width, height, FilterType::Triangle);
    let size = options.size;
    let image = crop_imm(&image, (width - size) / 2, (height - size) / 2, size, size).to_image();
    let values: Vec<f32> = (0..3)
        .flat_map(|channel| {
            let mean = options.mean[channel];
            let deviation = options.deviation[channel];
            image.pixels().map(move |pixel| (f32::from(pixel[channel]) / 255.0 - mean) / deviation)
        })
        .collect();
    Ok(Tensor::from_slice(&values, &[3, size as usize, size as usize])?)
}

/// Cuts an image to at most twice its shorter side, around the middle. Otherwise scaling a long strip by its shorter
/// side would make a huge image.
fn middle(image: RgbImage) -> RgbImage {
    let (width, height) = image.dimensions();
    let longest = width.min(height).saturating_mul(2);
    if width.max(height) <= longest {
        return image;
    }
    let kept_width = width.min(longest);
    let kept_height = height.min(longest);
    crop_imm(&image, (width - kept_width) / 2, (height - kept_height) / 2, kept_width, kept_height).to_image()
}

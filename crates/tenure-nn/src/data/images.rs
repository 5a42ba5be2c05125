//! Folders of images, a folder a class.

use std::fs;
use std::path::{Path, PathBuf};

use image::RgbImage;
use image::imageops::{FilterType, crop_imm, resize};
use tenure_tensor::{Tensor, TensorError};

use super::{DataError, Dataset, Result};

/// How images become tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImageOptions {
    /// Width and height of what is cut out.
    pub size: u32,
    /// The shorter side before that.
    pub resize: u32,
    /// Subtracted from each channel, which is from 0 to 1.
    pub mean: [f32; 3],
    /// What it is divided by.
    pub deviation: [f32; 3],
}

impl Default for ImageOptions {
    /// As torchvision's models for ImageNet want it.
    fn default() -> Self {
        Self { size: 224, resize: 256, mean: [0.485, 0.456, 0.406], deviation: [0.229, 0.224, 0.225] }
    }
}

/// Images (PNG, JPEG) in a folder for each class. torchvision's `ImageFolder`.
///
/// An example is the middle of an image `[3, size, size]`, and the number of its class.
pub struct ImageFolder {
    classes: Vec<String>,
    images: Vec<(PathBuf, i64)>,
    options: ImageOptions,
}

impl ImageFolder {
    /// Finds the images, in the order of their names.
    ///
    /// # Errors
    /// A folder cannot be read; there is none; there is no image in one of them.
    pub fn open(folder: &Path, options: ImageOptions) -> Result<Self> {
        let (mut classes, mut images) = (Vec::new(), Vec::new());
        for class in entries(folder)?.into_iter().filter(|entry| entry.is_dir()) {
            let (label, before) = (classes.len() as i64, images.len());
            images.extend(entries(&class)?.into_iter().filter(|file| Self::reads(file)).map(|file| (file, label)));
            if images.len() == before {
                let reason =
                    "no image is in this folder, which is taken for that of a class: .png or .jpg files are expected";
                return Err(DataError::format(&class, reason));
            }
            classes.push(class.file_name().unwrap_or_default().to_string_lossy().into_owned());
        }
        if images.is_empty() {
            let reason = "no image is there: a folder for each class, with .png or .jpg files, is expected";
            return Err(DataError::format(folder, reason));
        }
        Ok(Self { classes, images, options })
    }

    /// Whether a file of this name in a class's folder is one of its images.
    pub fn reads(name: &Path) -> bool {
        let extension = name.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase());
        extension.is_some_and(|extension| ["png", "jpg", "jpeg"].contains(&&*extension))
    }

    /// The classes, by number.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }
}

impl Dataset for ImageFolder {
    type Item = (Tensor, i64);

    fn len(&self) -> usize {
        self.images.len()
    }

    fn item(&self, index: usize) -> Result<(Tensor, i64)> {
        let out_of_range = || TensorError::Index { op: "item", index: index as i64, dim: 0, size: self.len() };
        let (path, label) = self.images.get(index).ok_or_else(out_of_range)?;
        Ok((read(path, &self.options)?, *label))
    }
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = || fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>();
    let mut entries = read().map_err(DataError::io(folder))?;
    entries.sort();
    Ok(entries)
}

/// Reads, scales, cuts, and normalises.
fn read(path: &Path, options: &ImageOptions) -> Result<Tensor> {
    let reader = image::ImageReader::open(path).and_then(image::ImageReader::with_guessed_format);
    let decoded = reader.map_err(DataError::io(path))?.decode();
    let image = middle(decoded.map_err(|error| DataError::format(path, error.to_string()))?.into_rgb8());
    let (width, height) = image.dimensions();
    let scaled = |side: u32| {
        let scaled = u64::from(side) * u64::from(options.resize) / u64::from(width.min(height).max(1));
        u32::try_from(scaled).unwrap_or(u32::MAX).max(options.size)
    };
    let (width, height) = (scaled(width), scaled(height));
    let image = resize(&image, width, height, FilterType::Triangle);
    let size = options.size;
    let image = crop_imm(&image, (width - size) / 2, (height - size) / 2, size, size).to_image();
    let channel = |channel: usize| {
        let (mean, deviation) = (options.mean[channel], options.deviation[channel]);
        image.pixels().map(move |pixel| (f32::from(pixel[channel]) / 255.0 - mean) / deviation)
    };
    let values: Vec<f32> = (0..3).flat_map(channel).collect();
    Ok(Tensor::from_slice(&values, &[3, size as usize, size as usize])?)
}

/// At most twice as long as wide: of a long strip, scaled until its width is that of the others, only the middle is
/// cut out.
fn middle(image: RgbImage) -> RgbImage {
    let (width, height) = image.dimensions();
    let longest = width.min(height).saturating_mul(2);
    if width.max(height) <= longest {
        return image;
    }
    let (kept_width, kept_height) = (width.min(longest), height.min(longest));
    crop_imm(&image, (width - kept_width) / 2, (height - kept_height) / 2, kept_width, kept_height).to_image()
}

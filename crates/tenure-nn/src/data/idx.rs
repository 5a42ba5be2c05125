//! IDX, the format of MNIST and Fashion-MNIST: a magic number with the type and the number of dimensions, the sizes,
//! and the elements, all in big endian. <https://yann.lecun.com/exdb/mnist/>

use std::io::Read;
use std::path::{Path, PathBuf};

use tenure_core::user_files::open_unpacked;
use tenure_tensor::{Tensor, TensorError};

use super::{DataError, Dataset, Result};

/// An array of bytes from an IDX file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idx {
    /// Elements along each dimension.
    pub sizes: Vec<usize>,
    /// All elements, the last dimension fastest.
    pub data: Vec<u8>,
}

impl Idx {
    /// Reads a file. A file that gzip, xz, lzma, bzip2 or zstd compressed is decompressed, regardless of its name.
    ///
    /// # Errors
    /// The file cannot be read, or is not an IDX file of bytes.
    pub fn open(path: &Path) -> Result<Self> {
        let file = open_unpacked(path).map_err(DataError::io(path))?;
        Self::parse(file).map_err(|error| DataError::format(path, error.to_string()))
    }

    /// Reads one whole array of bytes.
    ///
    /// # Errors
    /// [`DataError::Bytes`]: the bytes are not such an array. No more is read than the header announces, and memory
    /// grows only with the bytes that arrive.
    pub fn parse(mut reader: impl Read) -> Result<Self> {
        let mut magic = [0; 4];
        read(&mut reader, &mut magic, "the magic number")?;
        let [0, 0, kind, rank] = magic else {
            return Err(DataError::Bytes(format!("an IDX file begins with two zeros, got {magic:02x?}")));
        };
        if kind != 0x08 {
            return Err(DataError::Bytes(format!(
                "IDX of unsigned bytes (type 0x08) is expected, got type {kind:#04x}"
            )));
        }
        let mut sizes = Vec::with_capacity(rank.into());
        for dim in 0..rank {
            let mut size = [0; 4];
            read(&mut reader, &mut size, &format!("size {dim} of {rank}"))?;
            sizes.push(u32::from_be_bytes(size) as usize);
        }
        let count = sizes.iter().try_fold(1_usize, |count, size| count.checked_mul(*size));
        let count = count.filter(|count| *count <= isize::MAX as usize);
        let count = count.ok_or_else(|| DataError::Bytes(format!("sizes {sizes:?} are larger than any memory")))?;
        let mut data = Vec::new();
        // One byte more than announced reveals a file that is too long.
        reader
            .take(count as u64 + 1)
            .read_to_end(&mut data)
            .map_err(|error| DataError::Bytes(format!("the elements cannot be read: {error}")))?;
        if data.len() != count {
            let found = if data.len() > count { "more".to_owned() } else { data.len().to_string() };
            return Err(DataError::Bytes(format!("sizes {sizes:?} take {count} bytes, but there are {found}")));
        }
        Ok(Self { sizes, data })
    }
}

fn read(reader: &mut impl Read, bytes: &mut [u8], what: &str) -> Result<()> {
    reader.read_exact(bytes).map_err(|error| DataError::Bytes(format!("the file ends inside {what}: {error}")))
}

/// Fashion-MNIST (Xiao et al., 2017), or any data set in the same four files: images of one channel in ten classes.
///
/// An example is an image `[1, 28, 28]` of mean 0 and deviation 1 over the training set, and its class.
pub struct FashionMnist {
    images: Idx,
    labels: Vec<u8>,
}

impl FashionMnist {
    /// The names of the classes, by number.
    pub const CLASSES: [&str; 10] =
        ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"];

    const MEAN: f32 = 0.2860;
    const DEVIATION: f32 = 0.3530;

    /// Returns whether a file of this name is one of the four files, packed or not.
    pub fn reads(name: &Path) -> bool {
        let name = name.file_name().unwrap_or_default().to_string_lossy();
        name.strip_suffix(".gz").unwrap_or(&name).ends_with("-ubyte")
    }

    /// Reads a part, `train` or `t10k`, from a folder: `PART-images-idx3-ubyte` and `PART-labels-idx1-ubyte`, with or
    /// without `.gz`.
    ///
    /// # Errors
    /// The files are missing, cannot be read, or do not belong together; a label is not that of a class.
    pub fn open(folder: &Path, part: &str) -> Result<Self> {
        let [images, labels] = Self::files(folder, part)?;
        let set = Self { images: Idx::open(&images)?, labels: Idx::open(&labels)?.data };
        let [count, _, _] = set.images.sizes[..] else {
            let reason = format!("images of three dimensions are expected, got sizes {:?}", set.images.sizes);
            return Err(DataError::format(&images, reason));
        };
        if count != set.labels.len() {
            let reason = format!("{} labels for {count} images", set.labels.len());
            return Err(DataError::format(&labels, reason));
        }
        if count == 0 {
            return Err(DataError::format(&images, "no image is in it: give a file with at least one"));
        }
        if let Some(index) = set.labels.iter().position(|label| usize::from(*label) >= Self::CLASSES.len()) {
            let reason = format!(
                "example {index} is of class {}, but the classes are 0 to {}: data of other classes is trained on as a \
                 folder of images for each class",
                set.labels[index],
                Self::CLASSES.len() - 1
            );
            return Err(DataError::format(&labels, reason));
        }
        Ok(set)
    }

    /// Returns the paths of the files of a part, `train` or `t10k`: images, then labels.
    ///
    /// # Errors
    /// The files are missing.
    pub fn files(folder: &Path, part: &str) -> Result<[PathBuf; 2]> {
        Ok([find(folder, &format!("{part}-images-idx3-ubyte"))?, find(folder, &format!("{part}-labels-idx1-ubyte"))?])
    }
}

/// Returns the path of a file in a folder, which may be packed.
fn find(folder: &Path, name: &str) -> Result<PathBuf> {
    let there = [folder.join(name), folder.join(format!("{name}.gz"))].into_iter().find(|path| path.is_file());
    there.ok_or_else(|| {
        let reason = format!(
            "{name} is missing, with .gz or without: four files are expected, {{train,t10k}}-images-idx3-ubyte and \
             {{train,t10k}}-labels-idx1-ubyte, which Debian's package dataset-fashion-mnist brings"
        );
        DataError::format(folder, reason)
    })
}

impl Dataset for FashionMnist {
    type Item = (Tensor, i64);

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn item(&self, index: usize) -> Result<(Tensor, i64)> {
        let height = self.images.sizes[1];
        let width = self.images.sizes[2];
        let label = *self.labels.get(index).ok_or_else(|| TensorError::Index {
            op: "item",
            index: index as i64,
            dim: 0,
            size: self.len(),
        })?;
        let pixels = &self.images.data[index * height * width..(index + 1) * height * width];
        let pixels: Vec<f32> =
            pixels.iter().map(|pixel| (f32::from(*pixel) / 255.0 - Self::MEAN) / Self::DEVIATION).collect();
        Ok((Tensor::from_slice(&pixels, &[1, height, width])?, label.into()))
    }
}

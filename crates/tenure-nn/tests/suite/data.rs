//! Tests of data sets, loaders and readers.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;
use tempfile::TempDir;
use tenure_nn::data::{
    DataError, DataLoader, Dataset, FashionMnist, Idx, ImageFolder, ImageOptions, LoaderOptions, Result, TextWindows,
};

use crate::fixtures::{expect_error, path_in_folder};

const SMALL: ImageOptions = ImageOptions { size: 8, resize: 8, mean: [0.0; 3], deviation: [1.0; 3] };

/// A file of git-lfs that stands for one that was not fetched.
const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";

/// A data set of each example's own number. Some examples fail, one panics.
struct Numbers {
    count: usize,
    fails_at: Option<usize>,
    panics_at: Option<usize>,
}

fn numbers(count: usize) -> Numbers {
    Numbers { count, fails_at: None, panics_at: None }
}

impl Dataset for Numbers {
    type Item = i64;

    fn len(&self) -> usize {
        self.count
    }

    fn item(&self, index: usize) -> Result<i64> {
        assert!(self.panics_at != Some(index), "example {index} is cursed");
        if self.fails_at == Some(index) {
            return Err(DataError::Bytes(format!("example {index} is bad")));
        }
        Ok(index as i64)
    }
}

fn batches(loader: &DataLoader<Numbers>, epoch: u64, first: usize) -> Vec<Vec<i64>> {
    loader.epoch(epoch, first).map(|batch| batch.unwrap().to_vec().unwrap()).collect()
}

#[test]
fn batches_are_the_same_for_any_number_of_workers() {
    let with = |workers, prefetch| {
        let options = LoaderOptions { batch_size: 7, shuffle: Some(3), workers, prefetch, ..LoaderOptions::default() };
        DataLoader::new(numbers(100), options)
    };
    let expected = batches(&with(0, 1), 5, 0);
    assert_eq!(expected.len(), 15);
    for (workers, prefetch) in [(1, 1), (2, 2), (5, 3), (usize::MAX, usize::MAX)] {
        assert_eq!(batches(&with(workers, prefetch), 5, 0), expected);
    }
    assert_eq!(batches(&with(2, 2), 5, 11), expected[11..], "an epoch goes on where it was left");
}

#[test]
fn an_epoch_has_every_example_once_in_an_order_of_its_own() {
    let options = LoaderOptions { batch_size: 8, shuffle: Some(1), ..LoaderOptions::default() };
    let loader = DataLoader::new(numbers(1000), options);
    let [first, second] = [0, 1].map(|epoch| batches(&loader, epoch, 0).concat());
    assert_ne!(first, second);
    for order in [first, second] {
        assert_eq!(order.iter().collect::<HashSet<_>>().len(), 1000);
        assert_ne!(order, (0..1000).collect::<Vec<i64>>());
    }
}

#[test]
fn the_last_batch_may_be_left_out() {
    let options = LoaderOptions { batch_size: 4, ..LoaderOptions::default() };
    assert_eq!(batches(&DataLoader::new(numbers(10), options), 0, 0), [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]);
    let options = LoaderOptions { drop_last: true, ..options };
    let loader = DataLoader::new(numbers(10), options);
    assert_eq!((loader.batches(), batches(&loader, 0, 0).len()), (2, 2));
}

#[test]
fn a_workers_error_is_its_batchs_and_the_others_come() {
    let set = Numbers { fails_at: Some(5), panics_at: Some(9), ..numbers(12) };
    let loader = DataLoader::new(set, LoaderOptions { batch_size: 4, workers: 2, ..LoaderOptions::default() });
    let found: Vec<_> = loader.epoch(0, 0).collect();
    assert!(found[0].is_ok());
    assert!(matches!(&found[1], Err(DataError::Bytes(reason)) if reason == "example 5 is bad"));
    let error = found[2].as_ref().unwrap_err().to_string();
    assert!(error.contains("batch 2") && error.contains("example 9 is cursed"), "{error}");
}

fn idx(sizes: &[u32], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, sizes.len() as u8];
    sizes.iter().for_each(|size| bytes.extend(size.to_be_bytes()));
    bytes.extend(data);
    bytes
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

#[test]
fn idx_files_are_read_packed_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let labels = folder.path().join("train-labels-idx1-ubyte");
    let pixels: Vec<u8> = (0..2 * 28 * 28).map(|pixel| (pixel % 251) as u8).collect();
    fs::write(&labels, idx(&[2], &[3, 9])).unwrap();
    fs::write(folder.path().join("train-images-idx3-ubyte.gz"), packed(&idx(&[2, 28, 28], &pixels))).unwrap();

    let set = FashionMnist::open(folder.path(), "train").unwrap();
    assert_eq!(set.len(), 2);
    let (image, label) = set.item(1).unwrap();
    assert_eq!((image.sizes(), label), (&[1, 28, 28][..], 9));
    let expected = (f32::from(pixels[784]) / 255.0 - 0.2860) / 0.3530;
    assert_eq!(image.to_vec::<f32>().unwrap()[0], expected);

    let error = FashionMnist::open(folder.path(), "t10k").err().unwrap().to_string();
    for expected in ["t10k-images-idx3-ubyte is missing", "four files are expected", "dataset-fashion-mnist"] {
        assert!(error.contains(expected), "{error}");
    }
    fs::write(&labels, idx(&[3], &[3, 9, 1])).unwrap();
    expect_error(FashionMnist::open(folder.path(), "train"), "3 labels for 2 images");
}

#[test]
fn a_packed_file_is_told_by_its_content_not_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let packed_path = folder.path().join("packed");
    let plain_path = folder.path().join("plain.gz");
    fs::write(&packed_path, packed(&idx(&[2], &[3, 9]))).unwrap();
    fs::write(&plain_path, idx(&[2], &[3, 9])).unwrap();
    assert_eq!(Idx::open(&packed_path).unwrap().data, [3, 9]);
    assert_eq!(Idx::open(&plain_path).unwrap().data, [3, 9]);
    fs::write(&plain_path, "version https://git-lfs.github.com/spec/v1\n").unwrap();
    expect_error(Idx::open(&plain_path), "plain.gz: this is a git-lfs pointer");
}

#[test]
fn a_label_of_no_class_and_a_set_of_no_image_are_refused_with_their_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("train-images-idx3-ubyte"), idx(&[2, 1, 1], &[0, 1])).unwrap();
    fs::write(folder.path().join("train-labels-idx1-ubyte"), idx(&[2], &[9, 10])).unwrap();
    let error = FashionMnist::open(folder.path(), "train").err().unwrap().to_string();
    for expected in ["train-labels-idx1-ubyte: example 1 is of class 10", "0 to 9", "a folder of images for each class"]
    {
        assert!(error.contains(expected), "{error}");
    }
    fs::write(folder.path().join("train-images-idx3-ubyte"), idx(&[0, 1, 1], &[])).unwrap();
    fs::write(folder.path().join("train-labels-idx1-ubyte"), idx(&[0], &[])).unwrap();
    expect_error(FashionMnist::open(folder.path(), "train"), "train-images-idx3-ubyte: no image is in it");
}

#[test]
fn a_bad_idx_file_says_what_is_wrong() {
    expect_error(Idx::parse(&[][..]), "magic");
    expect_error(Idx::parse(&[1, 0, 8, 1][..]), "two zeros");
    expect_error(Idx::parse(&[0, 0, 13, 1][..]), "0x0d");
    expect_error(Idx::parse(&[0, 0, 8, 2, 0, 0, 0, 1][..]), "size 1 of 2");
    expect_error(Idx::parse(&*idx(&[4], &[1, 2, 3])), "take 4 bytes, but there are 3");
    expect_error(Idx::parse(&*idx(&[2], &[1, 2, 3])), "more");
    expect_error(Idx::parse(&*idx(&[u32::MAX; 3], &[])), "larger than any memory");
    expect_error(Idx::parse(&*idx(&[u32::MAX], &[1])), "there are 1");
}

proptest! {
    #[test]
    fn any_bytes_are_an_array_or_an_error(
        mut bytes in prop::collection::vec(any::<u8>(), 0..64),
        is_near in any::<bool>(),
    ) {
        if is_near && bytes.len() > 8 {
            let count = bytes.len() as u8 - 8;
            bytes[..8].copy_from_slice(&[0, 0, 8, 1, 0, 0, 0, count]);
        }
        match Idx::parse(&bytes[..]) {
            Ok(idx) => prop_assert_eq!(idx.sizes.iter().product::<usize>(), idx.data.len()),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn arrays_are_read_as_they_were_written(sizes in prop::collection::vec(0..5_u32, 0..4)) {
        let data: Vec<u8> = (0..sizes.iter().product::<u32>()).map(|i| i as u8).collect();
        let read = Idx::parse(&idx(&sizes, &data)[..]).unwrap();
        prop_assert_eq!(read.data, data);
    }
}

#[test]
fn a_folder_for_each_class_is_a_data_set() {
    let folder = tempfile::tempdir().unwrap();
    for (class, colour) in [("blue", [0, 0, 255]), ("red", [255, 0, 0])] {
        fs::create_dir(folder.path().join(class)).unwrap();
        let image = image::RgbImage::from_pixel(20, 10, image::Rgb(colour));
        image.save(folder.path().join(class).join("one.png")).unwrap();
    }
    let set = ImageFolder::open(folder.path(), SMALL).unwrap();
    assert_eq!((set.classes(), set.len()), (&["blue".to_owned(), "red".to_owned()][..], 2));
    let (image, label) = set.item(1).unwrap();
    assert_eq!((image.sizes(), label), (&[3, 8, 8][..], 1));
    assert_eq!(image.to_vec::<f32>().unwrap(), [vec![1.0; 64], vec![0.0; 128]].concat());

    fs::write(folder.path().join("red/one.png"), b"no image").unwrap();
    expect_error(set.item(1), "one.png");
    let empty = tempfile::tempdir().unwrap();
    expect_error(ImageFolder::open(empty.path(), SMALL), "a folder for each class");
    fs::create_dir(folder.path().join("green")).unwrap();
    expect_error(ImageFolder::open(folder.path(), SMALL), "green: no image is in this folder");
}

/// Makes a folder with a folder in it.
fn with_folder(name: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join(name)).unwrap();
    folder
}

/// Makes a picture in which a missing part would be noticed.
fn picture() -> image::RgbImage {
    image::RgbImage::from_fn(40, 30, |x, y| image::Rgb([x as u8 * 6, y as u8 * 8, (x * y % 251) as u8]))
}

#[test]
fn every_format_is_read_and_an_image_that_is_cut_off_is_named() {
    let folder = with_folder("class");
    for name in ["a.bmp", "b.gif", "c.jpg", "d.png", "e.ppm", "f.tif", "g.webp"] {
        picture().save(folder.path().join("class").join(name)).unwrap();
    }
    let set = ImageFolder::open(folder.path(), SMALL).unwrap();
    assert_eq!(set.len(), 7);
    for (index, name) in ["a.bmp", "b.gif", "c.jpg", "d.png", "e.ppm", "f.tif", "g.webp"].iter().enumerate() {
        assert_eq!(set.item(index).unwrap().0.sizes(), [3, 8, 8], "{name}");
        let path = folder.path().join("class").join(name);
        let whole = fs::read(&path).unwrap();
        for left in [whole.len() / 2, whole.len() * 9 / 10] {
            fs::write(&path, &whole[..left]).unwrap();
            let error = set.item(index).err().unwrap_or_else(|| panic!("{name} of {left} bytes is read")).to_string();
            assert!(error.contains(name) && error.contains("or remove it"), "{error}");
        }
    }
}

#[test]
fn a_jpeg_ends_with_its_own_end_marker() {
    let folder = with_folder("class");
    let path = folder.path().join("class/one.jpg");
    picture().save(&path).unwrap();
    let jpeg = fs::read(&path).unwrap();
    let set = ImageFolder::open(folder.path(), ImageOptions::default()).unwrap();
    // A preview in the metadata is itself a JPEG, and some programs write more after the end.
    let preview = [&[0xff, 0xe1], &(jpeg.len() as u16 + 2).to_be_bytes()[..], &jpeg].concat();
    let with_preview = [&jpeg[..2], &preview, &jpeg[2..]].concat();
    for whole in [&with_preview, &[&jpeg[..], b"more"].concat()] {
        fs::write(&path, whole).unwrap();
        set.item(0).unwrap();
    }
    let end = jpeg.len() - 2;
    let cut = [&with_preview[..with_preview.len() - 2], &[&jpeg[..end], &[0; 512]].concat(), &jpeg[..end]];
    for cut in cut {
        fs::write(&path, cut).unwrap();
        expect_error(set.item(0), "one.jpg: the JPEG is cut off");
    }
}

#[test]
fn images_in_folders_of_a_class_are_its_own_and_what_is_left_out_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "not looked into").unwrap();
    };
    for image in ["cats/b.png", "cats/old/deep/a.JPG", "cats/z.webp", "dogs/a.tiff"] {
        write(image);
    }
    let set = ImageFolder::open(folder.path(), ImageOptions::default()).unwrap();
    assert_eq!((set.len(), set.left_out().to_string()), (4, String::new()));
    for other in [
        ".ipynb_checkpoints/a.png",
        "cats/.DS_Store",
        "cats/._b.png",
        "cats/a.heic",
        "dogs/1.txt",
        "dogs/2.txt",
        "a.png",
    ] {
        write(other);
    }
    write("dogs/LICENSE");
    let set = ImageFolder::open(folder.path(), ImageOptions::default()).unwrap();
    assert_eq!((set.classes(), set.len()), (&["cats".to_owned(), "dogs".to_owned()][..], 4));
    let told = set.left_out().to_string();
    for expected in [
        "; left out: 3 hidden (such as ",
        ".ipynb_checkpoints), 1 outside of the folders of classes (",
        "1 without an ending (",
        "1 .heic, not a format that is read (",
        "2 .txt, not a format that is read (such as ",
    ] {
        assert!(told.contains(expected), "{told}");
    }
    write("fish/a.heic");
    let error = ImageFolder::open(folder.path(), ImageOptions::default()).err().unwrap().to_string();
    assert!(error.contains("fish: no image is in this folder") && error.contains("1 .heic"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_folder_that_is_linked_into_itself_is_read_once() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("cats/more")).unwrap();
    fs::write(folder.path().join("cats/a.png"), "not looked into").unwrap();
    std::os::unix::fs::symlink("..", folder.path().join("cats/more/again")).unwrap();
    let set = ImageFolder::open(folder.path(), ImageOptions::default()).unwrap();
    assert_eq!(set.len(), 1);
    assert!(set.left_out().to_string().contains("1 linked to a folder that it is in"), "{}", set.left_out());
}

#[test]
fn pipes_devices_and_dangling_links_among_images_are_left_out_and_never_opened() {
    let folder = with_folder("cats");
    let class = folder.path().join("cats");
    picture().save(class.join("a.png")).unwrap();
    assert!(Command::new("mkfifo").arg(class.join("b.png")).status().unwrap().success());
    symlink("/dev/zero", class.join("c.png")).unwrap();
    symlink("nowhere", class.join("d.png")).unwrap();
    let set = ImageFolder::open(folder.path(), ImageOptions::default()).unwrap();
    assert_eq!(set.files().collect::<Vec<_>>(), [class.join("a.png")]);
    let told = set.left_out().to_string();
    let expected = [
        format!("2 that are pipes, sockets or devices (such as {})", class.join("b.png").display()),
        format!("1 linked to nothing ({})", class.join("d.png").display()),
    ];
    assert_eq!(told, format!("; left out: {}", expected.join(", ")));

    // A pipe that takes an image's place later is an error and no wait.
    fs::remove_file(class.join("a.png")).unwrap();
    assert!(Command::new("mkfifo").arg(class.join("a.png")).status().unwrap().success());
    assert!(set.item(0).err().unwrap().to_string().ends_with("a.png: this is not a regular file"));
}

#[test]
fn links_that_lead_to_themselves_and_empty_files_among_images_are_left_out() {
    let folder = with_folder("cats");
    let class = folder.path().join("cats");
    picture().save(class.join("a.png")).unwrap();
    symlink("b.png", class.join("b.png")).unwrap();
    symlink("a.png/below", class.join("c.png")).unwrap();
    fs::write(class.join("d.png"), "").unwrap();
    let set = ImageFolder::open(folder.path(), ImageOptions::default()).unwrap();
    assert_eq!(set.files().collect::<Vec<_>>(), [class.join("a.png")]);
    let expected = [
        format!("2 linked to nothing (such as {})", class.join("b.png").display()),
        format!("1 empty ({})", class.join("d.png").display()),
    ];
    assert_eq!(set.left_out().to_string(), format!("; left out: {}", expected.join(", ")));
}

#[test]
fn an_image_that_git_lfs_did_not_fetch_is_a_pointer() {
    let folder = with_folder("class");
    fs::write(folder.path().join("class/one.png"), POINTER).unwrap();
    let set = ImageFolder::open(folder.path(), ImageOptions::default()).unwrap();
    let error = set.item(0).unwrap_err().to_string();
    assert!(error.contains("one.png: this is a git-lfs pointer") && error.contains("git lfs pull"), "{error}");
}

#[test]
fn the_middle_of_a_long_strip_is_scaled() {
    let folder = with_folder("strip");
    // The whole strip, scaled, would take 16 GB.
    let image = image::RgbImage::from_fn(1, 30_001, |_, y| {
        if (14_999..=15_001).contains(&y) { image::Rgb([255, 0, 0]) } else { image::Rgb([0, 0, 0]) }
    });
    image.save(folder.path().join("strip/long.png")).unwrap();
    let options = ImageOptions { size: 400, resize: 400, mean: [0.0; 3], deviation: [1.0; 3] };
    let (strip, _) = ImageFolder::open(folder.path(), options).unwrap().item(0).unwrap();
    let strip = strip.to_vec::<f32>().unwrap();
    let red = strip[..400 * 400].iter().filter(|red| **red > 0.9).count();
    assert!(red > 400 * 300, "{red} of its pixels are red");
}

#[test]
fn text_comes_in_windows_with_what_follows() {
    let set = TextWindows::of_tokens(vec![10, 11, 12, 13, 14, 15], 2).unwrap();
    assert_eq!(set.len(), 2);
    assert_eq!(set.item(1).unwrap(), (vec![12, 13], vec![13, 14]));
    let loader = DataLoader::new(set, LoaderOptions { batch_size: 2, ..LoaderOptions::default() });
    let (inputs, targets) = loader.epoch(0, 0).next().unwrap().unwrap();
    assert_eq!(inputs.to_vec::<i64>().unwrap(), [10, 11, 12, 13]);
    assert_eq!((targets.sizes(), targets.to_vec::<i64>().unwrap()), (&[2, 2][..], vec![11, 12, 13, 14]));

    assert_eq!(TextWindows::of_tokens((0..6).collect(), 2).unwrap().item_of_epoch(1, 9).unwrap().0, [2, 3]);

    let (_folder, path) = path_in_folder("text");
    fs::write(&path, "é").unwrap();
    assert_eq!(TextWindows::open_bytes(&path, 1).unwrap().item(0).unwrap(), (vec![0xc3], vec![0xa9]));
    assert!(
        TextWindows::open_bytes(&path, 2)
            .err()
            .unwrap()
            .to_string()
            .contains("there are 2 tokens, and a window of 2 and the token after it take 3")
    );
}

#[test]
fn a_packed_text_is_unpacked_and_one_that_is_no_utf_8_is_refused() {
    let (_folder, path) = path_in_folder("text");
    // The file consists of several packed parts, one after the other.
    let bytes = [packed(b"ab"), packed(b"cd")].concat();
    fs::write(&path, &bytes).unwrap();
    assert_eq!(TextWindows::open_bytes(&path, 3).unwrap().item(0).unwrap(), (vec![97, 98, 99], vec![98, 99, 100]));
    let refusal = |content: &[u8]| {
        fs::write(&path, content).unwrap();
        TextWindows::open_bytes(&path, 1).err().unwrap().to_string()
    };
    let little_endian = b"\xff\xfea\0b\0";
    for utf_16 in [little_endian, &packed(little_endian)[..], b"\xfe\xff\0a\0b"] {
        assert!(refusal(utf_16).contains("text: this is UTF-16"));
    }
    assert!(refusal(&bytes[..bytes.len() - 9]).contains("text: "), "cut off");
    assert!(refusal(POINTER.as_bytes()).contains("text: this is a git-lfs pointer"));

    // "abcd\n", compressed by the programs xz, bzip2 and zstd. The name of the file is the same for all.
    let stored: [&[u8]; 3] = [
        &[
            0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x04, 0xe6, 0xd6, 0xb4, 0x46, 0x02, 0x00, 0x21, 0x01, 0x16, 0x00,
            0x00, 0x00, 0x74, 0x2f, 0xe5, 0xa3, 0x01, 0x00, 0x04, 0x61, 0x62, 0x63, 0x64, 0x0a, 0x00, 0x00, 0x00, 0x00,
            0xa0, 0xc3, 0xdb, 0x19, 0x86, 0x88, 0x51, 0x50, 0x00, 0x01, 0x1d, 0x05, 0xb8, 0x2d, 0x80, 0xaf, 0x1f, 0xb6,
            0xf3, 0x7d, 0x01, 0x00, 0x00, 0x00, 0x00, 0x04, 0x59, 0x5a,
        ],
        &[
            0x42, 0x5a, 0x68, 0x39, 0x31, 0x41, 0x59, 0x26, 0x53, 0x59, 0x37, 0xb1, 0x36, 0xde, 0x00, 0x00, 0x00, 0xc1,
            0x00, 0x00, 0x10, 0x3c, 0x00, 0x20, 0x00, 0x21, 0x83, 0x41, 0x9a, 0x02, 0x5c, 0x71, 0x77, 0x24, 0x53, 0x85,
            0x09, 0x03, 0x7b, 0x13, 0x6d, 0xe0,
        ],
        &[0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x58, 0x29, 0x00, 0x00, 0x61, 0x62, 0x63, 0x64, 0x0a, 0x9d, 0x3d, 0x46, 0x9a],
    ];
    for bytes in stored {
        fs::write(&path, bytes).unwrap();
        let windows = TextWindows::open_bytes(&path, 3).unwrap();
        assert_eq!((windows.bytes(), windows.len()), (Some(&b"abcd\n"[..]), 1));
    }
    assert!(matches!(TextWindows::open_bytes(Path::new("/dev/zero"), 3), Err(DataError::Io { .. })));
    for binary in [&b"SQLite format 3\0"[..], &packed(b"\x80\x04\x95\x0b")] {
        fs::write(&path, binary).unwrap();
        assert!(matches!(TextWindows::open_bytes(&path, 3), Err(DataError::Io { .. })), "{binary:?}");
    }
    assert!(refusal(b"PK\x03\x04rest").contains("text: this is a zip archive, which is not read: unpack it"));
    let tar = [&[0_u8; 257][..], b"ustar\x0000"].concat();
    assert!(refusal(&packed(&tar)).contains("text: this is a tar archive"));
}

#[test]
fn windows_begin_elsewhere_in_each_epoch_and_the_same_in_the_same() {
    let with = |seed, workers| {
        let set = TextWindows::of_tokens((0..103).collect(), 10).unwrap().shifted(seed);
        assert_eq!(set.len(), 9);
        DataLoader::new(set, LoaderOptions { batch_size: 4, shuffle: Some(1), workers, ..LoaderOptions::default() })
    };
    let epoch = |loader: &DataLoader<TextWindows>, epoch, first| -> Vec<Vec<i64>> {
        loader.epoch(epoch, first).map(|batch| batch.unwrap().0.to_vec().unwrap()).collect()
    };
    let shift = |batches: &[Vec<i64>]| batches.concat().into_iter().min().unwrap();
    let loader = with(3, 0);
    let shifts: HashSet<i64> = (0..50).map(|number| shift(&epoch(&loader, number, 0))).collect();
    assert!(shifts.len() > 5 && shifts.iter().all(|shift| *shift < 10), "{shifts:?}");
    assert_eq!(epoch(&with(3, 2), 7, 1), epoch(&loader, 7, 0)[1..]);
    assert!((0..50).any(|number| epoch(&with(4, 0), number, 0) != epoch(&loader, number, 0)));
    // The windows are side by side for any shift.
    let mut starts: Vec<i64> = epoch(&loader, 7, 0).concat().into_iter().step_by(10).collect();
    starts.sort();
    assert!(starts.windows(2).all(|pair| pair[1] - pair[0] == 10) && starts.len() == 9, "{starts:?}");
}

#[test]
fn a_text_is_split_between_windows() {
    let (first, second) = TextWindows::of_tokens((0..103).collect(), 10).unwrap().split(7);
    assert_eq!((first.len(), second.len()), (7, 3));
    assert_eq!(first.item(6).unwrap(), ((60..70).collect(), (61..71).collect()));
    assert_eq!(second.item(0).unwrap().0, (70..80).collect::<Vec<i64>>());
    let shifted = first.shifted(5);
    let last = (0..50).map(|epoch| *shifted.item_of_epoch(shifted.len() - 1, epoch).unwrap().1.last().unwrap());
    assert_eq!(last.max(), Some(69), "it does not reach into the other part by more than what follows");
    let (all, none) = TextWindows::of_tokens((0..21).collect(), 10).unwrap().split(2);
    assert_eq!((all.len(), none.len()), (2, 0));
}

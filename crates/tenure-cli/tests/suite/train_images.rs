//! `tenure train --data images:DIR`, run as its users run it.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::train::{complaint, here, last_line, partly, tenure};

/// Images of one colour each, so many of each of two classes.
fn write_images(folder: &Path, count: u8) {
    for (class, colour) in [("cats", 40), ("dogs", 200)] {
        fs::create_dir_all(folder.join(class)).unwrap();
        for number in 0..count {
            let pixels = [colour + number; 8 * 8 * 3];
            fs::write(folder.join(format!("{class}/{number}.ppm")), [&b"P6 8 8 255\n"[..], &pixels].concat()).unwrap();
        }
    }
}

#[test]
fn files_beside_the_folders_of_images_are_named() {
    let folder = here();
    let photos = folder.path().join("photos");
    write_images(&photos.join("train"), 1);
    write_images(&photos.join("val"), 1);
    fs::create_dir(photos.join("test")).unwrap();
    fs::write(photos.join("README.md"), "not looked into").unwrap();
    fs::create_dir(photos.join(".cache")).unwrap();
    let args = ["--model", "r3d18", "--data", "images:photos", "--resume", "missing"];
    let output = tenure(folder.path(), &[&["train"], &args[..]].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let expected = "tenure: photos: 2 images to train on (train) and 2 held out (val), of 2 classes (cats, dogs); left \
                    out: 1 hidden (photos/.cache), 2 outside of the folders that are read (such as photos/README.md)";
    assert_eq!(said.lines().next(), Some(expected), "{said}");
}

/// Returns the first line about images in folders of these names.
fn first_line_about(folders: &[&str]) -> String {
    let folder = here();
    folders.iter().for_each(|name| write_images(&folder.path().join("photos").join(name), 1));
    let args = ["train", "--model", "r3d18", "--data", "images:photos", "--resume", "missing"];
    let said = String::from_utf8_lossy(&tenure(folder.path(), &args).stderr).into_owned();
    said.lines().next().unwrap().trim_start_matches("tenure: photos: ").to_owned()
}

#[test]
fn folders_for_training_and_for_testing_are_no_classes() {
    for (training, held_out) in [
        ("train", "test"),
        ("training", "validation"),
        ("Train", "valid"),
        ("Training", "Testing"),
        ("train", "dev"),
        ("train", "eval"),
        ("train2017", "val2017"),
        ("train_images", "Evaluation-Set"),
        ("dataset_train", "testset_01"),
    ] {
        let expected =
            format!("2 images to train on ({training}) and 2 held out ({held_out}), of 2 classes (cats, dogs)");
        assert_eq!(first_line_about(&[training, held_out]), expected);
    }
    let beside = first_line_about(&["train", "valid", "test"]);
    assert!(beside.starts_with("2 images to train on (train) and 2 held out (valid), "), "{beside}");
    assert!(beside.ends_with("1 outside of the folders that are read (photos/test)"), "{beside}");
    let beside = first_line_about(&["train", "test", "dev"]);
    assert!(beside.starts_with("2 images to train on (train) and 2 held out (dev), "), "{beside}");
    // A train is a vehicle too.
    let vehicles = first_line_about(&["bus", "train"]);
    assert_eq!(vehicles, "4 images to train on and 0 held out, of 2 classes (bus, train)");
}

#[test]
fn folders_that_systems_add_are_no_classes() {
    let added = ["@eaDir", "__pycache__", "$RECYCLE.BIN", "lost+found", "__MACOSX"];
    let said = first_line_about(&[&["cats", "dogs"], &added[..]].concat());
    let expected = "4 images to train on and 0 held out, of 2 classes (cats, dogs); left out: 5 hidden (such as ";
    assert!(said.starts_with(expected), "{said}");
    let alone = first_line_about(&["train", "@eaDir"]);
    assert!(alone.starts_with("there is a folder train, but none that is held out"), "{alone}");
}

#[test]
fn a_folder_for_training_alone_is_refused_by_name() {
    let said = first_line_about(&["train"]);
    assert!(said.starts_with("there is a folder train, but none that is held out (val, valid, validation, "), "{said}");
    assert!(said.ends_with("or name photos/train to hold out every tenth image there"), "{said}");
}

#[test]
fn an_image_that_cannot_be_read_leaves_a_checkpoint_and_a_way_to_go_on_without_it() {
    let folder = here();
    let photos = folder.path().join("photos");
    write_images(&photos, 3);
    fs::create_dir_all(photos.join(".ipynb_checkpoints")).unwrap();
    fs::write(photos.join("cats/notes.txt"), "not looked into").unwrap();
    // In the third batch.
    let damaged = photos.join("dogs/1.ppm");
    fs::write(&damaged, b"P6 8 8 255\n").unwrap();
    let args = [
        "train",
        "--model",
        "r3d18",
        "--data",
        "images:photos",
        "--batch-size",
        "2",
        "--steps",
        "3",
        "--json",
        "--seed",
        "1",
    ];
    let output = tenure(folder.path(), &args);
    let (outcome, said) = partly(&output);
    assert_eq!((&outcome["steps"], &outcome["accuracy"]), (&2.into(), &Value::Null), "{said:?}");
    let expected = "tenure: photos: 6 images to train on and 0 held out, of 2 classes (cats, dogs); left out: 1 hidden \
                    (photos/.ipynb_checkpoints), 1 .txt, not a format that is read (photos/cats/notes.txt)";
    assert_eq!(said[0], expected);
    assert!(said[1].contains("photos/dogs/1.ppm: ") && said[1].contains("or remove it"), "{said:?}");
    let command = format!("  tenure {} --resume r3d18-step2.safetensors", args.join(" "));
    assert_eq!(said[2..], ["tenure: stopped after step 2; to go on:".to_owned(), command]);

    fs::remove_file(damaged).unwrap();
    let resume = [&args[..], &["--resume", "r3d18-step2.safetensors"]].concat();
    let said = complaint(folder.path(), &resume);
    assert!(said.contains("the contents of --data are not those") && said.contains("put the data back"), "{said}");
    assert!(said.contains("add --changed-data"), "{said}");
    let changed = tenure(folder.path(), &[&resume[..], &["--changed-data"]].concat());
    assert!(changed.status.success(), "{}", String::from_utf8_lossy(&changed.stderr));
    let resumed = last_line(&changed);
    assert_eq!((&resumed["steps"], &resumed["losses"][0]), (&3.into(), &outcome["losses"][0]));
}

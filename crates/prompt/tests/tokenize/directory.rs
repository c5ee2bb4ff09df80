//! Search for models on disk.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use flash_indexer_prompt::tokenize::{
    FailureReason, ModelDirectory, ModelDirectoryOptions, NamedPaths, TOKENIZER_BYTES_MAX, TokenizerPool,
    TokenizerSource,
};
use serde_json::json;
use tempfile::tempdir;

use crate::support::{
    WORDS, always_searching, forgetful, ids, pool_in, pool_of, text, tiny_tokenizer, tiny_tokenizer_with_one,
    write_model,
};

/// Writes a model in the layout of the hub's cache, where files are links to blobs.
fn write_snapshot(repository: &Path, revision: &str, id_of_one: u32) {
    let (blobs, snapshot) = (repository.join("blobs"), repository.join("snapshots").join(revision));
    fs::create_dir_all(&blobs).expect("a folder");
    fs::create_dir_all(&snapshot).expect("a folder");
    fs::write(blobs.join(revision), tiny_tokenizer_with_one(id_of_one).to_string()).expect("a blob");
    symlink(Path::new("../../blobs").join(revision), snapshot.join("tokenizer.json")).expect("a link");
}

fn point_main_at(repository: &Path, revision: &str) {
    fs::create_dir_all(repository.join("refs")).expect("a folder");
    fs::write(repository.join("refs/main"), revision).expect("a reference");
}

fn names(directory: &ModelDirectory) -> Vec<String> {
    directory.models().into_keys().collect()
}

#[test]
fn a_degenerate_tokenizer_is_not_loaded() {
    let root = tempdir().expect("a directory");
    write_model(&root.path().join("large"), &tiny_tokenizer());
    let large = fs::OpenOptions::new().write(true).open(root.path().join("large/tokenizer.json")).expect("a file");
    large.set_len(TOKENIZER_BYTES_MAX + 1).expect("a sparse file");
    let mut many = tiny_tokenizer();
    let normalizers = vec![json!({"type": "NFC"}); 100_000];
    many["normalizer"] = json!({"type": "Sequence", "normalizers": normalizers});
    write_model(&root.path().join("many"), &many);
    for (model, why) in [("large", "more than 67108864; use"), ("many", "the normalizer has")] {
        let error = pool_in(root.path()).tokenize(model, text("one")).expect_err("it is not loaded");
        assert_eq!(error.reason(), FailureReason::LoadFailed, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn models_are_found_by_their_files() {
    let root = tempdir().expect("a directory");
    let at = |path: &str| root.path().join(path);
    for folder in ["test-model", "org/model", "a/b/c/d"] {
        write_model(&at(folder), &tiny_tokenizer());
    }
    let cached = ["models--Qwen--Qwen3-0.6B", "hub/models--meta-llama--Llama-2-7b-chat-hf", "models--gpt2"];
    for repository in cached {
        write_snapshot(&at(repository), "abc", 3);
    }
    write_model(&at(".hidden/model"), &tiny_tokenizer());
    fs::create_dir_all(at("models--no--snapshots")).expect("a folder");
    fs::create_dir_all(at("empty/folder")).expect("a folder");
    fs::write(at("a file"), "").expect("a file");
    symlink(root.path(), at("org/up")).expect("a link");

    let directory = ModelDirectory::new(root.path().to_owned(), always_searching());
    let expected = ["Qwen/Qwen3-0.6B", "a/b/c/d", "gpt2", "meta-llama/Llama-2-7b-chat-hf", "org/model", "test-model"];
    assert_eq!(names(&directory), expected);
    let pool = pool_of(directory);
    for model in expected {
        assert_eq!(ids(&pool, model, "one two"), [0, 3, 4], "{model}");
    }
}

#[test]
fn links_are_followed() {
    let (root, elsewhere) = (tempdir().expect("a directory"), tempdir().expect("a directory"));
    write_model(&elsewhere.path().join("model"), &tiny_tokenizer());
    write_snapshot(&elsewhere.path().join("models--org--cached"), "abc", 3);
    symlink(elsewhere.path().join("model"), root.path().join("linked")).expect("a link");
    symlink(elsewhere.path().join("models--org--cached"), root.path().join("another-name")).expect("a link");
    symlink("nowhere", root.path().join("dangling")).expect("a link");
    symlink(elsewhere.path(), elsewhere.path().join("circle")).expect("a link");
    let directory = ModelDirectory::new(root.path().to_owned(), always_searching());
    assert_eq!(names(&directory), ["linked", "org/cached"]);
    assert_eq!(ids(&pool_of(directory), "linked", "one"), [0, 3]);
}

#[test]
fn the_directory_may_be_a_model_itself() {
    let root = tempdir().expect("a directory");
    write_model(&root.path().join("model"), &tiny_tokenizer());
    assert_eq!(ids(&pool_in(&root.path().join("model")), "model", "one"), [0, 3]);
}

#[test]
fn refs_main_decides_between_snapshots() {
    let root = tempdir().expect("a directory");
    let repository = root.path().join("models--org--model");
    write_snapshot(&repository, "old", 3);
    write_snapshot(&repository, "new", 4);
    point_main_at(&repository, "old\n");
    let pool = pool_in(root.path());
    assert_eq!(ids(&pool, "org/model", "one"), [0, 3]);
    point_main_at(&repository, "new");
    assert_eq!(ids(&pool, "org/model", "one"), [0, 4], "a reference that moved is noticed");
    assert_eq!(pool.statistics().cache_outdated, 1);

    for useless in ["gone", "../../../elsewhere", "", "/"] {
        point_main_at(&repository, useless);
        fs::remove_dir_all(repository.join("snapshots/old")).ok();
        assert_eq!(ids(&pool, "org/model", "one"), [0, 4], "{useless:?}: the snapshot that is there");
    }
    fs::remove_file(repository.join("snapshots/new/tokenizer.json")).expect("it was there");
    let error = pool.tokenize("org/model", text("one")).expect_err("nothing is left");
    assert_eq!(error.reason(), FailureReason::LoadFailed);
    assert!(error.to_string().contains("no snapshot in"), "{error}");
}

#[test]
fn a_new_model_is_found_when_it_is_asked_for() {
    let root = tempdir().expect("a directory");
    let pool = pool_in(root.path());
    let error = pool.tokenize("org/new", text("one")).expect_err("it is not there yet");
    assert_eq!(error.reason(), FailureReason::UnknownModel);
    let says = format!("directory {}: not among the 0 models found there", root.path().display());
    assert!(error.to_string().contains(&says), "{error}");
    write_model(&root.path().join("org/new"), &tiny_tokenizer());
    assert_eq!(ids(&pool, "org/new", "one"), [0, 3]);

    let rarely = ModelDirectoryOptions { searched_every: Duration::from_secs(3600), ..always_searching() };
    let directory = ModelDirectory::new(root.path().to_owned(), rarely);
    assert_eq!(names(&directory), ["org/new"]);
    write_model(&root.path().join("org/newer"), &tiny_tokenizer());
    assert!(directory.load("org/newer").is_err(), "it was searched a moment ago");
    assert!(directory.load("org/new").is_ok());
}

#[test]
fn a_changed_file_is_noticed_and_a_removed_one_missed() {
    let root = tempdir().expect("a directory");
    let folder = root.path().join("model");
    write_model(&folder, &tiny_tokenizer());
    let pool = pool_in(root.path());
    assert_eq!(ids(&pool, "model", "one"), [0, 3]);
    write_model(&folder, &tiny_tokenizer_with_one(1234));
    assert_eq!(ids(&pool, "model", "one"), [0, 1234]);
    fs::write(folder.join("tokenizer.json"), "{").expect("a file");
    let error = pool.tokenize("model", text("one")).expect_err("it is broken");
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
    fs::remove_dir_all(&folder).expect("it was there");
    let error = pool.tokenize("model", text("one")).expect_err("it is gone");
    assert_eq!(error.reason(), FailureReason::UnknownModel);
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let root = tempdir().expect("a directory");
    write_model(&root.path().join("outside"), &tiny_tokenizer());
    let inside = root.path().join("inside");
    write_model(&inside.join("model"), &tiny_tokenizer());
    let pool = pool_in(&inside);
    let absolute = root.path().join("outside").display().to_string();
    for name in ["../outside", "model/../../outside", &absolute, ".", "", "model/", "./model", "model\0", "..\\outside"]
    {
        let error = pool.tokenize(name, text("one")).expect_err(name);
        assert_eq!(error.reason(), FailureReason::UnknownModel, "{name:?}: {error}");
        assert!(error.to_string().contains("refused"), "{name:?}: {error}");
    }
}

#[test]
fn searches_end_at_their_bounds_and_say_so() {
    let root = tempdir().expect("a directory");
    for number in 0..5 {
        write_model(&root.path().join(format!("org/model-{number}")), &tiny_tokenizer());
    }
    write_model(&root.path().join("deep/er/model"), &tiny_tokenizer());
    let search = |options| {
        let directory = ModelDirectory::new(root.path().to_owned(), options);
        let found = names(&directory).len();
        let error = directory.load("org/none").err().expect("it is not there").to_string();
        (found, error, directory.limits_reached())
    };
    let (found, error, bounds) = search(ModelDirectoryOptions { models_max: 3, ..always_searching() });
    assert_eq!((found, bounds), (3, 2));
    assert!(error.contains("maximum number of models"), "{error}");
    let (_, error, bounds) = search(ModelDirectoryOptions { entries_max: 4, ..always_searching() });
    assert_eq!(bounds, 2);
    assert!(error.contains("maximum number of files and folders"), "{error}");
    let (found, _, bounds) = search(ModelDirectoryOptions { depth_max: 2, ..always_searching() });
    assert_eq!((found, bounds), (5, 0), "what lies deeper is not looked for");
}

#[test]
fn a_directory_that_is_not_there_is_a_failure() {
    let pool = pool_in(Path::new("/nonexistent/models"));
    let error = pool.tokenize("model", text("one")).expect_err("it is not there");
    assert_eq!(error.reason(), FailureReason::LoadFailed);
    assert!(error.to_string().contains("/nonexistent/models"), "{error}");
}

#[test]
fn paths_may_be_named_one_by_one() {
    let root = tempdir().expect("a directory");
    write_model(&root.path().join("folder"), &tiny_tokenizer());
    write_snapshot(&root.path().join("models--org--cached"), "abc", 4);
    fs::copy(root.path().join("folder/tokenizer.json"), root.path().join("my.json")).expect("a copy");
    fs::create_dir(root.path().join("empty")).expect("a folder");
    let paths = [("file", "my.json"), ("/models/folder", "folder"), ("x", "models--org--cached"), ("y", "empty")];
    let named: NamedPaths = paths.map(|(model, path)| (model.to_owned(), root.path().join(path))).into_iter().collect();
    let directory = ModelDirectory::new(root.path().to_owned(), always_searching());
    let sources: Vec<Box<dyn TokenizerSource>> = vec![Box::new(named), Box::new(directory)];
    let pool = TokenizerPool::start(sources, &forgetful()).expect("threads");
    assert_eq!(ids(&pool, "file", "one"), [0, 3]);
    assert_eq!(ids(&pool, "/models/folder", "one"), [0, 3]);
    assert_eq!(ids(&pool, "x", "one"), [0, 4]);
    assert_eq!(&*pool.tokenize("x", text("one")).expect("tokens").source, "named paths");
    let from_directory = pool.tokenize("org/cached", text(WORDS[4])).expect("tokens");
    assert_eq!(&*from_directory.source, format!("directory {}", root.path().display()));
    let error = pool.tokenize("y", text("one")).expect_err("nothing is there");
    assert!(error.to_string().contains("has no tokenizer.json"), "{error}");
    let error = pool.tokenize("z", text("one")).expect_err("no path is configured for it");
    assert!(error.to_string().contains("none of the 4 configured paths is for this model"), "{error}");
}

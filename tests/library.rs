//! The library as other programs use it: without a command line.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ckpt_opt::{
    Budget, Bytes, Control, Error, Event, Model, Options, Target, inspect, largest, optimize,
    sweep, verify,
};
use ckpt_passes::runtime::settings::RuntimeSettings;
use ckpt_passes::strategy::Strategy;

fn model() -> Model {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/onnx/conv_bn_relu_train.onnx");
    Model::open(&file).unwrap()
}

/// In which the model has the most to gain.
fn lean() -> Options {
    Options {
        runtime_settings: Some(RuntimeSettings::LEAN),
        ..Options::default()
    }
}

fn budget(text: &str) -> Budget {
    text.parse().unwrap()
}

/// A folder, and a file in it that does not exist.
fn nowhere() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.onnx");
    (folder, out)
}

/// Options, and the names of the events that they lead to.
fn told() -> (Options, Arc<Mutex<Vec<String>>>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let heard = events.clone();
    let hear = move |event: &Event<'_>| {
        if !matches!(event, Event::Searching { .. } | Event::Ran { .. }) {
            let text = format!("{event:?}");
            let name = text.split([' ', '(']).next().unwrap().to_owned();
            heard.lock().unwrap().push(name);
        }
    };
    let control = Control {
        on_event: Some(Arc::new(hear)),
        ..Control::default()
    };
    (Options { control, ..lean() }, events)
}

#[test]
fn a_graph_is_planned_and_written_and_stands_for_the_original() {
    let (_folder, out) = nowhere();
    let (options, events) = told();
    let before = inspect(&model(), &options).unwrap();
    let rewritten = optimize(&model(), &budget("176KiB"), &options).unwrap();
    assert_eq!(
        rewritten.summary().before.bytes,
        before.measured.default.bytes
    );
    assert!(!out.exists());
    let written = rewritten.write(&out).unwrap();
    assert!(written.summary().after.bytes <= written.summary().budget);
    let found = verify(&model(), &Model::open(&out).unwrap(), &options).unwrap();
    assert_eq!(found.before, before.measured);
    assert!(found.after.default.bytes <= written.summary().budget);
    assert_eq!(*events.lock().unwrap(), ["Planning", "Writing"]);
}

#[test]
fn a_prepared_file_is_not_in_its_place_before_it_is_committed() {
    let (folder, out) = nowhere();
    let target = Target::new(&model(), &out).unwrap();
    let plan = || optimize(&model(), &budget("176KiB"), &lean()).unwrap();
    let prepared = plan().prepare(&target).unwrap();
    assert!(!out.exists());
    drop(prepared);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    plan().prepare(&target).unwrap().commit().unwrap();
    assert!(out.exists());
}

#[test]
fn the_smallest_peak_comes_with_the_refusal() {
    let error = optimize(&model(), &Bytes(1000).into(), &lean()).unwrap_err();
    let smallest = error.smallest().expect("nothing fits");
    assert!(smallest.bytes > Bytes(1000) && !smallest.holders.is_empty());
}

#[test]
fn work_that_is_cancelled_ends_and_writes_nothing() {
    let (folder, out) = nowhere();
    let (mut options, _) = told();
    // As soon as the search begins.
    let cancel = options.control.cancel.clone();
    options.control.on_event = Some(Arc::new(move |event| {
        if matches!(event, Event::Planning { .. }) {
            cancel.cancel();
        }
    }));
    let error = optimize(&model(), &budget("176KiB"), &options).unwrap_err();
    assert!(matches!(error, Error::Cancelled), "{error}");
    let options = lean();
    let rewritten = optimize(&model(), &budget("176KiB"), &options).unwrap();
    // When all is written but nothing is in its place.
    options.control.cancel.cancel();
    let error = rewritten.write(&out).unwrap_err();
    assert!(matches!(error, Error::Cancelled), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_sweep_has_a_row_for_each_strategy_and_a_cell_for_each_budget() {
    let budgets = [budget("176KiB"), budget("1KiB")];
    let strategies = [Strategy::Auto, Strategy::ChenSqrt];
    let row = sweep(&model(), &budgets, &strategies, &lean()).unwrap();
    let names: Vec<&str> = row.tried.iter().map(|tried| tried.strategy).collect();
    assert_eq!(names, ["auto", "chen-sqrt"]);
    let auto = &row.tried[0];
    assert!(auto.cells[0].plan.is_some() && auto.cells[1].plan.is_none());
}

/// The size of the batch decides what a step needs.
fn batched() -> Model {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/cases/unsorted.onnx");
    Model::open(&file).unwrap()
}

#[test]
fn the_largest_size_fits_and_the_next_one_does_not() {
    let mut options = lean();
    options.dims.insert("batch".to_owned(), 12);
    let budget: Budget = inspect(&batched(), &options)
        .unwrap()
        .measured
        .default
        .bytes
        .into();
    options.dims.clear();
    let found = largest(&batched(), "batch", &budget, None, &options).unwrap();
    let size = found.size().unwrap();
    assert!(size >= 12, "what fits as it is fits");
    let tried = |size: u64| found.tried.iter().find(|one| one.size == size).unwrap();
    assert!(tried(size).fits && !tried(size + 1).fits);
    let of_size = found.rewritten.as_ref().unwrap();
    assert_eq!(of_size.options().dims["batch"], size);

    let free = largest(&batched(), "batch", &budget, Some(0.0), &options).unwrap();
    assert_eq!(free.rewritten.as_ref().unwrap().summary().time_added, 0);
    assert!(free.size().unwrap() <= size);
}

#[test]
fn the_largest_size_of_what_is_not_there_or_never_fits_is_told() {
    let options = lean();
    let found = |dim: &str, text: &str| largest(&batched(), dim, &budget(text), None, &options);
    let none = found("batch", "1KiB").unwrap();
    assert_eq!((none.size(), none.rewritten.is_none()), (None, true));
    let error = found("sequence", "1GiB").unwrap_err().to_string();
    assert!(
        error.contains("sequence") && error.contains("batch"),
        "{error}"
    );
    let error = found("batch", "60%").unwrap_err().to_string();
    assert!(error.contains("60%"), "{error}");
}

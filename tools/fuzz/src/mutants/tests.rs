//! Rewritten files that are broken must not pass for the original: `verify` against an engine that breaks them.

use std::fs;
use std::path::Path;

use ckpt_passes::graph::Graph;
use ckpt_passes::testing::SplitMix64;

use super::engine::{Count, Pair};
use super::meaning::meaning;
use super::model;
use super::wire::{Msg, Value};

/// Where the project is.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Breaks a rewriting of the graph so many times, and gives what was found.
#[track_caller]
fn broken(bytes: &[u8], dims: &[String], count: u64) -> Count {
    let folder = tempfile::tempdir().unwrap();
    let original = folder.path().join("in.onnx");
    fs::write(&original, bytes).unwrap();
    let pair = Pair::of(&original, dims, folder.path()).unwrap();
    let mut escaped = Vec::new();
    let found = pair.mutants(count, &mut SplitMix64::new(33), folder.path(), |how, _| {
        escaped.push(how.to_owned());
    });
    assert!(
        escaped.is_empty(),
        "{} of {}: {escaped:#?}",
        escaped.len(),
        found.harmful
    );
    assert!(found.harmful > count / 2, "{found:?}");
    found
}

fn text(name: &str) -> Vec<u8> {
    let file = Path::new(ROOT).join("testdata/text").join(name);
    model::of(&Graph::parse(&fs::read_to_string(file).unwrap()).unwrap())
}

#[test]
fn no_broken_rewriting_of_a_perceptron_passes() {
    broken(&text("mlp_train.onnxtxt"), &[], 400);
}

#[test]
fn no_broken_rewriting_of_branches_passes() {
    broken(&text("residual_train.onnxtxt"), &[], 400);
}

#[test]
fn no_broken_rewriting_of_a_convolutional_network_passes() {
    broken(&text("conv_bn_relu_train.onnxtxt"), &[], 400);
}

#[test]
fn no_broken_rewriting_of_a_network_that_pytorch_exported_passes() {
    let file = Path::new(ROOT).join("testdata/models/triplet.onnx");
    broken(&fs::read(file).unwrap(), &["batch=4".to_owned()], 40);
}

/// The judge sees what verification should see.
#[test]
fn the_meaning_of_a_model_is_that_of_its_expressions() {
    let bytes = text("mlp_train.onnxtxt");
    let expected = meaning(&bytes);
    assert!(expected.is_some());
    let changed = |change: &dyn Fn(&mut Msg)| {
        let mut model = Msg::parse(&bytes).unwrap();
        let place = model.places(7)[0];
        let mut graph = model.at(place).unwrap();
        change(&mut graph);
        model.put(place, &graph);
        meaning(&model.encode())
    };
    // The sequence of nodes means nothing; a name of no output does not either.
    assert_eq!(
        changed(&|graph| graph.0.reverse()).is_some(),
        expected.is_some()
    );
    let nodes_reversed = changed(&|graph| {
        let places = graph.places(1);
        let all: Vec<_> = places.iter().map(|&place| graph.0[place].clone()).collect();
        for (&place, node) in places.iter().zip(all.into_iter().rev()) {
            graph.0[place] = node;
        }
    });
    assert_eq!(nodes_reversed, expected);
    // An operator, and a missing node.
    let other_operator = changed(&|graph| {
        let mut node = graph.at(0).unwrap();
        let place = node.places(4)[0];
        node.0[place].1 = Value::Bytes(b"Other".to_vec());
        graph.put(0, &node);
    });
    assert!(other_operator.is_some() && other_operator != expected);
    assert_eq!(changed(&|graph| drop(graph.0.remove(0))), None);
}

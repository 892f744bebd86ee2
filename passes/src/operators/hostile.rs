//! Whatever a file says, no rule panics, overflows or takes long.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::testing::Case;
use super::{
    CpuKernels, FAMILIES, Provider, aliases, family, in_place, recompute_in, work, workspace,
};
use crate::graph::{AttributeValue, Constant, ElementType, Uses};

const NUMBERS: [i64; 14] = [
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    16,
    -1,
    -2,
    -3,
    1 << 33,
    i64::MAX,
    i64::MIN,
];
const SIZES: [u64; 9] = [0, 1, 2, 3, 4, 7, 16, 1 << 40, u64::MAX];
const TEXTS: [&str; 14] = [
    "",
    "NOTSET",
    "SAME_UPPER",
    "VALID",
    "none",
    "...ij,jk->...ik",
    "->",
    "ii,",
    "i->...",
    "not_larger",
    "embedding",
    "aten::max_pool2d_with_indices",
    "upsample_nearest2d",
    "embedding_backward",
];
const NAMES: [&str; 46] = [
    "axis",
    "axes",
    "perm",
    "kernel_shape",
    "strides",
    "pads",
    "paddings",
    "dilations",
    "group",
    "auto_pad",
    "ceil_mode",
    "output_padding",
    "output_shape",
    "keepdims",
    "start",
    "end",
    "to",
    "dtype",
    "split",
    "num_outputs",
    "k",
    "blocksize",
    "size",
    "batch_dims",
    "layout",
    "value",
    "value_ints",
    "value_float",
    "shape",
    "starts",
    "ends",
    "steps",
    "transA",
    "transBatchA",
    "transBatchB",
    "equation",
    "scales",
    "sample_size",
    "noop_with_empty_axes",
    "stash_type",
    "reduction",
    "output_type",
    "operator",
    "allowzero",
    "non_differentiable_outputs",
    "keep_aspect_ratio_policy",
];
const ELEMENTS: [ElementType; 5] = [
    ElementType::Float,
    ElementType::Int64,
    ElementType::Bool,
    ElementType::Float16,
    ElementType::Int4,
];

fn number() -> impl Strategy<Value = i64> + Clone {
    prop::sample::select(&NUMBERS[..])
}

fn attribute() -> impl Strategy<Value = AttributeValue> {
    let numbers = prop::collection::vec(number(), 0..7);
    prop_oneof![
        3 => number().prop_map(AttributeValue::Int),
        4 => numbers.clone().prop_map(AttributeValue::Ints),
        2 => prop::sample::select(&TEXTS[..])
            .prop_map(|text| AttributeValue::String(text.as_bytes().to_vec())),
        1 => any::<f32>().prop_map(AttributeValue::Float),
        1 => prop::collection::vec(any::<f32>(), 0..5).prop_map(AttributeValue::Floats),
        1 => numbers.prop_map(|values| AttributeValue::Tensor {
            element: ElementType::Int64,
            shape: vec![values.len() as u64],
            constant: Some(Constant::Ints(values)),
        }),
        1 => Just(AttributeValue::Opaque),
    ]
}

/// An input: left out, of any shape, or of known contents (not always as many as it says).
fn input() -> impl Strategy<Value = Option<(ElementType, Vec<u64>, Option<Constant>)>> {
    let shape = || prop::collection::vec(prop::sample::select(&SIZES[..]), 0..6);
    let element = || prop::sample::select(&ELEMENTS[..]);
    let ints = prop::collection::vec(number(), 0..7).prop_map(Constant::Ints);
    let floats = prop::collection::vec(any::<f64>(), 0..5).prop_map(Constant::Floats);
    let contents = prop_oneof![3 => ints, 1 => floats].prop_map(|contents| {
        let count = match &contents {
            Constant::Ints(v) => v.len(),
            Constant::Floats(v) => v.len(),
        };
        let element = match contents {
            Constant::Ints(_) => ElementType::Int64,
            Constant::Floats(_) => ElementType::Float,
        };
        (element, vec![count as u64], Some(contents))
    });
    prop_oneof![
        1 => Just(None),
        4 => (element(), shape()).prop_map(|(element, shape)| Some((element, shape, None))),
        4 => contents.prop_map(Some),
        1 => (element(), shape(), prop::collection::vec(number(), 0..7))
            .prop_map(|(element, shape, v)| Some((element, shape, Some(Constant::Ints(v))))),
    ]
}

#[test]
fn rules_survive_hostile_nodes() {
    let operators: Vec<_> = FAMILIES.iter().flat_map(|family| family.iter()).collect();
    let config = Config {
        cases: 30_000,
        ..Config::default()
    };
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let node = (
        prop::sample::select(operators),
        prop::collection::vec(input(), 0..7),
        prop::collection::vec((prop::sample::select(&NAMES[..]), attribute()), 0..6),
        0usize..5,
        prop::sample::select(&[1i64, 9, 10, 11, 12, 13, 17, 18, 22][..]),
    );
    let checked = TestRunner::new_with_rng(config, random).run(
        &node,
        |(operator, inputs, attributes, outputs, opset)| {
            let mut case = Case::of(operator.domain, operator.name)
                .opset(opset)
                .outputs(outputs);
            for given in inputs {
                case = match given {
                    None => case.none(),
                    Some((element, shape, contents)) => case.input(element, &shape, contents),
                };
            }
            for (name, value) in attributes {
                case = case.attribute(name, value);
            }
            let (graph, node) = case.survives();
            for provider in [Provider::Cpu, Provider::Cuda] {
                workspace(&graph, &node, provider, CpuKernels::DEFAULT);
                in_place(&graph, &node, provider);
            }
            prop_assert!(work(&graph, &node, Provider::Cpu).operations >= 0.0);
            aliases(&node);
            recompute_in(&graph, &Uses::of(&graph), &node);
            family(&graph, &node);
            Ok(())
        },
    );
    checked.expect("no panic");
}

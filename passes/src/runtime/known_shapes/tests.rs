use std::collections::BTreeMap;

use super::*;
use crate::graph::{AttributeValue, ElementType, Node, Tensor};
use crate::pass::Pass;
use crate::rewrite::infer_shapes::InferShapes;
use crate::runtime::Release;

/// The runtime's shape of `tensor`.
fn shape(text: &str, tensor: &str) -> String {
    described(&Graph::parse(text).unwrap(), tensor)
}

/// The same once symbolic dimensions have values.
fn bound(text: &str, tensor: &str, bindings: &BTreeMap<String, u64>) -> String {
    let mut graph = Graph::parse(text).unwrap();
    let bindings = bindings.clone();
    InferShapes { bindings }.run(&mut graph).unwrap();
    described(&graph, tensor)
}

fn described(graph: &Graph, tensor: &str) -> String {
    let id = graph.tensor_named(tensor).unwrap();
    match &runtime_shapes(graph)[id.index()] {
        Some(shape) => shape
            .iter()
            .map(Dimension::to_string)
            .collect::<Vec<_>>()
            .join(" "),
        None => "unknown".to_owned(),
    }
}

// Measured with tools/measure_known_shapes.py in 1.19.2, 1.20.1 and 1.32.0.
#[test]
fn builds_for_inference_know_an_einsum_by_the_first_input_with_a_letter() {
    let text = r#"<ir_version: 8, opset_import: ["" : 17]>
        g (float[p,4,5] a, float[16,5,6] b, float[1,5,6] one) => () {
            ab = Einsum <equation = "bsd,bde->bse"> (a, b) ba = Einsum <equation = "bde,bsd->bse"> (b, a)
            ao = Einsum <equation = "bsd,bde->bse"> (a, one) oa = Einsum <equation = "bde,bsd->bse"> (one, a)
            late = GreaterOrEqual (a, a)
        }"#;
    let run_by = |release: &Release| {
        let mut graph = Graph::parse(text).unwrap();
        let bindings = [("p".to_owned(), 16)].into();
        InferShapes { bindings }.run(&mut graph).unwrap();
        infer_as(&mut graph, release);
        let known = ["ab", "ba", "ao", "oa"].map(|tensor| described(&graph, tensor));
        // What not all of these builds know is declared, and nothing else.
        let value = |id: &TensorId| graph.tensor(*id).kind == TensorKind::Value;
        let declared = graph
            .tensor_ids()
            .filter(value)
            .filter(|&id| graph.tensor(id).declared.is_some());
        let declared: Vec<_> = declared.map(|id| graph.tensor(id).name.clone()).collect();
        (known, declared)
    };
    let (known, declared) = run_by(&crate::runtime::STOCK);
    assert_eq!(known, ["p 4 6", "16 4 6", "p 4 6", "1 4 6"]);
    assert_eq!(declared, ["late"]);
    let (known, declared) = run_by(&crate::runtime::TRAINING);
    assert_eq!(known, ["? ? ?"; 4]);
    assert!(declared.is_empty(), "{declared:?}");
}

#[test]
fn a_number_that_is_inferred_goes_before_a_name_that_is_declared() {
    let text = "g (float[4,1] x, int64[2] to) => () <float[n,8] y, float[n,8] z>
        { y = Expand(x, to) z = Relu(y) }";
    let bindings = [("n".to_owned(), 4)].into();
    assert_eq!(bound(text, "y", &bindings), "4 8");
    assert_eq!(bound(text, "z", &bindings), "4 8");
}

/// Measured on a transformer whose mask is expanded to what its products have.
#[test]
fn of_what_is_expanded_to_a_shape_of_something_unknown_nothing_is_known() {
    let text = r#"<ir_version: 8, opset_import: ["" : 15]>
        g (float[batch,4,6,8] x, float[batch,1,1,8] mask) => () {
            product = MeanVarianceNormalization (x)
            of_product = Shape (product)
            of_x = Shape (x)
            unknown = Expand (mask, of_product)
            wide = Expand (mask, of_x)
        }"#;
    let bindings = [("batch".to_owned(), 2)].into();
    assert_eq!(bound(text, "unknown", &bindings), "unknown");
    assert_eq!(bound(text, "wide", &bindings), "? ? ? 8");
}

/// Measured on a transformer with as many words as sequences.
#[test]
fn sizes_that_are_equal_by_chance_are_no_numbers() {
    let text = r#"<ir_version: 8, opset_import: ["" : 15]>
        g (float[batch,4,16,8] x, float[other,4,words,8] y) => () {
            joined = com.microsoft.ConcatTraining <axis = -1> (x, y)
        }"#;
    for size in [16, 12] {
        let sizes = ["batch", "other"].map(|name| (name.to_owned(), size));
        let mut bindings: BTreeMap<String, u64> = sizes.into();
        bindings.insert("words".to_owned(), 16);
        assert_eq!(bound(text, "joined", &bindings), "batch 4 16 16", "{size}");
    }
}

#[test]
fn what_is_chosen_has_as_many_dimensions_and_what_is_gathered_the_shape_of_the_indices() {
    let text = r#"<ir_version: 8, opset_import: ["" : 15]>
        g (float[batch,6] x, float[batch,9,4] data) => () <int64[1] k = {6}, int64[1] one = {1}> {
            chosen, at = TopK (x, k)
            first, of_all = TopK <axis = 0> (x, one)
            last = Constant <value_ints = [2]> ()
            wide = Unsqueeze (at, last)
            repeats = Constant <value = int64[3] {1, 1, 4}> ()
            indices = Tile (wide, repeats)
            ranked = Einsum <equation = "abc->abc"> (data)
            unknown = MeanVarianceNormalization (data)
            y = GatherElements <axis = 1> (unknown, indices)
        }"#;
    let bindings = [("batch".to_owned(), 2)].into();
    assert_eq!(bound(text, "chosen", &bindings), "batch 6");
    assert_eq!(bound(text, "first", &bindings), "? ?");
    assert_eq!(bound(text, "ranked", &bindings), "? ? ?");
    assert_eq!(bound(text, "unknown", &bindings), "unknown");
    assert_eq!(bound(text, "y", &bindings), "? 6 4");
}

// Measured in 1.19.2, 1.20.1 and 1.32.0, for the opsets 13, 14 and 18.
#[test]
fn what_is_cut_or_repeated_as_computed_has_as_many_dimensions_and_a_range_has_one() {
    let text = r#"<ir_version: 8, opset_import: ["" : 15]>
        g (float[n,6] x, float[m] y, float[m,1] z) => ()
        <int64 zero = {0}, int64 one = {1}, int64[1] begin = {0}, int64[2] none = {0, 0}> {
            count = Size (y)
            range = Range (zero, count, one)
            end = Shape (y)
            cut = Slice (x, begin, end, begin)
            twice = Shape (z)
            wide = Concat <axis = 0> (none, twice)
            padded = Pad (x, wide)
            repeated = Tile (x, twice)
            chosen, at = TopK (x, end)
        }"#;
    let bindings: BTreeMap<_, _> = [("n".to_owned(), 5), ("m".to_owned(), 3)].into();
    assert_eq!(bound(text, "range", &bindings), "?");
    for name in ["cut", "padded", "repeated", "chosen", "at"] {
        assert_eq!(bound(text, name, &bindings), "? ?", "{name}");
    }
}

// As the pieces of what the runtime takes apart are, which it lists last.
#[test]
fn what_is_listed_before_what_it_reads_is_known_like_others() {
    let text = "g (float[n,8] x) => () { z = Exp (y) y = Relu (x) }";
    assert_eq!(bound(text, "z", &[("n".to_owned(), 4)].into()), "n 8");
}

#[test]
fn a_gradient_of_a_quotient_has_the_shapes_of_dividend_and_divisor() {
    let text = "g (float[k,8] dy, float[n,8] a, float[m,1] b) => () { da, db = com.microsoft.DivGrad (dy, a, b) }";
    let bindings = [("k", 4), ("n", 4), ("m", 4)].map(|(name, size)| (name.to_owned(), size));
    assert_eq!(bound(text, "da", &bindings.clone().into()), "n 8");
    assert_eq!(bound(text, "db", &bindings.into()), "m 1");
}

#[test]
fn different_names_broadcast_to_something_unknown() {
    let text = "g (float[n,8] x, float[m,8] y) => () { z = Add(x, y) w = Mul(x, x) }";
    assert_eq!(shape(text, "z"), "? 8");
    assert_eq!(shape(text, "w"), "n 8");
}

#[test]
fn gradients_have_the_shape_of_dy_and_that_of_a_layer_normalization_has_that_of_x() {
    // Measured, with a session's own words for each.
    let text = "g (float[n,8] dy, float[4,8] x, float[8] scale, float[4,1] mean, float[4,1] deviation) => ()
        <float[n,8] d>
        { a = com.microsoft.LayerNormalizationGrad(dy, x, scale, mean, deviation)
          b = com.microsoft.GeluGrad(dy, x) c = com.microsoft.ReluGrad(dy, x)
          d, e, f = com.microsoft.LayerNormalizationGrad(dy, x, scale, mean, deviation) }";
    let bindings = [("n".to_owned(), 4)].into();
    assert_eq!(bound(text, "a", &bindings), "4 8");
    assert_eq!(bound(text, "b", &bindings), "n 8");
    assert_eq!(bound(text, "c", &bindings), "n 8");
    assert_eq!(bound(text, "d", &bindings), "4 8");
    assert_eq!(bound(text, "e", &bindings), "8");
}

#[test]
fn a_constant_shape_gives_its_numbers_whatever_is_declared() {
    let text = "g (float[4,6] x, float[n,6] y) => ()
        <float[n,3,8] a, float[n,3,8] b, float[n,6] c, float[m,2] d>
        { to = Constant <value_ints = [-1, 3, 8]> () a = Reshape(x, to) b = Relu(a)
          same = Constant <value_ints = [0, 6]> () c = Reshape(y, same)
          flat = Constant <value_ints = [0, -1]> () e = Reshape(y, flat)
          two = Constant <value_ints = [-1, 2]> () d = Reshape(y, two) }";
    let bindings = [("n".to_owned(), 1), ("m".to_owned(), 3)].into();
    assert_eq!(bound(text, "a", &bindings), "1 3 8");
    assert_eq!(bound(text, "b", &bindings), "1 3 8");
    assert_eq!(bound(text, "c", &bindings), "n 6");
    assert_eq!(bound(text, "d", &bindings), "m 2");
    assert_eq!(bound(text, "e", &bindings), "n 6");
}

// What sessions of 1.19.2 and 1.32.0 say of the lowered update of a weight, and of zeros of a computed size.
#[test]
fn a_shape_that_is_computed_gives_as_many_dimensions_as_it_has_numbers() {
    let text = "g (float[3,4] w, float[1] rate, int64[1] to, int64[m] of, float[n,4] x) => () <float[1] r, float[1] s>
        { zeros = Constant <value_ints = [0]> () least = Min(to, zeros) r = Reshape(rate, least)
          step = Mul(w, r) s = Reshape(rate, of)
          sizes = Shape(x) c = ConstantOfShape(sizes) d = Add(c, x) }";
    let bindings = [("m".to_owned(), 1), ("n".to_owned(), 5)].into();
    let undeclared = text.replace("<float[1] r, float[1] s>", "<float[k] r, float[k] s>");
    let bindings_too = [("m", 1), ("n", 5), ("k", 1)].map(|(name, size)| (name.to_owned(), size));
    assert_eq!(bound(text, "step", &bindings), "3 4");
    assert_eq!(bound(&undeclared, "step", &bindings_too.into()), "3 4");
    assert_eq!(bound(text, "c", &bindings), "? ?");
    assert_eq!(bound(text, "d", &bindings), "? 4");
}

// Measured: a session has `y` and `z` from opset 14 on, and the rest whatever the opset.
#[test]
fn before_opset_14_a_reshape_to_a_computed_shape_gives_nothing() {
    let of_opset = |opset: i64, tensor: &str| {
        let text = format!(
            r#"<ir_version: 8, opset_import: ["" : {opset}]>
            g (float[n,4] x, float[3,4] w) => () <int64[2] to = {{4, -1}}>
            {{ sizes = Shape(x) y = Reshape(x, sizes) z = Add(y, w)
              c = ConstantOfShape(sizes) e = Expand(x, sizes) f = Reshape(x, to) }}"#
        );
        bound(&text, tensor, &[("n".to_owned(), 3)].into())
    };
    assert_eq!(of_opset(14, "y"), "? ?");
    assert_eq!(of_opset(14, "z"), "3 4");
    for opset in [11, 13] {
        assert_eq!(of_opset(opset, "y"), "unknown");
        assert_eq!(of_opset(opset, "z"), "unknown");
        assert_eq!(of_opset(opset, "c"), "? ?");
        assert_eq!(of_opset(opset, "e"), "? 4");
        assert_eq!(of_opset(opset, "f"), "4 ?");
    }
}

// Likewise, with weights of 4 channels and an image that a Reshape hides.
#[test]
fn statistics_have_the_channels_of_the_weights_where_nothing_is_known_of_the_image() {
    let text = r#"<ir_version: 8, opset_import: ["" : 13, "com.microsoft" : 1]>
        g (float[n,4,2] x, float[c] s, float[4] b) => ()
        { sizes = Shape(x) h = Reshape(x, sizes)
          y, mean, var, m, v = com.microsoft.BatchNormInternal(h, s, s, b, b) of = Shape(y) }"#;
    let bindings = [("n".to_owned(), 3), ("c".to_owned(), 4)].into();
    assert_eq!(bound(text, "y", &bindings), "unknown");
    for statistic in ["mean", "var", "m", "v"] {
        assert_eq!(bound(text, statistic, &bindings), "4");
    }
    assert_eq!(bound(text, "of", &bindings), "?");
}

// Likewise of two names for one size of the batch.
#[test]
fn a_product_has_no_name_where_its_matrices_have_two() {
    let text =
        "g (float[n,8,1,4] x, float[m,8,4,1] y) => () { z = MatMul(x, y) w = MatMul(x, x2) }"
            .replace(
                "w = MatMul(x, x2)",
                "w = com.microsoft.FusedMatMul <transB = 1> (x, x)",
            );
    let bindings = [("n".to_owned(), 2), ("m".to_owned(), 2)].into();
    assert_eq!(bound(&text, "z", &bindings), "? 8 1 1");
    assert_eq!(bound(&text, "w", &bindings), "n 8 1 1");
    // However large that is.
    let bindings = [("n".to_owned(), 1), ("m".to_owned(), 1)].into();
    assert_eq!(bound(&text, "z", &bindings), "? 8 1 1");
    // What one of them has a number for has that number, though other names stand for as much.
    let text = "g (float[a,4,10,16] x, float[b,c,16,d] y) => () { z = MatMul(x, y) w = com.microsoft.FusedMatMul <transB = 1> (x, x) }";
    let bindings = [("a", 4), ("b", 4), ("c", 4), ("d", 10)];
    let bindings = bindings.map(|(name, size)| (name.to_owned(), size)).into();
    assert_eq!(bound(text, "z", &bindings), "? 4 10 d");
    assert_eq!(bound(text, "w", &bindings), "a 4 10 10");
}

// Likewise of a lowered LSTM layer.
#[test]
fn what_a_scan_carries_on_has_the_shape_with_which_it_begins_and_any_input_tells_how_often() {
    let shapes = |y: &str| {
        let text = format!(
            "g (float[n,4] begin, float[t,n,4] x, float[{y},4] y) => ()
            {{ last, all = Scan <body = ..., num_scan_inputs = 2> (begin, x, y) }}"
        );
        let mut graph = Graph::parse(&text).unwrap();
        let body = "b (float[k,4] s, float[k,4] a, float[4] b) => (float[k,4] r, float[k,4] o)
            { r = Add(s, a) o = Mul(r, b) }";
        let node = graph.order()[0];
        graph.node_mut(node).bodies.push(crate::graph::Body {
            attribute: "body".to_owned(),
            graph: std::sync::Arc::new(Graph::parse(body).unwrap()),
            shaped: None,
        });
        let bindings = [("n", 2), ("t", 6), ("u", 6)].map(|(name, size)| (name.to_owned(), size));
        let bindings = bindings
            .into_iter()
            .filter(|(name, _)| name != "u" || y == "u")
            .collect();
        InferShapes { bindings }.run(&mut graph).unwrap();
        [described(&graph, "last"), described(&graph, "all")]
    };
    assert_eq!(shapes("u"), ["n 4", "t k 4"]);
    assert_eq!(shapes("6"), ["n 4", "6 k 4"]);
}

#[test]
fn permutations_and_reductions_take_their_dimensions_along_whatever_their_size() {
    let text = "g (float[n,4] x) => () <float[n,m] a>
        { a = Transpose <perm = [1, 0]> (x) b = Transpose(x)
          axes = Constant <value_ints = [0]> () c = ReduceSum(x, axes)
          last = Constant <value_ints = [-1]> () d = ReduceSum <keepdims = 0> (x, last) }";
    let bindings = [("n".to_owned(), 4), ("m".to_owned(), 4)].into();
    assert_eq!(bound(text, "a", &bindings), "4 m");
    assert_eq!(bound(text, "b", &bindings), "4 n");
    assert_eq!(bound(text, "c", &bindings), "1 4");
    assert_eq!(bound(text, "d", &bindings), "n");
}

#[test]
fn numbers_make_numbers_where_no_value_is_unknown() {
    let text = "g (float[4,4] x, int64[1] axes) => () <float[n,m] a, float[n,1] b>
        { a = Gemm(x, x) b = ReduceSum(a, axes) }";
    let bindings = [("n".to_owned(), 4), ("m".to_owned(), 4)].into();
    assert_eq!(bound(text, "a", &bindings), "4 4");
    assert_eq!(bound(text, "b", &bindings), "n 1");
}

/// Work that grew with the square of the width would take minutes.
#[test]
fn the_widest_nodes_are_followed() {
    const WIDTH: usize = 50_000;
    let mut graph = Graph::new("wide");
    graph.opsets.insert(String::new(), 13);
    let mut tensor = |name: String, kind, size| {
        let mut tensor = Tensor::new(name, kind);
        tensor.element = Some(ElementType::Float);
        tensor.shape = Some(vec![size]);
        let symbol = (kind == TensorKind::Input).then(|| Dimension::Symbol("n".to_owned()));
        tensor.declared = symbol.map(|symbol| vec![symbol]);
        Some(graph.add_tensor(tensor))
    };
    let of = 0..WIDTH;
    let inputs = of
        .clone()
        .map(|i| tensor(format!("x{i}"), TensorKind::Input, 1));
    let inputs: Vec<_> = inputs.collect();
    let parts = of.map(|i| tensor(format!("y{i}"), TensorKind::Value, 1));
    let parts: Vec<_> = parts.collect();
    let whole = tensor("whole".to_owned(), TensorKind::Value, WIDTH as u64);
    graph.inputs = inputs.iter().copied().flatten().collect();
    let mut concat = Node::new("concat", "", "Concat", inputs, vec![whole]);
    concat.set_attribute("axis", AttributeValue::Int(0));
    graph.add_node(concat);
    graph.add_node(Node::new("split", "", "Split", vec![whole], parts));
    assert_eq!(described(&graph, "whole"), "?");
    assert_eq!(described(&graph, "y7"), "?");
}

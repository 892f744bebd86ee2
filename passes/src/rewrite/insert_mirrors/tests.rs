use std::collections::BTreeMap;

use super::*;
use crate::analysis::mirrors::is_mirror;
use crate::analysis::recompute::Recomputation;
use crate::graph::Uses;
use crate::graph::text::diff;
use crate::operators::variants::copy_parts;
use crate::plan::{Originals, Plan};
use crate::verify;

/// The graph in `text` with its nodes computed in this sequence, which is by node name.
fn applied(text: &str, sequence: &[&str]) -> (Graph, Graph) {
    let graph = Graph::parse(text).unwrap();
    let named = |name: &&str| {
        let found = graph
            .order()
            .iter()
            .find(|id| graph.node(**id).name == *name);
        *found.unwrap_or_else(|| panic!("no node is called {name}"))
    };
    let plan = Plan {
        sequence: sequence.iter().map(named).collect(),
        ..Plan::default()
    };
    let recomputation = Recomputation::of(&graph, &BTreeMap::new());
    let mut rewritten = graph.clone();
    let pass = InsertMirrors {
        instances: &plan.instances(&graph, &recomputation, Originals::AsPlanned),
    };
    let changed = pass.run(&mut rewritten).unwrap();
    assert_eq!(changed == Changed::Yes, rewritten != graph);
    verify::structure(&rewritten).unwrap();
    (graph, rewritten)
}

fn changes(text: &str, sequence: &[&str]) -> String {
    let (before, after) = applied(text, sequence);
    diff(&before.to_listing(), &after.to_listing())
}

const CHAIN: &str = r#"g (float[8] x, float[8] dy) => (float[8] dx)
   <float[8] a, float[8] b, float[8] c, float[8] dc, float[8] db>
{
   [exp] a = Exp(x)
   [relu] b = Relu(a)
   [exp2] c = Exp(b)
   [exp2_grad] dc = Mul(dy, c)
   [relu_grad] db = com.microsoft.ReluGrad(dc, b)
   [exp_grad] dx = Mul(db, a)
}"#;

#[test]
fn later_readers_read_the_mirror() {
    let once = [
        "exp",
        "relu",
        "exp2",
        "exp2_grad",
        "relu",
        "relu_grad",
        "exp_grad",
    ];
    insta::assert_snapshot!(changes(CHAIN, &once), @r#"
      dc = Mul(dy, c)
    - db = ReluGrad(dc, b)
    + "b/recompute_1" = Relu <__recompute = 1> (a)
    + db = ReluGrad(dc, "b/recompute_1")
      dx = Mul(db, a)
    "#);
}

#[test]
fn what_reads_stands_behind_what_writes_whatever_the_plan_says() {
    let early = [
        "relu",
        "exp",
        "relu",
        "exp2",
        "relu_grad",
        "exp2_grad",
        "exp_grad",
    ];
    let (_, rewritten) = applied(CHAIN, &early);
    let nodes = rewritten.order().iter();
    let names = nodes.map(|&id| rewritten.node(id).name.as_str());
    insta::assert_snapshot!(names.collect::<Vec<_>>().join(" "), @"exp relu relu/recompute_1 exp2 exp2_grad relu_grad exp_grad");
}

#[test]
fn a_mirror_without_readers_takes_no_number() {
    let both = [
        "exp",
        "relu",
        "exp2",
        "exp",
        "relu",
        "exp2_grad",
        "relu",
        "relu_grad",
        "exp",
        "exp_grad",
    ];
    // Nobody reads the first mirror of relu.
    insta::assert_snapshot!(changes(CHAIN, &both), @r#"
      c = Exp(b)
    + "a/recompute_1" = Exp <__recompute = 1> (x)
      dc = Mul(dy, c)
    - db = ReluGrad(dc, b)
    - dx = Mul(db, a)
    + "b/recompute_1" = Relu <__recompute = 1> ("a/recompute_1")
    + db = ReluGrad(dc, "b/recompute_1")
    + "a/recompute_2" = Exp <__recompute = 2> (x)
    + dx = Mul(db, "a/recompute_2")
    "#);
}

#[test]
fn the_second_mirror_is_numbered_two() {
    let text = r#"g (float[8] x) => (float[8] y)
       <float[8] a, float[8] b, float[8] c, float[8] d>
    {
       [exp] a = Exp(x)
       [first] b = Exp(a)
       [second] c = Add(a, b)
       [third] d = Add(a, c)
       [last] y = Add(a, d)
    }"#;
    let sequence = ["exp", "first", "exp", "second", "third", "exp", "last"];
    insta::assert_snapshot!(changes(text, &sequence), @r#"
      b = Exp(a)
    - c = Add(a, b)
    - d = Add(a, c)
    - y = Add(a, d)
    + "a/recompute_1" = Exp <__recompute = 1> (x)
    + c = Add("a/recompute_1", b)
    + d = Add("a/recompute_1", c)
    + "a/recompute_2" = Exp <__recompute = 2> (x)
    + y = Add("a/recompute_2", d)
    "#);
}

#[test]
fn a_mirror_starts_from_the_inputs_that_its_original_had_in_the_file() {
    // relu's original reads exp's first mirror; relu's mirror reads exp's second.
    let sequence = [
        "exp",
        "exp",
        "relu",
        "exp2",
        "exp2_grad",
        "exp",
        "relu",
        "relu_grad",
        "exp_grad",
    ];
    insta::assert_snapshot!(changes(CHAIN, &sequence), @r#"
      a = Exp(x)
    - b = Relu(a)
    + "a/recompute_1" = Exp <__recompute = 1> (x)
    + b = Relu("a/recompute_1")
      c = Exp(b)
      dc = Mul(dy, c)
    - db = ReluGrad(dc, b)
    - dx = Mul(db, a)
    + "a/recompute_2" = Exp <__recompute = 2> (x)
    + "b/recompute_1" = Relu <__recompute = 1> ("a/recompute_2")
    + db = ReluGrad(dc, "b/recompute_1")
    + dx = Mul(db, "a/recompute_2")
    "#);
}

#[test]
fn mirrors_without_readers_and_those_that_only_feed_them_are_left_out() {
    let sequence = [
        "exp",
        "relu",
        "exp2",
        "exp2_grad",
        "relu_grad",
        "exp_grad",
        "exp",
        "relu",
    ];
    assert_eq!(changes(CHAIN, &sequence), "");
}

#[test]
fn another_order_needs_no_mirrors() {
    let text = "g (float[8] x) => (float[8] y, float[8] z) { [a] y = Exp(x) [b] z = Relu(x) }";
    insta::assert_snapshot!(changes(text, &["b", "a"]), @r"
    - y = Exp(x)
      z = Relu(x)
    + y = Exp(x)
    ");
}

#[test]
fn a_mirror_omits_an_optional_output_that_nobody_reads_from_it() {
    // Its place is kept: without it the runtime would lay the pooling out otherwise.
    let text = r#"g (float[1,1,4,4] x, float[1,1,2,2] dy) => (float[1,1,2,2] z, float[1,1,4,4] dx)
       <float[1,1,2,2] y, int64[1,1,2,2] mask>
    {
       [pool] y, mask = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
       [pool_grad] dx = MaxPoolGrad <kernel_shape = [2, 2], strides = [2, 2]> (dy, mask)
       [mul] z = Mul(y, dy)
    }"#;
    insta::assert_snapshot!(changes(text, &["pool", "pool_grad", "pool", "mul"]), @r#"
      dx = MaxPoolGrad(dy, mask)
    - z = Mul(y, dy)
    + "y/recompute_1", "" = MaxPool <__recompute = 1> (x)
    + z = Mul("y/recompute_1", dy)
    "#);
    // The kernel always writes the first output.
    insta::assert_snapshot!(changes(text, &["pool", "mul", "pool", "pool_grad"]), @r#"
      y, mask = MaxPool(x)
    - dx = MaxPoolGrad(dy, mask)
      z = Mul(y, dy)
    + "y/recompute_1", "mask/recompute_1" = MaxPool <__recompute = 1> (x)
    + dx = MaxPoolGrad(dy, "mask/recompute_1")
    "#);
}

const NORM: &str = r#"g (float[2,3] x, float[3] scale, float[3] shift, float[2,3] dy) => (float[2,3] dx, float[2,3] dn)
   <float[3] mean = {0, 0, 0}, float[3] var = {1, 1, 1}, float[2,3] n, float[3] mean_new, float[3] var_new,
    float[3] saved, float[3] inv, float[3] dscale, float[3] dshift, float[2,3] h, float[3] old_mean>
{
   [norm] n, mean_new, var_new, saved, inv = com.microsoft.BatchNormInternal <epsilon = 1e-5, momentum = 0.9, training_mode = 1> (x, scale, shift, mean, var)
   [exp] h = Exp(n)
   [use] old_mean = Exp(mean_new)
   [mul] dn = Mul(dy, n)
   [grad] dx, dscale, dshift = com.microsoft.BatchNormalizationGrad <epsilon = 1e-5> (dn, x, scale, saved, inv)
}"#;

#[test]
fn a_mirror_of_a_batch_norm_keeps_the_running_statistics() {
    let sequence = ["norm", "exp", "norm", "use", "mul", "grad"];
    // Its running statistics are named, since the kernel writes them, and read by nobody.
    insta::assert_snapshot!(changes(NORM, &sequence), @r#"
      h = Exp(n)
    + "n/recompute_1", "mean_new/recompute_1", "var_new/recompute_1", "saved/recompute_1", "inv/recompute_1" = BatchNormInternal <__recompute = 1> (x, scale, shift, mean, var)
      old_mean = Exp(mean_new)
    - dn = Mul(dy, n)
    - dx, dscale, dshift = BatchNormalizationGrad(dn, x, scale, saved, inv)
    + dn = Mul(dy, "n/recompute_1")
    + dx, dscale, dshift = BatchNormalizationGrad(dn, x, scale, "saved/recompute_1", "inv/recompute_1")
    "#);
    let (_, graph) = applied(NORM, &sequence);
    let momenta: Vec<_> = graph
        .order()
        .iter()
        .filter_map(|&id| graph.node(id).float("momentum"))
        .collect();
    assert_eq!(momenta, [0.9, 1.0]);
}

const DROPOUT: &str = r#"g (float[8] x, float[8] dy) => (float[8] dx, float[8] z)
   <float ratio = {0.5}, bool training = {1}, float[8] y, bool[8] mask, float[8] h>
{
   [drop] y, mask = Dropout <seed = 7> (x, ratio, training)
   [exp] h = Exp(y)
   [mul] z = Mul(h, y)
   [grad] dx = com.microsoft.DropoutGrad(dy, mask, ratio, training)
}"#;

#[test]
fn a_mirror_of_a_dropout_applies_the_originals_mask() {
    insta::assert_snapshot!(changes(DROPOUT, &["drop", "exp", "drop", "mul", "grad"]), @r#"
      h = Exp(y)
    - z = Mul(h, y)
    + "y/recompute_1" = DropoutGrad <__recompute = 1> (x, mask, ratio, training)
    + z = Mul(h, "y/recompute_1")
      dx = DropoutGrad(dy, mask, ratio, training)
    "#);
    let (_, graph) = applied(DROPOUT, &["drop", "exp", "drop", "mul", "grad"]);
    let mirror = graph.node(graph.order()[2]);
    assert_eq!(mirror.attributes.len(), 1, "only the marker: {mirror:?}");
}

#[test]
fn aliases_are_renewed_with_what_they_alias() {
    let text = r#"g (float[2,4] x) => (float[8] z)
       <int64[1] to = {8}, float[2,4] a, float[8] flat, float[8] b>
    {
       [exp] a = Exp(x)
       [reshape] flat = Reshape(a, to)
       [exp2] b = Exp(flat)
       [mul] z = Mul(b, flat)
    }"#;
    insta::assert_snapshot!(changes(text, &["exp", "reshape", "exp2", "exp", "reshape", "mul"]), @r#"
      b = Exp(flat)
    - z = Mul(b, flat)
    + "a/recompute_1" = Exp <__recompute = 1> (x)
    + "flat/recompute_1" = Reshape <__recompute = 1> ("a/recompute_1", to)
    + z = Mul(b, "flat/recompute_1")
    "#);
}

#[test]
fn graph_outputs_are_read_from_the_original() {
    let text = r#"g (float[8] x) => (float[8] a, float[8] z)
       <float[8] b>
    {
       [exp] a = Exp(x)
       [exp2] b = Exp(a)
       [mul] z = Mul(b, a)
    }"#;
    assert_eq!(changes(text, &["exp", "exp2", "exp", "mul"]), "");
}

#[test]
fn a_taken_name_is_avoided_and_a_missing_one_made_up() {
    let text = r#"g (float[8] x, float[8] "a/recompute_1") => (float[8] z)
       <float[8] a, float[8] b>
    {
       a = Exp(x)
       [exp2] b = Exp(a)
       [mul] z = Mul(b, a)
    }"#;
    let (_, graph) = applied(text, &["", "exp2", "", "mul"]);
    let mirror = graph.node(graph.order()[2]);
    assert_eq!(mirror.name, "Exp:a/recompute_1");
    let written = mirror.output(0).unwrap();
    assert_eq!(graph.tensor(written).name, "a/recompute_1_1");
}

/// A batch normalization "bn", what `reader` makes of it, and what a copy of that from what "bn" left is.
fn again_from_statistics(reader: &str) -> String {
    let text = format!(
        r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
        g (float[2,3,20,20] x, float[3] s, float[3] t, float[3] m, float[3] v) => (float[2,3,20,20] z)
        <float[2,3,20,20] y, float[3] nm, float[3] nv, float[3] mean, float[3] inverse,
         float[2,3,20,20] a, float least = {{0.0}}, float most = {{6.0}}>
        {{
            [bn] y, nm, nv, mean, inverse = com.microsoft.BatchNormInternal <training_mode = 1> (x, s, t, m, v)
            [act] a = {reader}
            z = Neg(a)
        }}"#
    );
    let graph = Graph::parse(&text).unwrap();
    let mut rules = Recomputation::of(&graph, &Default::default());
    let mut sequence = graph.order().to_vec();
    let id = sequence[1];
    let parts = copy_parts(&graph, &Uses::of(&graph), id).expect("another way");
    rules.copy_from_parts(id, parts, Default::default());
    sequence.insert(2, id);
    let plan = Plan {
        sequence,
        ..Plan::default()
    };
    let mut with = graph.clone();
    let insert = InsertMirrors {
        instances: &plan.instances(&graph, &rules, Originals::AsPlanned),
    };
    let Ok(_) = insert.run(&mut with);
    verify::equivalence(&graph, &with, &Default::default()).unwrap();
    let mirrors = with.nodes();
    let mirrors: Vec<&Node> = mirrors.filter(|node| is_mirror(node)).collect();
    assert_eq!(mirrors.len(), 1);
    let attributes = mirrors[0].attributes.iter();
    let attributes: Vec<String> = attributes
        .map(|one| match &one.value {
            AttributeValue::String(text) => {
                format!("{} {}", one.name, String::from_utf8_lossy(text))
            }
            value => format!("{} {value:?}", one.name),
        })
        .collect();
    let diff = diff(&graph.to_listing(), &with.to_listing());
    format!("{diff}{}", attributes.join("; "))
}

#[test]
fn an_activation_of_a_batch_norm_again_is_a_convolution_of_each_channel() {
    insta::assert_snapshot!(again_from_statistics("Relu(y)"), @r#"
      a = Relu(y)
    - z = Neg(a)
    + "act/recompute_1/factor" = Mul <__recompute = 1> (inverse, s)
    + "act/recompute_1/moved" = Mul <__recompute = 1> (mean, "act/recompute_1/factor")
    + "act/recompute_1/bias" = Sub <__recompute = 1> (t, "act/recompute_1/moved")
    + "act/recompute_1/shape" = Constant <__recompute = 1> ()
    + "act/recompute_1/weights" = Reshape <__recompute = 1> ("act/recompute_1/factor", "act/recompute_1/shape")
    + "a/recompute_1" = FusedConv <__recompute = 1> (x, "act/recompute_1/weights", "act/recompute_1/bias")
    + z = Neg("a/recompute_1")
    group Int(3); activation Relu; __recompute Int(1)
    "#);
    let clip = again_from_statistics("Clip(y, least, most)");
    insta::assert_snapshot!(clip.lines().last().unwrap_or_default(),
        @"group Int(3); activation Clip; activation_params Floats([0.0, 6.0]); __recompute Int(1)");
}

/// A plan for a session that computes something before the step has no place for it.
#[test]
fn what_a_plan_has_behind_its_reader_is_pulled_up_alone() {
    let text = r#"g (float[8] x, float ratio) => (float[8] z) <float one = {1}, float[8] a, float k, float[8] b, float[8] c> {
        [exp] a = Exp(x) [keep] k = Sub(one, ratio) [div] b = Div(a, k) [neg] c = Neg(a) [add] z = Add(b, c) }"#;
    let (_, after) = applied(text, &["exp", "div", "neg", "keep", "add"]);
    let names = after.order().iter().map(|&id| after.node(id).name.as_str());
    let names: Vec<&str> = names.collect();
    assert_eq!(names, ["exp", "keep", "div", "neg", "add"]);
}

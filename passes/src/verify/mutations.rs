//! A correct rewriting, broken in every way that comes to mind: each must be rejected.

use std::collections::BTreeSet;

use super::{Violation, equivalence, updates};
use crate::graph::Graph;
use crate::operators::{self, Recompute};
use crate::testing::{SplitMix64, random_training_graph, unroll};

const HEAD: &str = r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
g (float[4,8] x, float[8] scale, float[8] shift, float[4,8] sum, bool[1] reset, bool[1] flag)
  => (float[4,8] y, bool[1] sum_out)
<
   float[8] mean = {0,0,0,0,0,0,0,0}, float[8] var = {1,1,1,1,1,1,1,1},
   float ratio = {0.5}, bool training = {1}, int64[2] halves = {4,4},
   float[4,8] a, float[4,8] b, float[4,8] n, float[4,8] d, float[4,8] s, float[4,8] g
>
"#;

const ORIGINAL: &str = r#"{
   [exp] a = Exp(x)
   [relu] b = Relu(a)
   [bn] n, mean_out, var_out, saved_mean, saved_inv = com.microsoft.BatchNormInternal <epsilon = 1e-5, momentum = 0.9> (b, scale, shift, mean, var)
   [drop] d, mask = Dropout(n, ratio, training)
   [noise] r = RandomNormalLike <seed = 1.0> (d)
   [add] s = Add(d, r)
   [split] p, q = Split <axis = 1> (s, halves)
   [pool] k, k_mask = MaxPool <kernel_shape = [1, 1]> (s)
   [join] y = Concat <axis = 1> (q, p)
   [if] c = If <then_branch = ..., else_branch = ...> (flag; a)
   [foreign] f = org.example.Mystery(b)
   [grad] g = Mul(d, n)
   [more] h = Mul(g, k)
   [last] i = Sum(h, b, p, c, f, k_mask)
   [keep] sum_out = com.microsoft.InPlaceAccumulatorV2(sum, i, reset)
}"#;

/// Copies of Exp, Relu, BatchNormInternal, Dropout, Split, MaxPool and the foreign operator, with
/// a barrier in front.
const REWRITTEN: &str = r#"{
   [exp] a = Exp(x)
   [relu] b = Relu(a)
   [bn] n, mean_out, var_out, saved_mean, saved_inv = com.microsoft.BatchNormInternal <epsilon = 1e-5, momentum = 0.9> (b, scale, shift, mean, var)
   [drop] d, mask = Dropout(n, ratio, training)
   [noise] r = RandomNormalLike <seed = 1.0> (d)
   [add] s = Add(d, r)
   [split] p, q = Split <axis = 1> (s, halves)
   [pool] k, k_mask = MaxPool <kernel_shape = [1, 1]> (s)
   [join] y = Concat <axis = 1> (q, p)
   [if] c = If <then_branch = ..., else_branch = ...> (flag; a)
   [foreign] f = org.example.Mystery(b)
   [barrier] x_late, y_late = com.microsoft.PassThrough(x, y)
   [exp2] a2 = Exp <__recompute = 1> (x_late)
   [relu2] b2 = Relu <__recompute = 1> (a2)
   [bn2] n2, mean2, var2, saved_mean2, saved_inv2 = com.microsoft.BatchNormInternal <epsilon = 1e-5, momentum = 1.0, __recompute = 1> (b2, scale, shift, mean, var)
   [drop2] d2 = com.microsoft.DropoutGrad <__recompute = 1> (n2, mask, ratio, training)
   [split2] p2, q2 = Split <axis = 1, __recompute = 1> (s, halves)
   [pool2] k2 = MaxPool <kernel_shape = [1, 1], __recompute = 1> (s)
   [foreign2] f2 = org.example.Mystery <__recompute = 1> (b2)
   [grad] g = Mul(d2, n2)
   [more] h = Mul(g, k2)
   [last] i = Sum(h, b2, p2, c, f2, k_mask)
   [keep] sum_out = com.microsoft.InPlaceAccumulatorV2(sum, i, reset)
}"#;

fn parse(nodes: &str) -> Graph {
    Graph::parse(&format!("{HEAD}{nodes}")).unwrap()
}

/// Both checks, in file order.
fn verify(original: &Graph, rewritten: &Graph) -> Result<(), Violation> {
    let permitted = BTreeSet::from(["foreign".to_owned()]);
    let found = equivalence(original, rewritten, &permitted)?;
    updates(
        original,
        original.order(),
        rewritten,
        rewritten.order(),
        &found,
    )
}

/// What is said of the correct rewriting with `from` replaced by `to`.
#[track_caller]
fn broken(from: &str, to: &str) -> String {
    assert_eq!(REWRITTEN.matches(from).count(), 1, "{from}");
    let rewritten = parse(&REWRITTEN.replace(from, to));
    verify(&parse(ORIGINAL), &rewritten)
        .expect_err("accepted")
        .to_string()
}

#[test]
fn the_correct_rewriting_is_accepted() {
    let (original, rewritten) = (parse(ORIGINAL), parse(REWRITTEN));
    let permitted = BTreeSet::from(["foreign".to_owned()]);
    let found = equivalence(&original, &rewritten, &permitted).unwrap();
    assert_eq!((found.copies(), found.barriers()), (7, 1));
    assert_eq!(verify(&original, &rewritten), Ok(()));
    assert_eq!(verify(&original, &original), Ok(()));
}

#[test]
fn wrong_inputs_are_rejected() {
    // Of an original, of a copy, swapped, omitted, one more.
    insta::assert_snapshot!(broken("g = Mul(d2, n2)", "g = Mul(d2, b2)"), @r#"Mul "grad" reads "b2" as input 1, not the value of "n""#);
    insta::assert_snapshot!(broken("g = Mul(d2, n2)", "g = Mul(n2, d2)"), @r#"Mul "grad" reads "n2" as input 0, not the value of "d""#);
    insta::assert_snapshot!(broken("(a2)", "(x_late)"), @r#"Relu "relu2" is no node of the original, no barrier and no copy: no node of the original with this operator reads these values"#);
    insta::assert_snapshot!(broken("(a2)", "(s)"), @r#"Relu "relu2" is no node of the original, no barrier and no copy: no node of the original with this operator reads these values"#);
    insta::assert_snapshot!(broken("c, f2, k_mask)", "c, f2)"), @r#"Sum "last" must keep its number of inputs: expected 6, found 5"#);
    insta::assert_snapshot!(broken("c, f2, k_mask)", "\"\", f2, k_mask)"), @r#"Sum "last" reads nothing as input 3, not the value of "c""#);
    insta::assert_snapshot!(broken("Exp <__recompute = 1> (x_late)", "Exp <__recompute = 1> (y_late)"), @r#"Exp "exp2" is no node of the original, no barrier and no copy: no node of the original with this operator reads these values"#);
}

#[test]
fn changed_originals_are_rejected() {
    insta::assert_snapshot!(broken("[exp] a = Exp(x)", "[exp] a = Log(x)"), @r#"Log "exp" must keep its operator: expected Exp, found Log"#);
    insta::assert_snapshot!(broken("1e-5, momentum = 0.9>", "1e-5, momentum = 0.8>"), @r#"BatchNormInternal "bn" must keep its attributes: expected epsilon = Float(1e-5), momentum = Float(0.9), found epsilon = Float(1e-5), momentum = Float(0.8)"#);
    insta::assert_snapshot!(broken("Exp(x)", "Exp <__recompute = 1> (x)"), @r#"Exp "exp" must keep its attributes: expected none, found __recompute = Int(1)"#);
    insta::assert_snapshot!(broken("[add]", "[plus]"), @r#"Add "plus" must keep its name: expected add, found plus"#);
    insta::assert_snapshot!(broken("k, k_mask = MaxPool", "k = MaxPool"), @r#"Sum "last" reads "k_mask", which nobody writes"#);
    insta::assert_snapshot!(broken("(flag; a)", "(flag; b)"), @r#"If "if" must keep its captured tensors: expected ["a"], found ["b"]"#);
    insta::assert_snapshot!(broken("[more] h = Mul(g, k2)\n", "\n"), @r#"Sum "last" reads "h", which nobody writes"#);
    insta::assert_snapshot!(broken("h, b2, p2, c, f2, k_mask", "b2, b2, p2, c, f2, k_mask"), @r#"Sum "last" reads "b2" as input 0, not the value of "h""#);
}

#[test]
fn copies_that_compute_something_else_are_rejected() {
    insta::assert_snapshot!(broken("[1, 1], __recompute", "[3, 3], __recompute"), @r#"MaxPool "pool2" is no node of the original, no barrier and no copy: it reads what MaxPool "pool" reads, but its kernel_shape differs"#);
    insta::assert_snapshot!(broken("momentum = 1.0, ", "momentum = 0.9, "), @r#"BatchNormInternal "bn2" computes BatchNormInternal "bn" again, but it updates running statistics"#);
    insta::assert_snapshot!(broken("momentum = 1.0, ", ""), @r#"BatchNormInternal "bn2" is no node of the original, no barrier and no copy: it reads what BatchNormInternal "bn" reads, but its momentum differs"#);
    insta::assert_snapshot!(broken("b2, scale, shift, mean, var)", "b2, scale, shift, scale, var)"), @r#"BatchNormInternal "bn2" is no node of the original, no barrier and no copy: no node of the original with this operator reads these values"#);
    insta::assert_snapshot!(broken("b2, scale, shift, mean, var)", "b2, scale, shift, mean_out, var)"), @r#"BatchNormInternal "bn2" is no node of the original, no barrier and no copy: no node of the original with this operator reads these values"#);
    insta::assert_snapshot!(broken("d2, n2)", "mean2, n2)"), @r#"Mul "grad" reads "mean2" as input 0, not the value of "d""#);
    insta::assert_snapshot!(broken("p2, q2 = Split", "p2 = Split"), @r#"Split "split2" must write output 1, as Split "split" does"#);
    insta::assert_snapshot!(broken(", saved_mean2, saved_inv2", ""), @r#"BatchNormInternal "bn2" must write output 3, as BatchNormInternal "bn" does"#);
    insta::assert_snapshot!(broken("(n2, mask, ratio, training)", "(n2, mask, ratio)"), @r#"DropoutGrad "drop2" is no node of the original, no barrier and no copy: the original does not have this operator"#);
    insta::assert_snapshot!(broken("(n2, mask, ratio, training)", "(b2, mask, ratio, training)"), @r#"DropoutGrad "drop2" is no node of the original, no barrier and no copy: the original does not have this operator"#);
}

#[test]
fn dropouts_are_repeated_as_their_training_mode_says() {
    let copied = |flag: &str, inputs: &str, copy: &str| {
        let head = HEAD.replace("bool training = {1}", flag);
        let head = head.replace("bool[1] flag)", inputs);
        let nodes = REWRITTEN.replace("[drop2] d2 = com.microsoft.DropoutGrad", copy);
        let nodes = match copy.contains("Grad") {
            true => nodes,
            false => nodes.replace("(n2, mask, ratio, training)", "(n2, ratio, training)"),
        };
        let graph = |nodes: &str| Graph::parse(&format!("{head}{nodes}")).unwrap();
        verify(&graph(ORIGINAL), &graph(&nodes)).map_err(|violation| violation.to_string())
    };
    let (on, off) = ("bool training = {1}", "bool training = {0}");
    let fixed = "bool[1] flag)";
    let gradient = "[drop2] d2 = com.microsoft.DropoutGrad";
    let again = "[drop2] d2, mask2 = Dropout";
    assert_eq!(copied(on, fixed, gradient), Ok(()));
    assert_eq!(copied(off, fixed, again), Ok(()));
    insta::assert_snapshot!(copied(on, fixed, again).unwrap_err(), @r#"Dropout "drop2" computes Dropout "drop" again, but it draws random numbers"#);
    insta::assert_snapshot!(copied(off, fixed, gradient).unwrap_err(), @r#"DropoutGrad "drop2" is no node of the original, no barrier and no copy: the original does not have this operator"#);
    // The caller may feed something else than the file says.
    let fed = "bool[1] flag, bool training = {1})";
    insta::assert_snapshot!(copied("bool unused = {1}", fed, gradient).unwrap_err(), @r#"DropoutGrad "drop2" is no node of the original, no barrier and no copy: the original does not have this operator"#);
}

#[test]
fn dropouts_are_repeated_in_standard_operators_with_their_own_mask_and_rate() {
    let copied = |ratio: &str, training: &str, copy: &str| {
        let graph = |shapes: &str, nodes: &str| {
            Graph::parse(&format!(
                r#"<ir_version: 8, opset_import: ["" : 15]> g (float[8] x, float[8] dy) => (float[8] dx)
                <float r = {{{ratio}}}, bool t = {{{training}}}, float[8] y, bool[8] m, float[8] h{shapes}>
                {{ [d] y, m = Dropout(x, r, t) [h] h = Mul(y, dy) {nodes} }}"#
            ))
            .unwrap()
        };
        let original = graph("", "[e] dx = Mul(h, y)");
        let shapes = ", float[8] k, float f, float[8] w, float[8] y2";
        let rewritten = graph(shapes, &format!("{copy} [e] dx = Mul(h, y2)"));
        equivalence(&original, &rewritten, &BTreeSet::new()).is_ok()
    };
    let copy = "[k] k = Cast <to = 1> (m) [f] f = Constant <value_float = 0.25> () [w] w = Div(f, k) [y2] y2 = Div(x, w)";
    assert!(copied("0.75", "1", copy));
    // Another rate; not in training; of something else; without the mask; the numbers that the mask keeps are others.
    assert!(!copied("0.5", "1", copy));
    assert!(!copied("0.75", "0", copy));
    for (from, to) in [
        ("Div(x, w)", "Div(dy, w)"),
        ("Div(x, w)", "Div(x, f)"),
        ("Cast <to = 1> (m)", "Cast <to = 1> (h)"),
    ] {
        assert!(copy.contains(from));
        assert!(!copied("0.75", "1", &copy.replace(from, to)), "{to}");
    }
}

#[test]
fn flags_are_taken_apart_with_one_draw_each() {
    let graph = |values: &str, nodes: &str| {
        let head = r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]> g (float[8] p) => (float[8] y, float[8] z)"#;
        Graph::parse(&format!(
            "{head} <float[8] y, float[8] z{values}> {{ {nodes} }}"
        ))
        .unwrap()
    };
    let original = graph(
        "",
        "[y] y = Bernoulli (p) [z] z = Bernoulli <seed = 2.0> (p)",
    );
    let pieces = "[n] n = RandomUniformLike <dtype = 1, high = 1.0, low = 0.0> (p)
        [m] m = RandomUniformLike <dtype = 1, high = 1.0, low = 0.0, seed = 2.0> (p)
        [n2] n2 = com.microsoft.PassThrough (n) [g] g = Greater (n2, p) [h] h = Greater (m, p)
        [y] y = Cast <to = 1> (g) [z] z = Cast <to = 1> (h)";
    let taken = |from: &str, to: &str| {
        assert!(pieces.contains(from), "{from}");
        let values = ", float[8] n, float[8] n2, float[8] m, bool[8] g, bool[8] h, float[8] again, float[8] o, bool[8] i";
        equivalence(
            &original,
            &graph(values, &pieces.replace(from, to)),
            &BTreeSet::new(),
        )
        .is_ok()
    };
    assert!(taken("[y]", "[y]"));
    // What is drawn can be compared again.
    assert!(taken(
        "[z] z = Cast <to = 1> (h)",
        "[i] i = Greater (m, p) [z] z = Cast <to = 1> (i)"
    ));
    for (from, to) in [
        ("Greater (m, p)", "Greater (n, p)"),
        ("Greater (m, p)", "Greater (p, m)"),
        ("seed = 2.0", "seed = 3.0"),
        (", seed = 2.0", ""),
        ("high = 1.0, low = 0.0>", "high = 2.0, low = 0.0>"),
        ("y = Cast <to = 1> (g)", "y = Cast <to = 1> (h)"),
        // It draws other numbers.
        (
            "[y] y = Cast <to = 1> (g)",
            "[o] o = RandomUniformLike <dtype = 1, high = 1.0, low = 0.0> (p) [i] i = Greater (o, p)
             [again] again = Cast <to = 1> (i) [y] y = Cast <to = 1> (g)",
        ),
    ] {
        assert!(!taken(from, to), "{to}");
    }
}

#[test]
fn what_must_not_run_twice_is_rejected() {
    let after = |node: &str| broken("[grad]", &format!("{node}\n   [grad]"));
    insta::assert_snapshot!(after("[r2] r2 = RandomNormalLike <seed = 1.0> (d2)"), @r#"RandomNormalLike "r2" computes RandomNormalLike "noise" again, but it draws random numbers"#);
    insta::assert_snapshot!(after("[d3] d3, m3 = Dropout(n2, ratio, training)"), @r#"Dropout "d3" computes Dropout "drop" again, but it draws random numbers"#);
    insta::assert_snapshot!(after("[c2] c2 = If <then_branch = ..., else_branch = ...> (flag; a)"), @r#"If "c2" is no node of the original, no barrier and no copy: its subgraphs read outer tensors"#);
    insta::assert_snapshot!(after("[o2] o2 = com.microsoft.InPlaceAccumulatorV2(sum, x, reset)"), @r#"InPlaceAccumulatorV2 "o2" is no node of the original, no barrier and no copy: no node of the original with this operator reads these values"#);
    insta::assert_snapshot!(after("[new] z = Sin(x)"), @r#"Sin "new" is no node of the original, no barrier and no copy: the original does not have this operator"#);
    // Without the user's word, an unknown operator runs once.
    let error = equivalence(&parse(ORIGINAL), &parse(REWRITTEN), &BTreeSet::new()).unwrap_err();
    insta::assert_snapshot!(error, @r#"Mystery "foreign2" computes Mystery "foreign" again, but nothing is known about its operator"#);
}

#[test]
fn another_accumulation_is_rejected() {
    let twice = "sum_out = com.microsoft.InPlaceAccumulatorV2(sum, i, reset)\n   [keep] o2 = com.microsoft.InPlaceAccumulatorV2(sum, i, reset)";
    insta::assert_snapshot!(broken("sum_out = com.microsoft.InPlaceAccumulatorV2(sum, i, reset)", twice), @r#"InPlaceAccumulatorV2 "keep" computes InPlaceAccumulatorV2 "keep" again, but it has effects besides its results"#);
    insta::assert_snapshot!(broken("V2(sum, i", "V2(x, i"), @r#"InPlaceAccumulatorV2 "keep" reads "x" as input 0, not the value of "sum""#);
    // By way of a barrier it might be a copy that is updated.
    let barrier = "[b2] sum_late, i_late = com.microsoft.PassThrough(sum, i)\n   [keep] sum_out = com.microsoft.InPlaceAccumulatorV2(sum_late, i, reset)";
    insta::assert_snapshot!(broken("[keep] sum_out = com.microsoft.InPlaceAccumulatorV2(sum, i, reset)", barrier), @r#"InPlaceAccumulatorV2 "keep" updates "sum_late" in place, not "sum" itself"#);
}

#[test]
fn a_copied_normalization_keeps_its_statistics_in_place() {
    // A barrier's output has the value, but need not be the memory.
    let late = "[b2] mean_late, b_late = com.microsoft.PassThrough(mean, b2)\n   [bn2]";
    let nodes = REWRITTEN.replace("[bn2]", late).replace(
        "b2, scale, shift, mean, var)",
        "b_late, scale, shift, mean_late, var)",
    );
    let error = verify(&parse(ORIGINAL), &parse(&nodes)).unwrap_err();
    insta::assert_snapshot!(error, @r#"BatchNormInternal "bn2" updates "mean_late" in place, not "mean" itself"#);
}

#[test]
fn useless_nodes_and_broken_barriers_are_rejected() {
    insta::assert_snapshot!(broken("[grad]", "[a3] a3 = Exp(x_late)\n   [grad]"), @r#"nobody reads a result of Exp "a3", which the original does not have"#);
    insta::assert_snapshot!(broken("[grad]", "[b3] x3 = com.microsoft.PassThrough(x_late)\n   [grad]"), @r#"nobody reads a result of PassThrough "b3", which the original does not have"#);
    insta::assert_snapshot!(broken("[relu2]", "[exp2]"), @r#"Exp "exp2" is new, but another node has its name"#);
    insta::assert_snapshot!(broken("x_late, y_late = ", "x_late = "), @r#"barrier PassThrough "barrier" must forward each of its inputs under a new name"#);
    insta::assert_snapshot!(broken("x_late, y_late = ", "x_late, \"\" = "), @r#"barrier PassThrough "barrier" must forward each of its inputs under a new name"#);
}

#[test]
fn no_barrier_stands_between_a_result_and_a_yield_op() {
    let graph = |nodes: &str| {
        let head = "<ir_version: 8, opset_import: [\"\" : 15, \"com.microsoft\" : 1]>";
        let body =
            "g (float[4] x) => (float[4] z) <float[4] a, float[4] b, float[4] y, float[4] dy>";
        Graph::parse(&format!("{head} {body} {{ {nodes} }}")).unwrap()
    };
    let first = "[a] a = Exp(x) [b] b = Sin(x)";
    let last = "[z] z = Mul(dy, b)";
    let original = graph(&format!(
        "{first} [y] y = Add(a, b) [yield] dy = com.microsoft.YieldOp(y) {last}"
    ));
    let before = graph(&format!(
        "{first} [wait] a2, b2 = com.microsoft.PassThrough(a, b) [y] y = Add(a2, b) \
         [yield] dy = com.microsoft.YieldOp(y) {last}"
    ));
    verify(&original, &before).unwrap();
    let between = graph(&format!(
        "{first} [y] y = Add(a, b) [wait] y2, b2 = com.microsoft.PassThrough(y, b) \
         [yield] dy = com.microsoft.YieldOp(y2) {last}"
    ));
    insta::assert_snapshot!(verify(&original, &between).unwrap_err(), @r#"YieldOp "yield" hands over what barrier PassThrough "wait" forwards, which the runtime refuses"#);
}

#[test]
fn order_and_structure_are_checked_first() {
    insta::assert_snapshot!(broken("h, b2, p2, c, f2, k_mask", "sum_out, b2, p2, c, f2, k_mask"), @r#"2 nodes need each other's results, in a circle: InPlaceAccumulatorV2 "keep", Sum "last""#);
    let nodes = REWRITTEN
        .replace("[exp] a = Exp(x)\n", "")
        .replace("[keep]", "[exp] a = Exp(x)\n   [keep]");
    let error = verify(&parse(ORIGINAL), &parse(&nodes)).unwrap_err();
    insta::assert_snapshot!(error, @r#"Relu "relu" reads "a" but is listed before Exp "exp", which writes it"#);
}

#[test]
fn the_interface_must_stay() {
    let head = |from: &str, to: &str| {
        let text = format!("{HEAD}{REWRITTEN}");
        assert_eq!(text.matches(from).count(), 1, "{from}");
        let rewritten = Graph::parse(&text.replace(from, to)).unwrap();
        verify(&parse(ORIGINAL), &rewritten)
            .expect_err("accepted")
            .to_string()
    };
    insta::assert_snapshot!(head("(float[4,8] x, float[8] scale,", "(float[8] scale, float[4,8] x,"), @r#"the graph's inputs must stay: expected "x" of float [4,8], found "scale" of float [8]"#);
    insta::assert_snapshot!(head("(float[4,8] y, bool[1] sum_out)", "(bool[1] sum_out, float[4,8] y)"), @r#"the graph's outputs must stay: expected "y" of float [4,8], found "sum_out" of bool [1]"#);
    insta::assert_snapshot!(head("(float[4,8] y, bool[1] sum_out)", "(float[4,8] y)"), @r#"the graph's outputs must stay: expected "sum_out" of bool [1], found nothing"#);
    insta::assert_snapshot!(head("float ratio = {0.5}", "float ratio = {0.25}"), @r#"the graph's initializers must stay: expected "ratio" of float [] with 0.5 as element 0, found "ratio" of float [] with 0.25 as element 0"#);
    insta::assert_snapshot!(head("bool training = {1}", "bool training = {1}, float more = {1}"), @r#"the graph's initializers must stay: expected "ratio" of float [], found "more" of float []"#);
    insta::assert_snapshot!(head("float[4,8] x,", "float[N,8] x,"), @r#"the graph's inputs must stay: expected "x" of float [4,8], found "x" of float ["N",8]"#);
    insta::assert_snapshot!(head("\"\" : 15", "\"\" : 17"), @r#"the graph's operator sets must stay: expected "" 15, found "" 17"#);
    insta::assert_snapshot!(head("float[4,8] n,", "float[4,8] n, float[8,4] b2,"), @r#"tensor "b2" is declared as float [8, 4], but its value is float [4, 8]"#);
}

const SHARED: &str = r#"{
   [bn_a] u, u1, u2, u3, u4 = com.microsoft.BatchNormInternal <momentum = 0.9> (x, scale, shift, mean, var)
   [bn_b] v, v1, v2, v3, v4 = com.microsoft.BatchNormInternal <momentum = 0.9> (u, scale, shift, mean, var)
   [see] w = Neg(mean)
   [bn_c] z, z1, z2, z3, z4 = com.microsoft.BatchNormInternal <momentum = 0.9> (x, shift, scale, mean, var)
   [see_too] m = Exp(v1)
   [y] y = Sum(u, v, w, z, m)
   [keep] sum_out = com.microsoft.InPlaceAccumulatorV2(sum, y, reset)
}"#;

fn reordered(from: &str, to: &str) -> Result<(), Violation> {
    let lines: Vec<&str> = SHARED.lines().collect();
    let at = |name: &str| {
        lines
            .iter()
            .position(|l| l.contains(&format!("[{name}]")))
            .unwrap()
    };
    let mut lines = lines.clone();
    let line = lines.remove(at(from));
    let place = lines
        .iter()
        .position(|l| l.contains(&format!("[{to}]")))
        .unwrap();
    lines.insert(place, line);
    verify(&parse(SHARED), &parse(&lines.join("\n")))
}

#[test]
fn updates_of_one_buffer_keep_their_sequence() {
    insta::assert_snapshot!(reordered("bn_c", "bn_b").unwrap_err(), @r#"update 2 of "mean" is made by BatchNormInternal "bn_c", not by BatchNormInternal "bn_b""#);
    insta::assert_snapshot!(reordered("bn_c", "bn_a").unwrap_err(), @r#"update 1 of "mean" is made by BatchNormInternal "bn_c", not by BatchNormInternal "bn_a""#);
}

#[test]
fn memory_is_read_after_as_many_updates() {
    insta::assert_snapshot!(reordered("bn_c", "see").unwrap_err(), @r#"Neg "see" reads "mean" after 3 updates of it in place, not after 2"#);
    insta::assert_snapshot!(reordered("see", "bn_a").unwrap_err(), @r#"Neg "see" reads "mean" after 0 updates of it in place, not after 2"#);
    // By way of an alias.
    insta::assert_snapshot!(reordered("see_too", "bn_c").unwrap_err(), @r#"Exp "see_too" reads "mean" after 2 updates of it in place, not after 3"#);
    assert_eq!(reordered("see_too", "y"), Ok(()));
}

#[test]
fn a_copy_of_a_normalization_may_run_between_updates() {
    let copy = "[again] u_2, m2, n2, o2, p2 = com.microsoft.BatchNormInternal <momentum = 1.0> (x, scale, shift, mean, var)";
    let nodes = SHARED
        .replace("[bn_c]", &format!("{copy}\n   [bn_c]"))
        .replace("Sum(u,", "Sum(u_2,");
    assert_eq!(verify(&parse(SHARED), &parse(&nodes)), Ok(()));
}

#[test]
fn a_copy_may_not_read_memory_at_another_time() {
    let again = |before: &str| {
        let nodes = SHARED.replace(before, &format!("[again] w2 = Neg(mean)\n   {before}"));
        verify(
            &parse(SHARED),
            &parse(&nodes.replace("Sum(u, v, w,", "Sum(u, v, w2,")),
        )
    };
    assert_eq!(again("[bn_c]"), Ok(()));
    insta::assert_snapshot!(again("[y]").unwrap_err(), @r#"Neg "again" reads "mean" after 3 updates of it in place, not after 2"#);
}

#[test]
fn what_a_barrier_of_the_original_forwards_may_be_copied_and_forwarded_again() {
    let graph = |nodes: &str| {
        let head = "<ir_version: 8, opset_import: [\"\" : 15, \"com.microsoft\" : 1]>";
        let body =
            "g (float[4] x, float[4] w) => (float[4] y) <float[4] a, float[4] b, float[4] c>";
        Graph::parse(&format!("{head} {body} {{ {nodes} }}")).unwrap()
    };
    let first = "[a] a = Exp(x) [b] b = Sin(w) [wait] b2, a2 = com.microsoft.PassThrough(b, a)";
    let original = graph(&format!("{first} [c] c = Neg(b2) [y] y = Add(c, a2)"));
    let copied = |reads: &str| {
        graph(&format!(
            "{first} [c] c = Neg(b2) [again] a3 = Exp <__recompute = 1> (x) \
             [wait2] b4, a4 = com.microsoft.PassThrough <__recompute = 1> (b, a3) [y] y = Add(c, {reads})"
        ))
    };
    verify(&original, &copied("a4")).unwrap();
    insta::assert_snapshot!(verify(&original, &copied("b4")).unwrap_err(), @r#"Add "y" reads "b4" as input 1, not the value of "a2""#);
}

#[test]
fn results_that_look_alike_may_differ_if_memory_is_updated_between() {
    let original = SHARED.replace(
        "[y] y = Sum(",
        "[see_late] w3 = Neg(mean)\n   [y] y = Sum(w3, ",
    );
    let exchanged = original
        .replace("v, w, z", "v, w3, z")
        .replace("Sum(w3, ", "Sum(w, ");
    insta::assert_snapshot!(verify(&parse(&original), &parse(&exchanged)).unwrap_err(), @r#"Sum "y" reads "w" as input 0, not the value of "w3""#);
    let copied = original
        .replace("[y]", "[again] w4 = Neg(mean)\n   [y]")
        .replace("v, w, z", "v, w4, z");
    insta::assert_snapshot!(verify(&parse(&original), &parse(&copied)).unwrap_err(), @r#"Neg "again" computes Neg "see" again, but two nodes of the original look like it and read memory that is updated in place"#);
}

/// A random sequence with some copies, written out.
fn random_rewriting(random: &mut SplitMix64, original: &Graph) -> Graph {
    let mut sequence = original.order().to_vec();
    for _ in 0..random.below(6) {
        let first = random.below(sequence.len());
        let id = sequence[first];
        if matches!(operators::recompute(original.node(id)), Recompute::Never(_)) {
            continue;
        }
        let place = first + 1 + random.below(sequence.len() - first);
        sequence.insert(place, id);
    }
    unroll(original, &sequence)
}

/// The violation of a copy that nobody reads is not of interest here.
fn sound(original: &Graph, rewritten: &Graph) -> Result<(), Violation> {
    match verify(original, rewritten) {
        Err(Violation::Unused { .. }) => Ok(()),
        other => other,
    }
}

#[test]
fn halves_are_no_quarters() {
    let graph = |second: &str| {
        let text = format!(
            r#"<ir_version: 8, opset_import: ["" : 15]> g (float[8] x) => (float y, float z) {{
               [two] a, b = Split(x)
               [four] c, d, e, f = Split(x)
               [y] y = ReduceSum(a)
               [z] z = ReduceSum({second})
            }}"#
        );
        Graph::parse(&text).unwrap()
    };
    assert_eq!(verify(&graph("c"), &graph("c")), Ok(()));
    let error = verify(&graph("c"), &graph("a")).unwrap_err();
    insta::assert_snapshot!(error, @r#""z", which ReduceSum "z" writes, does not hold the original's value"#);
}

#[test]
fn random_rewritings_are_accepted() {
    let mut random = SplitMix64::new(1);
    for seed in 0..300 {
        let original = random_training_graph(seed, 5 + seed as usize % 80);
        let rewritten = random_rewriting(&mut random, &original);
        assert_eq!(sound(&original, &rewritten), Ok(()), "seed {seed}");
    }
}

#[test]
fn random_rewritings_with_one_other_input_are_rejected() {
    let mut random = SplitMix64::new(2);
    let mut tried = 0;
    for seed in 0..600 {
        let original = random_training_graph(seed, 5 + seed as usize % 60);
        let mut rewritten = random_rewriting(&mut random, &original);
        let id = rewritten.order()[random.below(rewritten.node_count())];
        let inputs = &rewritten.node(id).inputs;
        let position = random.below(inputs.len());
        // A tensor of its own, that holds no other's value.
        let other = rewritten.inputs[random.below(rewritten.inputs.len())];
        if inputs[position] == Some(other) {
            continue;
        }
        rewritten.node_mut(id).inputs[position] = Some(other);
        let result = verify(&original, &rewritten);
        assert!(
            !matches!(result, Ok(()) | Err(Violation::Unused { .. })),
            "seed {seed}"
        );
        tried += 1;
    }
    assert!(tried > 400, "{tried}");
}

/// Is what a barrier hands on accepted in place of `a`, with this replaced in it?
fn forwards(barrier: &str, size: &str, from: &str, to: &str) -> bool {
    assert!(barrier.contains(from));
    let barrier = barrier.replace(from, to);
    let head = "<ir_version: 8, opset_import: [\"\" : 15]> g (float[2,3] x, float[4] w) => (float[2,3] y, float[4] z)";
    let original =
        format!("{head} <float[2,3] a> {{ [a] a = Exp(x) [z] z = Exp(w) [y] y = Exp(a) }}");
    let shapes = format!("<float[2,3] a, {size} n, int64[2] c, int64[2] s, float[2,3] b>");
    let text =
        format!("{head} {shapes} {{ [a] a = Exp(x) [z] z = Exp(w) {barrier} [y] y = Exp(b) }}");
    let [original, rewritten] =
        [&original, &text].map(|text| crate::graph::Graph::parse(text).unwrap());
    super::equivalence(&original, &rewritten, &Default::default()).is_ok()
}

/// The same on a GPU: lists of nothing behind each other, and zeros.
#[test]
fn a_reshape_forwards_to_zeros_behind_the_shapes_of_no_dimension() {
    let barrier = "[n] n = Shape <start = 0, end = 0> (z) [c] c = Constant <value_ints = [0, 0]> () [s] s = Concat <axis = 0> (n, c) [b] b = Reshape(a, s)";
    assert!(forwards(barrier, "int64[0]", "(z)", "(z)"));
    assert!(forwards(
        barrier,
        "int64[0]",
        "Concat <axis = 0> (n, c)",
        "Concat <axis = 0> (n, n, c)"
    ));
    for (from, to) in [
        // A number; all of them; not zeros; something else than zeros; another tensor.
        ("end = 0", "end = 1"),
        ("<start = 0, end = 0> ", ""),
        ("[0, 0]", "[0, 2]"),
        ("Concat <axis = 0> (n, c)", "Add(n, c)"),
        ("Reshape(a, s)", "Reshape(x, s)"),
    ] {
        assert!(!forwards(barrier, "int64[0]", from, to), "{from} → {to}");
    }
}

/// The barrier of builds without PassThrough: a Reshape to the least of sizes and zeros, which is zeros, and so forwards.
#[test]
fn a_reshape_forwards_only_to_zeros_that_are_computed_of_sizes() {
    let barrier = "[n] n = Size(z) [c] c = Constant <value_ints = [0, 0]> () [s] s = Min(n, c) [b] b = Reshape(a, s)";
    assert!(forwards(barrier, "int64", "Size(z)", "Size(z)"));
    for (from, to) in [
        // Not zeros; not a size; not the least; a zero that means zero; another tensor; no zeros at all.
        ("[0, 0]", "[0, 1]"),
        ("Min(n, c)", "Min(w, c)"),
        ("Min(n, c)", "Max(n, c)"),
        ("Reshape(a, s)", "Reshape <allowzero = 1> (a, s)"),
        ("Reshape(a, s)", "Reshape(x, s)"),
        ("Min(n, c)", "Min(n, n)"),
    ] {
        assert!(!forwards(barrier, "int64", from, to), "{from} → {to}");
    }
}

/// A Reshape to the sizes that a tensor has in every step. They are in the file.
#[test]
fn a_reshape_forwards_to_a_list_of_the_sizes_that_its_input_always_has() {
    let barrier = "[c] c = Constant <value_ints = [2, 3]> () [b] b = Reshape(a, c)";
    assert!(forwards(barrier, "int64", "2, 3", "2, 3"));
    for (from, to) in [
        // Other sizes; as many; what is worked out; what stays; another rank; another tensor.
        ("[2, 3]", "[3, 2]"),
        ("[2, 3]", "[2, 4]"),
        ("[2, 3]", "[2, -1]"),
        ("[2, 3]", "[0, 3]"),
        ("[2, 3]", "[6]"),
        ("Reshape(a, c)", "Reshape(x, c)"),
    ] {
        assert!(!forwards(barrier, "int64", from, to), "{from} → {to}");
    }
    // Of another batch it would not be right.
    let graph = |inner: &str, outer: &str| {
        let text = format!(
            "<ir_version: 8, opset_import: [\"\" : 15]> g (float[n,3] x) => (float[n,3] y) <float[n,3] a, {inner}> {{
                [a] a = Exp(x) {outer} }}"
        );
        let mut graph = crate::graph::Graph::parse(&text).unwrap();
        let bindings = [("n".to_owned(), 2)].into();
        let infer = crate::rewrite::infer_shapes::InferShapes { bindings };
        crate::pass::Pass::run(&infer, &mut graph).unwrap();
        graph
    };
    let original = graph("float[1] unused", "[y] y = Exp(a)");
    let rewritten = graph(
        "int64[2] c, float[n,3] b",
        "[c] c = Constant <value_ints = [2, 3]> () [b] b = Reshape(a, c) [y] y = Exp(b)",
    );
    assert!(super::equivalence(&original, &rewritten, &Default::default()).is_err());
}

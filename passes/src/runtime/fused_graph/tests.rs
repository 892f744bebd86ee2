use super::*;
use crate::cost::Cost;
use crate::graph::{Dimension, Graph, TensorId};
use crate::operators::Provider;
use crate::pass::Pass as _;
use crate::rewrite::infer_shapes::InferShapes;
use crate::runtime::executions::Executions;
use crate::runtime::known_shapes::runtime_shapes;
use crate::runtime::liveness::Holder;
use crate::runtime::release::Release;
use crate::runtime::settings::RuntimeSettings;

/// By level above ORT_DISABLE_ALL: the nodes by index, each as what it writes and reads.
fn forms(text: &str) -> Vec<String> {
    forms_by(&crate::runtime::TRAINING, text)
}

fn forms_by(release: &'static Release, text: &str) -> Vec<String> {
    forms_of(release, &Graph::parse(text).unwrap())
}

fn forms_of(release: &'static Release, graph: &Graph) -> Vec<String> {
    let costs = vec![Cost::default(); graph.node_count()];
    let skeleton = Skeleton::of(graph, Provider::Cpu, &costs).run_by(release);
    // What the runtime makes has a mark.
    let form = |(form, _): &OptimizedGraph| {
        let all = form.names();
        let name = |&tensor: &u32| {
            let of = all[tensor as usize];
            let mark = if of == tensor { "" } else { "~" };
            format!("{}{mark}", graph.tensor(TensorId(of)).name)
        };
        let names = |tensors: &[u32]| tensors.iter().map(name).collect::<Vec<_>>().join(",");
        let nodes = (0..form.len()).map(|node| {
            format!(
                "{}({})",
                names(form.writes.get(node)),
                names(form.reads.get(node))
            )
        });
        nodes.collect::<Vec<_>>().join(" ")
    };
    skeleton.optimized().iter().map(form).collect()
}

#[test]
fn a_graph_that_stays_as_it_is_has_no_other_form() {
    let text = "g (float[4,4] x) => (float[4,4] y) <float[4,4] a> { a = MatMul(x, x) y = Exp(a) }";
    assert!(forms(text).is_empty());
}

#[test]
fn what_only_a_folded_shape_reads_goes_with_it() {
    let text = |more: &str| {
        format!(
            "g (float[4,8] x) => (float[4,8] y) <float[4,8] a, float[4,8] b, int64[2] s, int64[2] t>
            {{ a = RandomNormalLike(x) b = Exp(a) s = Shape(b) t = Neg(s) y = Expand({more}, t) }}"
        )
    };
    assert_eq!(forms(&text("x")), ["y(x,t)"]);
    assert_eq!(forms(&text("a")), ["a(x) y(a,t)"]);
}

#[test]
fn a_vector_that_is_added_to_all_rows_makes_a_gemm_between_reshapes() {
    let text = |batch: &str, bias: &str| {
        format!(
            "g (float[{batch},3,4] x, float[4,5] w, {bias} b) => (float[{batch},3,5] y) <float[{batch},3,5] a, float[{batch},3,5] s>
            {{ a = MatMul(x, w) s = Add(b, a) y = Relu(s) }}"
        )
    };
    let stock = |text: &str| forms_by(&crate::runtime::STOCK, text);
    let rows = text("2", "float[5]");
    assert_eq!(stock(&rows), ["y(s) x~(x) s(s~) s~(x~,w,b)"]);
    assert!(forms(&rows).is_empty(), "1.19.2 does not");
    for bias in ["float[1,5]", "float[1]", "float[1,1,5]", "float[2,3,5]"] {
        assert!(stock(&text("2", bias)).is_empty(), "{bias}");
    }
    assert!(stock(&text("N", "float[5]")).is_empty());
    // The Gemm transposes its second matrix; the first Reshape keeps it from what is before that.
    let turned = rows.replace("float[4,5] w", "float[5,4] w");
    let turned = turned.replace(
        "{ a = MatMul(x, w)",
        "{ v = Transpose <perm = [1, 0]> (w) a = MatMul(x, v)",
    );
    assert_eq!(stock(&turned)[0], "y(s) x~(x) s(s~) s~(x~,w,b)");
}

#[test]
fn a_reshape_that_writes_nothing_joins_nothing() {
    let text = "g (float[4,6] x) => (float[4,6] y) <int64[1] all = {24}> { y = Exp(x) z = Reshape(x, all) }";
    let mut graph = Graph::parse(text).unwrap();
    let last = *graph.order().last().unwrap();
    graph.node_mut(last).outputs = vec![None];
    assert!(forms_of(&crate::runtime::STOCK, &graph).is_empty());
}

/// What joins them has the highest index, so that it runs late in PRIORITY order.
#[test]
fn reshapes_of_known_sizes_behind_each_other_are_one() {
    let text = |sizes: &str| {
        format!(
            "g (float[{sizes},6] x) => (float[{sizes},6] y, float[1,24] z) <int64[1] all = {{24}}, int64[2] back = {{4, 6}}, int64[1] first = {{0}},
                float[24] b, float[4,6] c, float[1,4,6] d, float[4,6] e, float[24] g> {{ a = Exp(x) b = Reshape(a, all) c = Reshape(b, back) d = Unsqueeze(c, first) e = Squeeze(d, first) y = Sin(e)
              f = Cos(x) g = Reshape(f, all) z = Unsqueeze(g, first) }}"
        )
    };
    let stock = |text: &str| forms_by(&crate::runtime::STOCK, text);
    assert_eq!(stock(&text("4"))[0], "a(x) y(e) f(x) z(f) e(a)");
    assert!(forms(&text("4")).is_empty(), "1.19.2 does not");
    // Whoever else reads one keeps it, and none but a Reshape is the first.
    let read = text("4").replace("y = Sin(e)", "y = Add(e, c)");
    assert_eq!(
        stock(&read)[0],
        "a(x) d(c,first) e(d,first) y(e,c) f(x) z(f) c(a)"
    );
    let named = text("4").replace("y = Sin(e)", "y = Sin(e) w = Sin(d)");
    assert_eq!(stock(&named)[0], "a(x) e(d,first) y(e) w(d) f(x) z(f) d(a)");
}

/// It is a matrix, and takes over the memory of none but matrices; what does is there from one to the other.
#[test]
fn the_result_of_a_gemm_of_rows_takes_no_memory_over_from_a_tensor_of_its_shape() {
    let text = "g (float[2,8,4] x, float[4,4] w, float[4] b, float[32,8] u) => (float e, float f, float[2,8,4] y)
        <float[2,8,4] d, float[32,8] k, float[2,8,4] m, float[2,8,4] s>
        { d = Exp(x) e = ReduceSum <keepdims = 0> (d) k = Exp(u) f = ReduceSum <keepdims = 0> (k)
          m = MatMul(x, w) s = Add(m, b) y = Exp(s) }";
    let peak = |text: &str, level: Level| {
        let graph = Graph::parse(text).unwrap();
        let costs = vec![Cost::default(); graph.node_count()];
        let all = Executions::of(&graph, &crate::runtime::STOCK, Provider::Cpu, &costs);
        let way = all.at(ExecutionOrder::Default, level);
        let settings = RuntimeSettings {
            pattern: false,
            ..RuntimeSettings::DEFAULT
        };
        all.simulate(settings)[way.unwrap()].1.peak.0
    };
    let (as_it_is, optimized) = (Level::DisableAll, Level::EnableAll);
    let tensor = 2 * 8 * 4 * 4;
    assert_eq!(peak(text, as_it_is), peak(text, optimized) + tensor);
    let matrices = text.replace("[2,8,4]", "[16,4]");
    assert_eq!(peak(&matrices, as_it_is), peak(&matrices, optimized));
}

#[test]
fn a_product_with_an_inverse_becomes_a_division_at_the_place_of_the_inverse() {
    let text = |number: &str, more: &str| {
        format!(
            "g (float[4,8] x, float[4,8] y) => (float[4,8] z)
            <float one = {{{number}}}, float two = {{2.0}}, float[4,8] d, float[4,8] f, float[4,8] m, float[4,8] o, int64[2] s, int64[2] t>
            {{ d = Div(one, x) f = Exp(y) {more} }}"
        )
    };
    let of = |number: &str, more: &str| forms(&text(number, more));
    assert_eq!(of("1.0", "m = Mul(f, d) z = Exp(m)"), ["m(f,x) f(y) z(m)"]);
    assert_eq!(of("1.0", "m = Mul(d, f) z = Exp(m)"), ["m(f,x) f(y) z(m)"]);
    assert_eq!(of("1.0", "z = Mul(d, two)"), ["z(two,x) f(y)"]);
    // Its shape is known before a step.
    let sized = "s = Shape(d) t = Neg(s) m = Mul(f, d) z = Expand(m, t)";
    assert_eq!(of("1.0", sized), ["m(f,x) f(y) z(m,t)"]);
    for other in [
        "m = Mul(f, d) z = Add(m, d)",
        "m = Add(f, d) z = Exp(m)",
        "z = Mul(d, d)",
    ] {
        assert!(of("1.0", other).is_empty(), "{other}");
    }
    assert!(of("2.0", "m = Mul(f, d) z = Exp(m)").is_empty());
}

#[test]
fn a_product_of_matrices_and_the_addition_behind_it_become_a_gemm() {
    let text = |bias: &str, a: &str| {
        format!(
            "g (float[3,4] x, float[4,5] w, {bias} b) => (float[3,5] y) <float[3,5] a, float[3,5] s>
            {{ a = MatMul(x, w) s = Add({a}) y = Relu(s) }}"
        )
    };
    for bias in ["float[5]", "float[1,5]", "float[3,5]", "float[3,1]"] {
        let fused = ["y(s) s(x,w,b)", "y(x,w,b)"];
        assert_eq!(forms(&text(bias, "a, b")), fused);
        assert_eq!(forms(&text(bias, "b, a")), fused);
    }
    for bias in ["float[1]", "float[1,1]", "float[1,3,5]"] {
        assert!(forms(&text(bias, "a, b")).is_empty(), "{bias}");
    }
    let doubles = text("double[5]", "a, b").replace("float", "double");
    assert!(forms(&doubles).is_empty());
    assert!(forms(&text("float[5]", "a, a")).is_empty());
}

#[test]
fn a_product_reads_past_a_transpose_that_moves_nothing() {
    let text = |op: &str, perm: &str| {
        format!(
            "g (float[4,4] x, float[4,4] w) => (float[4,4] y) <float[4,4] a, float[4,4] t>
            {{ a = Exp(x) t = Transpose <perm = [{perm}]> (a) y = {op}(t, w) }}"
        )
    };
    for perm in ["0, 1", "1, 0"] {
        assert_eq!(forms(&text("MatMul", perm)), ["a(x) y(a,w)"], "{perm}");
    }
    assert_eq!(forms(&text("Gemm", "1, 0")), ["a(x) y(a,w)"]);
    assert!(forms(&text("Gemm", "0, 1")).is_empty());
}

#[test]
fn of_nodes_that_compute_the_same_one_is_left() {
    let text = "g (float[1024] x) => (float[1024] y, float[1024] z) <float[1024] a, float[1024] b>
        { a = Exp(x) b = Exp(x) y = Add(a, b) z = Exp(x) }";
    // The first in DEFAULT order.
    assert_eq!(forms(text), ["y(z,z) z(x)"]);
    let text = "g (float[1024] x) => (float[1024] y) <float[1024] a, float[1024] b, float[1024] c, float[1024] d>
        { a = Exp(x) b = Log(a) c = Exp(x) d = Log(c) y = Add(b, d) }";
    assert_eq!(forms(text), ["c(x) d(c) y(d,d)"]);
    // What puts something out stays.
    let text = "g (float[1024] x) => (float[1024] y, float[1024] z) { y = Exp(x) z = Exp(x) }";
    assert!(forms(text).is_empty());
}

#[test]
fn a_convolution_by_constants_takes_in_more_of_them() {
    let text = |weights: &str, nodes: &str| {
        format!(
            r#"<ir_version: 8, opset_import: ["" : 15]> g (float[2,2,4,4] x, float[2,2,4,4] u{weights}) => (float[2,2,4,4] y)
            <float[2,2,1,1] w = {{...}}, float[2,1,1] k = {{...}}, float[2] s = {{...}}, float[2,2,4,4] a, float[2,2,4,4] b,
            float[2,2,4,4] c, float[2,2,4,4] d> {{ a = Conv(x, w) {nodes} }}"#
        )
    };
    let chain = "b = Mul(a, k) c = Add(k, b) d = Exp(c) y = Exp(d)";
    assert_eq!(forms(&text("", chain)), ["c(x,w,w) d(c) y(d)"]);
    let normalized = "b = BatchNormalization(a, s, s, s, s) y = Exp(b)";
    assert_eq!(forms(&text("", normalized)), ["b(x,w,w) y(b)"]);
    // With the bias that it has then, it adds an image.
    let sum = "b = Add(a, k) c = Add(b, u) y = Exp(c)";
    assert_eq!(
        forms(&text("", sum)),
        ["b(x,w,w) c(b,u) y(c)", "y(c) c(x,w,w,u)"]
    );
    // Not where weights may change, where two nodes read, or of another shape.
    assert!(forms(&text(", float[2,2,1,1] w", "b = Mul(a, k) y = Exp(b)")).is_empty());
    assert!(forms(&text("", "b = Mul(a, k) y = Add(a, b)")).is_empty());
    assert!(forms(&text("", "b = Mul(a, u) y = Exp(b)")).is_empty());
}

#[test]
fn of_two_activations_behind_each_other_only_the_first_is_fused() {
    let text = "g (float[4,4] x, float[4,4] w) => (float[4,4] y) <float[4,4] a, float[4,4] b>
        { a = Gemm(x, w) b = Sigmoid(a) y = Relu(b) }";
    assert_eq!(forms(text), ["y(b) b(x,w)"]);
}

#[test]
fn a_not_that_only_wheres_read_goes() {
    let text = |opset: u8, last: &str| {
        format!(
            r#"<ir_version: 8, opset_import: ["" : {opset}]> g (bool[4] x, float[4] v) => (float[4] y, float[4] z)
            <bool[4] a, bool[4] n> {{ a = Or(x, x) n = Not(a) y = Where(n, v, v) z = {last} }}"#
        )
    };
    let (both, other) = ("Where(n, v, v)", "Cast <to = 1> (n)");
    let gone = ["a(x,x) y(a,v,v) z(a,v,v)"];
    for release in crate::runtime::Release::ALL {
        assert_eq!(forms_by(release, &text(15, both)), gone, "{}", release.name);
        assert!(forms_by(release, &text(15, other)).is_empty());
    }
    assert_eq!(forms_by(&crate::runtime::STOCK, &text(16, both)), gone);
    assert!(forms(&text(16, both)).is_empty());
}

#[test]
fn identity_goes_and_its_readers_read_past_it() {
    let text = "g (float[4] x) => (float[4] y, float[4] z) <float[4] a, float[4] b>
        { a = Exp(x) b = Identity(a) y = Exp(b) z = Identity(a) }";
    // A graph output stays.
    assert_eq!(forms(text), ["a(x) y(a) z(a)"]);
}

#[test]
fn what_is_fused_comes_last_in_the_sequence_of_the_default_order() {
    let text = "g (float[4,4] x, float[4,4] w) => (float[4,4] y, float[4,4] z)
        <float[4,4] t, float[4,4] p, float[4,4] q>
        { t = Transpose <perm = [1, 0]> (w) p = MatMul(x, t) y = Exp(p) q = MatMul(t, x) z = Exp(q) }";
    // From the last leaf: q first. Nobody reads t any more.
    assert_eq!(forms(text), ["y(p) z(q) q(w,x) p(x,w)"]);
}

#[test]
fn gemm_takes_in_a_transposition_once_nobody_else_reads_it() {
    let text = "g (float[4,4] x, float[4,4] w) => (float[4,4] y, float[4,4] z)
        <float[4,4] t>
        { t = Transpose <perm = [1, 0]> (w) y = Gemm(x, t) z = MatMul(x, t) }";
    assert_eq!(forms(text), ["z(x,w) y(x,w)"]);
    // An Add keeps t, and so Gemm as it is.
    let added = text.replace("z = MatMul(x, t)", "z = Add(x, t)");
    assert!(forms(&added).is_empty());
}

#[test]
fn gemm_read_twice_stays() {
    let text = "g (float[4,4] x, float[4,4] w) => (float[4,4] y, float[4,4] z)
        <float[4,4] t, float[4,4] a, float[4,4] b>
        { t = Transpose <perm = [1, 0]> (w)
          a = Gemm(x, t) b = Gemm(t, x) y = Exp(a) z = Add(a, b) }";
    assert_eq!(forms(text), ["t(w) a(x,t) y(a) z(a,b) b(w,x)"]);
}

#[test]
fn gemm_without_a_third_input_writes_what_a_transposition_makes_of_it() {
    let text = "g (float[4,4] x, float[4,4] w, float[4] v) => (float[4,4] y)
        <float[4,4] t, float[4,4] a>
        { t = Transpose <perm = [1, 0]> (w) a = Gemm(x, t) y = Transpose <perm = [1, 0]> (a) }";
    assert_eq!(forms(text), ["y(x,w)"]);
    let third = text.replace("Gemm(x, t)", "Gemm(x, t, v)");
    assert_eq!(forms(&third), ["y(a) a(x,w,v)"]);
}

#[test]
fn a_convolution_takes_in_the_activation_that_alone_reads_it() {
    let text = "g (float[1,1,4,4] x, float[1,1,1,1] w) => (float[1,1,4,4] z)
        <float[1,1,4,4] c, float[1,1,4,4] r>
        { c = Conv(x, w) r = Relu(c) z = Exp(r) }";
    assert_eq!(forms(text), ["z(r) r(x,w)"]);
    let twice = text.replace("Exp(r)", "Add(r, c)");
    assert!(forms(&twice).is_empty());
}

// What sessions of 1.19.2 and 1.32.0 saved.
#[test]
fn a_convolution_with_a_bias_adds_an_image() {
    let text = "g (float[1,1,4,4] x, float[1,1,1,1] w, float[1] b) => (float[1,1,4,4] z)
        <float[1,1,4,4] e, float[1,1,4,4] c, float[1,1,4,4] s, float[1,1,4,4] r>
        { e = Exp(x) c = Conv(x, w, b) s = Add(e, c) r = Relu(s) z = Exp(r) }";
    assert_eq!(forms(text), ["e(x) z(r) r(x,w,b,e)"]);
    let graph = Graph::parse(text).unwrap();
    let costs = vec![Cost::default(); graph.node_count()];
    let skeleton = Skeleton::of(&graph, Provider::Cpu, &costs).run_by(&crate::runtime::STOCK);
    let (forms_of, levels) = skeleton.optimized_by_level();
    let at = [Level::EnableBasic, Level::EnableExtended, Level::EnableAll];
    assert_eq!(at.map(|level| levels.at(level)), [None, None, Some(0)]);
    // Where nobody else reads what was added, newer releases overwrite it.
    let run = &forms_of[0].0;
    let named = |&tensor: &u32| graph.tensor(TensorId(tensor)).name.as_str();
    let shared = run.shares.get(2).iter();
    let shared: Vec<_> = shared.map(|share| named(&share.read)).collect();
    assert_eq!(shared, ["e"]);
    // Of two convolutions, the first adds the other's result.
    let two = forms(&text.replace("Exp(x)", "Conv <group = 1> (x, w, b)"));
    assert_eq!(two, ["c(x,w,b) z(r) r(x,w,b,c)"]);
    let with = |from: &str, to: &str| forms(&text.replace(from, to));
    // One more reader of the sum keeps the activation.
    assert_eq!(
        with("z = Exp(r)", "z = Mul(r, s)"),
        ["e(x) r(s) z(r,s) s(x,w,b,e)"]
    );
    // Without a bias, of other sizes, by another operator, or where somebody else reads what is computed.
    for (from, to) in [
        ("Conv(x, w, b)", "Conv(x, w)"),
        ("Add(e, c)", "Add(w, c)"),
        ("Add(e, c)", "Mul(e, c)"),
        ("Exp(r)", "Mul(r, c)"),
    ] {
        let all = with(from, to);
        assert!(all.iter().all(|form| form.contains("c(x,w")), "{to}");
    }
}

#[test]
fn a_product_does_multiplications_by_a_number() {
    let text = "g (float[4,4] x) => (float[4,4] z)
        <float[1] two = {2}, float[4,4] s, float[4,4] p, float[4,4] h>
        { s = Mul(two, x) p = MatMul(s, x) h = Div(p, two) z = Exp(h) }";
    assert_eq!(forms(text), ["z(h) h(x,x)"]);
    // Two over a tensor is something else.
    let inverse = text.replace("Div(p, two)", "Div(two, p)");
    assert_eq!(forms(&inverse), ["h(two,p) z(h) p(x,x)"]);
}

#[test]
fn gemm_adds_what_the_sum_behind_it_adds() {
    let text = "g (float[4,4] x, float[4,4] w) => (float[4,4] y, float[4,4] z)
        <float[4,4] t, float[4,4] a>
        { t = Transpose <perm = [1, 0]> (w) a = Gemm(x, t) y = Sum(w, a) z = Exp(x) }";
    assert_eq!(forms(text), ["z(x) y(x,w,w)"]);
    for other in ["Add(w, a)", "Sum(w, a, x)", "Sum(a, a)"] {
        let other = forms(&text.replace("Sum(w, a)", other));
        assert!(
            other.iter().all(|form| form.contains(" a(x,w)")),
            "{other:?}"
        );
    }
}

/// A frozen layer: nobody reads the sum, the mean or the deviation.
#[test]
fn a_sum_and_the_layer_normalization_behind_it_become_one() {
    let with = |nodes: &str| {
        forms(&format!(
            "g (float[n,4,8] x, float[n,4,8] w, float[8] s) => (float[n,4,8] y)
            <float[8] b = {{1, 2, 3, 4, 5, 6, 7, 8}}, float[n,4,8] a, float[n,4,8] c, float[n,4,8] d, float[n,4,1] m, float[n,4,1] v>
            {{ {nodes} y = Exp(d) }}"
        ))
    };
    let own = |reads: &str| format!("y(d) d({reads})");
    // In the runtime it has the highest index. And it adds a constant vector first, whichever summand that changes.
    for (nodes, reads) in [
        ("c = Add(x, w) d =", "x,w,s,s"),
        ("c = Add(x, w) d, m, v =", "x,w,s,s"),
        ("a = Add(x, b) c = Add(a, w) d =", "x,w,s,s,b"),
        ("a = Add(x, b) c = Add(w, a) d =", "w,x,s,s,b"),
    ] {
        let form = with(&format!("{nodes} LayerNormalization(c, s, s)"));
        assert_eq!(form, [own(reads)], "{nodes}");
    }
    // A vector that the caller owns may be another one next time.
    assert_eq!(
        with("a = Add(x, s) c = Add(w, a) d = LayerNormalization(c, s, s)"),
        ["a(x,s) y(d) d(w,a,s,s)"]
    );
    // What somebody else reads stays, as what is known to be of one size alone is taken in.
    assert!(with("c = Add(x, w) a = LayerNormalization(c, s, s) d = Add(a, c)").is_empty());
    assert!(with("c = Add(x, s) d = LayerNormalization(c, s, s)").is_empty());
}

#[test]
fn what_changes_no_number_goes() {
    let with = |node: &str| {
        forms(&format!(
            "g (float[4,8] x) => (float[4,8] y)
            <float one = {{1}}, float zero = {{0}}, float[1,1,1] deep = {{1}}, float[4,8] a, float[4,8] b>
            {{ a = Exp(x) b = {node} y = Exp(b) }}"
        ))
    };
    let goes = "Div(a, one); Mul(one, a); Mul(a, one); Sub(a, zero); Add(zero, a)";
    for node in goes.split("; ") {
        assert_eq!(with(node), ["a(x) y(a)"], "{node}");
    }
    // What no node computes stays, by another name as well.
    let named = "g (float[4,8] x) => (float[4,8] y) <float one = {1}, float[4,8] a, float[4,8] b>
        { a = Identity(x) b = Mul(a, one) y = Exp(b) }";
    assert_eq!(forms(named), ["b(x,one) y(b)"]);
    // A Dropout that draws computes.
    let drawn = "g (float[4,8] x, float ratio, bool mode) => (float[4,8] y)
        <float one = {1}, float[4,8] a, float[4,8] b>
        { a = Dropout(x, ratio, mode) b = Mul(a, one) y = Exp(b) }";
    assert_eq!(forms(drawn), ["a(x,ratio,mode) y(a)"]);
    let stays = "Div(one, a); Mul(a, zero); Sub(zero, a); Mul(a, deep); Add(a, one); Mul(x, one)";
    for node in stays.split("; ") {
        assert!(with(node).is_empty(), "{node}");
    }
}

#[test]
fn what_hands_on_all_that_it_reads_goes() {
    let with = |node: &str| {
        let forms = forms(&format!(
            r#"<ir_version: 8, opset_import: ["" : 17]> g (float[N,8] x, float low) => (float[N,8] y)
            <float zero = {{0}}, float less = {{-1}}, int64[1] one = {{1}}, int64[2] wide = {{1, 8}}, int64[2] taller = {{4, 8}},
            int64[3] deeper = {{1, 1, 1}}, int64[1] first = {{0}}, int64[1] last = {{9223372036854775807}}, int64[1] two = {{2}},
            float[N,8] a, float[N,8] b> {{ a = Exp(x) {node} }}"#
        ));
        forms.first().cloned()
    };
    let goes = "b = Cast<to = 1>(a); b = Cast<to = 1>(x); b = Expand(a, one); b = Expand(a, wide); b = Slice(a, first, last);
        b = Slice(a, first, last, one, one); b = Slice(a, first, last, , two)";
    for node in goes.split(';').map(str::trim) {
        let read = if node.contains("(x)") { "x" } else { "a" };
        let left = format!("y({read})");
        let form = with(&format!("{node} y = Neg(b)")).unwrap_or_default();
        assert!(
            form.ends_with(&left) && !form.contains("b("),
            "{node}: {form}"
        );
    }
    let stays = "b = Expand(a, taller); b = Expand(a, deeper); b = Expand(x, one); b = Slice(a, first, two); b = Slice(a, one, last);
        b = Slice(x, first, last); b = Slice(a, first, last, one, two); b = Slice(a, first, last, one, first, two)";
    for node in stays.split(';').map(str::trim) {
        let form = with(&format!("{node} y = Neg(b)"));
        assert!(form.is_none_or(|form| form.contains("b(")), "{node}");
    }
    // A Clip does what the Relu before it does, for which it gets another constant where that is less.
    let clipped = |clip: &str| with(&format!("b = Relu(a) y = {clip}"));
    for clip in [
        "Clip(b)",
        "Clip(b, zero)",
        "Clip(b, less)",
        "Clip(b, , low)",
    ] {
        let form = clipped(clip).unwrap_or_default();
        assert!(
            form.contains("y(a") && !form.contains("b("),
            "{clip}: {form}"
        );
    }
    assert_eq!(clipped("Clip(b, low)"), None);
    assert_eq!(clipped("Add(b, b)"), None);
}

// What sessions of 1.19.2, 1.20.1, 1.26.0 and 1.32.0 saved at ORT_ENABLE_BASIC.
#[test]
fn a_dropout_whose_mask_nobody_reads_goes_where_nobody_trains() {
    let with = |release, nodes: &str, also: &str| {
        let text = format!(
            r#"<ir_version: 8, opset_import: ["" : 17]> g (float[4,8] x, bool told) => (float[4,8] y{also})
            <float zero = {{0}}, float half = {{0.5}}, float one = {{1}}, float r, float[4,8] a, float[4,8] b, bool[4,8] m, int64 s>
            {{ a = Exp(x) {nodes} y = Neg(b) }}"#
        );
        forms_by(release, &text).first().cloned()
    };
    let goes = |release, nodes: &str| {
        let form = with(release, nodes, "");
        form.is_some_and(|form| !form.contains("b,m(") && !form.contains("b("))
    };
    let (training, stock) = (&crate::runtime::TRAINING, &crate::runtime::STOCK);
    for nothing in [
        "b, m = Dropout(a, zero, told)",
        "b = Dropout(a, zero)",
        "b, m = Dropout(a)",
        "b, m = Dropout(x)",
    ] {
        assert!(goes(training, nothing), "{nothing}");
        assert!(goes(stock, nothing), "{nothing}");
    }
    for drawn in [
        "b, m = Dropout(a, half, told)",
        "b = Dropout(a, half)",
        "b = Dropout(a, , told)",
    ] {
        assert!(!goes(training, drawn), "{drawn}");
        assert!(goes(stock, drawn), "{drawn}");
    }
    for stays in [
        "b, m = Dropout(x, zero, told)",
        "r = ReduceMean<keepdims = 0>(x) b, m = Dropout(a, r, told)",
        "b, m = Dropout(a, zero, told) s = Size(m)",
    ] {
        assert!(!goes(training, stays), "{stays}");
        assert!(!goes(stock, stays), "{stays}");
    }
    assert_eq!(
        with(stock, "b, m = Dropout(a, zero, told)", ", bool[4,8] m"),
        None
    );
    // What goes computes nothing that something else could hand on.
    assert!(goes(
        training,
        "c, m = Dropout(x, half, told) b = Mul(c, one)"
    ));
}

#[test]
fn what_is_only_handed_out_is_written_as_the_output() {
    let with = |outputs: &str, nodes: &str| {
        let outputs = outputs.split(' ').map(|name| format!("float[4] {name}"));
        let outputs = outputs.collect::<Vec<_>>().join(", ");
        forms(&format!(
            "g (float[4] x) => ({outputs}) <float[4] a, float[4] b> {{ a = Exp(x) {nodes} }}"
        ))
    };
    assert_eq!(with("y", "y = Identity(a)"), ["y(x)"]);
    assert_eq!(with("y", "b = Identity(a) y = Identity(b)"), ["y(x)"]);
    // Not where somebody else reads it or what is written, where it is an output itself, or nobody computes it.
    assert!(with("y z", "y = Identity(a) z = Log(a)").is_empty());
    assert!(with("y z", "y = Identity(a) z = Log(y)").is_empty());
    assert!(with("y a", "y = Identity(a)").is_empty());
    assert!(with("y z", "y = Identity(x) z = Log(a)").is_empty());
    let input =
        "g (float[4] x, float[4] w) => (float[4] y, float[4] z) { y = Identity(w) z = Exp(x) }";
    assert!(forms(input).is_empty());
}

/// They read one constant once Identities are gone, and those go first.
#[test]
fn what_reads_a_constant_by_several_names_is_merged() {
    let text =
        "g (float[4] x) => (float[4] y) <float c = {2}, float p, float q, float[4] a, float[4] b>
        { p = Identity(c) q = Identity(c) a = Pow(x, p) b = Pow(x, q) y = Sub(a, b) }";
    // The one that comes first in DEFAULT order is left.
    assert_eq!(forms(text)[0], "b(x,c) y(b,b)");
}

#[test]
fn a_bias_and_the_gelu_behind_it_become_one_that_takes_memory() {
    let text = "g (float[2,3,4] x, float[4] b) => (float[2,3,4] z)
        <float[2,3,4] a, float[2,3,4] y>
        { a = Add(x, b) y = com.microsoft.Gelu(a) z = Exp(y) }";
    assert_eq!(forms(text), ["z(y) y(x,b)"]);
    let graph = Graph::parse(text).unwrap();
    let costs = vec![Cost::default(); graph.node_count()];
    let skeleton = Skeleton::of(&graph, Provider::Cpu, &costs);
    assert_eq!(skeleton.optimized()[0].0.workspace, [0, 2 * 3 * 4 * 4]);
    assert!(forms(&text.replace("float[4] b", "float[3,4] b")).is_empty());
    assert!(forms(&text.replace("Exp(y)", "Add(y, a)")).is_empty());
    // The standard's own is left alone by 1.19.2 and 1.20.1, and not by 1.26.0 and 1.32.0.
    let standard = text.replace("com.microsoft.Gelu", "Gelu");
    assert!(forms(&standard).is_empty());
    assert_eq!(forms_by(&crate::runtime::STOCK, &standard), ["z(y) y(x,b)"]);
}

// Both releases, of a lowered gradient of a Gather: the Expands are one before what they read is folded.
#[test]
fn what_reads_equal_nodes_that_are_folded_is_the_same() {
    let text = "g (float[2,3] x) => (float[2,3] y, float[2,3] z)
        <float[3] c = {1,2,3}, int64[2] s = {1,3}, float[1,3] r, float[1,3] q, float[2,3] e, float[2,3] f>
        { r = Reshape(c, s) q = Reshape(c, s) n = Shape(x) e = Expand(r, n) f = Expand(q, n) y = Mul(x, e) z = Add(x, f) }";
    assert_eq!(forms(text), ["y(x,f) z(x,f)"]);
}

// What sessions of 1.19.2 saved at ORT_ENABLE_EXTENDED.
#[test]
fn a_cast_goes_in_front_of_the_transpose_that_a_product_does() {
    let text = "g (int32[2,4,3] x, float[2,4,3] w) => (float[2,3,3] z)
        <int32[2,3,4] t, float[2,3,4] c, float[2,3,3] p>
        { t = Transpose <perm = [0, 2, 1]> (x) c = Cast <to = 1> (t) p = MatMul(c, w) z = Exp(p) }";
    assert_eq!(forms(text), ["z(p) c~(x) p(c~,w)"]);
    // Another reader of what was transposed keeps the Transpose, one of what was cast gets another.
    let with = |more: &str, kind: &str| {
        let text = text.replace("z)", &format!("z, {kind}[2,3,4] y)"));
        forms(&text.replace("z = Exp(p)", &format!("z = Exp(p) y = {more}")))
    };
    assert_eq!(with("Neg(t)", "int32"), ["t(x) z(p) y(t) c~(x) p(c~,w)"]);
    assert_eq!(with("Neg(c)", "float"), ["z(p) y(c) c~(x) c(c~) p(c~,w)"]);
    // Other axes, another type, and other readers.
    assert!(forms(&text.replace("[0, 2, 1]", "[2, 1, 0]")).is_empty());
    assert!(forms(&text.replace("MatMul(c, w)", "Mul(c, w)")).is_empty());
}

#[test]
fn of_equal_constants_in_float16_one_is_cast() {
    let text = "g (float16[4] x) => (float16[4] y) <float16 a = {2}, float16 b = {2}, float16[4] p>
        { p = Mul(x, a) y = Mul(p, b) }";
    let form = &forms(text)[0];
    assert!(form.contains("~(a)") && !form.contains("(b)"), "{form}");
    let other = text.replace("b = {2}", "b = {3}");
    assert!(forms(&other).iter().all(|form| form.contains("(b)")));
}

// What sessions of 1.19.2 saved at ORT_ENABLE_BASIC.
#[test]
fn a_cast_that_only_shapes_read_goes() {
    let text = |opset: i64, more: &str| {
        format!(
            r#"<ir_version: 8, opset_import: ["" : {opset}]> g (float[N,4] x) => (float[N,4] y, int64[2] s)
            <float[N,4] e, double[N,4] c, float[N,4] d>
            {{ e = Exp(x) c = Cast <to = 11> (e) d = Cast <to = 1> (c) s = Shape(d) y = {more} }}"#
        )
    };
    for opset in [13, 15, 20] {
        assert_eq!(forms(&text(opset, "Log(e)")), ["e(x) s(e) y(e)"]);
    }
    for opset in [12, 21] {
        assert!(forms(&text(opset, "Log(e)")).is_empty(), "{opset}");
    }
    // Of two, one; and none that somebody else reads.
    let one = ["e(x) c(e) s(c) y(c)"];
    assert_eq!(forms(&text(15, "Log(c)")), one);
    assert!(forms(&text(15, "Log(d)")).is_empty());
    // A graph output stays.
    let output = text(15, "Log(e)").replace("int64[2] s)", "int64[2] s, float[N,4] d)");
    assert!(forms(&output.replace(", float[N,4] d>", ">")).is_empty());
}

// What a session of 1.19.2 saved at ORT_ENABLE_BASIC.
#[test]
fn a_shape_of_what_is_computed_between_casts_keeps_the_narrowing_one() {
    let text = r#"<ir_version: 8, opset_import: ["" : 15]>
        g (float[N,4] x) => (float[N,4] y, int64[2] s)
        <float16[N,4] h, float16[N,4] e, float16[N,4] l, float[N,4] f>
        { h = Cast <to = 10> (x) e = Exp(h) f = Cast <to = 1> (e) s = Shape(f) l = Log(e) y = Cast <to = 1> (l) }"#;
    assert_eq!(forms(text), ["e~(x) s(e) l~(e~) y(l~) e(e~)"]);
}

// What sessions of 1.19.2 and 1.32.0 saved.
#[test]
fn the_first_axis_is_moved_by_the_way_between_matrices_of_as_many_axes() {
    let text = |other: &str, product: &str| {
        format!(
            "g (float[4,4,4] x, float[{other}] w) => (float[4,4,4] z)
            <float[4,4,4] t> {{ t = Transpose <perm = [1, 0, 2]> (x) z = MatMul({product}) }}"
        )
    };
    assert_eq!(forms(&text("4,4,4", "t, w")), ["z(x,w)"]);
    assert_eq!(forms(&text("4,4,4", "w, t")), ["z(w,x)"]);
    assert!(forms(&text("4,4", "t, w")).is_empty());
    assert!(forms(&text("4,4", "w, t")).is_empty());
}

// What sessions of 1.19.2 and 1.32.0 saved.
#[test]
fn a_transpose_reads_past_the_one_before_it() {
    let text = |first: &str, second: &str, more: &str| {
        format!(
            "g (float[4,4,4] x) => (float[4,4,4] y, float[4,4,4] z)
            <float[4,4,4] e, float[4,4,4] t, float[4,4,4] u>
            {{ e = Exp(x) t = Transpose <perm = {first}> (e) u = Transpose <perm = {second}> (t) y = Neg(u) z = {more} }}"
        )
    };
    let turned = |more: &str| forms(&text("[1, 0, 2]", "[0, 2, 1]", more));
    // Whoever else reads the first one.
    assert_eq!(turned("Neg(x)"), ["e(x) u(e) y(u) z(x)"]);
    assert_eq!(turned("Abs(t)"), ["e(x) t(e) u(e) y(u) z(t)"]);
    assert_eq!(turned("Transpose(t)"), ["e(x) t(e) u(e) y(u) z(t)"]);
    // Two that cancel go, and so does what nobody reads any more.
    let cancelled = |more: &str| forms(&text("[1, 0, 2]", "[1, 0, 2]", more));
    assert_eq!(cancelled("Abs(x)"), ["e(x) y(e) z(x)"]);
    assert_eq!(cancelled("Abs(t)"), ["e(x) t(e) y(e) z(t)"]);
    let third = cancelled("Transpose <perm = [2, 1, 0]> (u)");
    assert_eq!(third, ["e(x) y(e) z(e)"]);
    // A graph output is written by whoever wrote what was transposed, if that is no graph output and not the caller's.
    let is_output = |text: &str| {
        text.replace("] y, float", "] u, float")
            .replace("] u>", "] y>")
    };
    let output = |more| forms(&is_output(&text("[1, 0, 2]", "[1, 0, 2]", more)));
    assert_eq!(output("Abs(t)"), ["u(x) t(u) y(u) z(t)"]);
    let caller = text("[1, 0, 2]", "[1, 0, 2]", "Abs(t)").replace("(e)", "(x)");
    assert_eq!(forms(&is_output(&caller)), ["e(x) t(x) u(x) y(u) z(t)"]);
    // A product does by the way what both do, or neither.
    let product = |first, second| forms(&text(first, second, "MatMul(u, x)")).pop();
    let both = product("[0, 2, 1]", "[1, 0, 2]");
    assert_eq!(both.as_deref(), Some("e(x) u(e) y(u) z(u,x)"));
    let both = product("[2, 1, 0]", "[1, 0, 2]");
    assert_eq!(both.as_deref(), Some("e(x) u(e) y(u) z(e,x)"));
}

/// In PRIORITY_BASED order the Gather comes last.
#[test]
fn what_a_moved_shape_writes_is_called_as_in_the_file() {
    let text = r#"<ir_version: 8, opset_import: ["" : 15]> g (float[N,4,6] x) => (float[N,6,4] y)
        { t = Transpose<perm = [0, 2, 1]>(x) s = Shape(t) a = Relu(t) b = Exp(a) y = Reshape(b, s) }"#;
    let mut graph = Graph::parse(text).unwrap();
    let bindings = [("N".to_owned(), 4)].into();
    InferShapes { bindings }.run(&mut graph).unwrap();
    let costs = vec![Cost::default(); graph.node_count()];
    let all = Executions::of(&graph, &crate::runtime::TRAINING, Provider::Cpu, &costs);
    let way = all.at(ExecutionOrder::PriorityBased, Level::EnableAll);
    let (_, liveness) = &all.simulate(RuntimeSettings::LEAN)[way.unwrap()];
    let name = |holder: &Holder| match *holder {
        Holder::Tensor(id, _) => Some(graph.tensor(id).name.clone()),
        _ => None,
    };
    let names: Vec<String> = liveness.holders.iter().filter_map(name).collect();
    assert!(names.contains(&"s".to_owned()), "{names:?}");
}

// As sessions of 1.26.0 and 1.32.0 saved it, with the optimizers switched off that no plan for them can do with.
#[test]
fn where_transposes_stay_nothing_reads_past_them() {
    let text = r#"<ir_version: 8, opset_import: ["" : 15]> g (float[N,4,6] x) => (int64[3] s, float[N,4,6] y)
        { t = Transpose<perm = [0, 2, 1]>(x) s = Shape(t) u = Transpose<perm = [0, 2, 1]>(t) y = Relu(u) }"#;
    assert!(forms_by(&crate::runtime::STOCK, text).is_empty());
    assert!(!forms(text).is_empty());
}

// As sessions of 1.19.2 saved them.
#[test]
fn a_shape_reads_past_a_transpose_that_may_go() {
    let all = |outputs: &str, nodes: &str| {
        let text = format!(
            r#"<ir_version: 8, opset_import: ["" : 15]> g (float[N,4,6] x) => ({outputs})
            {{ t = Transpose<perm = [0, 2, 1]>(x) {nodes} }}"#
        );
        forms(&text)
    };
    let (s, y) = ("int64[3] s", "float[N,6,4] y");
    assert_eq!(all(s, "s = Shape(t)"), ["s~(x) s(s~)"]);
    let both = format!("{s}, {y}");
    let nodes = "s = Shape(t) y = Relu(t)";
    assert_eq!(all(&both, nodes), ["t(x) s~(x) y(t) s(s~)"]);
    // Past what goes as well.
    let nodes = "i = Identity(t) s = Shape(i) y = Relu(t)";
    assert_eq!(all(&both, nodes), ["t(x) s~(x) y(t) s(s~)"]);
    let nodes = "c = Cast<to = 7>(t) s = Shape(c) y = Relu(t)";
    assert_eq!(all(&both, nodes), ["t(x) s~(x) y(t) s(s~)"]);
    // A reader behind which the runtime moves no Transpose, or the caller, keeps it.
    let kept = "s = Shape(t) y = LayerNormalization(t, x)";
    assert!(all(&both, kept).is_empty());
    let kept = "s = Shape(t) y = Relu(t) k = Size(t)";
    assert!(all(&format!("{both}, int64 k"), kept).is_empty());
    assert!(all("int64[3] s, float[N,6,4] t", "s = Shape(t)").is_empty());
}

#[test]
fn transposes_that_cancel_are_found_in_linear_time() {
    let looked_at = |count: usize| {
        let mut nodes = "t0 = Exp(x)".to_owned();
        for node in 1..=count {
            let before = node - 1;
            let transpose = format!(" t{node} = Transpose <perm = [1, 0]> (t{before})");
            nodes += &transpose;
            if node % 100 == 0 {
                nodes += &format!(" r{node} = Exp(t{node})");
            }
        }
        let text = format!("g (float[4,4] x) => (float[4,4] y) {{ {nodes} y = Neg(t{count}) }}");
        let graph = Graph::parse(&text).unwrap();
        let costs = vec![Cost::default(); graph.node_count()];
        let skeleton = Skeleton::of(&graph, Provider::Cpu, &costs);
        let mut nodes = Nodes::of(&skeleton);
        assert!(nodes.fuse_all(&[Nodes::TRANSPOSES], |_| false));
        let is_left = |node: &&FusedNode<'_>| matches!(node.fusing, Fusing::Transposes(_));
        assert_eq!(nodes.nodes.iter().flatten().filter(is_left).count(), 0);
        nodes.looked_at
    };
    assert!(looked_at(1_000) >= 500);
    assert!(looked_at(2_000) <= 2 * 2_000);
}

// As sessions of 1.32.0 do with lowered layers: the first in DEFAULT order stays.
#[test]
fn what_reads_equal_constants_is_the_same() {
    let text = "g (float[4096,1] x) => (float[4096] y, float[4096] z)
        <int64[1] one = {1}, int64[1] other = {1}, float[4096,1] e, float[4096] a, float[4096] b>
        { e = Exp(x) a = Squeeze(e, one) b = Squeeze(e, other) y = Neg(a) z = Log(b) }";
    assert_eq!(forms(text), ["e(x) b(e,one) y(b) z(b)"]);
    assert!(forms(&text.replace("other = {1}", "other = {-1}")).is_empty());
}

// As 1.19.2 runs a detection network with a DivGrad: what becomes one node runs before the pieces, wherever the function stands.
#[test]
fn functions_are_taken_apart_behind_what_is_fused_before() {
    let text = "g (float[3,4] x, float[4,5] w, float[5] b, float[4] v) => (float[3,5] y, float[4] z)
        <float[3,5] a, float[3,5] s> { p = Neg(v) z = Exp(p) a = MatMul(x, w) s = Add(a, b) y = Relu(s) }";
    let mut graph = Graph::parse(text).unwrap();
    let basic = |graph: &Graph| forms_of(&crate::runtime::TRAINING, graph).remove(0);
    assert_eq!(basic(&graph), "p(v) z(p) y(s) s(x,w,b)");
    let pieces = [graph.order()[0], graph.order()[1]];
    for piece in pieces {
        graph.node_mut(piece).piece_of = Some(0);
    }
    assert_eq!(basic(&graph), "y(s) s(x,w,b) p(v) z(p)");
    graph.own_pieces();
    assert_eq!(basic(&graph), "p(v) z(p) y(s) s(x,w,b)");
}

// A lowered graph network in 1.32.0: what a ScatterElements writes lies apart from the zeros of which one was left.
#[test]
fn what_reads_a_node_that_stays_for_others_is_computed_in_place_if_it_is_called_alike() {
    let text = "g (float[4] x) => (float[4] y) <float[4] a, float[4] b, float[4] p, float[4] q>
        { a = Exp(x) b = Exp(x) p = Sigmoid(a) q = Tanh(b) y = Add(p, q) }";
    let mut graph = Graph::parse(text).unwrap();
    let bindings = Default::default();
    InferShapes { bindings }.run(&mut graph).unwrap();
    let costs = vec![Cost::default(); graph.node_count()];
    let in_place = |names: [&str; 4]| {
        let mut shapes = runtime_shapes(&graph);
        for (tensor, name) in ["a", "p", "b", "q"].into_iter().zip(names) {
            let tensor = graph.tensor_named(tensor).unwrap();
            shapes[tensor.index()] = Some(vec![Dimension::Symbol(name.to_owned())]);
        }
        let skeleton = Skeleton::with_shapes(&graph, &shapes, Provider::Cpu, &costs);
        let (form, _) = skeleton.optimized().remove(0);
        let shares = (0..form.len()).map(|node| form.shares.get(node).len());
        shares.sum::<usize>()
    };
    assert_eq!(in_place(["n", "n", "n", "n"]), 2);
    assert_eq!(in_place(["n", "n", "m", "m"]), 1);
}

// What sessions of 1.19.2 saved of PyTorch's attention.
#[test]
fn a_number_that_follows_from_constants_scales_a_product() {
    let text = "g (float[4,4] x, float y) => (float[4,4] z)
        <float four = {4}, float r, float[4,4] s, float[4,4] p>
        { r = Sqrt(four) s = Mul(x, r) p = MatMul(s, x) z = Exp(p) }";
    assert_eq!(forms(text), ["s(x,r) p(s,x) z(p)", "z(p) p(x,x)"]);
    assert!(forms(&text.replace("Sqrt(four)", "Sqrt(y)")).is_empty());
    // Not in float64, measured in 1.32.0 as well.
    assert!(forms(&text.replace("float", "double")).len() < 2);
    let shape = text.replace("r = Sqrt(four)", "n = Size(x) r = Cast <to = 1> (n)");
    assert!(forms(&shape).is_empty());
    // Of a tensor of which the runtime does not know how many axes it has, only one that comes before it.
    let unknown = text.replace(
        "s = Mul(x, r) p = MatMul(s, x) z = Exp(p)",
        "e = MeanVarianceNormalization(x) s = Mul(e, r) p = MatMul(s, x) z = Exp(p)",
    );
    assert_eq!(forms(&unknown), ["e(x) s(e,r) p(s,x) z(p)"]);
    let behind = unknown.replace(
        "s = Mul(e, r) p = MatMul(s, x)",
        "s = MatMul(e, x) p = Mul(s, r)",
    );
    assert_eq!(forms(&behind).len(), 2);
}

// Likewise.
#[test]
fn slices_that_take_a_tensor_apart_become_one_split() {
    let text = r#"<ir_version: 8, opset_import: ["" : 15]>
        g (float[6,4] x) => (float[2,4] y, float[4,4] z)
        <int64[1] zero = {0}, int64[1] two = {2}, int64[1] six = {6}, float[2,4] a, float[4,4] b>
        { b = Slice(x, two, six) a = Slice(x, zero, two) y = Exp(a) z = Exp(b) }"#;
    assert_eq!(forms(text), ["y(a) z(b) a,b(x)"]);
    // Not where a row is missing, is in two parts, or is gathered besides, nor in an operator set before that of 13.
    let with = |from: &str, to: &str| forms(&text.replace(from, to)).is_empty();
    assert!(with("six = {6}", "six = {5}"));
    assert!(with("b = Slice(x, two, six)", "b = Slice(x, zero, six)"));
    assert!(with("y = Exp(a)", "row = Gather(x, two) y = Exp(a)"));
    assert!(with(": 15", ": 12"));
}

// As sessions of 1.19.2 and 1.32.0 do.
#[test]
fn a_convolution_does_what_the_pad_does_that_it_alone_reads() {
    let text = r#"<ir_version: 8, opset_import: ["" : 15]>
        g (float[1,2,4,4] x, float[2,2,3,3] w) => (float[1,2,4,4] y, float[1,2,6,6] z)
        <int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}, float zero = {0}, float[1,2,6,6] p, float[1,2,4,4] c>
        { p = Pad <mode = "constant"> (x, pads, zero) c = Conv <pads = [0, 0, 0, 0]> (p, w) y = Exp(c) z = Pad(x, pads) }"#;
    assert_eq!(forms(text), ["c(x,w) y(c) z(x,pads)"]);
    let stays = |from: &str, to: &str| forms(&text.replace(from, to)).is_empty();
    assert!(stays("z = Pad(x, pads)", "z = Exp(p)"));
    assert!(stays("zero = {0}", "zero = {1}"));
    assert!(stays("\"constant\"", "\"reflect\""));
    assert!(stays("pads = {0, 0, 1", "pads = {0, 1, 1"));
    assert!(stays("Conv <pads = [0, 0, 0, 0]>", "Conv"));
    assert!(stays(
        "Conv <pads = [0, 0, 0, 0]> (p, w)",
        "MaxPool <pads = [0, 0, 0, 0]> (p)"
    ));
}

// As sessions of 1.32.0 do with lowered LSTM layers in both directions.
#[test]
fn gathers_of_all_rows_become_one_split() {
    let text = r#"<ir_version: 8, opset_import: ["" : 15]>
        g (float[3,4] x) => (float[4] y, float[2,4] z)
        <int64 last = {-1}, int64[1] zero = {0}, int64[1] two = {2}, float[3,4] e, float[4] a, float[2,4] b>
        { e = Exp(x) a = Gather(e, last) b = Slice(e, zero, two) y = Exp(a) z = Exp(b) }"#;
    assert_eq!(forms(text), ["e(x) y(a) z(b) b,a(e)"]);
    let with = |from: &str, to: &str| forms(&text.replace(from, to)).is_empty();
    assert!(with("int64 last = {-1}", "int64 last = {1}"));
    assert!(with("int64 last = {-1}", "int64 last = {3}"));
    assert!(with("int64 last = {-1}", "int32 last = {-1}"));
    assert!(with("Gather(e, last)", "Gather <axis = 1> (e, last)"));
    // Nor of what is written beside something else, nor where a row is put out.
    let masked = text.replace("e = Exp(x)", "e, m = Dropout(x)");
    assert!(forms(&masked.replace(" z)", " z, bool[3,4] m)")).is_empty());
    let output = text
        .replace("y = Exp(a)", "")
        .replace(" a = Gather", " y = Gather");
    assert!(forms(&output).is_empty());
}

// In default settings, a written network took 50 kB more than its block was said to have room for.
#[test]
fn rows_that_a_split_writes_have_a_size_whatever_they_are_called() {
    let text = r#"<ir_version: 8, opset_import: ["" : 15]>
        g (float[n,3] x) => (float[n] y, float[n,2] z)
        <int64 last = {2}, int64[1] zero = {0}, int64[1] two = {2}, int64[1] one = {1},
         float[n,3] e, float[apart] a, float[apart,2] b> {
            e = Exp(x) a = Gather <axis = 1> (e, last) b = Slice(e, zero, two, one) y = Exp(a) z = Exp(b) }"#;
    let sized = |text: &str| {
        let graph = Graph::parse(text).unwrap();
        let costs = vec![Cost::default(); graph.node_count()];
        let skeleton = Skeleton::of(&graph, Provider::Cpu, &costs);
        let (form, _) = skeleton.optimized().pop().unwrap();
        let name = |&tensor: &u32| graph.tensor(TensorId(tensor)).name.clone();
        form.sized.iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(sized(text), ["a"]);
    // Not where the size of all rows is unknown, as of what a name of its own keeps apart.
    assert!(sized(&text.replace("float[n,3] e", "float[e,3] e")).is_empty());
}

// What sessions of 1.19.2 and 1.32.0 saved of rotary embeddings.
#[test]
fn slices_at_numbers_that_follow_from_constants_become_one_split() {
    let splits = |half: &str| {
        let text = format!(
            r#"<ir_version: 8, opset_import: ["" : 15]>
            g (float[4,8] x, int64[1] given) => (float[4,4] y, float[4,4] z)
            <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}> {{
                e = Exp(x) sizes = Shape(e) width = Gather(sizes, one) half = {half}
                a = Slice(e, zero, half, one) b = Slice(e, half, width, one) y = Exp(a) z = Exp(b) }}"#
        );
        let mut graph = Graph::parse(&text).unwrap();
        let bindings = Default::default();
        InferShapes { bindings }.run(&mut graph).unwrap();
        let costs = vec![Cost::default(); graph.node_count()];
        let skeleton = Skeleton::of(&graph, Provider::Cpu, &costs);
        let (form, _) = skeleton.optimized().pop().unwrap();
        let splits = |&node: &usize| form.writes.get(node).len() == 2;
        (0..form.len()).filter(splits).count()
    };
    assert_eq!(splits("Div(width, two)"), 1);
    assert_eq!(splits("Identity(given)"), 0);
}

#[test]
fn only_the_last_two_axes_are_swapped_by_the_way() {
    let text = "g (float[2,4,4] x) => (float[2,4,4] z)
        <float[2,4,4] t> { t = Transpose <perm = [0, 2, 1]> (x) z = MatMul(x, t) }";
    assert_eq!(forms(text), ["z(x,x)"]);
    assert!(forms(&text.replace("[0, 2, 1]", "[2, 1, 0]")).is_empty());
    // A graph output stays.
    let output = text.replace("z)", "z, float[2,4,4] t)");
    assert!(forms(&output.replace("<float[2,4,4] t>", "")).is_empty());
}

// Measured in 1.20.1, 1.26.0 and 1.32.0: the first joins no Reshapes and makes no Gemm of such a product.
#[test]
fn the_oldest_release_runs_forms_of_its_own_at_the_same_levels() {
    let text = "g (float[2,3,4] x, float[4,5] w, float[5] b) => (float[2,3,5] y)
        <float[2,3,5] a, float[2,3,5] s> { a = MatMul(x, w) s = Add(a, b) y = Tanh(s) }";
    let levels = |release: &'static Release| {
        let mut graph = Graph::parse(text).unwrap();
        let bindings = Default::default();
        InferShapes { bindings }.run(&mut graph).unwrap();
        let costs = vec![Cost::default(); graph.node_count()];
        let skeleton = Skeleton::of(&graph, Provider::Cpu, &costs).run_by(release);
        let (forms, levels) = skeleton.optimized_by_level();
        let run: Vec<_> = [None, Some(0), Some(1)]
            .map(|form| levels.run_at(Level::EnableAll, form))
            .into();
        (forms.len(), skeleton.optimized().len(), run)
    };
    // As it is in 1.20.1, by rows in the others.
    assert_eq!(
        levels(&crate::runtime::STOCK),
        (1, 1, vec![true, true, false])
    );
    assert_eq!(
        levels(&crate::runtime::TRAINING),
        (0, 0, vec![true, false, false])
    );
}

// Measured in 1.19.2, 1.20.1, 1.26.0 and 1.32.0.
#[test]
fn older_releases_do_not_write_a_convolution_over_what_it_adds() {
    let text = "<ir_version: 8, opset_import: [\"\" : 17]>
        g (float[2,4,8,8] x, float[4,4,3,3] w, float[4] b) => (float[2,4,8,8] y)
        <float[2,4,8,8] e, float[2,4,8,8] c, float[2,4,8,8] s>
        { e = Exp(x) c = Conv <pads = [1, 1, 1, 1]> (x, w, b) s = Add(c, e) y = Softmax(s) }";
    let mut graph = Graph::parse(text).unwrap();
    let bindings = Default::default();
    InferShapes { bindings }.run(&mut graph).unwrap();
    let [added, sum] = ["e", "s"].map(|name| graph.tensor_named(name).unwrap().0);
    let costs = vec![Cost::default(); graph.node_count()];
    let over = |release: &'static Release| -> Vec<bool> {
        let skeleton = Skeleton::of(&graph, Provider::Cpu, &costs).run_by(release);
        let (forms, _) = skeleton.optimized_by_level();
        let is_over = |form: &Skeleton| {
            let mut shares = (0..form.len()).flat_map(|node| form.shares.get(node));
            shares.any(|share| (share.read, share.written) == (added, sum))
        };
        forms.iter().map(|(form, _)| is_over(form)).collect()
    };
    assert_eq!(over(&crate::runtime::STOCK), [true, false]);
    assert_eq!(over(&crate::runtime::TRAINING), [false]);
}

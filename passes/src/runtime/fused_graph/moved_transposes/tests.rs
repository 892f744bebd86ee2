use super::*;
use crate::cost::Cost;
use crate::graph::{Graph, TensorId};
use crate::operators::Provider;
use crate::pass::Pass as _;
use crate::rewrite::infer_shapes::InferShapes;
use crate::runtime::known_shapes::runtime_shapes;
use crate::runtime::skeleton::Skeleton;

/// What a session saves at ORT_ENABLE_BASIC.
fn form(text: &str) -> String {
    let first = forms(text).into_iter().next();
    first.unwrap_or_else(|| "none".to_owned())
}

/// What sessions save, by level: the nodes by index, each as what it writes and reads. What is made of a tensor has a mark.
fn forms(text: &str) -> Vec<String> {
    let mut graph = Graph::parse(text).unwrap();
    let sizes = if text.contains("[N,") {
        vec![("N".to_owned(), 4)]
    } else {
        Vec::new()
    };
    let bindings = sizes.into_iter().collect();
    InferShapes { bindings }.run(&mut graph).unwrap();
    let costs = vec![Cost::default(); graph.node_count()];
    let skeleton = Skeleton::of(&graph, Provider::Cpu, &costs);
    let skeleton = skeleton.moving(&graph, &runtime_shapes(&graph));
    let forms = skeleton.optimized();
    forms.iter().map(|(form, _)| said(&graph, form)).collect()
}

fn said(graph: &Graph, form: &Skeleton) -> String {
    let all = form.names();
    let name = |&tensor: &u32| {
        let mark = if form.added(tensor).is_some() {
            "~"
        } else {
            ""
        };
        format!(
            "{}{mark}",
            graph.tensor(TensorId(all[tensor as usize])).name
        )
    };
    let names = |tensors: &[u32]| tensors.iter().map(name).collect::<Vec<_>>().join(",");
    let nodes = (0..form.len()).map(|node| {
        let (written, read) = (form.writes.get(node), form.reads.get(node));
        format!("{}({})", names(written), names(read))
    });
    nodes.collect::<Vec<_>>().join(" ")
}

/// Of a tensor whose first axis of six comes last in `t`; `nodes` make `z` of that, and it comes first again in `y`.
fn behind(nodes: &str, more: &str) -> String {
    form(&format!(
        r#"<ir_version: 8, opset_import: ["" : 15]>
        g (float[N,6,8,10] x{more}) => (float[N,6,8,10] y)
        <float[6] c = {{1, 2, 3, 4, 5, 6}}, int64[1] one = {{1}}, int64[1] three = {{3}}, int64[1] four = {{4}}, float two = {{2}}>
        {{ e = Exp(x) t = Transpose<perm = [0,2,3,1]>(e) {nodes} y = Transpose<perm = [0,3,1,2]>(z) }}"#
    ))
}

// As sessions of 1.19.2 run such graphs (tests/real_runs.rs).
#[test]
fn two_that_undo_each_other_go_where_all_between_has_a_way() {
    assert_eq!(behind("z = Relu(t)", ""), "e(x) y(e)");
    let chain = "a = Relu(t) b = Softmax<axis = -1>(a) z = Mul(b, two)";
    assert_eq!(behind(chain, ""), "e(x) a~(e) b~(a~) y(b~,two)");
    assert_eq!(
        behind("a = Relu(t) z = MatMul(a, w)", ", float[6,6] w"),
        "none"
    );
}

#[test]
fn what_is_not_constant_is_transposed_behind_new_nodes() {
    let weight = behind("z = Mul(t, w)", ", float[6] w");
    assert_eq!(weight, "e(x) y(e,w~) w~(w) w~(w~)");
    assert_eq!(behind("z = Mul(t, c)", ""), "e(x) y(e,c)");
    // Two of one weight become one.
    let twice = behind("a = Mul(t, w) b = Relu(a) z = Add(b, w)", ", float[6] w");
    assert_eq!(twice, "e(x) a~(e,w~) b~(a~) y(b~,w~) w~(w) w~(w~)");
}

#[test]
fn axes_are_those_of_what_is_read() {
    let reduced = "r = ReduceMean<axes = [3]>(t) z = Sub(t, r)";
    assert_eq!(behind(reduced, ""), "e(x) r~(e) y(e,r~)");
    let text = |nodes: &str| {
        form(&format!(
            r#"<ir_version: 8, opset_import: ["" : 15]> g (float[N,6,8,10] x) => (float[a,b,c] y)
            <int64[1] one = {{1}}, int64[1] three = {{3}}>
            {{ e = Exp(x) t = Transpose<perm = [0,2,3,1]>(e) {nodes} }}"#
        ))
    };
    // Nothing is left to move where the others stay where they were.
    let squeezed = text("y = ReduceMean<axes = [3], keepdims = 0>(t)");
    assert_eq!(squeezed, "e(x) y(e)");
    let other = text(
        "r = ReduceMean<axes = [1], keepdims = 0>(t) s = Neg(r) y = Transpose<perm = [0,2,1]>(s)",
    );
    assert_eq!(other, "e(x) r~(e) y(r~)");
    let split = behind("p, q = Split<axis = 3>(t) z = Concat<axis = 3>(q, p)", "");
    assert_eq!(split, "e(x) p~,q~(e) y(q~,p~)");
}

/// Before opset 13, a Softmax takes all axes from one on for one.
#[test]
fn axes_stay_on_their_side_of_a_softmax() {
    let softmax = |axis: i64| {
        form(&format!(
            r#"<ir_version: 8, opset_import: ["" : 12]> g (float[N,6,8,10] x) => (float[N,6,8,10] y)
            {{ e = Exp(x) t = Transpose<perm = [0,2,3,1]>(e) z = Softmax<axis = {axis}>(t) y = Transpose<perm = [0,3,1,2]>(z) }}"#
        ))
    };
    assert_eq!(softmax(1), "e(x) y(e)");
    assert_eq!(softmax(2), "none");
    // The runtime leaves an axis that is not there alone.
    assert_eq!(softmax(99), "none");
    assert_eq!(softmax(i64::MIN), "none");
}

/// They are no rows of a Shape any more.
#[test]
fn rows_of_moved_sizes_become_one_split() {
    let rows = |measured: &str| {
        let text = format!(
            r#"<ir_version: 8, opset_import: ["" : 15]> g (float[N,6] x) => (float[N,6] y) <int64 i = {{0}}, int64 j = {{1}}>
            {{ e = Exp(x) t = Transpose<perm = [1,0]>(e) s = Shape({measured}) p = Gather(s, i) q = Gather(s, j)
               m = Mul(p, q) f = Cast<to = 1>(m) z = Mul(t, f) y = Transpose<perm = [1,0]>(z) }}"#
        );
        forms(&text).pop()
    };
    let split = rows("t");
    assert_eq!(split.unwrap(), "e(x) s~(e) m(p,q) f(m) y(e,f) s(s~) p,q(s)");
    let rows = rows("e");
    assert_eq!(rows.unwrap(), "e(x) s(e) p(s,i) q(s,j) m(p,q) f(m) y(e,f)");
}

#[test]
fn a_transpose_that_somebody_keeps_is_not_moved() {
    let two = "a = Relu(t) z = Add(a, t)";
    assert_eq!(behind(two, ""), "e(x) a~(e) y(a~,e)");
    assert_eq!(
        behind(
            "a = Relu(t) k = Size(t) q = Cast<to = 1>(k) z = Mul(a, q)",
            ""
        ),
        "none"
    );
    let output = r#"<ir_version: 8, opset_import: ["" : 15]> g (float[N,6,8] x) => (float[N,8,6] t, float[N,6,8] y)
        { t = Transpose<perm = [0,2,1]>(x) a = Relu(t) y = Transpose<perm = [0,2,1]>(a) }"#;
    assert_eq!(form(output), "none");
}

#[test]
fn the_time_is_linear() {
    let text = |count: usize| {
        let mut nodes = "t0 = Exp(x)".to_owned();
        for node in 1..=count {
            let before = node - 1;
            nodes += &format!(
                " u{node} = Transpose<perm = [1,0]>(t{before}) r{node} = Relu(u{node}) t{node} = Transpose<perm = [1,0]>(r{node})"
            );
        }
        format!(
            r#"<ir_version: 8, opset_import: ["" : 15]> g (float[4,4] x) => (float[4,4] y) {{ {nodes} y = Neg(t{count}) }}"#
        )
    };
    let started = std::time::Instant::now();
    let left = form(&text(5_000));
    assert_eq!(left.split(' ').count(), 5_002);
    assert!(started.elapsed().as_secs() < 20);
}

#[test]
fn a_reshape_that_moves_axes_of_one_is_a_transposition() {
    let axes = |before: &[u64], behind: &[u64]| {
        as_transposition(before, behind).map(|found| found.axes().to_vec())
    };
    assert_eq!(
        axes(&[1, 512, 4, 1], &[1, 1, 512, 4]),
        Some(vec![0, 3, 1, 2])
    );
    assert_eq!(axes(&[2, 3], &[3, 2]), None);
    assert_eq!(axes(&[2, 3], &[6, 1]), None);
}

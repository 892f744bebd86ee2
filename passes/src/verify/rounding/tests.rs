use std::collections::BTreeSet;

use super::*;
use crate::pass::Pass;
use crate::rewrite::infer_shapes::InferShapes;
use crate::runtime::rounds_in_half;
use crate::verify::casts::{IN_HALF, in_half};
use crate::verify::equivalence;

const HEAD: &str = "g (float[4,4] x, float16[4,4] w) => (float[4,4] y, float[4,4] z)
    <float16[4,4] h, float16[4,4] a, float16[4,4] b, float[4,4] f, float16[4,4] t, float16[4,4] u, float16[4,4] v, float[4,4] g,
     float16[4,4] r, float[4,4] k, float16[4,4] s, float[4,4] n>";

/// Rounded, then three nodes without kernels, one with a kernel between two others; what is widened, and rounded on purpose.
const ORIGINAL: &str = "
    [round] h = Cast <to = 10> (x)
    [exp] a = Exp(h)
    [log] b = Log(a)
    [widen] f = Cast <to = 1> (b)
    [turn] t = Transpose <perm = [1, 0]> (b)
    [add] u = Add(t, w)
    [kept] v = Transpose <perm = [1, 0]> (u)
    [out] g = Cast <to = 1> (v)
    [neg] n = Neg(x)
    [again] r = Cast <to = 10> (n)
    [back] k = Cast <to = 1> (r)
    [mul] s = Mul(r, r)
    [first] y = Sum(f, k, g)
    [second] z = Cast <to = 1> (s)";

/// And what rewritten graphs have besides.
const NEW: &str = ", float16[4,4] h_late, float16[4,4] a_late, float16[4,4] a_later, float16[4,4] b_late, float16[4,4] t_late,
     float16[4,4] a2, float16[4,4] b2, float16[4,4] v2, float16[4,4] r2, float[4,4] x_late, float[4,4] f_late>";

fn graph(nodes: &str) -> Graph {
    Graph::parse(&format!("{HEAD} {{ {nodes} }}")).unwrap()
}

fn rewritten(nodes: &str) -> Graph {
    let head = HEAD
        .replace('>', NEW)
        .replacen(&format!(") ={NEW}"), ") =>", 1);
    Graph::parse(&format!("{head} {{ {nodes} }}")).unwrap()
}

/// What is wrong with the original once one line of it is replaced by others, and readers behind it read otherwise.
fn refused(line: &str, by: &str, readers: &[(&str, &str)]) -> Option<String> {
    let mut nodes = ORIGINAL.replace(line, by);
    for (old, new) in readers {
        assert!(nodes.contains(old), "{old}");
        nodes = nodes.replace(old, new);
    }
    assert_ne!(nodes, ORIGINAL);
    let (original, rewritten) = (graph(ORIGINAL), rewritten(&nodes));
    let found = equivalence(&original, &rewritten, &BTreeSet::new()).unwrap();
    let said = rounding(&original, &rewritten, &found).err();
    said.map(|violation| violation.to_string())
}

#[test]
fn what_is_as_it_was_is_accepted() {
    let (original, rewritten) = (graph(ORIGINAL), graph(ORIGINAL));
    let found = equivalence(&original, &rewritten, &BTreeSet::new()).unwrap();
    assert_eq!(rounding(&original, &rewritten, &found), Ok(()));
}

#[test]
fn copies_of_nodes_without_kernels_and_barriers_between_them_are_accepted() {
    let log = "[log] b = Log(a)";
    let barrier = "[bar] a_late, h_late = com.microsoft.PassThrough(a, h)
        [log] b = Log(a_late)";
    assert_eq!(refused(log, barrier, &[]), None);
    let copy = "[log] b = Log(a)
        [exp2] a2 = Exp <__recompute = 1> (h)
        [log2] b2 = Log <__recompute = 1> (a2)";
    let read = [(
        "Transpose <perm = [1, 0]> (b)",
        "Transpose <perm = [1, 0]> (b2)",
    )];
    assert_eq!(refused(log, copy, &read), None);
    let widened = [(
        "[widen] f = Cast <to = 1> (b)",
        "[widen] f = Cast <to = 1> (b2)",
    )];
    assert_eq!(refused(log, copy, &widened), None);
}

/// The positions that a MaxPool writes fit into int32, and the gradient that reads them computes in float32 either way.
#[test]
fn integers_are_not_rounded() {
    let head = "<ir_version: 8, opset_import: [\"\" : 15]> g (float[1,1,4,4] x, float16[4] w, float[1,1,2,2] d) => (float[1,1,4,4] y, float16[4] z)
        <float[1,1,2,2] p, int64[1,1,2,2] mask, float16[4] h>";
    let nodes = "[pool] p, mask = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
        [exp] h = Exp(w) [log] z = Log(h)
        [back] y = com.microsoft.MaxPoolGrad <kernel_shape = [2, 2], strides = [2, 2]> (d, mask)";
    let casts = "[narrowed] narrow = Cast <to = 6> (mask)
        [widened] wide = Cast <to = 7> (narrow)
        [back]";
    let parse = |nodes: &str| {
        let mut graph = Graph::parse(&format!("{head} {{ {nodes} }}")).unwrap();
        let bindings = Default::default();
        InferShapes { bindings }.run(&mut graph).unwrap();
        graph
    };
    let (original, narrowed) = (
        parse(nodes),
        parse(
            &nodes
                .replace("[back]", casts)
                .replace("(d, mask)", "(d, wide)"),
        ),
    );
    let found = equivalence(&original, &narrowed, &BTreeSet::new()).unwrap();
    assert_eq!(rounding(&original, &narrowed, &found), Ok(()));
}

#[test]
fn a_barrier_before_a_cast_that_went_rounds() {
    let widen = "[widen] f = Cast <to = 1> (b)";
    let late = "[bar] b_late, a_late = com.microsoft.PassThrough(b, a)
        [widen] f = Cast <to = 1> (b_late)";
    insta::assert_snapshot!(refused(widen, late, &[]).unwrap(), @r#"on the CPU Sum "first" would read "f" rounded to float16, and in the original it would read it as it was computed"#);
}

#[test]
fn a_barrier_behind_a_cast_that_went_rounds() {
    let exp = "[exp] a = Exp(h)";
    let late = "[bar] h_late, x_late = com.microsoft.PassThrough(h, x)
        [exp] a = Exp(h_late)";
    insta::assert_snapshot!(refused(exp, late, &[]).unwrap(), @r#"on the CPU Exp "exp" would read "h_late" rounded to float16, and in the original it would read it as it was computed"#);
}

#[test]
fn two_barriers_behind_each_other_round() {
    let log = "[log] b = Log(a)";
    let late = "[bar] a_late, h_late = com.microsoft.PassThrough(a, h)
        [bar2] a_later, x_late = com.microsoft.PassThrough(a_late, x)
        [log] b = Log(a_later)";
    insta::assert_snapshot!(refused(log, late, &[]).unwrap(), @r#"on the CPU Log "log" would read "a_later" rounded to float16, and in the original it would read it as it was computed"#);
}

#[test]
fn a_kernel_that_was_not_used_rounds_once_a_barrier_waits_for_it() {
    let first = "[first] y = Sum(f, k, g)";
    let waits = "[bar] f_late, t_late = com.microsoft.PassThrough(f, t)
        [first] y = Sum(f_late, k, g)";
    insta::assert_snapshot!(refused(first, waits, &[]).unwrap(), @r#"on the CPU Transpose "turn" would compute in float16, and in the original it would compute in float32"#);
}

#[test]
fn a_copy_of_a_kernel_that_is_used_is_not_once_only_wide_nodes_read_it() {
    // Of `kept`, which the cast behind it keeps in float16.
    let nodes = ORIGINAL.replace("[mul] s = Mul(r, r)", "[mul] s = Mul(v, r)");
    let copied = nodes.replace(
        "[mul] s = Mul(v, r)",
        "[kept2] v2 = Transpose <perm = [1, 0], __recompute = 1> (u)
         [mul] s = Mul(v2, r)",
    );
    let (original, rewritten) = (graph(&nodes), rewritten(&copied));
    let found = equivalence(&original, &rewritten, &BTreeSet::new()).unwrap();
    let said = rounding(&original, &rewritten, &found).unwrap_err();
    insta::assert_snapshot!(said, @r#"on the CPU Mul "mul" would not read "v2" as the same nodes compute it, and in the original it would read it so"#);
}

#[test]
fn a_copy_of_a_rounding_cast_without_the_one_that_undoes_it_does_not_round() {
    let again = "[mul] s = Mul(r, r)";
    let copied = "[again2] r2 = Cast <to = 10, __recompute = 1> (n)
        [mul] s = Mul(r2, r2)";
    insta::assert_snapshot!(refused(again, copied, &[]).unwrap(), @r#"on the CPU Mul "mul" would read "r2" as it was computed, and in the original it would read it rounded to float16"#);
}

#[test]
fn a_copy_of_a_sum_of_rows_for_the_only_cast_leaves_the_original_without_rounding() {
    let graph = |new: &str, nodes: &str| {
        let text = format!(
            r#"<ir_version: 8, opset_import: ["" : 17]> g (float16[2,3,4] x, float16[4,5] w, float16[5] v) => (float16[2,3,5] y, float[2,3,5] z)
            <float16[2,3,5] m, float16[2,3,5] s{new}> {{ {nodes} }}"#
        );
        Graph::parse(&text).unwrap()
    };
    let sum = "[product] m = MatMul(x, w) [sum] s = Add(m, v)";
    let again =
        "[product2] m2 = MatMul<__recompute = 1>(x, w) [sum2] s2 = Add<__recompute = 1>(m2, v)";
    let original = graph(
        "",
        &format!("{sum} [soft] y = Softplus(s) [cast] z = Cast<to = 1>(s)"),
    );
    let known = |graph: &Graph| {
        let shape = |tensor: TensorId| graph.tensor(tensor).declared.clone();
        graph.tensor_ids().map(shape).collect::<Vec<_>>()
    };
    let said = |readers: &str| {
        let new = ", float16[2,3,5] m2, float16[2,3,5] s2";
        let rewritten = graph(new, &format!("{sum} {again} {readers}"));
        let found = equivalence(&original, &rewritten, &BTreeSet::new()).unwrap();
        (
            rounding(&original, &rewritten, &found),
            rounding_optimized(&original, &rewritten, &found, known).unwrap_err(),
        )
    };
    // As the file has it, there is no Reshape.
    let (written, said) = said("[soft] y = Softplus(s2) [cast] z = Cast<to = 1>(s)");
    assert_eq!(written, Ok(()));
    insta::assert_snapshot!(said, @r#"on the CPU Softplus "soft" would read "s2" as it was computed, and in the original it would read it rounded to float16"#);
}

#[test]
fn both_opinions_on_kernels_are_one() {
    let known = crate::operators::all().map(|(domain, name)| (domain.to_owned(), name.to_owned()));
    let listed = IN_HALF.iter().map(|name| {
        let (domain, name) = name.rsplit_once('.').unwrap();
        (domain.to_owned(), name.to_owned())
    });
    let mut graph = Graph::new("g");
    graph.opsets.insert(String::new(), 17);
    for (domain, name) in known.chain(listed) {
        let node = Node::new("n", domain.as_str(), name.as_str(), Vec::new(), Vec::new());
        assert_eq!(in_half(&node), rounds_in_half(&graph, &node), "{name}");
    }
}

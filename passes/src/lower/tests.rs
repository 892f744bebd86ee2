use std::sync::Arc;

use insta::assert_snapshot;

use super::*;
use crate::graph::{Body, Dimension};

/// The nodes that stand for those of a graph with these inputs and outputs.
fn lowered(opset: i64, interface: &str, nodes: &str) -> String {
    lowered_with(&[], opset, interface, nodes)
}

/// The same with sizes of symbolic dimensions.
fn lowered_with(sizes: &[(&str, u64)], opset: i64, interface: &str, nodes: &str) -> String {
    let sizes = sizes.iter().map(|&(name, size)| (name.to_owned(), size));
    let text = format!(
        r#"<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]> g {interface} {{ {nodes} }}"#
    );
    let mut graph = Graph::parse(&text).unwrap();
    match lower(&mut graph, &sizes.collect(), None) {
        Ok(_) => {
            crate::verify::structure(&graph).unwrap();
            graph.to_listing()
        }
        Err(error) => format!("error: {error}"),
    }
}

#[test]
fn a_rectifier_s_gradient_is_a_product_with_a_mask() {
    let interface = "(float[N,4] dy, float[N,4] y) => (float[N,4] dx)";
    assert_snapshot!(lowered(15, interface, "[r] dx = com.microsoft.ReluGrad (dy, y)"), @r#"
    "ckpt-opt/lower/constant_0" = Constant()
    "r/Greater:0" = Greater(y, "ckpt-opt/lower/constant_0")
    "r/Cast:0" = Cast("r/Greater:0")
    dx = Mul(dy, "r/Cast:0")
    "#);
}

#[test]
fn an_operator_without_a_form_is_named() {
    let interface = "(float[N,4] x) => (float[N,4] y)";
    assert_snapshot!(lowered(15, interface, "[wait] y = com.microsoft.YieldOp (x)"), @r#"error: YieldOp "wait": there is no form of YieldOp in standard operators"#);
}

#[test]
fn an_old_operator_set_is_refused() {
    let interface = "(float[N,4] dy, float[N,4] y) => (float[N,4] dx)";
    assert_snapshot!(lowered(12, interface, "[r] dx = com.microsoft.ReluGrad (dy, y)"), @"error: the file asks for operator set 12 of ai.onnx; expected 13 or newer: export it again");
}

/// 1.20.1 makes one node of `1 / kept` and the product, and crashes where the Cast runs in between.
#[test]
fn a_dropout_s_gradient_divides_no_one() {
    let interface = "(float[N,4] dy, bool[N,4] mask, float ratio, bool mode) => (float[N,4] dx)";
    let node = "[d] dx = com.microsoft.DropoutGrad (dy, mask, ratio, mode)";
    assert_snapshot!(lowered(15, interface, node), @r#"
    "ckpt-opt/lower/constant_0" = Constant()
    "d/Sub:0" = Sub("ckpt-opt/lower/constant_0", ratio)
    "d/Reciprocal:0" = Reciprocal("d/Sub:0")
    "d/Where:0" = Where(mode, "d/Reciprocal:0", "ckpt-opt/lower/constant_0")
    "d/Cast:0" = Cast(mask)
    "d/Mul:0" = Mul("d/Cast:0", "d/Where:0")
    dx = Mul("d/Mul:0", dy)
    "#);
}

/// Else a session without training takes them out at ORT_ENABLE_BASIC.
#[test]
fn a_dropout_whose_mask_nobody_reads_has_its_size_read() {
    let interface = "(float[N,4] x, float[N,4] dy, float[N,4] y, bool mode) => (float[N,4] dx, float[N,4] a, float[N,4] b, float[N,4] c, bool[N,4] read)";
    let nodes = "[r] dx = com.microsoft.ReluGrad (dy, y)
        half = Constant <value_float = 0.5> ()
        [one] a = Dropout (x, half, mode) [two] b, read = Dropout (x, half, mode) [no] c = Dropout (x, half)";
    let listing = lowered(15, interface, nodes);
    let dropouts = listing
        .lines()
        .filter(|line| line.contains("Dropout") || line.contains("Size"));
    assert_snapshot!(dropouts.collect::<Vec<_>>().join("\n"), @r#"
    a, "a/mask" = Dropout(x, half, mode)
    "a/mask/size" = Size("a/mask")
    b, read = Dropout(x, half, mode)
    c = Dropout(x, half)
    "#);
}

/// A batch of 64 cannot be cut in five.
#[test]
fn types_follow_where_a_batch_has_to_be_a_multiple_of_something() {
    let interface = "(float[N,2] x, float[N,2] dy) => (float[N,2] dx)";
    let nodes = "parts = Constant <value_ints = [5, -1]> () pairs = Constant <value_ints = [-1, 2]> ()
        y = Reshape (x, parts) d = Reshape (dy, parts) e = com.microsoft.ReluGrad (d, y) dx = Reshape (e, pairs)";
    let listing = lowered(15, interface, nodes);
    assert!(listing.contains("= Greater(y,"), "{listing}");
}

/// A region means something in one mode alone; old files have an empty one in each.
#[test]
fn a_region_that_means_nothing_is_none() {
    let interface = "(float[N,2,8,8] dy, float[N,2,4,4] x, float[] roi, float[4] scales) => (float[N,2,4,4] dx)";
    let resize = |mode: &str| {
        let node = format!(
            r#"dx = com.microsoft.ResizeGrad <mode = "nearest", coordinate_transformation_mode = "{mode}"> (dy, x, roi, scales)"#
        );
        lowered(15, interface, &node)
    };
    assert!(resize("asymmetric").contains("= Resize("));
    assert_snapshot!(resize("tf_crop_and_resize"), @"error: node 0 (ResizeGrad): it cannot be written in standard operators of a region (tf_crop_and_resize)");
}

#[test]
fn every_operator_has_one_entry() {
    let mut names: Vec<_> = TABLE.iter().map(|e| (e.domain, e.name)).collect();
    names.sort_unstable();
    let doubled: Vec<_> = names.windows(2).filter(|w| w[0] == w[1]).collect();
    assert!(doubled.is_empty(), "{doubled:?}");
}

#[test]
fn a_convolution_s_gradient_is_one_with_turned_weights_and_a_product_for_each_tap() {
    let interface = "(float[N,16,9,9] dy, float[N,8,9,10] x, float[16,8,1,2] w) => (float[N,8,9,10] dx, float[16,8,1,2] dw)";
    let node = "[c] dx, dw = com.microsoft.ConvGrad <kernel_shape = [1, 2], pads = [0, 0, 0, 0]> (dy, x, w)";
    assert_snapshot!(lowered(15, interface, node), @r#"
    "ckpt-opt/lower/constant_0" = Constant()
    "ckpt-opt/lower/constant_1" = Constant()
    "ckpt-opt/lower/constant_2" = Constant()
    "ckpt-opt/lower/constant_3" = Constant()
    "ckpt-opt/lower/constant_4" = Constant()
    "ckpt-opt/lower/constant_5" = Constant()
    "ckpt-opt/lower/constant_6" = Constant()
    "ckpt-opt/lower/constant_7" = Constant()
    "ckpt-opt/lower/constant_8" = Constant()
    "ckpt-opt/lower/constant_9" = Constant()
    "ckpt-opt/lower/constant_10" = Constant()
    "c/Reshape:0" = Reshape(dy, "ckpt-opt/lower/constant_0")
    "c/Slice:0" = Slice(x, "ckpt-opt/lower/constant_2", "ckpt-opt/lower/constant_1", "ckpt-opt/lower/constant_3", "ckpt-opt/lower/constant_4")
    "c/Reshape:0_1" = Reshape("c/Slice:0", "ckpt-opt/lower/constant_0")
    "c/FusedMatMul:0" = FusedMatMul("c/Reshape:0", "c/Reshape:0_1")
    "c/Slice:0_1" = Slice(x, "ckpt-opt/lower/constant_6", "ckpt-opt/lower/constant_5", "ckpt-opt/lower/constant_3", "ckpt-opt/lower/constant_4")
    "c/Reshape:0_2" = Reshape("c/Slice:0_1", "ckpt-opt/lower/constant_0")
    "c/FusedMatMul:0_1" = FusedMatMul("c/Reshape:0", "c/Reshape:0_2")
    "c/ReduceSum:0" = ReduceSum("c/FusedMatMul:0", "ckpt-opt/lower/constant_8")
    "c/ReduceSum:0_1" = ReduceSum("c/FusedMatMul:0_1", "ckpt-opt/lower/constant_8")
    "c/Concat:0" = Concat("c/ReduceSum:0", "c/ReduceSum:0_1")
    "c/Transpose:0" = Transpose("c/Concat:0")
    dw = Reshape("c/Transpose:0", "ckpt-opt/lower/constant_7")
    "c/Slice:0_2" = Slice(w, "ckpt-opt/lower/constant_9", "ckpt-opt/lower/constant_10", "ckpt-opt/lower/constant_3", "ckpt-opt/lower/constant_9")
    "c/Transpose:0_1" = Transpose("c/Slice:0_2")
    dx = Conv(dy, "c/Transpose:0_1")
    "#);
}

#[test]
fn few_windows_are_not_worth_turned_weights() {
    let dx = |size: u64, strides: &str| {
        let of = size + 1;
        let interface = format!(
            "(float[N,16,{size},{size}] dy, float[N,8,{of},{of}] x, float[16,8,2,2] w) => (float[N,8,{of},{of}] dx)"
        );
        let node = format!("[c] dx = com.microsoft.ConvGrad <strides = [{strides}]> (dy, x, w)");
        let listing = lowered(15, &interface, &node);
        let last = listing.lines().last().unwrap_or_default().trim();
        last.to_owned()
    };
    // Four for each of 16 channels.
    assert_eq!(dx(8, "1, 1"), r#"dx = Conv(dy, "c/Transpose:0")"#);
    assert_eq!(dx(7, "1, 1"), "dx = ConvTranspose(dy, w)");
    assert_eq!(dx(8, "2, 2"), "dx = ConvTranspose(dy, w)");
}

#[test]
fn weights_larger_than_images_are_summed_up_in_one_product() {
    let dw = |interface: &str, before: &str| {
        let node = format!("{before} [c] \"\", dw = com.microsoft.ConvGrad (dy, x, w)");
        lowered(15, interface, &node)
    };
    let declared = |size: u64| {
        let interface = format!(
            "(float[N,16,{size},{size}] dy, float[N,24,{size},{size}] x, float[16,24,1,1] w) => (float[16,24,1,1] dw)"
        );
        dw(&interface, "")
    };
    // 16 * 24 numbers, and for each window 16 + 24.
    assert!(!declared(3).contains("ReduceSum"), "{}", declared(3));
    assert!(declared(4).contains("ReduceSum"));
    // What nothing declares is found out.
    let found_out = dw(
        "(float[N,16,9] flat_dy, float[N,24,9] flat, float[16,24,1,1] w) => (float[16,24,1,1] dw)",
        "a = Constant <value_ints = [0, 24, 3, 3]> () b = Constant <value_ints = [0, 16, 3, 3]> ()
         x = Reshape(flat, a) dy = Reshape(flat_dy, b)",
    );
    assert!(!found_out.contains("ReduceSum"), "{found_out}");
    assert!(found_out.contains("Transpose(dy)"), "{found_out}");
}

#[test]
fn windows_beyond_all_numbers_are_no_panic() {
    const FAR: i64 = i64::MAX / 2;
    let convolution = |size: i64, attributes: &str| {
        let interface = format!(
            "(float[N,16,{size},{size}] dy, float[N,8,{size},{size}] x, float[16,8,5,5] w) => (float[N,8,{size},{size}] dx, float[16,8,5,5] dw)"
        );
        let node = format!("[c] dx, dw = com.microsoft.ConvGrad <{attributes}> (dy, x, w)");
        lowered(15, &interface, &node)
    };
    let far = format!("dilations = [{FAR}, {FAR}]");
    assert_snapshot!(convolution(8, &far), @r#"error: ConvGrad "c": attribute "dilations": expected 2 numbers from 1 to 1073741824"#);
    assert_snapshot!(convolution(8, &format!("pads = [{FAR}, 0, 0, 0]")), @r#"error: ConvGrad "c": attribute "pads": expected 4 numbers from 0 to 1073741824"#);
    assert!(convolution(FAR, "group = 1").contains("dx = "));
    let pool = |size: i64, kernel: i64| {
        let interface = format!("(float[N,2,{size},{size}] dy) => (float[N,2,{size},{size}] dx)");
        let node = format!("[p] dx = AveragePoolGrad <kernel_shape = [{kernel}, {kernel}]> (dy)");
        lowered(15, &interface, &node)
    };
    let refused = pool(8, FAR);
    assert!(
        refused.contains("expected numbers from 0 to 1073741824"),
        "{refused}"
    );
    let refused = pool(1 << 29, 3);
    assert!(
        refused.contains("with more than 67108864 windows"),
        "{refused}"
    );
    assert!(pool(FAR, 3).starts_with("error"));
}

#[test]
fn zeros_have_the_sizes_of_what_is_computed_in_their_place() {
    let text = r#"<ir_version: 8, opset_import: ["" : 16, "com.microsoft" : 1]> g
        (float[N,4,4,4] dy, int64[2] rows, int64[N] of, float[N,6] grad, float[N,4,8,8] x) => (float[N,4,8,8] dx, float[M,6] d)
        {
            y, mask = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
            dx = MaxPoolGrad (dy, mask)
            d = com.microsoft.GatherGrad (rows, of, grad)
        }"#;
    let mut graph = Graph::parse(text).unwrap();
    lower(&mut graph, &BTreeMap::new(), None).unwrap();
    let declared = |id| graph.tensor(id).declared.clone();
    let scatters = graph.nodes();
    let scatters: Vec<_> = scatters
        .filter(|node| node.is("", "ScatterElements"))
        .collect();
    assert_eq!(scatters.len(), 2);
    for node in scatters {
        let (zeros, sum) = (node.input(0).unwrap(), node.output(0).unwrap());
        assert!(declared(zeros).is_some_and(|dims| !dims.is_empty()));
        // Of a graph output the file tells; the runtime works the other one out.
        assert!(declared(sum).is_none_or(|dims| Some(dims) == declared(zeros)));
    }
}

#[test]
fn an_accumulated_value_comes_out_in_place_of_the_flag() {
    let interface = "(float[9] b, float[9] g, bool[1] o) => (bool[1] done)";
    let node = "[a] done = com.microsoft.InPlaceAccumulatorV2 (b, g, o)";
    let text = format!(
        r#"<ir_version: 8, opset_import: ["" : 13, "com.microsoft" : 1]> g {interface} {{ {node} }}"#
    );
    let mut graph = Graph::parse(&text).unwrap();
    lower(&mut graph, &BTreeMap::new(), None).unwrap();
    let mut listing = graph.to_listing();
    for id in graph.node_ids() {
        for body in &graph.node(id).bodies {
            listing += &format!("{}:\n{}", body.attribute, body.graph.to_listing());
        }
    }
    assert_snapshot!(listing, @r#"
    done = If(o; g, b)
    then_branch:
    "a/overwrite/Identity_1" = Identity(g)
    else_branch:
    "a/add/Add_2" = Add(b, g)
    "#);
}

#[test]
fn what_is_added_to_itself_is_read_once() {
    let interface = "(float[9] b, bool[1] o) => (bool[1] done)";
    let node = "[a] done = com.microsoft.InPlaceAccumulatorV2 (b, b, o)";
    assert_snapshot!(lowered(13, interface, node), @"done = If(o; b)");
}

#[test]
fn a_buffer_of_which_a_step_does_more_than_to_add_once_is_refused() {
    let found = |nodes: &str, outputs: &str| {
        let interface = format!("(float[9] b, float[9] g, bool[1] o) => ({outputs})");
        lowered(13, &interface, nodes)
    };
    let add = "[a] done, sum = com.microsoft.InPlaceAccumulatorV2 (b, g, o)";
    let twice = format!("{add} [c] again = com.microsoft.InPlaceAccumulatorV2 (b, g)");
    assert_snapshot!(found(&twice, "bool[1] done, bool[1] again"), @r#"error: InPlaceAccumulatorV2 "a": it cannot be written in standard operators where InPlaceAccumulatorV2 "c" adds to "b" as well"#);
    let asked = format!("{add} [r] y = Cast <to = 1> (done)");
    assert_snapshot!(found(&asked, "float[1] y"), @r#"error: InPlaceAccumulatorV2 "a": it cannot be written in standard operators where Cast "r" reads "done", in whose place the new value comes out"#);
    assert_snapshot!(found(add, "bool[1] done, float[9] b"), @r#"error: InPlaceAccumulatorV2 "a": it cannot be written in standard operators where its buffer "b" is an output as well"#);
    let read = format!("{add} [r] y = Exp (b)");
    assert_snapshot!(found(&read, "bool[1] done, float[9] y"), @r#"error: InPlaceAccumulatorV2 "a": it cannot be written in standard operators where Exp "r" reads "b", which may be the new value"#);
    let viewed = "[v] v = Reshape (b, s) [m] f = Mul (v, g) [a] done, sum = com.microsoft.InPlaceAccumulatorV2 (b, f) [r] y = Exp (v)";
    let interface = "(float[9] b, float[9] g, int64[1] s) => (bool[1] done, float[9] y)";
    assert_snapshot!(lowered(13, interface, viewed), @r#"error: InPlaceAccumulatorV2 "a": it cannot be written in standard operators where Exp "r" reads "b", which may be the new value"#);
    // What the sum waits for reads the old value, and what reads the sum reads the new one.
    let ordered = "[s] n = Size (b) [r] e = Exp (b) [m] f = Mul (e, g) [a] done, sum = com.microsoft.InPlaceAccumulatorV2 (b, f) y = Exp (sum)";
    assert_snapshot!(found(ordered, "bool[1] done, float[9] y, int64 n"), @r#"
    n = Size(b)
    e = Exp(b)
    f = Mul(e, g)
    done = Add(b, f)
    sum = Identity(done)
    y = Exp(sum)
    "#);
}

#[test]
fn any_number_of_dimensions_without_a_size_is_given_some() {
    const NAMES: usize = 300;
    let inputs: String = (0..NAMES).map(|n| format!(", float[N{n}] x{n}")).collect();
    let nodes: String = (0..NAMES).map(|n| format!("y{n} = Exp (x{n}) ")).collect();
    let interface = format!("(float[4] y, float[4] dy{inputs}) => (float[4] dx)");
    let nodes = format!("{nodes} [g] dx = com.microsoft.ReluGrad (dy, y)");
    assert!(lowered(15, &interface, &nodes).contains("dx = "));
}

#[test]
fn the_operator_set_rises_where_places_may_be_there_twice() {
    let interface = "(int64[2] s, int64[N] i, float[N,4] dy) => (float[9,4] dx)";
    let node = "[g] dx = com.microsoft.GatherGrad (s, i, dy)";
    let text = format!(r#"<ir_version: 8, opset_import: ["" : 14]> g {interface} {{ {node} }}"#);
    let mut graph = Graph::parse(&text).unwrap();
    let found = lower(&mut graph, &BTreeMap::new(), None).unwrap();
    assert_eq!(found.raised, Some((14, 16)));
    assert_snapshot!(graph.to_listing(), @r#"
    "ckpt-opt/lower/constant_0" = Constant()
    "ckpt-opt/lower/constant_1" = Constant()
    "g/Reshape:0" = Reshape(i, "ckpt-opt/lower/constant_0")
    "g/Shape:0" = Shape(dy)
    "g/Expand:0" = Expand("g/Reshape:0", "g/Shape:0")
    "g/Size:0" = Size(dy)
    "g/Add:0" = Add("g/Size:0", "ckpt-opt/lower/constant_1")
    "g/Min:0" = Min(s, "g/Add:0")
    "g/ConstantOfShape:0" = ConstantOfShape("g/Min:0")
    dx = ScatterElements("g/ConstantOfShape:0", "g/Expand:0", dy)
    "#);
}

#[test]
fn what_is_needed_to_lower_a_node_is_named() {
    let interface = "(float[N,4,4,4] dy) => (float[N,4,H,8] dx)";
    let node = "[p] dx = AveragePoolGrad <kernel_shape = [2, 2], strides = [2, 2]> (dy)";
    assert_snapshot!(lowered(15, interface, node), @r#"error: AveragePoolGrad "p": nothing says how large dimension 2 of "dx" is; expected a number"#);
}

#[test]
fn a_size_that_follows_from_inputs_need_not_be_declared() {
    let interface = "(float[N,3,9,9] x, float[N,8,9,9] dy, float[8,3,3,3] w, float s) => (float[1] z) <int64[1] all = {-1}>";
    let nodes = "k = Div (w, s) [g] dx, dk = com.microsoft.ConvGrad <pads = [1, 1, 1, 1]> (dy, x, k) z = Reshape (dk, all)";
    let listing = lowered(15, interface, nodes);
    assert!(listing.contains("dk = "), "{listing}");
}

#[test]
fn what_not_all_releases_work_out_is_declared() {
    let text = r#"<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[N,4] x, float[N,4] dy, float[N,5] u) => (float[N,4] dx, bool[N,4] late) <float least = {0.0}> {
            y = Exp (x) above = GreaterOrEqual (y, least) late = Not (above)
            both = Einsum <equation = "nk,nl->kl"> (y, u) dx = com.microsoft.ReluGrad (dy, y)
        }"#;
    let mut graph = Graph::parse(text).unwrap();
    lower(&mut graph, &BTreeMap::new(), None).unwrap();
    let declared = |name: &str| {
        graph
            .tensor(graph.tensor_named(name).unwrap())
            .declared
            .clone()
    };
    let n = Dimension::Symbol("N".to_owned());
    assert_eq!(declared("above"), Some(vec![n, Dimension::Known(4)]));
    assert_eq!((declared("both"), declared("y")), (None, None));
}

#[test]
fn an_input_that_is_not_declared_is_to_blame_for_what_does_not_follow() {
    let interface = "(float[4] x, buffer) => (float[4] z)";
    let nodes = "[use] y = Exp (x) [sum] z = com.microsoft.InPlaceAccumulatorV2 (buffer, y)";
    assert_snapshot!(lowered(15, interface, nodes), @r#"error: graph input "buffer" is not declared as a tensor of known type and rank, so shapes cannot be worked out; InPlaceAccumulatorV2 "sum": nothing says of which type "buffer" is; expected it in the file's value_info"#);
}

#[test]
fn sizes_help_where_the_graph_accepts_few_and_do_not_get_into_it() {
    // Windows of 3 x 3 leave 5 x 7 places, or 7 x 5.
    let interface = "(float[N,1,h,w] x, float[1,1,3,3] c, float[35,4] k, float d, int64[N] l) => (float[N,4] dy)";
    let nodes = "v = Conv (x, c) f = Flatten (v) [y] y = MatMul (f, k) p = LogSoftmax (y)
        [loss] dy = com.microsoft.SoftmaxCrossEntropyLossGrad (d, p, l)";
    let with = |sizes: &[(&str, u64)]| lowered_with(sizes, 15, interface, nodes);
    assert_snapshot!(with(&[]), @r#"error: node "y" (MatMul): shapes [64, 3844] and [35, 4] do not fit: the inner dimensions differ, so shapes cannot be worked out; SoftmaxCrossEntropyLossGrad "loss": nothing says of which type "p" is; expected it in the file's value_info"#);
    let sized = with(&[("h", 7), ("w", 9)]);
    assert!(sized.contains("dy = ScatterElements("), "{sized}");
    assert_eq!(sized, with(&[("h", 9), ("w", 7), ("N", 3)]));
}

#[test]
fn a_size_without_the_others_that_are_equal_to_it_changes_nothing_and_an_unknown_one_is_refused() {
    let interface = "(float[N,4] dy, float[M,4] y, float d, int64[L] l) => (float[M,4] dx)";
    let nodes = "[r] dr = com.microsoft.ReluGrad (dy, y) p = Neg (dr)
        [loss] dx = com.microsoft.SoftmaxCrossEntropyLossGrad (d, p, l)";
    let with = |sizes: &[(&str, u64)]| lowered_with(sizes, 15, interface, nodes);
    assert!(with(&[]).contains("dx = ScatterElements("), "{}", with(&[]));
    // Nothing tells that M has to be the same.
    assert_eq!(with(&[("N", 8)]), with(&[]));
    assert_snapshot!(with(&[("batch", 8)]), @r#"error: there is no dimension "batch"; the graph has L, M, N"#);
}

#[test]
fn a_gradient_whose_size_nothing_tells_is_to_blame_for_what_does_not_follow() {
    let interface = "(float[N,2,4,4] x, float w) => (float z)";
    let nodes = r#"[loss] z = com.microsoft.SoftmaxCrossEntropyLossGrad (w, p, l)
        [grad] g = com.microsoft.AveragePoolGrad <kernel_shape = [2, 2], strides = [2, 2]> (x) p = Flatten (g) l = Cast <to = 7> (w)"#;
    assert_snapshot!(lowered(15, interface, nodes), @r#"
    error: node "grad" (com.microsoft::AveragePoolGrad): nothing says the shape of its output "g"; expected it in the file's value_info (onnx.shape_inference.infer_shapes adds it for standard operators), so shapes cannot be worked out; SoftmaxCrossEntropyLossGrad "loss": nothing says of which type "p" is; expected it in the file's value_info
    "#);
}

/// The same with the update of the weights in it, and what overwrites what.
fn updated(update: Update, interface: &str, nodes: &str) -> String {
    let text = format!(
        r#"<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g {interface} {{ {nodes} }}"#
    );
    let mut graph = Graph::parse(&text).unwrap();
    if let Err(error) = lower(&mut graph, &BTreeMap::new(), Some(update)) {
        return format!("error: {error}");
    }
    crate::verify::structure(&graph).unwrap();
    let name = |id: TensorId| graph.tensor(id).name.as_str();
    let names = |ids: &[TensorId]| ids.iter().map(|&id| name(id)).collect::<Vec<_>>().join(" ");
    let mut text = graph.to_listing();
    text += &format!(
        "in {}\nout {}\n",
        names(&graph.inputs),
        names(&graph.outputs)
    );
    for (output, input) in graph.overwritten() {
        text += &format!("{} over {}\n", name(output), name(input));
    }
    text
}

const TRAINED: &str = "(float[4,3] x, float[2,3] w, float[2,3] b, bool[1] lazy) => (float[4,2] y, float[4,3] dx, bool[1] done)";

#[test]
fn an_update_waits_for_all_that_read_its_weight() {
    let nodes = "[use] y = com.microsoft.FusedMatMul <transB = 1> (x, w) [dw] w_grad = com.microsoft.FusedMatMul <transA = 1> (y, x)
        [sum] done = com.microsoft.InPlaceAccumulatorV2 (b, w_grad, lazy) [dx] dx = MatMul (y, w)";
    assert_snapshot!(updated(Update::Sgd, TRAINED, nodes), @r#"
    y = FusedMatMul(x, w)
    w_grad = FusedMatMul(y, x)
    "ckpt-opt/update/Constant" = Constant()
    dx = MatMul(y, w)
    "ckpt-opt/update/Size" = Size(dx)
    "ckpt-opt/update/Min" = Min("ckpt-opt/update/Size", "ckpt-opt/update/Constant")
    "ckpt-opt/update/Reshape" = Reshape(learning_rate, "ckpt-opt/update/Min")
    "sum/Mul:0" = Mul(w_grad, "ckpt-opt/update/Reshape")
    "w.next" = Sub(w, "sum/Mul:0")
    in x w learning_rate
    out y dx w.next
    w.next over w
    "#);
}

#[test]
fn what_was_waited_for_only_because_its_shape_was_asked_for_is_waited_for() {
    let interface = "(float[N,2] x, float[2,3] w, float[2,3] b, bool[1] lazy, float[1,1] one) => (float[N,3] y, bool[1] done)";
    let nodes = "[use] y = MatMul (x, w) [shape] s = Shape (y) [dy] dy = Expand (one, s)
        [dw] w_grad = com.microsoft.FusedMatMul <transA = 1> (x, dy) [sum] done = com.microsoft.InPlaceAccumulatorV2 (b, w_grad, lazy)";
    assert_snapshot!(updated(Update::Sgd, interface, nodes), @r#"
    "ckpt-opt/lower/constant_0" = Constant()
    "ckpt-opt/lower/constant_2" = Constant()
    "ckpt-opt/sizes/Shape" = Shape(x)
    "ckpt-opt/sizes/Gather" = Gather("ckpt-opt/sizes/Shape", "ckpt-opt/lower/constant_0")
    "ckpt-opt/sizes/Concat" = Concat("ckpt-opt/sizes/Gather", "ckpt-opt/lower/constant_2")
    y = MatMul(x, w)
    dy = Expand(one, "ckpt-opt/sizes/Concat")
    w_grad = FusedMatMul(x, dy)
    "ckpt-opt/update/Constant" = Constant()
    "ckpt-opt/update/Size" = Size(y)
    "ckpt-opt/update/Min" = Min("ckpt-opt/update/Size", "ckpt-opt/update/Constant")
    "ckpt-opt/update/Reshape" = Reshape(learning_rate, "ckpt-opt/update/Min")
    "sum/Mul:0" = Mul(w_grad, "ckpt-opt/update/Reshape")
    "w.next" = Sub(w, "sum/Mul:0")
    in x w one learning_rate
    out y w.next
    w.next over w
    "#);
}

#[test]
fn adamw_rounds_in_the_sequence_of_its_kernel() {
    let nodes = "[use] y = com.microsoft.FusedMatMul <transB = 1> (x, w) [dx] dx = MatMul (y, w) [dw] w_grad = com.microsoft.FusedMatMul <transA = 1> (y, dx)
        [sum] done = com.microsoft.InPlaceAccumulatorV2 (b, w_grad, lazy)";
    let rule = AdamW {
        weight_decay: 0.01,
        decays_last: false,
        ..AdamW::default()
    };
    assert_snapshot!(updated(Update::AdamW(rule), TRAINED, nodes), @r#"
    "ckpt-opt/lower/constant_0" = Constant()
    "ckpt-opt/lower/constant_1" = Constant()
    "ckpt-opt/lower/constant_2" = Constant()
    "ckpt-opt/lower/constant_3" = Constant()
    "ckpt-opt/lower/constant_4" = Constant()
    "ckpt-opt/lower/constant_5" = Constant()
    "ckpt-opt/lower/constant_6" = Constant()
    "ckpt-opt/lower/constant_7" = Constant()
    "ckpt-opt/lower/constant_8" = Constant()
    y = FusedMatMul(x, w)
    dx = MatMul(y, w)
    w_grad = FusedMatMul(y, dx)
    "sum/Cast:0" = Cast(step)
    "sum/Pow:0" = Pow("ckpt-opt/lower/constant_1", "sum/Cast:0")
    "sum/Cast:0_1" = Cast("sum/Pow:0")
    "sum/Sub:0" = Sub("ckpt-opt/lower/constant_0", "sum/Cast:0_1")
    "sum/Pow:0_1" = Pow("ckpt-opt/lower/constant_2", "sum/Cast:0")
    "sum/Cast:0_2" = Cast("sum/Pow:0_1")
    "sum/Sub:0_1" = Sub("ckpt-opt/lower/constant_0", "sum/Cast:0_2")
    "sum/Mul:0" = Mul("w.moment_1", "ckpt-opt/lower/constant_3")
    "sum/Mul:0_1" = Mul(w_grad, "ckpt-opt/lower/constant_4")
    "w.moment_1.next" = Add("sum/Mul:0", "sum/Mul:0_1")
    "sum/Mul:0_2" = Mul(w_grad, "ckpt-opt/lower/constant_6")
    "sum/Mul:0_3" = Mul("sum/Mul:0_2", w_grad)
    "sum/Mul:0_4" = Mul("w.moment_2", "ckpt-opt/lower/constant_5")
    "w.moment_2.next" = Add("sum/Mul:0_4", "sum/Mul:0_3")
    "sum/Div:0" = Div("w.moment_2.next", "sum/Sub:0_1")
    "sum/Sqrt:0" = Sqrt("sum/Div:0")
    "sum/Add:0" = Add("sum/Sqrt:0", "ckpt-opt/lower/constant_7")
    "sum/Mul:0_5" = Mul("sum/Add:0", "sum/Sub:0")
    "sum/Mul:0_6" = Mul("w.moment_1.next", learning_rate)
    "sum/Div:0_1" = Div("sum/Mul:0_6", "sum/Mul:0_5")
    "sum/Mul:0_7" = Mul(w, learning_rate)
    "sum/Mul:0_8" = Mul("sum/Mul:0_7", "ckpt-opt/lower/constant_8")
    "sum/Sub:0_2" = Sub(w, "sum/Mul:0_8")
    "w.next" = Sub("sum/Sub:0_2", "sum/Div:0_1")
    in x w learning_rate step w.moment_1 w.moment_2
    out y dx w.moment_1.next w.moment_2.next w.next
    w.moment_1.next over w.moment_1
    w.moment_2.next over w.moment_2
    w.next over w
    "#);
    let rule = AdamW {
        decays_last: true,
        corrects_bias: false,
        ..rule
    };
    assert_snapshot!(updated(Update::AdamW(rule), TRAINED, nodes), @r#"
    "ckpt-opt/lower/constant_0" = Constant()
    "ckpt-opt/lower/constant_1" = Constant()
    "ckpt-opt/lower/constant_2" = Constant()
    "ckpt-opt/lower/constant_3" = Constant()
    "ckpt-opt/lower/constant_4" = Constant()
    "ckpt-opt/lower/constant_5" = Constant()
    y = FusedMatMul(x, w)
    dx = MatMul(y, w)
    w_grad = FusedMatMul(y, dx)
    "sum/Mul:0" = Mul("w.moment_1", "ckpt-opt/lower/constant_0")
    "sum/Mul:0_1" = Mul(w_grad, "ckpt-opt/lower/constant_1")
    "w.moment_1.next" = Add("sum/Mul:0", "sum/Mul:0_1")
    "sum/Mul:0_2" = Mul(w_grad, "ckpt-opt/lower/constant_3")
    "sum/Mul:0_3" = Mul("sum/Mul:0_2", w_grad)
    "sum/Mul:0_4" = Mul("w.moment_2", "ckpt-opt/lower/constant_2")
    "w.moment_2.next" = Add("sum/Mul:0_4", "sum/Mul:0_3")
    "sum/Sqrt:0" = Sqrt("w.moment_2.next")
    "sum/Add:0" = Add("sum/Sqrt:0", "ckpt-opt/lower/constant_4")
    "sum/Mul:0_5" = Mul("w.moment_1.next", learning_rate)
    "sum/Div:0" = Div("sum/Mul:0_5", "sum/Add:0")
    "sum/Sub:0" = Sub(w, "sum/Div:0")
    "sum/Mul:0_6" = Mul(learning_rate, "ckpt-opt/lower/constant_5")
    "sum/Mul:0_7" = Mul("sum/Sub:0", "sum/Mul:0_6")
    "w.next" = Sub("sum/Sub:0", "sum/Mul:0_7")
    in x w learning_rate w.moment_1 w.moment_2
    out y dx w.moment_1.next w.moment_2.next w.next
    w.moment_1.next over w.moment_1
    w.moment_2.next over w.moment_2
    w.next over w
    "#);
}

#[test]
fn what_cannot_be_updated_is_named() {
    let nodes = "y = MatMul (x, w) dx = Exp (x) [dw] w_grad = Exp (w)
        [sum] done = com.microsoft.InPlaceAccumulatorV2 (b, w_grad, lazy)";
    let half = "(float[4,3] x, float16[2,3] w, float[2,3] b, bool[1] lazy) => (float[4,2] y, float[4,3] dx, bool[1] done)";
    assert_snapshot!(updated(Update::Sgd, half, nodes), @r#"error: InPlaceAccumulatorV2 "sum": it cannot be written in standard operators with the update in the graph: "w" is of float16, and optimizers compute in float32"#);
    let other = nodes.replace("w_grad", "other");
    assert_snapshot!(updated(Update::Sgd, TRAINED, &other), @r#"error: InPlaceAccumulatorV2 "sum": it cannot be written in standard operators with the update in the graph: it accumulates "other"; expected a gradient called WEIGHT_grad"#);
    assert_snapshot!(updated(Update::Sgd, "(float[4] x) => (float[4] y)", "y = Exp (x)"), @"error: no node accumulates the gradient of a weight (InPlaceAccumulatorV2), so there is no weight to update; expected training_model.onnx as onnxruntime.training.artifacts.generate_artifacts writes it");
}

#[test]
fn a_gradient_belongs_to_the_layer_whose_gates_it_reads() {
    let of = |attributes: &str, reads: &str| {
        let nodes = LSTM_LAYER.replace(
            "[g] dx, dw, dr = com.microsoft.LSTMGrad <hidden_size = 4> (x, w, r, , , , y, c, k, dy)",
            &format!("[g] dx, dw, dr = com.microsoft.LSTMGrad <{attributes}> ({reads}, c, k, dy)"),
        );
        let listing = lowered(
            15,
            &LSTM.replace("(float[S,N,3] x,", "(float[S,N,3] x, float[S,N,3] u,"),
            &nodes,
        );
        listing.lines().next().unwrap_or_default().to_owned()
    };
    assert!(!of("hidden_size = 4", "x, w, r, , , , y").starts_with("error"));
    let other = of("hidden_size = 4", "u, w, r, , , , y");
    assert_snapshot!(other, @r#"error: LSTMGrad "g": it cannot be written in standard operators with other inputs or attributes than the layer whose gates it reads"#);
    assert_eq!(of("hidden_size = 4", "x, w, r, , , , dy"), other);
    assert_eq!(of("hidden_size = 3", "x, w, r, , , , y"), other);
    assert_eq!(
        of(
            "hidden_size = 4, direction = \"reverse\"",
            "x, w, r, , , , y"
        ),
        other
    );
    let flat = LSTM.replace("float[1,16,3] w", "float[48] w");
    assert_snapshot!(lowered(15, &flat, LSTM_LAYER), @r#"error: LSTMTraining "l": it cannot be written in standard operators where "w" has not three dimensions"#);
}

#[test]
fn a_gru_resets_early_or_late_and_a_training_operator_in_a_subgraph_is_named() {
    let inputs = "(float[S,N,3] x, float[1,12,3] w, float[1,12,4] r) => (float[S,1,N,4] y)";
    let layer = "[l] y, h, k = com.microsoft.GRUTraining <hidden_size = 4, linear_before_reset = 2> (x, w, r)";
    assert_snapshot!(lowered(15, inputs, layer), @r#"error: GRUTraining "l": it cannot be written in standard operators with a linear_before_reset of 2, neither 0 nor 1"#);
    let text = |nodes: &str| {
        format!(
            r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]> g (float[4] x, bool[1] c) => (float[4] y) {{ {nodes} }}"#
        )
    };
    let mut graph = Graph::parse(&text("[if] y = If <then_branch = ...> (c)")).unwrap();
    let inner = Graph::parse(&text("y = com.microsoft.ReluGrad (x, x)")).unwrap();
    let id = graph.order()[0];
    graph.node_mut(id).bodies = vec![Body {
        attribute: "then_branch".to_owned(),
        graph: Arc::new(inner),
        shaped: None,
    }];
    let error = lower(&mut graph, &BTreeMap::new(), None).unwrap_err();
    assert_snapshot!(error, @r#"If "if": its subgraph has a ReluGrad, and is not looked into"#);
}

const LSTM: &str = "(float[S,N,3] x, float[1,16,3] w, float[1,16,4] r, float[S,1,N,4] dy) => (float[S,1,N,4] y, float[1,16,4] dr)";
const LSTM_LAYER: &str =
    "[l] y, yh, yc, c, k = com.microsoft.LSTMTraining <hidden_size = 4> (x, w, r)
    [g] dx, dw, dr = com.microsoft.LSTMGrad <hidden_size = 4> (x, w, r, , , , y, c, k, dy)";

#[test]
fn a_recurrent_layer_s_gates_are_computed_where_its_gradient_needs_them() {
    let listing = lowered(15, LSTM, LSTM_LAYER);
    let operators = |of: &str| {
        let is_of = |line: &&str| line.trim_start().starts_with(&format!("\"{of}/"));
        let lines = listing.lines().filter(is_of);
        lines
            .filter_map(|line| Some(line.split_once(" = ")?.1.split('(').next()?.to_owned()))
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert!(listing.contains("y, yh, yc = LSTM(x, w, r)"), "{listing}");
    assert_eq!(operators("l"), "", "{listing}");
    assert_snapshot!(operators("g"), @"Squeeze Squeeze Squeeze Shape Gather Concat ConstantOfShape Slice Concat Reshape Reshape Gemm Gemm Split Sigmoid Reshape Sigmoid Reshape Sigmoid Reshape Tanh Reshape Mul Shape Gather Concat ConstantOfShape Scan Tanh Mul Sub Mul Sub Mul Mul Sub Mul Sub Sub Mul Mul Sub Mul Squeeze Shape Gather Concat ConstantOfShape Shape Gather Concat ConstantOfShape Scan Reshape Gemm");
}

#[test]
fn what_a_layer_keeps_is_computed_if_others_read_it() {
    let asked = LSTM.replace("=> (", "=> (float[S,1,N,4] c, ");
    let listing = lowered(15, &asked, LSTM_LAYER);
    assert!(listing.contains("c = Unsqueeze(\"l/Scan:0"), "{listing}");
    assert!(!listing.contains("\nk = "), "{listing}");
}

#[test]
fn a_scan_reads_the_weights_by_their_names_and_no_name_is_there_twice() {
    let text = format!(
        r#"<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]> g {LSTM} {{ {LSTM_LAYER} }}"#
    );
    let mut graph = Graph::parse(&text).unwrap();
    lower(&mut graph, &BTreeMap::new(), None).unwrap();
    let scans: Vec<_> = graph.nodes().filter(|node| node.is("", "Scan")).collect();
    let mut names: Vec<&str> = graph
        .tensor_ids()
        .map(|id| &*graph.tensor(id).name)
        .collect();
    let mut read = Vec::new();
    for scan in &scans {
        let body = &scan.bodies[0].graph;
        let outer: Vec<_> = body.outer().collect();
        read.push(
            scan.captures
                .iter()
                .map(|&id| &*graph.tensor(id).name)
                .collect::<Vec<_>>(),
        );
        let inner = body.tensor_ids().filter(|id| !outer.contains(id));
        names.extend(inner.map(|id| &*body.tensor(id).name));
        assert_eq!(
            outer
                .iter()
                .map(|&id| &*body.tensor(id).name)
                .collect::<Vec<_>>(),
            read[read.len() - 1]
        );
    }
    assert_eq!(read, [vec![], vec!["g/Squeeze:0_1"]]);
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn recurrent_layers_that_no_kernel_computes_are_refused_by_name() {
    let inputs = "(float[S,N,3] x, float[1,16,3] w, float[1,16,4] r, int32[N] n, float[1,12] p) => (float[S,1,N,4] y)";
    let of = |attributes: &str, read: &str| {
        let attributes = format!("hidden_size = 4{attributes}");
        let node = format!(
            "[l] y, a, b, c, k = com.microsoft.LSTMTraining <{attributes}> (x, w, r{read})"
        );
        lowered(15, inputs, &node)
    };
    assert_snapshot!(of("", ", , n"), @r#"error: LSTMTraining "l": it cannot be written in standard operators where sequences have lengths of their own"#);
    assert_snapshot!(of("", ", , , , , p"), @r#"error: LSTMTraining "l": it cannot be written in standard operators with peepholes"#);
    assert_snapshot!(of(", clip = 1.0", ""), @r#"error: LSTMTraining "l": it cannot be written in standard operators with clipped gates"#);
    assert_snapshot!(of(", input_forget = 1", ""), @r#"error: LSTMTraining "l": it cannot be written in standard operators where the input gate is what the forget gate leaves"#);
    assert_snapshot!(of(", activations = [\"Sigmoid\", \"Relu\", \"Tanh\"]", ""), @r#"error: LSTMTraining "l": it cannot be written in standard operators with other activations than ["Sigmoid", "Tanh", "Tanh"]"#);
    assert_snapshot!(of(", direction = \"sideways\"", ""), @r#"error: LSTMTraining "l": attribute "direction": expected forward, reverse or bidirectional, found "sideways""#);
    assert!(of(", activations = [\"sigmoid\", \"tanh\", \"tanh\"]", "").contains("LSTM("));
}

/// The gradients of a bias that is added to rows of which the file knows the shape by another name.
const ADDED: &str = r#"
    [shape] s = Shape (x)
    [count] n = Gather <axis = 0> (s, zero)
    [sizes] sizes = Concat <axis = 0> (n, rest)
    [apart] rows = Reshape (x, sizes)
    [slope] product = MatMul (rows, w)
    [of_product] a = Shape (product)
    [of_bias] b = Shape (bias)
    [axes] axes_a, axes_b = com.microsoft.BroadcastGradientArgs (a, b)
    [up] dy = Relu (dz)
    [sum_a] sum_a = ReduceSum <keepdims = 1, noop_with_empty_axes = 1> (dy, axes_a)
    [like_a] da = Reshape (sum_a, a)
    [sum_b] sum_b = ReduceSum <keepdims = 1, noop_with_empty_axes = 1> (dy, axes_b)
    [like_b] db = Reshape (sum_b, b)
    [back] dw = com.microsoft.FusedMatMul <transA = 1> (rows, da)"#;

#[test]
fn what_only_a_shape_is_asked_of_is_not_kept_for_it() {
    let interface = "(float[N,12] x, float[6,5] w, float[5] bias, float[N,2,5] dz) => (float[5] db, float[N,6,5] dw) <int64[1] zero = {0}, int64[2] rest = {2, 6}>";
    assert_snapshot!(lowered(15, interface, ADDED), @r#"
    "ckpt-opt/lower/constant_4" = Constant()
    "ckpt-opt/lower/constant_5" = Constant()
    s = Shape(x)
    n = Gather(s, zero)
    sizes = Concat(n, rest)
    rows = Reshape(x, sizes)
    product = MatMul(rows, w)
    dy = Relu(dz)
    sum_b = ReduceSum(dy, "ckpt-opt/lower/constant_4")
    db = Reshape(sum_b, "ckpt-opt/lower/constant_5")
    dw = FusedMatMul(rows, dy)
    "#);
}

#[test]
fn a_size_that_is_cut_is_not_the_whole_one() {
    // Up to 512 rows both are as many; above, they are not.
    let interface = "(float[N,4] x, float[N,4] dy) => (float y, float z, float[N,4] dx) <int64[1] zero = {0}, int64[1] most = {512}>";
    let nodes = "[grad] dx = com.microsoft.ReluGrad (dy, x)
        [cut] first = Slice (x, zero, most, zero)
        [few] few = Size (first)
        [y] y = Cast <to = 1> (few)
        [twice] twice = Concat <axis = 0> (dx, dx)
        [all] all = Size (twice)
        [z] z = Cast <to = 1> (all)";
    assert_snapshot!(lowered(15, interface, nodes), @r#"
    "ckpt-opt/lower/constant_0" = Constant()
    "ckpt-opt/lower/constant_1" = Constant()
    "ckpt-opt/lower/constant_2" = Constant()
    "ckpt-opt/lower/constant_3" = Constant()
    "ckpt-opt/sizes/Shape" = Shape(x)
    "ckpt-opt/sizes/Gather" = Gather("ckpt-opt/sizes/Shape", "ckpt-opt/lower/constant_1")
    "ckpt-opt/sizes/Mul" = Mul("ckpt-opt/sizes/Gather", "ckpt-opt/lower/constant_2")
    "ckpt-opt/sizes/Reshape" = Reshape("ckpt-opt/sizes/Mul", "ckpt-opt/lower/constant_3")
    "grad/Greater:0" = Greater(x, "ckpt-opt/lower/constant_0")
    "grad/Cast:0" = Cast("grad/Greater:0")
    dx = Mul(dy, "grad/Cast:0")
    first = Slice(x, zero, most, zero)
    few = Size(first)
    y = Cast(few)
    twice = Concat(dx, dx)
    z = Cast("ckpt-opt/sizes/Reshape")
    "#);
}

#[test]
fn what_may_be_broadcast_is_not_taken_for_equal() {
    // By what a sum accepts, M could only be N, or one.
    let nodes = "[a] a = Shape (x) [b] b = Shape (y) [up] dz = Relu (dw)
        [axes] p, q = com.microsoft.BroadcastGradientArgs (a, b)
        [sum] s = ReduceSum <keepdims = 1, noop_with_empty_axes = 1> (dz, p)
        [like] dx = Reshape (s, a)
        [z] z = Add (x, y)";
    let listing = |of_y: &str| {
        let interface = format!(
            "(float[N,4] x, float[{of_y},4] y, float[N,4] dw) => (float[N,4] dx, float[N,4] z)"
        );
        lowered(15, &interface, nodes)
    };
    assert!(
        listing("M").contains("s = ReduceSum(dz, p)"),
        "{}",
        listing("M")
    );
    assert!(!listing("N").contains("ReduceSum"), "{}", listing("N"));
    // Nor M for three, which is all that a constant of three rows lets shape inference find.
    let interface = "(float[M,4] x, float[3,4] dw) => (float[M,4] dx, float[3,4] z) <float[3,4] y = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}>";
    let listing = lowered(15, interface, nodes);
    assert!(listing.contains("s = ReduceSum(dz, p)"), "{listing}");
}

#[test]
fn a_declaration_that_is_wrong_is_nothing_to_go_by() {
    // The file says that one row is added to all; there are as many.
    let interface = "(float[N,4] x, float[N,4] dy, float[N,4] b) => (float[N,4] da) <float[1,4] a>";
    let listing = lowered(
        15,
        interface,
        "[a] a = Relu (x) [d] da = com.microsoft.DivGrad (dy, a, b)",
    );
    assert!(!listing.contains("ReduceSum"), "{listing}");
    let right = lowered(
        15,
        "(float[1,4] x, float[N,4] dy, float[N,4] b) => (float[1,4] da) <float[1,4] a>",
        "[a] a = Relu (x) [d] da = com.microsoft.DivGrad (dy, a, b)",
    );
    assert!(right.contains("da = ReduceSum"), "{right}");
}

#[test]
fn what_few_channels_have_at_several_places_goes_into_one_product() {
    let interface =
        "(float[N,16,9,9] dy, float[N,3,9,11] x, float[16,3,1,3] w) => (float[16,3,1,3] dw)";
    let node = "[c] _, dw = com.microsoft.ConvGrad <kernel_shape = [1, 3], pads = [0, 0, 0, 0]> (dy, x, w)";
    assert_snapshot!(lowered(15, interface, node), @r#"
    "ckpt-opt/lower/constant_0" = Constant()
    "ckpt-opt/lower/constant_1" = Constant()
    "ckpt-opt/lower/constant_2" = Constant()
    "ckpt-opt/lower/constant_3" = Constant()
    "ckpt-opt/lower/constant_4" = Constant()
    "ckpt-opt/lower/constant_5" = Constant()
    "ckpt-opt/lower/constant_6" = Constant()
    "ckpt-opt/lower/constant_7" = Constant()
    "ckpt-opt/lower/constant_8" = Constant()
    "ckpt-opt/lower/constant_9" = Constant()
    "ckpt-opt/lower/constant_10" = Constant()
    "ckpt-opt/lower/constant_11" = Constant()
    "c/Reshape:0" = Reshape(dy, "ckpt-opt/lower/constant_0")
    "c/Slice:0" = Slice(x, "ckpt-opt/lower/constant_2", "ckpt-opt/lower/constant_1", "ckpt-opt/lower/constant_3", "ckpt-opt/lower/constant_4")
    "c/Slice:0_1" = Slice(x, "ckpt-opt/lower/constant_6", "ckpt-opt/lower/constant_5", "ckpt-opt/lower/constant_3", "ckpt-opt/lower/constant_4")
    "c/Slice:0_2" = Slice(x, "ckpt-opt/lower/constant_8", "ckpt-opt/lower/constant_7", "ckpt-opt/lower/constant_3", "ckpt-opt/lower/constant_4")
    "c/Concat:0" = Concat("c/Slice:0", "c/Slice:0_1", "c/Slice:0_2")
    "c/Reshape:0_1" = Reshape("c/Concat:0", "ckpt-opt/lower/constant_0")
    "c/FusedMatMul:0" = FusedMatMul("c/Reshape:0", "c/Reshape:0_1")
    "c/ReduceSum:0" = ReduceSum("c/FusedMatMul:0", "ckpt-opt/lower/constant_10")
    "c/Reshape:0_2" = Reshape("c/ReduceSum:0", "ckpt-opt/lower/constant_11")
    "c/Transpose:0" = Transpose("c/Reshape:0_2")
    dw = Reshape("c/Transpose:0", "ckpt-opt/lower/constant_9")
    "#);
}

#[test]
fn labels_for_another_number_of_samples_are_none_even_where_what_a_loss_is_lowered_to_takes_them() {
    let interface = "(float[N,12] x, float[6,5] w, int64[T] labels, float one) => (float loss, float[6,5] dw, float[2] y)
        <int64[2] to = {-1, 6}>";
    let nodes = "[rows] rows = Reshape (x, to)
        [scores] scores = MatMul (rows, w)
        [loss] loss, likely = SoftmaxCrossEntropyLoss (scores, labels)
        [back] dscores = com.microsoft.SoftmaxCrossEntropyLossGrad (one, likely, labels)
        [dw] dw = com.microsoft.FusedMatMul <transA = 1> (rows, dscores)
        [asks] asks = Shape (scores)
        [y] y = Cast <to = 1> (asks)";
    let listing = lowered(15, interface, nodes);
    assert!(!listing.contains("Shape(scores)"), "{listing}");
    assert!(listing.contains("Shape(x)"), "{listing}");
}

/// A gradient that is the sum of a transposed Gemm and `other`, of an embedding of this `batch` in a file that names it or not.
fn gradient_of_tied_weights(batch: &str, sum: &str) -> bool {
    let interface = format!(
        "(float[{batch},100] dlogits, float[{batch},8] x, float[100,8] other, float[{batch},8] dy) => (float[100,8] dw, float[{batch},8] dx)"
    );
    let nodes = format!(
        "g = Gemm <transA = 1> (x, dlogits) t = Transpose <perm = [1, 0]> (g) dw = {sum}
         dx = com.microsoft.ReluGrad (dy, x)"
    );
    lowered(15, &interface, &nodes).contains("dw = Add(")
}

#[test]
fn logits_do_not_wait_for_the_gradient_of_an_embedding() {
    assert!(gradient_of_tied_weights("N", "Sum (other, t)"));
    assert!(gradient_of_tied_weights("N", "Sum (t, other)"));
    assert!(gradient_of_tied_weights("64", "Sum (other, t)"));
    // What the Gemm reads is smaller than what it writes.
    assert!(!gradient_of_tied_weights("4", "Sum (other, t)"));
    assert!(!gradient_of_tied_weights("N", "Sum (other, t, other)"));
    assert!(!gradient_of_tied_weights("N", "Sum (other, other)"));
}

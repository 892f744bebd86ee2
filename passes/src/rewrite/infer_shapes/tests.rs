use super::*;
use crate::graph::{AttributeValue, Constant, Node};

/// Graph inputs `x` and `y` of type float with these dimensions, and the nodes
/// `op(inputs) -> output`.
fn graph(inputs: &[(&str, &[Dimension])], nodes: &[(&str, &[&str], &str)]) -> Graph {
    let mut graph = Graph::new("test");
    graph.opsets.insert(String::new(), 17);
    for (name, dims) in inputs {
        let id = graph.add_tensor(Tensor {
            element: Some(ElementType::Float),
            declared: Some(dims.to_vec()),
            ..Tensor::new(*name, TensorKind::Input)
        });
        graph.inputs.push(id);
    }
    for (_, _, output) in nodes {
        graph.add_tensor(Tensor::new(*output, TensorKind::Value));
    }
    for (op, inputs, output) in nodes {
        let (domain, op) = op.split_once("::").unwrap_or(("", op));
        let id = |name: &&str| graph.tensor_named(name);
        let node = Node::new(
            format!("{op}_{output}"),
            domain,
            op,
            inputs.iter().map(id).collect(),
            vec![id(output)],
        );
        graph.add_node(node);
    }
    graph
}

fn symbol(name: &str) -> Dimension {
    Dimension::Symbol(name.to_owned())
}

fn ints(graph: &mut Graph, name: &str, values: &[i64]) {
    graph.add_tensor(Tensor {
        element: Some(ElementType::Int64),
        shape: Some(vec![values.len() as u64]),
        constant: Some(Constant::Ints(values.to_vec())),
        ..Tensor::new(name, TensorKind::Initializer)
    });
}

fn declare(graph: &mut Graph, name: &str, element: Option<ElementType>, dims: &[Dimension]) {
    let id = graph.tensor_named(name).expect("a tensor");
    graph.tensor_mut(id).element = element;
    graph.tensor_mut(id).declared = Some(dims.to_vec());
}

fn run(graph: &mut Graph, bindings: &[(&str, u64)]) -> Result<Changed, InferShapesError> {
    let bindings = bindings
        .iter()
        .map(|&(name, size)| (name.to_owned(), size))
        .collect();
    InferShapes { bindings }.run(graph)
}

fn shape(graph: &Graph, name: &str) -> Vec<u64> {
    let id = graph.tensor_named(name).expect("a tensor");
    graph.tensor(id).shape.clone().expect("a shape")
}

fn fault(graph: &mut Graph, bindings: &[(&str, u64)]) -> String {
    run(graph, bindings).expect_err("an error").to_string()
}

#[test]
fn of_very_many_names_some_are_told() {
    let dims: Vec<_> = (10..100).map(|i| symbol(&format!("d{i}"))).collect();
    let mut g = graph(&[("x", &dims)], &[("Relu", &["x"], "z")]);
    insta::assert_snapshot!(fault(&mut g, &[]), @"the size of 90 dimensions is not given: d10, d11, d12, d13, d14, d15, d16, d17, d18, d19, d20, d21, d22, d23, d24, d25, d26, d27, d28, d29 and 70 more");
}

#[test]
fn names_of_inputs_have_to_be_bound() {
    let dims = [symbol("batch"), symbol("width"), symbol("batch")];
    let mut g = graph(
        &[("x", &dims), ("y", &[symbol("2*batch")])],
        &[("Relu", &["x"], "z")],
    );
    insta::assert_snapshot!(fault(&mut g, &[]),
        @"the size of 2 dimensions is not given: batch, width");
    insta::assert_snapshot!(fault(&mut g, &[("batch", 2)]),
        @"the size of 1 dimension is not given: width");
    insta::assert_snapshot!(fault(&mut g, &[("batch", 2), ("width", 0)]),
        @r#"dimension "width" is bound to 0; expected a size from 1 up"#);
    insta::assert_snapshot!(fault(&mut g, &[("bacth", 2)]),
        @r#"there is no dimension "bacth"; the graph has 2*batch, batch, width"#);
    assert_eq!(run(&mut g, &[("batch", 2), ("width", 5)]), Ok(Changed::Yes));
    assert_eq!(shape(&g, "z"), [2, 5, 2]);
    assert_eq!(shape(&g, "y"), [4]);
    assert_eq!(run(&mut g, &[("batch", 2), ("width", 5)]), Ok(Changed::No));
}

#[test]
fn inputs_need_a_rank_and_names() {
    let mut g = graph(&[("x", &[Dimension::Known(2), Dimension::Unknown])], &[]);
    insta::assert_snapshot!(fault(&mut g, &[]),
        @"the size of 1 dimension is not given: x:1");
    assert_eq!(run(&mut g, &[("x:1", 7)]), Ok(Changed::Yes));
    assert_eq!(shape(&g, "x"), [2, 7]);
    let mut g = graph(&[("x", &[])], &[]);
    let id = g.inputs[0];
    g.tensor_mut(id).declared = None;
    insta::assert_snapshot!(fault(&mut g, &[]),
        @r#"graph input "x" is not declared as a tensor of known type and rank"#);
}

/// The sizes of the inputs, should they follow.
fn sizes(text: &str, given: &[(&str, u64)]) -> String {
    let mut graph = Graph::parse(text).unwrap();
    let bindings = given.iter().map(|&(name, size)| (name.to_owned(), size));
    let bindings = bindings.collect();
    match (InferShapes { bindings }).run(&mut graph) {
        Ok(_) => {
            let inputs = graph.inputs.iter().map(|&id| graph.tensor(id));
            let shapes = inputs.map(|input| format!("{:?}", input.shape.as_ref().unwrap()));
            shapes.collect::<Vec<_>>().join(" ")
        }
        Err(error) => error.to_string(),
    }
}

#[test]
fn labels_have_as_many_rows_as_the_scores_that_they_are_compared_with() {
    let text = "g (float[n,10] x, int64[m] labels) => (float loss)
        { loss, p = SoftmaxCrossEntropyLoss(x, labels) }";
    insta::assert_snapshot!(sizes(text, &[("n", 7)]), @"[7, 10] [7]");
    insta::assert_snapshot!(sizes(text, &[("m", 7)]), @"[7, 10] [7]");
    insta::assert_snapshot!(sizes(text, &[]), @"the size of 2 dimensions is not given: m, n");
    // What is given stands, and does not fit.
    insta::assert_snapshot!(sizes(text, &[("n", 7), ("m", 8)]), @r#"node "" (SoftmaxCrossEntropyLoss): shapes [7, 10] and [8] do not fit: the labels are for another number of samples"#);
    // One row is one label.
    insta::assert_snapshot!(sizes(text, &[("n", 1)]), @"[1, 10] [1]");
}

#[test]
fn sizes_follow_through_views_products_and_other_sizes() {
    // [batch, tokens] labels, flattened; the scores have 6 * 4 rows.
    let text = "g (float[6,4,10] x, int64[b,4] labels) => (float loss)
        { rows = Constant <value_ints = [-1, 10]> () scores = Reshape(x, rows)
          all = Constant <value_ints = [-1]> () flat = Reshape(labels, all)
          loss, p = SoftmaxCrossEntropyLoss(scores, flat) }";
    insta::assert_snapshot!(sizes(text, &[]), @"[6, 4, 10] [6, 4]");
    // A third input's size follows from the second's, which follows from the first's; targets of a mean squared error.
    let text = "g (float[n,10] x, float[m,10] y, float[k,10] z) => (float[q,10] loss)
        { a = Sub(x, y) b = Exp(z) loss = Mul(a, b) }";
    insta::assert_snapshot!(sizes(text, &[("n", 5)]), @"[5, 10] [5, 10] [5, 10]");
    insta::assert_snapshot!(sizes(text, &[("k", 5)]), @"[5, 10] [5, 10] [5, 10]");
    // Both sizes of a product's second matrix: one follows, the other does not.
    let text = "g (float[3,4] x, float[m,n] w) => (float[3,q] y) { y = MatMul(x, w) }";
    insta::assert_snapshot!(sizes(text, &[]), @"the size of 1 dimension is not given: n");
    insta::assert_snapshot!(sizes(text, &[("n", 2)]), @"[3, 4] [4, 2]");
}

#[test]
fn sizes_that_could_be_several_are_asked_for() {
    // A row of either size can be broadcast or be one.
    let text = "g (float[1,10] x, float[m,10] y) => (float[q,10] z) { z = Add(x, y) }";
    insta::assert_snapshot!(sizes(text, &[]), @"the size of 1 dimension is not given: m");
}

#[test]
fn computed_shapes_are_followed() {
    // x [batch, 3, 4] -> Reshape to [Gather(Shape(x), 0), 12]
    let dims = [symbol("batch"), Dimension::Known(3), Dimension::Known(4)];
    let mut g = graph(&[("x", &dims)], &[]);
    ints(&mut g, "zero", &[0]);
    ints(&mut g, "twelve", &[12]);
    let nodes = [
        ("Shape", vec!["x"], "shape"),
        ("Gather", vec!["shape", "zero"], "first"),
        ("Concat", vec!["first", "twelve"], "wanted"),
        ("Reshape", vec!["x", "wanted"], "flat"),
    ];
    for (op, inputs, output) in nodes {
        let output = g.add_tensor(Tensor::new(output, TensorKind::Value));
        let inputs = inputs
            .into_iter()
            .map(|name| g.tensor_named(name))
            .collect();
        let mut node = Node::new(op, "", op, inputs, vec![Some(output)]);
        node.set_attribute("axis", crate::graph::AttributeValue::Int(0));
        g.add_node(node);
    }
    assert_eq!(run(&mut g, &[("batch", 7)]), Ok(Changed::Yes));
    assert_eq!(shape(&g, "flat"), [7, 12]);
    let wanted = g.tensor(g.tensor_named("wanted").expect("a tensor"));
    assert_eq!(wanted.constant, Some(Constant::Ints(vec![7, 12])));
}

#[test]
fn the_order_of_the_file_does_not_matter() {
    let mut g = graph(
        &[("x", &[Dimension::Known(2)])],
        &[("Relu", &["a"], "b"), ("Exp", &["x"], "a")],
    );
    assert_eq!(run(&mut g, &[]), Ok(Changed::Yes));
    assert_eq!(shape(&g, "b"), [2]);
    let mut g = graph(&[], &[("Relu", &["b"], "a"), ("Exp", &["a"], "b")]);
    insta::assert_snapshot!(fault(&mut g, &[]), @r#"2 nodes need each other's results, in a circle: node "Exp_b" (Exp), node "Relu_a" (Relu)"#);
}

#[test]
fn operators_without_a_rule_need_value_info() {
    let two = [symbol("batch"), Dimension::Known(2)];
    let mut g = graph(&[("x", &two)], &[("acme::Frob", &["x"], "y")]);
    insta::assert_snapshot!(fault(&mut g, &[("batch", 3)]),
        @r#"node "Frob_y" (acme::Frob): nothing says the shape of its output "y"; expected it in the file's value_info (onnx.shape_inference.infer_shapes adds it for standard operators)"#);
    let dims = [symbol("2*batch + 1"), symbol("unk__0"), Dimension::Unknown];
    declare(&mut g, "y", Some(ElementType::Int64), &dims);
    insta::assert_snapshot!(fault(&mut g, &[("batch", 3)]),
        @r#"node "Frob_y" (acme::Frob): nothing says the shape of its output "y", declared as [2*batch + 1, unk__0, ?]; expected it in the file's value_info (onnx.shape_inference.infer_shapes adds it for standard operators), or a size for unk__0, y:2"#);
    declare(&mut g, "y", None, &dims[..2]);
    insta::assert_snapshot!(fault(&mut g, &[("batch", 3), ("unk__0", 5)]),
        @r#"node "Frob_y" (acme::Frob): nothing says the type of its output "y", declared as [2*batch + 1, unk__0]; expected it in the file's value_info (onnx.shape_inference.infer_shapes adds it for standard operators)"#);
    declare(&mut g, "y", Some(ElementType::Int64), &dims[..2]);
    assert_eq!(
        run(&mut g, &[("batch", 3), ("unk__0", 5)]),
        Ok(Changed::Yes)
    );
    assert_eq!(shape(&g, "y"), [7, 5]);
}

#[test]
fn a_name_is_known_once_one_tensor_shows_its_size() {
    let mut g = graph(
        &[("x", &[Dimension::Known(2), Dimension::Known(6)])],
        &[("Relu", &["x"], "y"), ("acme::Frob", &["y"], "z")],
    );
    declare(&mut g, "y", None, &[symbol("unk__0"), symbol("unk__1")]);
    declare(&mut g, "z", Some(ElementType::Float), &[symbol("unk__1/2")]);
    assert_eq!(run(&mut g, &[]), Ok(Changed::Yes));
    assert_eq!(shape(&g, "z"), [3]);
}

#[test]
fn what_inputs_make_of_a_value_goes_before_its_declaration() {
    let two = [Dimension::Known(2), symbol("n")];
    let nodes: [(&str, &[&str], &str); 3] = [
        ("Relu", &["x"], "a"),
        ("Relu", &["a"], "b"),
        ("Relu", &["b"], "c"),
    ];
    let mut g = graph(&[("x", &two)], &nodes);
    declare(&mut g, "a", None, &[Dimension::Known(3), symbol("n")]);
    declare(&mut g, "b", None, &[Dimension::Known(2)]);
    declare(&mut g, "c", None, &[Dimension::Known(9), symbol("n")]);
    let output = g.tensor_named("c").expect("a tensor");
    g.outputs.push(output);
    let listed = g.clone();
    assert_eq!(run(&mut g, &[("n", 5)]), Ok(Changed::Yes));
    assert_eq!(shape(&g, "c"), [2, 5]);
    let declared = |name: &str| {
        let id = g.tensor_named(name).expect("a tensor");
        declaration(g.tensor(id).declared.as_deref().expect("a declaration"))
    };
    assert_eq!(declared("a"), "[?, n]");
    assert_eq!(declared("b"), "[?, ?]");
    assert_eq!(declared("c"), "[9, n]"); // an output's is the caller's
    let a = g.tensor_named("a").expect("a tensor");
    assert_eq!(
        g.tensor(a).stale.as_deref().map(declaration),
        Some("[3, n]".to_owned())
    );
    assert_eq!(without_stale(&g).tensor(a).stale, None);
    let found = stale(&listed, &g);
    let found = found
        .iter()
        .map(|s| format!("{} {} {}", s.tensor, s.declared, s.inferred));
    assert_eq!(
        found.collect::<Vec<_>>(),
        ["a [3, n] [2, 5]", "b [2] [2, 5]", "c [9, n] [2, 5]"]
    );
}

#[test]
fn patterns_give_upper_bounds_and_names_go_before_them() {
    let nodes: [(&str, &[&str], &str); 2] =
        [("acme::Frob", &["x"], "y"), ("acme::Frob", &["x"], "z")];
    let frobs = || {
        let mut g = graph(&[("x", &[Dimension::Known(2)])], &nodes);
        declare(
            &mut g,
            "y",
            Some(ElementType::Float),
            &[symbol("unk__1"), symbol("unk__23")],
        );
        declare(
            &mut g,
            "z",
            Some(ElementType::Float),
            &[symbol("rows"), symbol("unk__1")],
        );
        g
    };
    let message = fault(&mut frobs(), &[]);
    assert!(
        message.ends_with("or a size for rows, unk__1, unk__23"),
        "{message}"
    );
    let mut g = frobs();
    let bindings = [
        ("unk__*", 4096),
        ("unk__2?", 10),
        ("rows", 3),
        ("unk__1", 7),
    ];
    assert_eq!(run(&mut g, &bindings), Ok(Changed::Yes));
    assert_eq!(shape(&g, "y"), [7, 10]);
    assert_eq!(shape(&g, "z"), [3, 7]);
    insta::assert_snapshot!(fault(&mut frobs(), &[("nothing*", 1)]),
        @r#"there is no dimension "nothing*"; the graph has no symbolic dimensions"#);
}

#[test]
fn stars_stand_for_any_text() {
    for (pattern, name, is_match) in [
        ("*", "", true),
        ("a*c", "abcbc", true),
        ("a*c", "abcb", false),
        ("?", "", false),
        ("*a?", "banana", false),
        ("*n?", "banana", true),
        ("**", "x", true),
    ] {
        assert_eq!(matches(pattern, name), is_match, "{pattern} {name}");
    }
}

#[test]
fn what_is_no_tensor_is_counted_and_left_alone() {
    let nodes: [(&str, &[&str], &str); 2] = [
        ("SplitToSequence", &["x"], "s"),
        ("ConcatFromSequence", &["s"], "y"),
    ];
    let mut g = graph(&[("x", &[symbol("n"), Dimension::Known(4)])], &nodes);
    assert_eq!(run(&mut g, &[("n", 8)]), Ok(Changed::Yes));
    let sequence = g.tensor(g.tensor_named("s").expect("a value"));
    assert_eq!(sequence.memory(), Some(crate::bytes::Bytes(8 * 4 * 4)));
    assert_eq!(sequence.bytes(), None);
    assert_eq!(shape(&g, "y"), [8, 4]);
}

#[test]
fn declared_types_must_agree_with_the_rule() {
    let mut g = graph(&[("x", &[Dimension::Known(2)])], &[("Relu", &["x"], "y")]);
    declare(&mut g, "y", Some(ElementType::Double), &[symbol("any")]);
    insta::assert_snapshot!(fault(&mut g, &[]),
        @r#"node "Relu_y" (Relu): its output "y" is declared as double, but its inputs make it float"#);
}

#[test]
fn pooled_gradients_take_the_shape_of_what_was_pooled() {
    let image = [4, 8, 5, 5].map(Dimension::Known);
    let gradient = [4, 8, 2, 2].map(Dimension::Known);
    let mut g = graph(&[("x", &image), ("dy", &gradient)], &[]);
    let [y, indices, behind, dx] =
        ["y", "i", "b", "dx"].map(|n| Some(g.add_tensor(Tensor::new(n, TensorKind::Value))));
    let (x, dy) = (g.tensor_named("x"), g.tensor_named("dy"));
    let mut pool = Node::new("pool", "", "MaxPool", vec![x], vec![y, indices]);
    for name in ["kernel_shape", "strides"] {
        pool.set_attribute(name, crate::graph::AttributeValue::Ints(vec![2, 2]));
    }
    g.add_node(pool);
    let barrier = ("com.microsoft", "PassThrough");
    g.add_node(Node::new(
        "barrier",
        barrier.0,
        barrier.1,
        vec![indices],
        vec![behind],
    ));
    g.add_node(Node::new(
        "grad",
        "",
        "MaxPoolGrad",
        vec![dy, behind],
        vec![dx],
    ));
    assert_eq!(run(&mut g, &[]), Ok(Changed::Yes));
    assert_eq!(shape(&g, "dx"), [4, 8, 5, 5]);
}

#[test]
fn sizes_beyond_any_memory_are_refused() {
    let huge = [Dimension::Known(u64::MAX), Dimension::Known(3)];
    let mut g = graph(&[("x", &huge)], &[]);
    insta::assert_snapshot!(fault(&mut g, &[]),
        @r#"tensor "x" of shape [18446744073709551615, 3] does not fit into any memory"#);
}

#[test]
fn faults_name_the_node() {
    let dims = [Dimension::Known(2)];
    let mut g = graph(
        &[("x", &dims), ("y", &[Dimension::Known(3)])],
        &[("Add", &["x", "y"], "z")],
    );
    insta::assert_snapshot!(fault(&mut g, &[]),
        @r#"node "Add_z" (Add): shapes [2] and [3] do not fit: they do not broadcast"#);
}

/// The shape of `y` of a graph with inputs `float[2,3] x` and `bool c`.
fn made(nodes: &str) -> String {
    let text = format!("g (float[2,3] x, bool[2] c, float[k,3] z) => (float[q,r] y) {{ {nodes} }}");
    let mut graph = Graph::parse(&text).unwrap();
    let id = graph.tensor_named("y").unwrap();
    graph.tensor_mut(id).element = None;
    match run(&mut graph, &[("k", 6)]) {
        Ok(_) => format!("{:?}", shape(&graph, "y")),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_contents_decide_is_at_most_as_large_as_there_is_room_for() {
    insta::assert_snapshot!(made("y = NonZero(x)"), @"[2, 6]");
    insta::assert_snapshot!(made("y = Compress <axis = 0> (x, c)"), @"[2, 3]");
    // Rows of z by the places that were found: as many as places.
    let places = "n = NonZero(x) t = Transpose(n) a = Constant <value_ints = [0]> () o = Constant <value_ints = [1]> ()
        first = Slice(t, a, o, o) y = GatherND(z, first)";
    insta::assert_snapshot!(made(places), @"[6, 3]");
    // As many zeros as places, by way of the number of places.
    let zeros = "n = NonZero(x) s = Shape(n) y = ConstantOfShape(s)";
    insta::assert_snapshot!(made(zeros), @"[2, 6]");
}

#[test]
fn fewer_places_never_make_more_than_is_said() {
    // 9 less the number of places: more if there are fewer.
    let rest =
        "n = NonZero(x) s = Shape(n) nine = Constant <value_ints = [9, 9]> () d = Sub(nine, s)
        [zeros] y = ConstantOfShape(d)";
    insta::assert_snapshot!(made(rest), @r#"node "zeros" (ConstantOfShape): nothing says the shape of its output "y", declared as [q, r]; expected it in the file's value_info (onnx.shape_inference.infer_shapes adds it for standard operators), or a size for q, r"#);
    let negative = "n = NonZero(x) s = Shape(n) nine = Constant <value_ints = [9, 9]> ()
        m = Constant <value_ints = [-1]> () minus = Mul(s, m) d = Add(nine, minus) [zeros] y = ConstantOfShape(d)";
    let asked = made(negative);
    assert!(
        asked.contains("\"zeros\" (ConstantOfShape): nothing says the shape"),
        "{asked}"
    );
    // From the number of places on: at most all of it.
    let slice =
        "n = NonZero(x) s = Size(n) a = Constant <value_ints = [0]> () from = Unsqueeze(s, a)
        e = Constant <value_ints = [100]> () y = Slice(z, from, e, a)";
    insta::assert_snapshot!(made(slice), @"[6, 3]");
}

#[test]
fn what_is_said_goes_before_what_is_possible() {
    let nodes = "n = NonZero(x) y = Identity(n)";
    let text = format!("g (float[2,3] x) => (float[q,r] y) <int64[2,found] n> {{ {nodes} }}");
    let mut graph = Graph::parse(&text).unwrap();
    let id = graph.tensor_named("y").unwrap();
    graph.tensor_mut(id).element = None;
    assert!(run(&mut graph, &[("found", 4)]).is_ok());
    assert_eq!(shape(&graph, "y"), [2, 4]);
}

/// The shape of the undeclared `y` that `nodes` make of inputs `float[2,3] x`, `int64[2] s`, `int64 n` and `float[4] f`, or what is said.
fn undeclared(nodes: &str, bindings: &[(&str, u64)]) -> String {
    let text = format!("g (float[2,3] x, int64[2] s, int64 n, float[4] f) => (y) {{ {nodes} }}");
    let mut graph = Graph::parse(&text).unwrap();
    match run(&mut graph, bindings) {
        Ok(_) => format!("{:?}", shape(&graph, "y")),
        Err(error) => error.to_string(),
    }
}

#[test]
fn sizes_that_data_decide_have_names_and_are_bounded_by_them() {
    let asked = |nodes: &str| {
        let said = undeclared(nodes, &[]);
        let names = said.rsplit_once("or a size for ");
        names.map_or(said.clone(), |(_, names)| names.to_owned())
    };
    let both = |nodes: &str| {
        let bound = undeclared(nodes, &[("y:*", 7)]);
        format!("{}: {bound}", asked(nodes))
    };
    let zero = "z = Constant <value_int = 0> ()";
    insta::assert_snapshot!(both(&format!("{zero} y = Range(z, n, n)")), @"y:0: [7]");
    insta::assert_snapshot!(both("y = ConstantOfShape(s)"), @"y:0, y:1: [7, 7]");
    insta::assert_snapshot!(both("y = Reshape(x, s)"), @"y:0, y:1: [7, 7]");
    insta::assert_snapshot!(both("y = Tile(x, s)"), @"y:0, y:1: [7, 7]");
    insta::assert_snapshot!(both("y = OneHot(s, n, f)"), @"y:1: [2, 7]");
    insta::assert_snapshot!(both("y = Expand(x, s)"), @"[2, 3]: [2, 3]");
    let one = "a = Constant <value_ints = [0, 1]> () o = Unsqueeze(f, a)";
    insta::assert_snapshot!(both(&format!("{one} y = Expand(o, s)")), @"y:0, y:1: [7, 7, 4]");
    // The pads, of which nothing but their number is known.
    insta::assert_snapshot!(both("p = Concat <axis = 0> (s, s) y = Pad(x, p)"), @"y:0, y:1: [7, 7]");
    insta::assert_snapshot!(both("a = Constant <value_ints = [1]> () z = Unsqueeze(x, a)
        p = Identity(f) c = Constant <value_ints = [0]> () e = Slice(p, c, a) g = Concat <axis = 0> (e, e, e)
        y = Resize(z, , g)"), @"y:0, y:1, y:2: [7, 7, 7]");
}

#[test]
fn all_sizes_that_are_missing_are_asked_for_at_once() {
    let nodes = "[zeros] a = ConstantOfShape(s) b = Neg(a) y = OneHot(b, n, f) c = Tile(x, s)";
    insta::assert_snapshot!(undeclared(nodes, &[]), @r#"node "zeros" (ConstantOfShape): nothing says the shape of its output "a"; expected it in the file's value_info (onnx.shape_inference.infer_shapes adds it for standard operators), or a size for a:0, a:1, c:0, c:1"#);
    insta::assert_snapshot!(undeclared(nodes, &[("*", 5)]), @"[5, 5, 5]");
    insta::assert_snapshot!(undeclared(nodes, &[("*", 5), ("a:0", 3), ("y:2", 2)]), @"[3, 5, 2]");
    insta::assert_snapshot!(undeclared(nodes, &[("b:0", 3)]), @r#"there is no dimension "b:0"; the graph has no symbolic dimensions"#);
}

#[test]
fn what_is_bounded_may_be_smaller() {
    // 9 less the sizes: more if these are less.
    let rest = "a = ConstantOfShape(s) t = Shape(a) nine = Constant <value_ints = [9, 9]> () d = Sub(nine, t)
        [rest] y = ConstantOfShape(d)";
    insta::assert_snapshot!(undeclared(rest, &[("a:*", 4)]), @r#"node "rest" (ConstantOfShape): nothing says the shape of its output "y"; expected it in the file's value_info (onnx.shape_inference.infer_shapes adds it for standard operators), or a size for y:0, y:1"#);
    insta::assert_snapshot!(undeclared(rest, &[("a:*", 4), ("y:*", 9)]), @"[9, 9]");
    // A row may be one row, which is expanded to more.
    let row = "a = ConstantOfShape(s) [wide] y = Expand(a, s)";
    insta::assert_snapshot!(undeclared(row, &[("a:*", 4)]), @r#"node "wide" (Expand): nothing says the shape of its output "y"; expected it in the file's value_info (onnx.shape_inference.infer_shapes adds it for standard operators), or a size for y:0, y:1"#);
}

#[test]
fn what_comes_out_of_sequences_is_what_was_put_in() {
    let made = |nodes: &str| {
        undeclared(
            &format!("z = Constant <value_int = 0> () u = Neg(x) {nodes}"),
            &[("y:*", 9)],
        )
    };
    insta::assert_snapshot!(made("q = SequenceConstruct(x, u) y = SequenceAt(q, z)"), @"[2, 3]");
    insta::assert_snapshot!(made("w = Concat <axis = 0> (x, u) q = SequenceConstruct(x, w) y = SequenceAt(q, z)"), @"[4, 3]");
    insta::assert_snapshot!(made("w = Concat <axis = 0> (x, u) q = SequenceConstruct(x, w) y = ConcatFromSequence <axis = 0> (q)"), @"[6, 3]");
    insta::assert_snapshot!(made("q = SequenceConstruct(x, u) y = ConcatFromSequence <axis = 0, new_axis = 1> (q)"), @"[2, 2, 3]");
    insta::assert_snapshot!(made("q = SplitToSequence <axis = 1, keepdims = 0> (x) y = SequenceAt(q, z)"), @"[2]");
    insta::assert_snapshot!(made("q = SplitToSequence <axis = 0, keepdims = 0> (x) y = ConcatFromSequence <axis = 1, new_axis = 1> (q)"), @"[3, 2]");
    insta::assert_snapshot!(made("e = SequenceEmpty() q = SequenceInsert(e, x) r = SequenceInsert(q, u) y = ConcatFromSequence <axis = 0> (r)"), @"[4, 3]");
    insta::assert_snapshot!(made("o = Optional(x) y = OptionalGetElement(o)"), @"[2, 3]");
    // One of two ranks; and one of which there may be any.
    let said = made("q = SequenceConstruct(x, s) y = SequenceAt(q, z)");
    assert!(
        said.contains("(SequenceAt): nothing says the shape"),
        "{said}"
    );
    let said = made("e = SequenceEmpty() y = SequenceAt(e, z)");
    assert!(
        said.contains("(SequenceAt): nothing says the shape"),
        "{said}"
    );
}

#[test]
fn sequences_go_into_subgraphs_and_out_of_them() {
    let shape_of = |outer: &str, bodies: &[(&str, &str)]| {
        let mut graph = with_bodies(outer, "node", bodies);
        match run(&mut graph, &[("y:*", 9)]) {
            Ok(_) => {
                let held = graph.tensor(graph.tensor_named("q").unwrap()).memory();
                format!("{:?} {}", shape(&graph, "y"), held.unwrap().0 / 4)
            }
            Err(error) => error.to_string(),
        }
    };
    let outer = "g (float[2,3] outer_x, bool c) => (y) { [node] q = If <then_branch = ..., else_branch = ...> (c)
        y = ConcatFromSequence <axis = 0> (q) }";
    let one = "t (float[2,3] outer_x) => (a) { a = SequenceConstruct(outer_x) }";
    let two = "e (float[2,3] outer_x) => (b) { b = SequenceConstruct(outer_x, outer_x) }";
    insta::assert_snapshot!(shape_of(outer, &[("then_branch", one), ("else_branch", two)]), @"[4, 3] 12");
    // How many there are after a Loop is not followed; how much they hold is.
    let outer = "g (float[2,3] outer_x, bool c) => (y) { t = Constant <value_int = 5> () s = SequenceEmpty()
        [node] q = Loop <body = ...> (t, c, s) y = ConcatFromSequence <axis = 0> (q) }";
    let body = "b (int64 i, bool going, v, float[2,3] outer_x) => (bool go, o) { go = Identity(going) o = SequenceInsert(v, outer_x) }";
    insta::assert_snapshot!(shape_of(outer, &[("body", body)]), @"[9, 3] 30");
}

#[test]
fn what_grows_in_iterations_is_as_large_at_most_as_is_said() {
    let outer = "g (float[2,3] outer_x, bool c, int64 t) => (y) { [node] y = Loop <body = ...> (t, c, outer_x) }";
    let shape_of = |body: &str, bindings: &[(&str, u64)]| {
        let mut graph = with_bodies(outer, "node", &[("body", body)]);
        match run(&mut graph, bindings) {
            Ok(_) => format!("{:?}", shape(&graph, "y")),
            Err(error) => error.to_string(),
        }
    };
    let rows = "b (int64 i, bool going, v, float[2,3] outer_x) => (bool go, o)
        { go = Identity(going) o = Concat <axis = 0> (v, outer_x) }";
    insta::assert_snapshot!(shape_of(rows, &[]), @r#"node "node" (Loop): nothing says the shape of its output "y"; expected it in the file's value_info (onnx.shape_inference.infer_shapes adds it for standard operators), or a size for y:0"#);
    insta::assert_snapshot!(shape_of(rows, &[("y:0", 20)]), @"[20, 3]");
}

#[test]
fn copies_are_as_large_as_what_they_are_copies_of() {
    let copies = "y = Tile(x, s) \"y/recompute_3\" = Tile(x, s)";
    insta::assert_snapshot!(undeclared(copies, &[("y:0", 4), ("y:1", 5)]), @"[4, 5]");
}

/// `outer` with the subgraphs, each in text form; what they read from around is listed as an input named `outer_...`
fn with_bodies(outer: &str, node: &str, bodies: &[(&str, &str)]) -> Graph {
    let mut graph = Graph::parse(outer).unwrap();
    let is_it = |id: &NodeId| graph.node(*id).name == node;
    let id = graph.order().iter().copied().find(is_it).unwrap();
    for (attribute, text) in bodies {
        let mut body = Graph::parse(text).unwrap();
        let around = |graph: &Graph, id: &TensorId| {
            let name = &body.tensor(*id).name;
            graph
                .tensor_named(name)
                .filter(|_| name.starts_with("outer"))
        };
        let captures: Vec<TensorId> = body
            .inputs
            .iter()
            .filter_map(|id| around(&graph, id))
            .collect();
        let inputs = body.inputs.iter().copied();
        let inputs = inputs.filter(|id| around(&graph, id).is_none()).collect();
        body.inputs = inputs;
        let node = graph.node_mut(id);
        node.captures.extend(captures);
        node.bodies.push(crate::graph::Body {
            attribute: (*attribute).to_owned(),
            graph: std::sync::Arc::new(body),
            shaped: None,
        });
    }
    graph
}

fn bodies(outer: &str, bodies: &[(&str, &str)]) -> String {
    let mut graph = with_bodies(outer, "node", bodies);
    match run(&mut graph, &[("n", 5)]) {
        Ok(_) => {
            let is_it = |id: &&NodeId| graph.node(**id).name == "node";
            let node = graph.node(*graph.order().iter().find(is_it).unwrap());
            let held = match &node.held.uncounted {
                Some(why) => format!("not counted: {why}"),
                None => format!("{} floats", node.held.cpu.0 / 4),
            };
            format!("{:?} {held}", shape(&graph, "y"))
        }
        Err(error) => error.to_string(),
    }
}

#[test]
fn sizes_follow_through_branches() {
    let outer = "g (float[n,1000] x, bool c) => (float[q,1000] y) { outer_a = Exp(x) [node] y = If <then_branch = ..., else_branch = ...> (c) }";
    let one =
        "t (float[k,1000] outer_a) => (float[r,1000] o) { p = Exp(outer_a) s = Exp(p) o = Exp(s) }";
    let same = "e (float[k,1000] outer_a) => (float[r,1000] o) { o = Neg(outer_a) }";
    let narrow = "e (float[k,1000] outer_a) => (float[r,10] o) { s = Constant <value_ints = [100]> () a = Constant <value_ints = [1]> ()
        z = Constant <value_ints = [0]> () o = Slice(outer_a, z, s, a) }";
    // p and s, and the runtime's own share.
    insta::assert_snapshot!(bodies(outer, &[("then_branch", one), ("else_branch", same)]), @"[5, 1000] 11472 floats");
    insta::assert_snapshot!(bodies(outer, &[("then_branch", one), ("else_branch", narrow)]), @"[5, 1000] 11472 floats");
    let unknown =
        "e (float[k,1000] outer_a) => (float[r,1000] o) { [frob] o = acme.Frob(outer_a) }";
    insta::assert_snapshot!(bodies(outer, &[("then_branch", one), ("else_branch", unknown)]), @r#"node "node" (If), in its else_branch: node "frob" (acme::Frob): nothing says the shape of its output "o", declared as [r, 1000]; expected it in the file's value_info (onnx.shape_inference.infer_shapes adds it for standard operators), or a size for r"#);
    // Sizes that do not fit are those of a branch that is not taken.
    let wrong = "e (float[k,1000] outer_a) => (float[r,1000] o) { w = Constant <value_floats = [1.0, 2.0]> () [add] o = Add(outer_a, w) }";
    insta::assert_snapshot!(bodies(outer, &[("then_branch", one), ("else_branch", wrong)]), @"[5, 1000] 11472 floats");
    insta::assert_snapshot!(bodies(outer, &[("then_branch", wrong), ("else_branch", wrong)]), @r#"node "node" (If), in its then_branch: node "add" (Add): shapes [5, 1000] and [2] do not fit: they do not broadcast"#);
}

/// At run time it takes nothing, but the runtime says of the results what both branches say.
#[test]
fn the_branch_that_a_constant_does_not_choose_is_known_and_not_counted() {
    let outer = "g (float[n,1000] x) => (float[q,1000] y) <bool[1] c = {1}>
        { outer_a = Exp(x) [node] y = If <then_branch = ..., else_branch = ...> (c) }";
    let less = "t (float[k,1000] outer_a) => (float[r,1000] o) { o = Neg(outer_a) }";
    let more =
        "e (float[k,1000] outer_a) => (float[r,1000] o) { p = Exp(outer_a) s = Exp(p) o = Exp(s) }";
    let branches = [("then_branch", less), ("else_branch", more)];
    insta::assert_snapshot!(bodies(outer, &branches), @"[5, 1000] 1290 floats");
    let mut graph = with_bodies(outer, "node", &branches);
    run(&mut graph, &[("n", 5)]).unwrap();
    let known = crate::runtime::known_shapes::runtime_shapes(&graph);
    let y = graph.tensor_named("y").unwrap();
    assert!(graph.node(graph.order()[1]).bodies[1].shaped.is_some());
    assert!(known[y.index()].is_some());
}

#[test]
fn sizes_follow_through_iterations() {
    let outer = "g (float[n,1000] outer_x, int64 m, bool c) => (float[q,1000] y)
        { t = Constant <value_int = 3> () [node] y, all = Loop <body = ...> (t, c, outer_x) }";
    let kept =
        "b (int64 i, bool going, float[k,1000] s) => (bool go, float[r,1000] o, float[r,1000] part)
        { go = Identity(going) o = Exp(s) part = Neg(o) }";
    // At the end: two last values, three parts, and three that are put together; of these four are results.
    insta::assert_snapshot!(bodies(outer, &[("body", kept)]), @r#"[5, 1000] 25000 floats"#);
    let growing =
        "b (int64 i, bool going, float[k,1000] s) => (bool go, float[r,1000] o, float[r,1000] part)
        { go = Identity(going) o = Concat <axis = 0> (s, s) part = Neg(s) }";
    insta::assert_snapshot!(bodies(outer, &[("body", growing)]), @r#"node "node" (Loop): nothing says the shape of its output "all"; expected it in the file's value_info (onnx.shape_inference.infer_shapes adds it for standard operators), or a size for q"#);
    let unknown = outer.replace("(t, c, outer_x)", "(m, c, outer_x)");
    insta::assert_snapshot!(bodies(&unknown, &[("body", kept)]), @r#"node "node" (Loop): nothing says the shape of its output "all"; expected it in the file's value_info (onnx.shape_inference.infer_shapes adds it for standard operators), or a size for all:0"#);
}

#[test]
fn sizes_follow_through_slices() {
    let outer = "g (float[n,1000] s, float[7,n,1000] x) => (float[7,q,1000] y)
        { [node] last, y = Scan <body = ..., num_scan_inputs = 1> (s, x) }";
    let body = "b (float[k,1000] s, float[k,1000] e) => (float[r,1000] o, float[r,1000] part)
        { o = Add(s, e) part = Neg(o) }";
    insta::assert_snapshot!(bodies(outer, &[("body", body)]), @r#"[7, 5, 1000] 11360 floats"#);
    let axis = outer.replace(
        "num_scan_inputs = 1",
        "num_scan_inputs = 1, scan_output_axes = [1]",
    );
    insta::assert_snapshot!(bodies(&axis, &[("body", body)]), @r#"[5, 7, 1000] 46360 floats"#);
}

#[test]
fn sizes_of_dimensions_that_are_gone_are_forgotten() {
    let graph = Graph::parse("g (float[M] x) => (float[unk__1] y) { y = Relu(x) }").unwrap();
    let names = ["M", "N", "unk__*", "other*"];
    let mut bindings = names.map(|name| (name.to_owned(), 4)).into();
    retain_existing(&mut bindings, &graph);
    let left: Vec<&str> = bindings.keys().map(String::as_str).collect();
    assert_eq!(left, ["M", "unk__*"]);
}

#[test]
fn gradients_of_something_else_are_refused_unless_sizes_are_bounds() {
    let gradient: (&str, &[&str], &str) = ("com.microsoft::SigmoidGrad", &["dy", "y"], "dx");
    let of = |dy: &[Dimension], y: &[Dimension]| graph(&[("dy", dy), ("y", y)], &[gradient]);
    let (rows, one) = ([symbol("rows"), symbol("n")], [symbol("one"), symbol("n")]);
    let mut g = of(&rows, &one);
    insta::assert_snapshot!(fault(&mut g, &[("rows", 2), ("n", 3), ("one", 1)]), @r#"node "SigmoidGrad_dx" (com.microsoft::SigmoidGrad): its gradient has shape [2, 3], and what it is of has [1, 3]: a step would read or write behind their memory"#);
    assert_eq!(
        run(&mut of(&rows, &one), &[("rows", 2), ("n", 3), ("one", 2)]),
        Ok(Changed::Yes)
    );
    // Of what is chosen there may be less than that.
    let mut g = graph(
        &[("x", &rows), ("y", &one)],
        &[
            ("NonZero", &["x"], "places"),
            ("Cast", &["places"], "dy"),
            gradient,
        ],
    );
    g.node_mut(NodeId(1))
        .set_attribute("to", AttributeValue::Int(1));
    assert_eq!(
        run(&mut g, &[("rows", 2), ("n", 3), ("one", 1)]),
        Ok(Changed::Yes)
    );
}

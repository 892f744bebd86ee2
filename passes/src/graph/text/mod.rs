//! ONNX's textual syntax: tests write graphs in it, dumps and snapshots show graphs in it.
//!
//! The syntax is that of `onnx.parser` and `onnx.printer`, as of ONNX 1.18: a name that is not an
//! identifier is quoted (`"layer1/conv:0"`), a node's name stands in brackets before it
//! (`[relu_1] y = Relu(x)`), an omitted input or output is `""`. Three things are added, for what
//! a [`Graph`] knows of but does not hold:
//!
//! - `{...}` are contents that are not shown: `float[64,3,7,7] w = {...}`;
//! - `...` is an attribute that is not modelled: `If <then_branch = ...> (c)`;
//! - after a `;` stand the outer tensors that a node's subgraphs read: `If(c; x, y)`.
//!
//! In strings and quoted names, a backslash stands before `"` and `\`; `\xHH` is a byte that is
//! not UTF-8.

mod diff;
mod lexer;
mod parser;
mod printer;
mod values;

pub use diff::diff;

use super::Graph;

/// Why a text is not a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: expected {expected}, found {found}")]
pub struct TextError {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// What could have stood there.
    pub expected: String,
    /// What stands there.
    pub found: String,
}

impl Graph {
    /// Reads a model or a graph. Only the syntax is checked: a name that nobody writes becomes a
    /// tensor without a producer, for [`crate::verify::structure`] to find. Tensors whose
    /// dimensions are all numbers get their concrete shape.
    pub fn parse(text: &str) -> Result<Graph, TextError> {
        parser::parse(text)
    }

    /// The whole graph as text, which [`Graph::parse`] reads back: the same nodes, tensors and
    /// types (a concrete shape stands for the declared one), tensors possibly numbered otherwise.
    pub fn to_text(&self) -> String {
        printer::to_text(self)
    }

    /// One short line per node, in order: outputs, operator, inputs, and attributes only if their
    /// names start with `__`.
    pub fn to_listing(&self) -> String {
        printer::to_listing(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{AttributeValue, Constant, Dimension, ElementType, TensorKind};

    const SAMPLE: &str = r#"<
   ir_version: 8,
   opset_import: ["" : 15, "com.microsoft" : 1],
   producer_name: "pytorch"
>
agraph (float[N,3] X, float[3] W, int64[] "lazy reset") => (float[N] Y)
   <float[3] c =  {1,2.5,-inf}, int64 s = {4}, float[2,?] big = {...}, float[4,3] t, seq(float[N]) q>
{
   # a comment
   [relu] h = Relu (X)
   Y, m = com.microsoft.Foo <alpha: float = 1, perm = [0, 1], s = "a\"b\\", ss=["x"], f=[1.0, 2],
      v = int64[2] {1,2}, e : ints = [], neg = -3, tiny=1e-05, body = ...> (h, , W; t, q)
   "a/b:0" , "" = ai.onnx.Add(h, c) <__k = 1>
}"#;

    #[test]
    fn text_survives_reading_and_writing() {
        let graph = Graph::parse(SAMPLE).unwrap();
        let text = graph.to_text();
        insta::assert_snapshot!(text, @r#"
        <ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>
        agraph (float[N,3] X, float[3] W, int64[] "lazy reset") => (float[N] Y)
        <
           float[3] c = {1.0, 2.5, -inf},
           int64 s = {4},
           float[2,?] big = {...},
           float[4,3] t
        >
        {
           [relu] h = Relu(X)
           Y, m = com.microsoft.Foo <alpha = 1.0, perm = [0, 1], s = "a\"b\\", ss = ["x"], f = [1.0, 2.0], v = int64[2] {1, 2}, e : ints = [], neg = -3, tiny = 1e-5, body = ...> (h, "", W; t, q)
           "a/b:0", "" = Add <__k = 1> (h, c)
        }
        "#);
        assert_eq!(Graph::parse(&text).unwrap().to_text(), text);
    }

    #[test]
    fn the_listing_is_one_short_line_per_node() {
        insta::assert_snapshot!(Graph::parse(SAMPLE).unwrap().to_listing(), @r#"
        h = Relu(X)
        Y, m = Foo(h, "", W; t, q)
        "a/b:0", "" = Add <__k = 1> (h, c)
        "#);
    }

    #[test]
    fn tensors_get_type_shape_contents_and_owner() {
        let graph = Graph::parse(SAMPLE).unwrap();
        let tensor = |name| graph.tensor(graph.tensor_named(name).unwrap());

        assert_eq!(tensor("X").kind, TensorKind::Input);
        assert_eq!(
            tensor("X").declared,
            Some(vec![Dimension::Symbol("N".into()), Dimension::Known(3)])
        );
        assert_eq!(tensor("X").shape, None);
        assert_eq!(tensor("W").shape, Some(vec![3]));
        assert_eq!(tensor("lazy reset").element, Some(ElementType::Int64));
        assert_eq!(tensor("lazy reset").declared, None);

        assert_eq!(tensor("c").kind, TensorKind::Initializer);
        assert_eq!(
            tensor("c").constant,
            Some(Constant::Floats(vec![1.0, 2.5, f64::NEG_INFINITY]))
        );
        assert_eq!(tensor("s").shape, Some(vec![]));
        assert_eq!(tensor("s").constant, Some(Constant::Ints(vec![4])));
        assert_eq!(tensor("big").kind, TensorKind::Initializer);
        assert_eq!(tensor("big").constant, None);

        assert_eq!(tensor("t").kind, TensorKind::Value);
        assert_eq!(tensor("q").element, None);
        assert_eq!(tensor("m").element, None);
    }

    #[test]
    fn an_input_with_contents_is_an_initializer() {
        // The second form is how onnx.printer of ONNX 1.16 shows the first.
        for text in [
            "g (float[2] x, float[2] w = {1, 2}) => (float[2] y) { y = Add(x, w) }",
            "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }",
        ] {
            let graph = Graph::parse(text).unwrap();
            let w = graph.tensor_named("w").unwrap();
            assert_eq!(graph.inputs, [graph.tensor_named("x").unwrap(), w]);
            assert_eq!(graph.tensor(w).kind, TensorKind::Initializer);
            assert_eq!(
                graph.to_text().lines().next(),
                Some("g (float[2] x, float[2] w = {1.0, 2.0}) => (float[2] y)")
            );
        }
    }

    #[test]
    fn omitted_names_keep_their_positions() {
        let text = r#"g (x) => (y) { "", y, "" = F("", x, , x) z = G() }"#;
        let graph = Graph::parse(text).unwrap();
        let [x, y] = ["x", "y"].map(|name| graph.tensor_named(name));
        let node = graph.node(graph.order()[0]);
        assert_eq!(node.inputs, [None, x, None, x]);
        assert_eq!(node.outputs, [None, y, None]);
        assert_eq!(graph.node(graph.order()[1]).inputs, []);
    }

    #[test]
    fn numbers_keep_their_exact_values() {
        let value = |text: &str| {
            let text = format!("g () => () {{ y = F<a = {text}>() }}");
            let node = |graph: &Graph| graph.node(graph.order()[0]).attribute("a").cloned();
            let graph = Graph::parse(&text).unwrap();
            let again = Graph::parse(&graph.to_text()).unwrap();
            assert_eq!(node(&graph), node(&again));
            node(&graph).unwrap()
        };
        assert_eq!(value("-9223372036854775808"), AttributeValue::Int(i64::MIN));
        assert_eq!(value("3.4028235e38"), AttributeValue::Float(f32::MAX));
        assert_eq!(value("1e-45"), AttributeValue::Float(f32::from_bits(1)));
        assert_eq!(value("-inf"), AttributeValue::Float(f32::NEG_INFINITY));
        assert_eq!(value("0.1"), AttributeValue::Float(0.1));
        assert_eq!(value("[1, 0.5]"), AttributeValue::Floats(vec![1.0, 0.5]));
        assert_eq!(
            value(r#""\xff\\xff""#),
            AttributeValue::String(b"\xff\\xff".to_vec())
        );
        assert_eq!(
            value("bool[2] {0, 1}"),
            AttributeValue::Tensor {
                element: ElementType::Bool,
                shape: vec![2],
                constant: Some(Constant::Ints(vec![0, 1]))
            }
        );
    }

    #[test]
    fn errors_say_where_and_what_was_expected() {
        let error = |text: &str| Graph::parse(text).unwrap_err().to_string();
        insta::assert_snapshot!(error(""), @"line 1, column 1: expected the graph's name, found the end");
        insta::assert_snapshot!(error("g (float[2] x => () {}"), @"line 1, column 15: expected `,` or `)`, found `=>`");
        insta::assert_snapshot!(error("g (float[-1] x) => () {}"), @"line 1, column 10: expected a dimension: a size, a name or `?`, found `-1`");
        insta::assert_snapshot!(error("g (float[99999999999999999999] x) => () {}"), @"line 1, column 10: expected a 64-bit integer, found `99999999999999999999`");
        insta::assert_snapshot!(error("g (x, x) => () {}"), @"line 1, column 7: expected an input's name that is not taken, found `x`");
        insta::assert_snapshot!(error("g (float x) => (int64 x) {}"), @"line 1, column 17: expected the type that was declared before, found `int64`");
        insta::assert_snapshot!(error("g () => () <int64[2] c = {1}> {}"), @"line 1, column 26: expected 2 elements, found 1");
        insta::assert_snapshot!(error("g () => () <int64[1] c = {1.5}> {}"), @"line 1, column 27: expected an integer, found `1.5`");
        insta::assert_snapshot!(error("g () => () <c = {1}, c = {1}> {}"), @"line 1, column 22: expected only one initializer of that name, found `c`");
        insta::assert_snapshot!(error("g () => () {\n  y = F<a = []>()\n}"), @"line 2, column 14: expected an element, or the list's type before it, found `]`");
        insta::assert_snapshot!(error("g () => () {\n  y = F<a : ints = 1>()\n}"), @"line 2, column 20: expected a value of type ints, found `1`");
        insta::assert_snapshot!(error("g () => () {\n  y = F<a = 1, a = 2>()\n}"), @"line 2, column 16: expected an attribute that is not there yet, found `a`");
        insta::assert_snapshot!(error("g () => () {\n  y = F(\u{e9})\n}"), @"line 2, column 9: expected a name, a number, a string or punctuation, found `é`");
        insta::assert_snapshot!(error("g () => () { y = F<a = \"b>() }"), @"line 1, column 31: expected a closing quote, found the end");
        insta::assert_snapshot!(error("g () => () { y = F()"), @"line 1, column 21: expected a tensor's name, found the end");
        insta::assert_snapshot!(error("g () => () { } g"), @"line 1, column 16: expected the end, found `g`");
        insta::assert_snapshot!(error("g (seq(seq(float x) => () { }"), @"line 1, column 30: expected `)`, found the end");
    }

    #[test]
    fn the_bundled_graphs_survive_reading_and_writing() {
        for (text, nodes) in [
            (
                include_str!("../../../../testdata/text/mlp_train.onnxtxt"),
                15,
            ),
            (
                include_str!("../../../../testdata/text/conv_bn_relu_train.onnxtxt"),
                33,
            ),
            (
                include_str!("../../../../testdata/text/residual_train.onnxtxt"),
                34,
            ),
        ] {
            let graph = Graph::parse(text).unwrap();
            assert_eq!(graph.node_count(), nodes);
            assert!(
                graph
                    .tensor_ids()
                    .all(|id| graph.tensor(id).bytes().is_some())
            );
            let text = graph.to_text();
            assert_eq!(Graph::parse(&text).unwrap().to_text(), text);
        }
    }

    #[test]
    fn no_text_makes_the_parser_panic() {
        // Every prefix, and every text with one byte replaced.
        for end in (0..SAMPLE.len()).filter(|&end| SAMPLE.is_char_boundary(end)) {
            assert!(Graph::parse(&SAMPLE[..end]).is_err());
        }
        for at in 0..SAMPLE.len() {
            for byte in [b'"', b'<', b'[', b'}', b'\\', b'x', b'.', b'-', b' '] {
                let mut bytes = SAMPLE.as_bytes().to_vec();
                bytes[at] = byte;
                if let Ok(graph) = Graph::parse(&String::from_utf8(bytes).unwrap()) {
                    assert!(
                        Graph::parse(&graph.to_text()).is_ok(),
                        "{}",
                        graph.to_text()
                    );
                }
            }
        }
    }
}

//! What `value_info` says after a change, and which changes cannot be written.

use ckpt_opt::onnx::{ExportError, export, export_with};
use ckpt_passes::graph::{
    AttributeValue, Constant, Dimension, ElementType, Graph, Node, Tensor, TensorKind,
};

use crate::changed::{everything, pair, second_reader, tensor};
use crate::{node_named, read, rewritten};

#[test]
fn new_tensors_are_declared_and_old_declarations_stay() {
    let declared = vec![Dimension::Symbol("batch".to_owned()), Dimension::Unknown];
    let bytes = rewritten(everything(), |graph| {
        let x = graph.tensor_named("x");
        // Inferred, but declared nowhere: sizes that may follow from a binding are not written.
        let dropped = graph.tensor_named("dropped").unwrap();
        graph.tensor_mut(dropped).shape = Some(vec![1, 3]);
        let symbolic = Tensor {
            declared: Some(declared.clone()),
            ..pair("symbolic")
        };
        for tensor in [
            pair("inferred"),
            Tensor {
                declared: Some(vec![Dimension::Known(2)]),
                ..pair("number")
            },
            symbolic,
            Tensor::new("untyped", TensorKind::Value),
        ] {
            let output = Some(graph.add_tensor(tensor));
            graph.add_node(Node::new("", "", "Relu", vec![x], vec![output]));
        }
    });
    let (before, after) = (second_reader(&everything()), second_reader(&bytes));
    let (old, new) = after
        .graph
        .value_info
        .split_at(before.graph.value_info.len());
    assert_eq!(old, before.graph.value_info);
    let names: Vec<&str> = new.iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["number", "symbolic"]);
    let (_, graph) = read(bytes);
    let symbolic = graph.tensor(graph.tensor_named("symbolic").unwrap());
    assert_eq!(symbolic.declared, Some(declared));
    let number = graph.tensor(graph.tensor_named("number").unwrap());
    assert_eq!(number.declared, Some(vec![Dimension::Known(2)]));
    assert_eq!(number.element, Some(ElementType::Float));
}

#[test]
fn metadata_takes_the_place_of_what_stands_under_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = everything();
    for (number, value) in ["old", "first", "second"].into_iter().enumerate() {
        let (model, mut graph) = read(bytes);
        let x = graph.tensor_named("x");
        let new = pair(&format!("new_{number}"));
        let output = Some(graph.add_tensor(new));
        graph.add_node(Node::new("", "", "Relu", vec![x], vec![output]));
        let out = folder.path().join(format!("{number}.onnx"));
        let metadata = [("ckpt-opt.test".to_owned(), format!("it is {value}"))];
        let pending = export_with(&model, &graph, &out, &metadata).unwrap();
        pending.commit().unwrap();
        bytes = std::fs::read(&out).unwrap();
    }
    let count = |text: &str| {
        let found = bytes
            .windows(text.len())
            .filter(|at| *at == text.as_bytes());
        found.count()
    };
    assert_eq!((count("ckpt-opt.test"), count("it is second")), (1, 1));
    assert_eq!(count("it is first"), 0);
}

#[test]
fn metadata_of_an_earlier_plan_gives_way_to_that_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let own = |key: &str, value: &str| (format!("ckpt-opt.{key}"), value.to_owned());
    let written = |bytes: Vec<u8>, changes: bool, metadata: &[(String, String)]| {
        let (model, mut graph) = read(bytes);
        if changes {
            let (x, new) = (graph.tensor_named("x"), pair("new"));
            let output = Some(graph.add_tensor(new));
            graph.add_node(Node::new("", "", "Relu", vec![x], vec![output]));
        }
        let out = folder.path().join("out.onnx");
        export_with(&model, &graph, &out, metadata)
            .unwrap()
            .commit()
            .unwrap();
        std::fs::read(&out).unwrap()
    };
    let first = [own("budget_bytes", "1"), own("provider_options", "{}")];
    let planned = written(everything(), true, &first);
    let keys = |bytes: &[u8]| -> Vec<(String, String)> {
        let entries = second_reader(bytes).metadata_props.into_iter();
        let entries = entries.map(|entry| (entry.key, entry.value));
        entries
            .filter(|(key, _)| key.starts_with("ckpt-opt."))
            .collect()
    };
    assert_eq!(keys(&planned), first);
    // The graph fits as it is, with another budget: that stands there now, and nothing else of the first.
    let second = [own("budget_bytes", "2")];
    let again = written(planned.clone(), false, &second);
    assert_eq!(keys(&again), second);
    // What says nothing of a plan stays as it is.
    assert_eq!(written(everything(), false, &second), everything());
}

#[test]
fn a_value_that_is_declared_otherwise_gets_that_declaration() {
    let other = vec![Dimension::Symbol("b_1".to_owned()), Dimension::Known(3)];
    let bytes = rewritten(everything(), |graph| {
        let gemm = graph.tensor_named("gemm").unwrap();
        graph.tensor_mut(gemm).declared = Some(other.clone());
    });
    let after = second_reader(&bytes);
    assert_eq!(after.graph.value_info[0].doc_string, "what gemm gives");
    assert_eq!(
        after.graph.value_info.len(),
        second_reader(&everything()).graph.value_info.len()
    );
    let (_, graph) = read(bytes);
    assert_eq!(
        graph.tensor(graph.tensor_named("gemm").unwrap()).declared,
        Some(other)
    );
}

/// Why `change` of everything.onnx cannot be written.
fn refusal(change: impl FnOnce(&mut Graph)) -> String {
    let (model, mut graph) = read(everything());
    change(&mut graph);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.onnx");
    let error: ExportError = export(&model, &graph, &out).unwrap_err();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    error.to_string()
}

#[test]
fn what_a_splice_would_lose_is_refused() {
    let in_gemm = |value: AttributeValue| {
        refusal(|graph| {
            let id = node_named(graph, "gemm");
            graph.node_mut(id).set_attribute("new", value);
        })
    };
    let refusals = [
        refusal(|graph| graph.inputs.clear()),
        refusal(|graph| graph.outputs = graph.outputs.iter().rev().copied().collect()),
        refusal(|graph| *graph.opsets.get_mut("").unwrap() = 20),
        refusal(|graph| {
            graph.add_tensor(Tensor::new("new", TensorKind::Initializer));
        }),
        refusal(|graph| {
            let y = graph.tensor_named("y").unwrap();
            graph.tensor_mut(y).declared = Some(vec![]);
        }),
        refusal(|graph| {
            let x = graph.tensor_named("x").unwrap();
            let id = node_named(graph, "gemm");
            graph.node_mut(id).captures.push(x);
        }),
        refusal(|graph| {
            let id = node_named(graph, "gemm");
            graph.node_mut(id).template = Some(99);
        }),
        in_gemm(AttributeValue::Opaque),
        in_gemm(tensor(
            ElementType::Float,
            vec![2],
            Constant::Floats(vec![1.0]),
        )),
        in_gemm(tensor(
            ElementType::Int32,
            vec![1],
            Constant::Ints(vec![1 << 40]),
        )),
    ];
    insta::assert_snapshot!(refusals.join("\n"), @r#"
    the graph's inputs are not those of the model it is written into
    the graph's outputs are not those of the model it is written into
    the graph's operator set versions are not those of the model it is written into
    tensor "new" is an initializer that the model does not have
    tensor "y" is declared otherwise than in the model, which only values can be
    node "gemm": its subgraphs read ["x"], those of its template []
    node "gemm": its template, node 99 of the input, does not exist
    node "gemm": attribute "new" has no value that can be written, and its template does not have it
    node "gemm": attribute "new" holds a tensor whose contents are unknown or do not fit its type
    node "gemm": attribute "new" holds a tensor whose contents are unknown or do not fit its type
    "#);
}

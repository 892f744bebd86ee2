use super::*;
use crate::cost::Nanos;
use crate::graph::text::diff;
use crate::graph::{Constant, ElementType, Node, Tensor, TensorKind, Uses};
use crate::runtime::barrier_kind::BarrierKind;
use crate::runtime::level::Level;
use crate::runtime::liveness::Liveness;
use crate::runtime::order::ExecutionOrder;
use crate::testing::random_training_graph;
use crate::verify;

const CPU: Provider = Provider::Cpu;

/// In lean settings, where objects of tensors take nothing.
fn lean(release: &'static crate::runtime::Release) -> Conditions<'static> {
    Conditions {
        object: Bytes::ZERO,
        provider: CPU,
        runtime: release.with(crate::runtime::settings::RuntimeSettings::LEAN),
        sequences: &[],
        watch: None,
    }
}

/// The peak with a barrier before every node.
fn smallest_peak(of: &Enforceable<'_>) -> Bytes {
    liveness::fixed_bytes(&of.graph) + Bytes(of.smallest())
}

fn free(graph: &Graph) -> Vec<Cost> {
    let nothing = Cost {
        time: Nanos(1),
        workspace: Bytes::ZERO,
    };
    vec![nothing; graph.node_count()]
}

fn peaks(graph: &Graph) -> [u64; 2] {
    ExecutionOrder::ALL.map(|order| Liveness::simulate(graph, order, CPU, &free(graph)).peak.0)
}

/// The nodes of a graph, by name, as they run in this order.
fn runs(graph: &Graph, order: ExecutionOrder) -> Vec<&str> {
    let run = Liveness::simulate(graph, order, CPU, &free(graph));
    let nodes = run.order.into_iter();
    nodes.map(|id| graph.node(id).name.as_str()).collect()
}

fn enforceable<'c>(graph: &Graph, sequences: &'c [(NodeId, NodeId)]) -> Enforceable<'c> {
    let conditions = Conditions {
        object: Bytes::ZERO,
        provider: CPU,
        runtime: Runtime::LEAN,
        sequences,
        watch: None,
    };
    Enforceable::new(graph.clone(), free(graph), conditions)
}

/// The graph with its order enforced; pairs of nodes by name.
fn enforced(
    graph: &Graph,
    budget: u64,
    sequences: &[(&str, &str)],
) -> Result<Graph, NotEnforceable> {
    let named = |name: &str| {
        let found = graph
            .order()
            .iter()
            .find(|id| graph.node(**id).name == name);
        *found.unwrap_or_else(|| panic!("no node is called {name}"))
    };
    let sequences: Vec<_> = sequences
        .iter()
        .map(|(first, second)| (named(first), named(second)))
        .collect();
    let enforceable = enforceable(graph, &sequences);
    let enforced = enforceable.within(Bytes(budget), Thinning::Thorough)?;
    verify::structure(&enforced).unwrap();
    Ok(enforced)
}

fn changes(graph: &Graph, enforced: &Graph) -> String {
    diff(&graph.to_listing(), &enforced.to_listing())
}

/// `again` computes `a` a second time for the last node.
const MIRROR: &str = r#"g (float[25] x, float[25] dy) => (float[25] dx)
   <float[25] a, float[25] b, float[25] c, float[25] dc, float[25] db, float[25] a2>
{
   [exp] a = Exp(x)
   [exp2] b = Exp(a)
   [exp3] c = Exp(b)
   [exp3_grad] dc = Mul(dy, c)
   [exp2_grad] db = Mul(dc, b)
   [again] a2 = Exp(x)
   [exp_grad] dx = Mul(db, a2)
}"#;

/// The same for builds without training, which move no Size: what it reads lives until then.
#[test]
fn without_a_pass_through_a_barrier_is_a_reshape_to_the_least_of_sizes() {
    let text = format!("<ir_version: 8, opset_import: [\"\" : 15]> {MIRROR}");
    let graph = Graph::parse(&text).unwrap();
    let runtime = crate::runtime::STOCK.with(crate::runtime::settings::RuntimeSettings::LEAN);
    let conditions = Conditions {
        object: Bytes::ZERO,
        provider: CPU,
        runtime,
        sequences: &[],
        watch: None,
    };
    // 8 bytes for the size, and 8 for the shape of one axis, which are there with db, a2's input and x.
    let enforceable = Enforceable::new(graph.clone(), free(&graph), conditions);
    let enforced = enforceable.within(Bytes(520), Thinning::Thorough).unwrap();
    insta::assert_snapshot!(changes(&graph, &enforced), @r#"
      db = Mul(dc, b)
    - a2 = Exp(x)
    + "ckpt-opt/barrier_0/size_0" = Size(db)
    + "ckpt-opt/barrier_0/zeros" = Constant()
    + "ckpt-opt/barrier_0/shape" = Min("ckpt-opt/barrier_0/size_0", "ckpt-opt/barrier_0/zeros")
    + "x/barrier_0" = Reshape(x, "ckpt-opt/barrier_0/shape")
    + a2 = Exp("x/barrier_0")
      dx = Mul(db, a2)
    "#);
    assert_eq!(runs(&enforced, ExecutionOrder::Default)[0], "exp");
    verify::equivalence(&graph, &enforced, &Default::default()).unwrap();
    // On a GPU, where the graph runs as it is, no size is read, if the operators allow.
    let on_gpu = crate::runtime::STOCK.on(Provider::Cuda, Some(Level::DisableAll));
    let conditions = Conditions {
        runtime: on_gpu.with(crate::runtime::settings::RuntimeSettings::LEAN),
        ..conditions
    };
    let enforceable = Enforceable::new(graph.clone(), free(&graph), conditions);
    let enforced = enforceable.within(Bytes(520), Thinning::Thorough).unwrap();
    insta::assert_snapshot!(changes(&graph, &enforced), @r#"
      db = Mul(dc, b)
    - a2 = Exp(x)
    + "ckpt-opt/barrier_0/nothing_0" = Shape(db)
    + "ckpt-opt/barrier_0/zeros" = Constant()
    + "ckpt-opt/barrier_0/shape" = Concat("ckpt-opt/barrier_0/nothing_0", "ckpt-opt/barrier_0/zeros")
    + "x/barrier_0" = Reshape(x, "ckpt-opt/barrier_0/shape")
    + a2 = Exp("x/barrier_0")
      dx = Mul(db, a2)
    "#);
    verify::equivalence(&graph, &enforced, &Default::default()).unwrap();
    let old = Graph::parse(&text.replace(": 15", ": 14")).unwrap();
    let enforceable = Enforceable::new(old.clone(), free(&old), conditions);
    let enforced = enforceable.within(Bytes(520), Thinning::Thorough).unwrap();
    assert!(enforced.to_listing().contains("= Size(db)"));
    // Of an older operator set Min takes no integers: there are no barriers.
    let old = Graph::parse(&text.replace(": 15", ": 11")).unwrap();
    let enforceable = Enforceable::new(old.clone(), free(&old), conditions);
    assert!(enforceable.within(Bytes(520), Thinning::Thorough).is_err());
}

/// The product does the multiplication by the way at ORT_ENABLE_ALL, and rounds once: apart they have other bits.
#[test]
fn without_a_pass_through_no_barrier_parts_what_is_fused_and_rounds_otherwise_then() {
    let text = r#"<ir_version: 8, opset_import: ["" : 15]>
        g (float[5,5] x, float[5,5] w) => (float[5,5] y, float[5,5] z) <float tenth = {0.1}, float[5,5] a, float[5,5] s, float[5,5] h> {
            a = Exp(x) s = Mul(a, tenth) b = Exp(x) c = Exp(b) h = Identity(s) p = MatMul(h, w) y = Exp(p) z = Add(c, s) }"#;
    let parted_in = |text: &str, between: &str, release: &'static crate::runtime::Release| {
        let text = match between {
            "" => text.to_owned(),
            _ => text.replace("Identity(s)", between),
        };
        let graph = Graph::parse(&text).unwrap();
        let conditions = lean(release);
        let enforceable = Enforceable::new(graph.clone(), free(&graph), conditions);
        let placement = enforceable.placement();
        let barriers = placement.barriers(&vec![true; placement.len()]);
        let scaled = ["s", "h"].map(|name| graph.tensor_named(name).unwrap().0);
        let is_scaled = |tensor: &u32| scaled.contains(tensor);
        let reads =
            |barrier: &Barrier| is_scaled(&barrier.passed) || barrier.waits.iter().any(is_scaled);
        assert!(!barriers.is_empty());
        barriers.iter().any(reads)
    };
    let parted = |between, release| parted_in(text, between, release);
    let transpose = "Transpose <perm = [1, 0]> (s)";
    for between in ["Identity(s)", transpose] {
        assert!(!parted(between, &crate::runtime::STOCK), "{between}");
        assert!(parted(between, &crate::runtime::TRAINING), "{between}");
    }
    assert!(parted("Exp(s)", &crate::runtime::STOCK));
    // It reads a Transpose's input transposed, and sums up many terms in another sequence then.
    let transposed = text.replace("Mul(a, tenth)", "Transpose <perm = [1, 0]> (a)");
    assert!(!parted_in(
        &transposed,
        "Identity(s)",
        &crate::runtime::STOCK
    ));
    assert!(parted_in(&transposed, "Exp(s)", &crate::runtime::STOCK));
    // Nor through a Cast.
    let cast = transposed
        .replace("float[5,5] x,", "float16[5,5] x,")
        .replace(
            "float[5,5] a, float[5,5] s,",
            "float16[5,5] a, float16[5,5] s,",
        )
        .replace("z = Add(c, s)", "z = Cast <to = 1> (c)");
    let through = "Cast <to = 1> (s)";
    assert!(!parted_in(&cast, through, &crate::runtime::STOCK));
    let second = cast.replace("MatMul(h, w)", "MatMul(w, h)");
    assert!(parted_in(&second, through, &crate::runtime::STOCK));
    // Nor where a product by one is between.
    let idle = text.replace("Identity(s)", "Mul(s, unit)");
    let idle = idle.replace(
        "<float tenth = {0.1},",
        "<float tenth = {0.1}, float unit = {1.0},",
    );
    assert!(!parted_in(&idle, "", &crate::runtime::STOCK));
    assert!(parted_in(
        &idle
            .replace("{1.0}", "{2.0}")
            .replace("MatMul(h, w)", "Add(h, w)"),
        "",
        &crate::runtime::STOCK
    ));
    // Nor between an inverse and what becomes a division.
    let inverse = text.replace("{0.1}", "{1.0}");
    let inverse = inverse.replace("Mul(a, tenth)", "Div(tenth, a)");
    assert!(parted_in(&inverse, "Identity(s)", &crate::runtime::STOCK));
    let divided = inverse.replace("MatMul(h, w)", "Mul(h, w)");
    assert!(!parted_in(&divided, "Identity(s)", &crate::runtime::STOCK));
    // Not as its second matrix.
    let second = transposed.replace("MatMul(h, w)", "MatMul(w, h)");
    assert!(parted_in(&second, "Identity(s)", &crate::runtime::STOCK));
}

/// The runtime makes one Reshape of two, if nobody else reads what the first writes.
#[test]
fn without_a_pass_through_no_barrier_reads_what_a_gemm_writes_that_reads_past_a_transpose() {
    let text = r#"<ir_version: 8, opset_import: ["" : 15]>
        g (float[9,5] x, float[9,7] d, float[9,7] e) => (float[5,7] y, float[9,5] z, float[9,7] u)
        <float[5,9] s, float[5,9] t, float[5,7] a, float[5,7] b, float[5,7] c, float[9,5] n, float[9,7] m>
        { s = Transpose <perm = [1, 0]> (x) a = MatMul(s, d) n = Neg(x) t = Transpose <perm = [1, 0]> (n) m = Exp(e)
          b = MatMul(t, m) c = Add(a, b) z = Exp(n) y = Neg(c) u = Exp(m) }"#;
    let touched = |text: &str, release| {
        let graph = Graph::parse(text).unwrap();
        let enforceable = Enforceable::new(graph.clone(), free(&graph), lean(release));
        let placement = enforceable.placement();
        let barriers = placement.barriers(&vec![true; placement.len()]);
        assert!(!barriers.is_empty());
        let sum = graph.tensor_named("c").unwrap().0;
        let reads = |of: &Barrier| of.passed == sum || of.waits.contains(&sum);
        barriers.iter().any(reads)
    };
    assert!(!touched(text, &crate::runtime::STOCK));
    assert!(touched(text, &crate::runtime::TRAINING));
    // A sum that is read twice is none of those, and the second matrix leaves the bits alone.
    let twice = text.replace("z = Exp(n)", "z = Sum(n, n) v = Exp(c)");
    let twice = twice.replace("float[9,7] u)", "float[9,7] u, float[5,7] v)");
    assert!(touched(&twice, &crate::runtime::STOCK));
    let second = text.replace("MatMul(s, d)", "MatMul(q, d)");
    let second = second.replace("MatMul(t, m)", "MatMul(r, m)");
    let second = second.replace(
        "float[9,7] e) =>",
        "float[9,7] e, float[5,9] q, float[5,9] r) =>",
    );
    assert!(touched(&second, &crate::runtime::STOCK));
}

#[test]
fn a_barrier_of_what_comes_out_of_a_reshape_reads_its_size_as_well() {
    let text = MIRROR.replace(
        "[again] a2 = Exp(x)",
        "[view] x2 = Flatten(x) [again] a2 = Exp(x2)",
    );
    let text = text.replace("Flatten(x)", "Reshape(x, s)").replace(
        "<float[25] a,",
        "<int64[1] s = {25}, float[25] x2, float[25] a,",
    );
    let graph = Graph::parse(&format!(
        "<ir_version: 8, opset_import: [\"\" : 15]> {text}"
    ))
    .unwrap();
    let conditions = lean(&crate::runtime::STOCK);
    let enforceable = Enforceable::new(graph.clone(), free(&graph), conditions);
    let enforced = enforceable.within_smallest_peak(Thinning::Quick);
    let listing = enforced.to_listing();
    let barriers: Vec<&str> = listing
        .lines()
        .filter(|line| line.contains("= Reshape(x2"))
        .collect();
    assert_eq!(barriers.len(), 1, "{listing}");
    assert!(listing.contains("= Size(x2)"), "{listing}");
    // And none stands before a Reshape.
    assert!(listing.contains("x2 = Reshape(x, s)"), "{listing}");
}

/// An Identity between them goes first. A lowered MobileNetV3 took 13 % more than its budget.
#[test]
fn no_barrier_stands_before_an_identity_that_a_reshape_reads() {
    let text = r#"<ir_version: 8, opset_import: ["" : 15]>
        g (float[5,5] x) => (float[25] y, float[25] z)
        <int64[1] s = {25}, float[5,5] a, float[5,5] b, float[5,5] i, float[25] r, float[25] j> {
            a = Exp(x) b = Exp(a) i = Identity(a) r = Reshape(i, s) j = Identity(r) c = Exp(j) y = Exp(c) z = Reshape(b, s) }"#;
    let graph = Graph::parse(text).unwrap();
    let conditions = lean(&crate::runtime::STOCK);
    let enforceable = Enforceable::new(graph.clone(), free(&graph), conditions);
    let placement = enforceable.placement();
    let barriers = placement.barriers(&vec![true; placement.len()]);
    let node = |barrier: &Barrier| &graph.node(graph.order()[barrier.before as usize]).outputs;
    let before: Vec<TensorId> = barriers.iter().flat_map(node).copied().flatten().collect();
    let named = |name: &str| graph.tensor_named(name).unwrap();
    assert!(!before.contains(&named("i")) && before.contains(&named("j")));
    // What is behind an Identity behind a Reshape has its size read.
    let reshaped = crate::runtime::barrier::out_of_reshapes(&graph);
    assert!(reshaped[named("j").index()] && !reshaped[named("i").index()]);
}

/// The runtime puts a Reshape before it, and makes one of that and a barrier's, without the barrier.
#[test]
fn no_barrier_hands_on_the_rows_to_which_a_vector_is_added() {
    let handed_to_product = |vector: &str, release: &'static crate::runtime::Release| {
        let text = format!(
            r#"<ir_version: 8, opset_import: ["" : 15]>
            g (float[2,5,5] x, float[5,5] w, float[{vector}] v) => (float[2,5,5] y, float[2,5,5] z)
            <float[2,5,5] a, float[2,5,5] p, float[2,5,5] s, float[2,5,5] u> {{
                a = Exp(x) b = Exp(x) p = MatMul(a, w) s = Add(p, v) c = Exp(b) d = Exp(c)
                u = Exp(s) y = Add(u, b) z = Add(d, s) }}"#
        );
        let graph = Graph::parse(&text).unwrap();
        let enforceable = Enforceable::new(graph.clone(), free(&graph), lean(release));
        let placement = enforceable.placement();
        let barriers = placement.barriers(&vec![true; placement.len()]);
        let node = |barrier: &Barrier| graph.node(graph.order()[barrier.before as usize]);
        let before_product = barriers.iter().find(|of| node(of).is("", "MatMul"));
        let passed = before_product.map(|barrier| TensorId(barrier.passed));
        graph.tensor(passed.expect("a barrier")).name.clone()
    };
    let (stock, training) = (&crate::runtime::STOCK, &crate::runtime::TRAINING);
    assert_eq!(handed_to_product("5", stock), "w");
    assert_eq!(handed_to_product("1,1,5", stock), "a");
    assert_eq!(handed_to_product("5", training), "a");
}

/// Once the Identity is gone, the PassThrough would have to write what leaves the graph, and refuses that in 1.19.2.
#[test]
fn no_pass_through_stands_before_an_identity_that_writes_an_output() {
    let text = "g (float[5,5] x) => (float[5,5] y, float[5,5] z) <float[5,5] a, float[5,5] i> {
        a = Exp(x) c = Exp(a) i = Identity(c) y = Identity(i) d = Identity(a) z = Exp(d) }";
    let graph = Graph::parse(text).unwrap();
    let kept_off = |form| {
        let off = crate::runtime::barrier::keep_barriers_off(&graph, form);
        let name = |&id: &NodeId| graph.tensor(graph.node(id).output(0).unwrap()).name.clone();
        let off = graph.order().iter().filter(|id| off[id.index()]);
        off.map(name).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(kept_off(BarrierKind::PassThrough), "i y");
    assert_eq!(kept_off(BarrierKind::Reshape), "");
}

#[test]
fn a_hoisted_mirror_is_held_back_by_one_barrier() {
    let graph = Graph::parse(MIRROR).unwrap();
    // x and dy are 200 bytes, everything else 100 each. In file order never more than three are
    // live (b, dc, db; or db, a2, dx): 500. DEFAULT visits the producer with the highest index
    // first, so that a2 is there from the beginning, and with b, c, dc: 600.
    assert_eq!(runs(&graph, ExecutionOrder::Default)[0], "again");
    assert_eq!(peaks(&graph), [600, 500]);
    let enforced = enforced(&graph, 500, &[]).unwrap();
    insta::assert_snapshot!(changes(&graph, &enforced), @r#"
      db = Mul(dc, b)
    - a2 = Exp(x)
    + "x/barrier_0", "db/barrier_0" = PassThrough(x, db)
    + a2 = Exp("x/barrier_0")
      dx = Mul(db, a2)
    "#);
    assert_eq!(peaks(&enforced), [500, 500]);
}

/// The runtime refuses graphs in which some nodes read a later output of anything.
#[test]
fn nobody_reads_any_but_the_first_output_of_a_barrier() {
    let (mut barriers, mut followed) = (0, 0);
    for seed in 0..120 {
        let graph = random_training_graph(seed, 40);
        let enforceable = enforceable(&graph, &[]);
        let enforced = enforceable.within(smallest_peak(&enforceable), Thinning::Thorough);
        let Ok(enforced) = enforced else {
            panic!("seed {seed}: the smallest peak is out of reach");
        };
        let uses = Uses::of(&enforced);
        for &id in enforced.order() {
            if !Runtime::LEAN.release.is_barrier(enforced.node(id)) {
                continue;
            }
            barriers += 1;
            let readers = |tensor| uses.readers(tensor).len();
            let mut outputs = enforced.node(id).writes();
            followed += usize::from(outputs.next().is_some_and(|first| readers(first) > 1));
            assert!(outputs.all(|other| readers(other) == 0), "seed {seed}");
        }
    }
    assert!(
        barriers > 50 && followed > 5,
        "{barriers} barriers, {followed} followed"
    );
}

#[test]
fn a_graph_that_fits_stays_as_it_is() {
    let graph = Graph::parse(MIRROR).unwrap();
    assert_eq!(enforced(&graph, 600, &[]).unwrap(), graph);
}

#[test]
fn a_budget_below_the_files_own_peak_is_refused() {
    let graph = Graph::parse(MIRROR).unwrap();
    let error = enforced(&graph, 499, &[]).unwrap_err();
    assert_eq!(
        error,
        NotEnforceable {
            reached: Bytes(500),
            by_fewer: false,
            budget: Bytes(499)
        }
    );
    insta::assert_snapshot!(error, @"the peak is 500 B in the runtime's order, above the budget of 499 B");
    // Not even what the caller owns fits.
    assert_eq!(enforced(&graph, 0, &[]).unwrap_err().reached, Bytes(500));
}

#[test]
fn the_smallest_peak_is_what_all_barriers_reach_together() {
    let graph = Graph::parse(MIRROR).unwrap();
    assert_eq!(smallest_peak(&enforceable(&graph, &[])), Bytes(500));
}

/// Gradients ga, gb and gc are accumulated at once in the file.
const ACCUMULATORS: &str = r#"g (float[25] x, bool[1] reset, float[25] wa, float[25] wb, float[25] wc)
   => (bool[1] a_done, bool[1] b_done, bool[1] c_done, float[25] y)
   <float[25] ga, float[25] gb, float[25] gc, float[25] h>
{
   [grad_a] ga = Exp(x)
   [sum_a] a_done = com.microsoft.InPlaceAccumulatorV2(wa, ga, reset)
   [grad_b] gb = Exp(x)
   [sum_b] b_done = com.microsoft.InPlaceAccumulatorV2(wb, gb, reset)
   [grad_c] gc = Exp(x)
   [sum_c] c_done = com.microsoft.InPlaceAccumulatorV2(wc, gc, reset)
   [h] h = Exp(x)
   [y] y = Exp(h)
}"#;

#[test]
fn accumulators_that_the_runtime_puts_off_are_waited_for() {
    let text = r#"g (float[25] x, bool[1] reset, float[25] wa, float[25] wb)
       => (bool[1] a_done, bool[1] b_done, float[25] y)
       <float[25] f, float[25] ga, float[25] gb, float[25] d, float[25] e>
    {
       [f] f = Exp(x)
       [grad_a] ga = Exp(f)
       [grad_b] gb = Exp(ga)
       [sum_a] a_done = com.microsoft.InPlaceAccumulatorV2(wa, ga, reset)
       [d] d = Exp(gb)
       [sum_b] b_done = com.microsoft.InPlaceAccumulatorV2(wb, gb, reset)
       [e] e = Exp(d)
       [y] y = Exp(e)
    }"#;
    let graph = Graph::parse(text).unwrap();
    let order = runs(&graph, ExecutionOrder::Default);
    assert_eq!(order[order.len() - 2..], ["sum_b", "sum_a"]);
    // x, wa, wb: 300, reset: 1, a_done and b_done, 1 each, from when they are written to the end.
    // In file order two of the others are live at a time: 300 + 1 + 2 + 200. DEFAULT keeps ga and
    // gb for the accumulators: e, y, ga, gb: 701.
    assert_eq!(peaks(&graph), [701, 503]);
    let enforced = enforced(&graph, 503, &[]).unwrap();
    insta::assert_snapshot!(changes(&graph, &enforced), @r#"
      a_done = InPlaceAccumulatorV2(wa, ga, reset)
    - d = Exp(gb)
    - b_done = InPlaceAccumulatorV2(wb, gb, reset)
    - e = Exp(d)
    + "gb/barrier_0", "a_done/barrier_0" = PassThrough(gb, a_done)
    + d = Exp("gb/barrier_0")
    + b_done = InPlaceAccumulatorV2(wb, "gb/barrier_0", reset)
    + "d/barrier_1", "b_done/barrier_1" = PassThrough(d, b_done)
    + e = Exp("d/barrier_1")
      y = Exp(e)
    "#);
    assert_eq!(peaks(&enforced), [503, 503]);
}

/// The first of what it reads that may be handed on is the gradient: a buffer is updated where it is.
#[test]
fn what_a_node_updates_is_not_handed_to_it_by_a_barrier() {
    let graph = Graph::parse(
        "g (float[4] buffer, float[4] grad, bool[1] reset, float[8] x) => (bool[1] done, float[8] y)
        <float[8] h> {
        [exp] h = Exp(x)
        [log] y = Log(h)
        [sum] done = com.microsoft.InPlaceAccumulatorV2(buffer, grad, reset) }",
    );
    let graph = graph.unwrap();
    let sequences = [("log", "sum")];
    let enforced = enforced(&graph, 1 << 10, &sequences).unwrap();
    insta::assert_snapshot!(changes(&graph, &enforced), @r#"
      y = Log(h)
    - done = InPlaceAccumulatorV2(buffer, grad, reset)
    + "grad/barrier_0", "y/barrier_0" = PassThrough(grad, y)
    + done = InPlaceAccumulatorV2(buffer, "grad/barrier_0", reset)
    "#);
}

#[test]
fn one_barrier_waits_for_several_nodes() {
    let graph = Graph::parse(ACCUMULATORS).unwrap();
    let placement = Placement::new(&graph, CPU, &free(&graph), Runtime::LEAN);
    let name = |tensor: u32| graph.tensor(TensorId(tensor)).name.clone();
    let mut chosen = vec![false; graph.order().len()];
    chosen[7] = true;
    let barriers = placement.barriers(&chosen);
    assert_eq!(barriers.len(), 1);
    assert_eq!(name(barriers[0].passed), "h");
    // h is not among them: y reads it anyway.
    let waits: Vec<String> = barriers[0].waits.iter().map(|&t| name(t)).collect();
    assert_eq!(waits, ["a_done", "b_done", "c_done"]);
}

/// No Size of the CPU reads one: builds without training would not load the graph.
#[test]
fn no_barrier_waits_for_a_bfloat16_or_hands_one_on() {
    let runtime = crate::runtime::STOCK.with(crate::runtime::settings::RuntimeSettings::LEAN);
    let waits = |read: &str, number: u32, written: &str| {
        let graph = Graph::parse(&format!(
            r#"<ir_version: 8, opset_import: ["" : 15]> g ({read}[4,7] x) => ({written}[4,7] a, {read}[4,7] b) {{
                a = Cast<to = {number}>(x) b = Neg(x) }}"#
        ));
        let graph = graph.unwrap();
        let placement = Placement::new(&graph, CPU, &free(&graph), runtime);
        let barriers = placement.barriers(&vec![false, true]);
        barriers
            .iter()
            .map(|barrier| barrier.waits.len())
            .sum::<usize>()
    };
    assert_eq!(waits("float", 6, "int32"), 1);
    assert_eq!(waits("float", 16, "bfloat16"), 0);
    assert_eq!(waits("bfloat16", 1, "float"), 0);
}

#[test]
fn a_barrier_where_nothing_is_open_is_none() {
    let graph = Graph::parse(
        "g (float[25] x) => (float[25] c) <float[25] a, float[25] b> {
            a = Exp(x) b = Exp(a) c = Exp(b)
         }",
    )
    .unwrap();
    let placement = Placement::new(&graph, CPU, &free(&graph), Runtime::LEAN);
    assert_eq!(placement.barriers(&vec![true; 3]), []);
}

#[test]
fn pairs_keep_their_sequence_in_both_orders() {
    let text = "g (float[25] x) => (float[25] a, float[25] b)
       { [first] a = Exp(x) [second] b = Relu(x) }";
    let graph = Graph::parse(text).unwrap();
    assert_eq!(runs(&graph, ExecutionOrder::Default), ["second", "first"]);
    let plenty = 1 << 20;
    assert_eq!(enforced(&graph, plenty, &[]).unwrap(), graph);
    let kept = enforced(&graph, plenty, &[("first", "second")]).unwrap();
    insta::assert_snapshot!(changes(&graph, &kept), @r#"
      a = Exp(x)
    - b = Relu(x)
    + "x/barrier_0", "a/barrier_0" = PassThrough(x, a)
    + b = Relu("x/barrier_0")
    "#);
    for order in ExecutionOrder::ALL {
        let order = runs(&kept, order);
        let place = |name: &str| order.iter().position(|&n| n == name);
        assert!(place("first") < place("second"), "{order:?}");
    }
}

#[test]
fn a_size_that_nobody_reads_is_not_waited_for_but_its_producer_is() {
    // That the Size reads a does not mean that whoever waits runs after a.
    let text = "g (float[25] x) => (float[25] b)
       <float[25] a, int64 a_size>
       { [first] a = Exp(x) [size] a_size = Size(a) [second] b = Relu(x) }";
    let graph = Graph::parse(text).unwrap();
    let kept = enforced(&graph, 1 << 20, &[("first", "second")]).unwrap();
    insta::assert_snapshot!(changes(&graph, &kept), @r#"
      a_size = Size(a)
    - b = Relu(x)
    + "x/barrier_0", "a/barrier_0" = PassThrough(x, a)
    + b = Relu("x/barrier_0")
    "#);
}

#[test]
fn a_barrier_waits_for_no_more_than_it_has_to() {
    // a is open as well, but may run whenever it likes.
    let text = "g (float[25] x) => (float[25] b)
       <float[25] a, float[25] c>
       { [any] a = Exp(x) [first] c = Exp(x) [second] b = Relu(x) }";
    let graph = Graph::parse(text).unwrap();
    let kept = enforced(&graph, 1 << 20, &[("first", "second")]).unwrap();
    insta::assert_snapshot!(changes(&graph, &kept), @r#"
      c = Exp(x)
    - b = Relu(x)
    + "x/barrier_0", "c/barrier_0" = PassThrough(x, c)
    + b = Relu("x/barrier_0")
    "#);
}

#[test]
fn running_statistics_are_not_passed_around() {
    // The statistics are the smallest results, but lie in the caller's memory.
    let text = "g (float[2,3] x, float[3] scale, float[3] shift) => (float[2,3] n, float[2,3] b)
       <float[3] mean = {0, 0, 0}, float[3] var = {1, 1, 1}, float[3] mean_new, float[3] var_new,
        float[64] saved, float[64] inv>
       {
          [norm] n, mean_new, var_new, saved, inv = com.microsoft.BatchNormInternal <training_mode = 1> (x, scale, shift, mean, var)
          [second] b = Relu(x)
       }";
    let graph = Graph::parse(text).unwrap();
    let kept = enforced(&graph, 1 << 20, &[("norm", "second")]).unwrap();
    insta::assert_snapshot!(changes(&graph, &kept), @r#"
      n, mean_new, var_new, saved, inv = BatchNormInternal(x, scale, shift, mean, var)
    - b = Relu(x)
    + "x/barrier_0", "n/barrier_0" = PassThrough(x, n)
    + b = Relu("x/barrier_0")
    "#);
}

#[test]
fn an_empty_graph_needs_nothing() {
    let graph = Graph::parse("g () => () { }").unwrap();
    assert_eq!(enforced(&graph, 0, &[]).unwrap(), graph);
}

#[test]
fn a_yield_op_reads_no_barrier() {
    let text = |op_type: &str| {
        let text = "g (float[64] x) => (float[64] y, float[64] a) <float[64] b>
            { [late] a = Exp(x) [before] b = Neg(x) [yield] y = OP (b) }";
        Graph::parse(&text.replace("OP", op_type)).unwrap()
    };
    let reads_barrier = |op_type: &str| {
        let found = enforced(&text(op_type), u64::MAX, &[("late", "yield")]);
        found.is_ok_and(|graph| {
            let uses = crate::graph::Uses::of(&graph);
            let nodes = graph.nodes();
            let mut read = nodes
                .filter(|node| node.name == "yield")
                .flat_map(|node| node.reads());
            read.any(|tensor| {
                let producer = uses.producer(tensor);
                producer.is_some_and(|id| graph.node(id).is("com.microsoft", "PassThrough"))
            })
        })
    };
    assert!(reads_barrier("Abs"));
    assert!(!reads_barrier("com.microsoft.YieldOp"));
}

/// In default settings.
fn packable<'c>(graph: &Graph, sequences: &'c [(NodeId, NodeId)]) -> Enforceable<'c> {
    let conditions = Conditions {
        runtime: crate::runtime::TRAINING.with(crate::runtime::settings::RuntimeSettings::DEFAULT),
        sequences,
        ..lean(&crate::runtime::TRAINING)
    };
    Enforceable::new(graph.clone(), free(graph), conditions)
}

#[test]
fn what_lies_in_the_way_of_a_large_tensor_is_computed_elsewhere() {
    // s is placed behind a; b finds a gap of 1,024 bytes before it, needs 1,280, and so lies behind everything.
    let text = "g (float[64] x) => (float[64] y)
        <float[256] a, float[64] s, float[256] r, float[320] b, float[64] t> {
        [a] a = F(x) [s] s = Exp(x) [r] r = F(a) [t] t = F(r) [b] b = F(t) [y] y = F(b, s)
    }";
    let graph = Graph::parse(text).unwrap();
    let plain = packable(&graph, &[]);
    let names = |packed: &Enforceable<'_>| {
        let order = packed.graph().order().iter();
        let name = |&id: &NodeId| packed.graph().node(id).name.clone();
        order.map(name).collect::<Vec<_>>().join(" ")
    };
    let planned = plain.planned_peak();
    let packed = plain.packed(planned - Bytes(1)).unwrap();
    assert_eq!(names(&packed), "s a r t b y");
    assert_eq!(planned - packed.planned_peak(), Bytes(256));
    // It cannot where it has to run between others.
    let id = |name: &str| {
        let mut order = graph.order().iter();
        *order.find(|&&id| graph.node(id).name == name).unwrap()
    };
    let sequences = [(id("a"), id("s")), (id("s"), id("r"))];
    assert!(
        packable(&graph, &sequences)
            .packed(planned - Bytes(1))
            .is_none()
    );
}

#[test]
fn packed_orders_of_random_graphs_can_run_and_need_what_was_asked_for() {
    let mut smaller = 0;
    for seed in 0..60 {
        let graph = random_training_graph(seed, 8 + seed as usize % 20);
        let plain = packable(&graph, &[]);
        let planned = plain.planned_peak();
        let Some(packed) = plain.packed(planned - Bytes(1)) else {
            continue;
        };
        smaller += 1;
        assert!(packed.planned_peak() < planned, "seed {seed}");
        assert!(
            verify::equivalence(&graph, packed.graph(), &Default::default()).is_ok(),
            "seed {seed}"
        );
    }
    assert!(smaller > 5, "{smaller}");
}

/// The runtime knows constants before it runs anything, so nothing else keeps them in front of who reads them.
#[test]
fn packed_orders_have_constants_before_who_reads_them() {
    let mut packed = 0;
    for seed in 0..60 {
        let mut graph = random_training_graph(seed, 8 + seed as usize % 20);
        let mut order = Vec::new();
        for id in graph.order().to_vec() {
            let own = graph.add_tensor(Tensor {
                constant: Some(Constant::Ints(vec![0])),
                element: Some(ElementType::Int64),
                shape: Some(vec![1]),
                ..Tensor::new(format!("constant_{}", id.index()), TensorKind::Value)
            });
            let node = Node::new("", "", "Constant", Vec::new(), vec![Some(own)]);
            order.push(graph.add_node(node));
            graph.node_mut(id).captures.push(own);
            order.push(id);
        }
        graph.set_order(order);
        let plain = packable(&graph, &[]);
        if let Some(other) = plain.packed(plain.planned_peak() - Bytes(1)) {
            packed += 1;
            assert_eq!(verify::structure(other.graph()), Ok(()), "seed {seed}");
        }
    }
    assert!(packed > 5, "{packed}");
}

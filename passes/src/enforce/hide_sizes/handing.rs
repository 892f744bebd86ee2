//! Sizes hidden where nothing forwards a tensor but a Reshape that is computed: a barrier that waits for what it hands on.
//!
//! There a session has the same bits at every level of optimization, so the runtime has to make one node of what it made one of before. Some
//! of that it does only where it knows all sizes as numbers (a product of rows with a bias): such a node reads what was given its numbers back, by a
//! Reshape to them, in place of what has none.

use std::collections::{BTreeMap, BTreeSet};

use super::{HideSizes, Hiding};
use crate::bytes::Bytes;
use crate::enforce::parting::Parting;
use crate::graph::{Dimension, Graph, Node, NodeId, Tensor, TensorId, TensorKind, Uses};
use crate::operators::{self, Provider};
use crate::pass::Changed;
use crate::runtime::barrier::BarrierWriter;
use crate::runtime::folding::Folding;
use crate::runtime::fusing::{Adding, Fusing};
use crate::runtime::inferred_shapes::{InferredBy, dimensions_from};
use crate::runtime::known_shapes::runtime_shapes;
use crate::runtime::moving::KnownDimensions;
use crate::runtime::optimized_shapes::once_optimized;
use crate::runtime::skeleton::Skeleton;

/// How often nodes that would be fused otherwise are given their numbers back before nothing is hidden.
const ATTEMPTS: usize = 3;

/// What each node is to the runtime's optimizations.
type Kinds = BTreeMap<NodeId, [Fusing; 2]>;

/// What is known of a graph of which sizes are to be hidden by barriers, once for all attempts.
pub struct ByBarriers {
    parting: Parting,
    uses: Uses,
    /// Before any barrier.
    writer: BarrierWriter,
    /// What the nodes are.
    kinds: Kinds,
    /// Nodes that have to know all sizes of what they read.
    numbered: BTreeSet<NodeId>,
    /// By tensor: does the runtime know its sizes?
    known: Vec<bool>,
    /// By tensor: does the file say them?
    fixed: Vec<bool>,
    /// By tensor: does it come out of a Reshape to what is computed? With another Reshape behind it, to numbers, 1.26.0 makes no session (measured).
    computed: Vec<bool>,
    /// Between what the runtime makes one node of.
    inside: BTreeSet<TensorId>,
    /// Tensors that barriers hand on where all may be, each with the bytes of what has no sizes then; the most first.
    pub(super) worth: Vec<(TensorId, Bytes)>,
}

impl ByBarriers {
    /// `None` where nothing is to be hidden so. O(nodes).
    pub fn of(graph: &Graph, hide: &HideSizes<'_>) -> Option<ByBarriers> {
        if hide.runtime.release.trains || !hide.is_possible(graph) {
            return None;
        }
        let uses = Uses::of(graph);
        let shapes = BothShapes::of(graph);
        let base = Skeleton::without_costs(graph, &shapes.declared, hide.provider);
        let base = base.run_by(hide.runtime.release);
        let (mut numbered, mut inside) = (BTreeSet::new(), BTreeSet::new());
        let adds = Adding::ToRows;
        for (&fusing, &id) in base.fusing.iter().zip(graph.order()) {
            if fusing == (Fusing::Product { adds }) {
                numbered.insert(id);
                inside.extend(graph.node(id).writes());
            }
        }
        let kinds = shapes.kinds(graph, hide.provider);
        let known = shapes.optimized.iter();
        let known = known.map(|shape| shape.as_deref().is_some_and(super::are_numbers));
        let mut all = ByBarriers {
            writer: BarrierWriter::knowing(hide.runtime.release, graph, || shapes.declared.clone()),
            parting: Parting::of(graph, &uses, &base, hide.provider),
            uses,
            kinds,
            numbered,
            known: known.collect(),
            fixed: graph.fixed_shapes(),
            computed: out_of_computed(graph),
            inside,
            worth: Vec::new(),
        };
        let everywhere = HideSizes {
            only: None,
            ..*hide
        };
        let mut hidden = graph.clone();
        let (hiding, numbered) = all.hide(&mut hidden, &everywhere)?;
        let worth = hiding.worth(&hidden);
        (all.numbered, all.worth) = (numbered, worth);
        Some(all)
    }

    /// Hides what `hide` says, and gives numbers back to nodes that would be something else without; and which nodes these are. `None` where
    /// that does not help.
    pub(super) fn hide<'a>(
        &'a self,
        graph: &mut Graph,
        hide: &HideSizes<'a>,
    ) -> Option<(Hiding<'a>, BTreeSet<NodeId>)> {
        let mut numbered = self.numbered.clone();
        for _ in 0..ATTEMPTS {
            let handing = Handing {
                of: self,
                writer: self.writer.clone(),
                numbered: numbered.clone(),
                handed_on: BTreeMap::new(),
                handed: BTreeSet::new(),
                sized: BTreeMap::new(),
                lists: BTreeMap::new(),
            };
            let mut hidden = graph.clone();
            let hiding = Hiding::of(&mut hidden, hide, Some(handing))?;
            let changed = changed(
                &self.kinds,
                &BothShapes::of(&hidden).kinds(&hidden, hide.provider),
            );
            if changed.is_empty() {
                *graph = hidden;
                return Some((hiding, numbered));
            }
            numbered.extend(changed);
        }
        None
    }

    /// May the node read the tensor from a barrier that hides its sizes?
    fn may_read(&self, graph: &Graph, id: NodeId, tensor: TensorId) -> bool {
        self.parting.may_wait(graph, id) && self.parting.may_read(graph, id, tensor)
    }
}

/// What hides sizes by barriers, while it does.
pub(super) struct Handing<'a> {
    of: &'a ByBarriers,
    writer: BarrierWriter,
    /// Nodes that have to know all sizes of what they read.
    numbered: BTreeSet<NodeId>,
    /// By tensor and dimension: the same without that one.
    handed_on: BTreeMap<(TensorId, usize), TensorId>,
    /// What was.
    handed: BTreeSet<TensorId>,
    /// By tensor without a size: the same with all, where it is in the graph.
    sized: BTreeMap<TensorId, TensorId>,
    /// By sizes: the constant that lists them.
    lists: BTreeMap<Vec<u64>, TensorId>,
}

impl Handing<'_> {
    /// May its size be hidden? Whoever needs it has to be able to read it from elsewhere.
    fn may_name(&self, tensor: TensorId) -> bool {
        let ByBarriers {
            parting,
            uses,
            fixed,
            computed,
            inside,
            ..
        } = self.of;
        let is_numbered = |id: &NodeId| self.numbered.contains(id);
        let is_read = uses.readers(tensor).iter().any(is_numbered);
        let may_be_reshaped = !parting.is_between(tensor) && !computed[tensor.index()];
        let gets_back = fixed[tensor.index()] && may_be_reshaped;
        let is_free = gets_back || !is_read;
        is_free && !inside.contains(&tensor) && !parting.rounding.depends(tensor)
    }

    /// May the node read the tensor from a barrier that hides its sizes? What its bodies read they call by its name.
    fn may_read(&self, graph: &Graph, id: NodeId, tensor: TensorId) -> bool {
        let reads = graph.node(id).inputs.contains(&Some(tensor));
        reads && !self.numbered.contains(&id) && self.of.may_read(graph, id, tensor)
    }

    /// Did the runtime know all of its sizes as numbers before any was hidden?
    fn had_numbers(&self, tensor: TensorId) -> bool {
        let had = |of: TensorId| self.of.known.get(of.index()) == Some(&true);
        had(tensor) || self.sized.get(&tensor).is_some_and(|&of| had(of))
    }
}

impl Hiding<'_> {
    /// Hides a size of a result that the runtime knew all of.
    pub(super) fn hide_by_barriers(&mut self, graph: &mut Graph, id: NodeId, position: usize) {
        let Some(output) = graph.node(id).output(position) else {
            return;
        };
        let is_inner = graph.tensor(output).kind == TensorKind::Value;
        let had = |handing: &Handing<'_>| handing.had_numbers(output);
        let had_numbers = self.handing.as_ref().is_some_and(had);
        if !is_inner || self.outputs.contains(&output) || !had_numbers {
            return;
        }
        let Some(sizes) = graph
            .tensor(output)
            .shape
            .clone()
            .filter(|of| !of.is_empty())
        else {
            return;
        };
        let may_name = self.handing.as_ref().is_some_and(|of| of.may_name(output));
        let known = self.inference.shape(output).map(<[Dimension]>::to_vec);
        if !may_name {
            // As before, whatever follows from its inputs now.
            if !known.as_deref().is_some_and(super::are_numbers) {
                self.declare(graph, id, output, Dimension::all_known(&sizes));
            }
            return;
        }
        let inferred = match known.filter(|known| !super::are_numbers(known)) {
            Some(known) => Some(known),
            None => self.inferred(graph, id, position),
        };
        let inferred = inferred.filter(|of| of.len() == sizes.len() && !super::are_numbers(of));
        let is_large = graph.tensor(output).bytes() >= Some(self.from);
        let hidden: Vec<usize> = match inferred {
            // What follows from the inputs, if only it were not declared.
            Some(of) => (0..of.len()).filter(|&at| !of[at].is_number()).collect(),
            None => {
                let nothing = self.inferred(graph, id, position).is_none();
                match self.declared_alone(graph, id, position, nothing, is_large) {
                    Some(at) => vec![at],
                    None if is_large => Vec::from_iter(self.read_by_barrier(graph, id, position)),
                    None => return,
                }
            }
        };
        if hidden.is_empty() {
            self.behind
                .extend(Some(output).filter(|&of| self.may_read_otherwise(of)));
            return;
        }
        let dimension = |(at, &size): (usize, &u64)| match hidden.contains(&at) {
            true => super::name(size),
            false => Dimension::Known(size),
        };
        let named = sizes.iter().enumerate().map(dimension).collect();
        self.declare(graph, id, output, named);
        let mut inputs = graph.node(id).inputs.iter().flatten();
        if let Some(&source) = inputs.find_map(|input| self.sources.get(input)) {
            self.sources.entry(output).or_insert(source);
        }
    }

    fn declare(&mut self, graph: &mut Graph, id: NodeId, output: TensorId, shape: Vec<Dimension>) {
        graph.tensor_mut(output).declared = Some(shape);
        self.inference.node_again(graph, id);
        self.inferred = None;
        self.changed = Changed::Yes;
    }

    /// Lets the node read what tells a dimension of that result from a barrier; which dimension.
    fn read_by_barrier(&mut self, graph: &mut Graph, id: NodeId, position: usize) -> Option<usize> {
        let node = graph.node(id);
        let rank = graph.tensor(node.output(position)?).shape.as_ref()?.len();
        if !operators::aliases(node).is_empty() {
            return None;
        }
        let (read, at, of) = match dimensions_from(node, position, rank) {
            Some((input, pairs)) => {
                let read = node.input(input)?;
                let axes = self.inference.shape(read)?.len();
                let &(at, of) = pairs.iter().find(|&&(_, of)| of < axes)?;
                (read, at, of)
            }
            // Of inputs that are broadcast the one that alone tells the first.
            None if self.inference.rule(node, position) == InferredBy::Broadcast => {
                let tells = |read: &TensorId| {
                    let shape = self.inference.shape(*read);
                    let first = shape.filter(|shape| shape.len() == rank)?.first()?;
                    (*first != Dimension::Known(1)).then(|| first.is_number())
                };
                let told: BTreeSet<(bool, TensorId)> = node
                    .reads()
                    .filter_map(|read| Some((tells(&read)?, read)))
                    .collect();
                let mut numbers = told.into_iter().filter(|&(is_number, _)| is_number);
                let (_, read) = numbers.next()?;
                numbers.next().is_none().then_some((read, 0, 0))?
            }
            None => return None,
        };
        let handing = self.handing.as_ref()?;
        // What has lost another size already keeps the rest, as somebody has to read it.
        let may = !handing.sized.contains_key(&read)
            && handing.may_read(graph, id, read)
            && !handing.of.parting.rounding.depends(read)
            && self.may_read_otherwise(read);
        let handed_on = may.then(|| self.hand_on(graph, read, of))?;
        graph.node_mut(id).read_instead(read, handed_on);
        self.inference.node_again(graph, id);
        self.inferred = None;
        Some(at)
    }

    /// Hands a result on without a size, to all that may read it so.
    pub(super) fn hand_on_to_all(&mut self, graph: &mut Graph, written: TensorId) {
        let Some(handing) = &self.handing else { return };
        let may_read = |&id: &NodeId| handing.may_read(graph, id, written);
        let readers = handing.of.uses.readers(written).iter().copied();
        let readers: BTreeSet<NodeId> = readers.filter(may_read).collect();
        if readers.is_empty() {
            return;
        }
        let handed_on = self.hand_on(graph, written, 0);
        for reader in readers {
            graph.node_mut(reader).read_instead(written, handed_on);
        }
    }

    /// The tensor without the size of that dimension.
    fn hand_on(&mut self, graph: &mut Graph, tensor: TensorId, dimension: usize) -> TensorId {
        let known = self.inference.shape(tensor).map(<[Dimension]>::to_vec);
        let Some(handing) = &mut self.handing else {
            return tensor;
        };
        if let Some(&known) = handing.handed_on.get(&(tensor, dimension)) {
            return known;
        }
        let listed = self.order.len();
        let is_first = handing.handed.insert(tensor);
        let handed_on = match is_first {
            true => handing
                .writer
                .add_at_once(graph, &mut self.order, tensor, self.anchor),
            // Two that do the same would be merged.
            false => handing
                .writer
                .add(graph, &mut self.order, tensor, &[tensor]),
        };
        handing.handed_on.insert((tensor, dimension), handed_on);
        handing.sized.insert(handed_on, tensor);
        let mut declared = known.unwrap_or_default();
        if let Some(size) = declared.get_mut(dimension)
            && let Dimension::Known(known) = *size
        {
            *size = super::name(known);
        }
        graph.tensor_mut(handed_on).declared = Some(declared);
        self.look_at_added(graph, listed);
        self.sources.insert(handed_on, tensor);
        handed_on
    }

    /// Gives what the node is about to read the sizes that it had.
    pub(super) fn give_back(&mut self, graph: &mut Graph, id: NodeId) {
        let is_numbered = |handing: &Handing<'_>| handing.numbered.contains(&id);
        if !self.handing.as_ref().is_some_and(is_numbered) {
            return;
        }
        let read: BTreeSet<TensorId> = graph.node(id).reads().collect();
        for tensor in read {
            let is_known = self.inference.shape(tensor).is_some_and(super::are_numbers);
            let had = |handing: &Handing<'_>| handing.had_numbers(tensor);
            if !is_known && self.handing.as_ref().is_some_and(had) {
                let sized = self.with_sizes(graph, tensor);
                graph.node_mut(id).read_instead(tensor, sized);
                self.changed = Changed::Yes;
            }
        }
    }

    fn with_sizes(&mut self, graph: &mut Graph, tensor: TensorId) -> TensorId {
        let Some(handing) = &mut self.handing else {
            return tensor;
        };
        if let Some(&sized) = handing.sized.get(&tensor) {
            return sized;
        }
        let of = graph.alike(tensor, "/sized");
        let sizes = of.shape.clone().unwrap_or_default();
        let listed = self.order.len();
        let list = match handing.lists.get(&sizes) {
            Some(&list) => list,
            None => {
                let values: Vec<i64> = sizes.iter().map(|&size| size as i64).collect();
                let texts: Vec<String> = sizes.iter().map(u64::to_string).collect();
                let name = format!("ckpt-opt/sizes/{}", texts.join("x"));
                let (constant, list) = graph.add_list(&name, values);
                self.order.push(constant);
                handing.lists.insert(sizes.clone(), list);
                list
            }
        };
        let sized = Tensor {
            declared: Some(Dimension::all_known(&sizes)),
            constant: None,
            ..of
        };
        let name = format!("ckpt-opt/size/{}", graph.tensor(tensor).name);
        let inputs = vec![Some(tensor), Some(list)];
        let reshape = Node::new(name, "", "Reshape", inputs, Vec::new());
        let (reshape, sized) = graph.add_made(reshape, sized);
        self.order.push(reshape);
        handing.sized.insert(tensor, sized);
        self.look_at_added(graph, listed);
        sized
    }

    /// Lets the inference look at the nodes listed since.
    fn look_at_added(&mut self, graph: &Graph, since: usize) {
        for &id in &self.order[since..] {
            self.inference.node_again(graph, id);
        }
        self.uses = None;
        self.changed = Changed::Yes;
    }
}

/// By tensor: does it come out of a Reshape to what a node computes?
fn out_of_computed(graph: &Graph) -> Vec<bool> {
    let mut computed = vec![false; graph.tensor_count()];
    let mut found = vec![false; graph.tensor_count()];
    for node in graph.nodes() {
        let is_computed = node.input(1).is_some_and(|shape| computed[shape.index()]);
        for written in node.writes() {
            computed[written.index()] = !node.is("", "Constant");
            found[written.index()] = node.is("", "Reshape") && is_computed;
        }
    }
    found
}

/// What the runtime knows of the shapes of a graph, as it is declared and once constants are worked out.
struct BothShapes {
    declared: Vec<KnownDimensions>,
    optimized: Vec<KnownDimensions>,
}

impl BothShapes {
    fn of(graph: &Graph) -> BothShapes {
        let declared = runtime_shapes(graph);
        let optimized = once_optimized(graph, declared.clone());
        BothShapes {
            declared,
            optimized,
        }
    }

    /// What the graph's nodes are by them.
    fn kinds(&self, graph: &Graph, provider: Provider) -> Kinds {
        let uses = Uses::of(graph);
        let of = |shapes: &[KnownDimensions]| {
            let folding = Folding::of(graph, shapes);
            let shape = |tensor: TensorId| shapes[tensor.index()].as_deref();
            let of = |&id: &NodeId| {
                Fusing::of(graph, &uses, graph.node(id), provider, (shape, &folding))
            };
            graph.order().iter().map(of).collect::<Vec<_>>()
        };
        let both = of(&self.declared).into_iter().zip(of(&self.optimized));
        let both = both.map(|(one, other)| [one, other]);
        graph.order().iter().copied().zip(both).collect()
    }
}

/// The nodes that are something else than before, so that other bits might come out. What is computed in the step, and not before it,
/// comes out as it did; and nothing is computed where a Reshape is joined with others.
fn changed(before: &Kinds, after: &Kinds) -> BTreeSet<NodeId> {
    let is_same = |(one, other): (&Fusing, &Fusing)| {
        let is_harmless = |of: &Fusing| {
            matches!(
                of,
                Fusing::Reshapes { .. }
                    | Fusing::Shape { .. }
                    | Fusing::Assembles
                    | Fusing::Folded
                    | Fusing::Splits { .. }
            )
        };
        let both_move = match (*one, *other) {
            (Fusing::Transposes(one), Fusing::Transposes(other)) => one.is_but_for_shapes(other),
            _ => false,
        };
        let stays = one == other || *one == Fusing::Folded || both_move;
        stays || is_harmless(one) && is_harmless(other)
    };
    let differs = |&(id, kinds): &(&NodeId, &[Fusing; 2])| {
        let now = after.get(id);
        now.is_none_or(|now| !kinds.iter().zip(now).all(is_same))
    };
    before.iter().filter(differs).map(|(&id, _)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enforce::colour_shapes::COLOURED_FROM;
    use crate::graph::text::diff;
    use crate::pass::Pass;
    use crate::rewrite::infer_shapes::InferShapes;
    use crate::runtime::settings::RuntimeSettings;
    use crate::runtime::{Runtime, STOCK};
    use crate::testing::random_training_graph;
    use crate::verify::equivalence;

    fn hide(runtime: Runtime) -> HideSizes<'static> {
        HideSizes {
            from: COLOURED_FROM,
            only: None,
            provider: Provider::Cpu,
            runtime,
            by_barriers: None,
        }
    }

    fn stock() -> Runtime {
        Runtime {
            release: &STOCK,
            settings: RuntimeSettings::DEFAULT,
            ..Runtime::DEFAULT
        }
    }

    fn parsed(text: &str) -> Graph {
        let mut graph = Graph::parse(text).unwrap();
        let bindings = Default::default();
        InferShapes { bindings }.run(&mut graph).unwrap();
        graph
    }

    fn hidden(graph: &Graph) -> Graph {
        hidden_from(COLOURED_FROM, graph)
    }

    fn hidden_from(from: Bytes, graph: &Graph) -> Graph {
        let hide = HideSizes {
            from,
            ..hide(stock())
        };
        let known = ByBarriers::of(graph, &hide);
        let mut hidden = graph.clone();
        let hide = HideSizes {
            by_barriers: known.as_ref(),
            ..hide
        };
        let Ok(_) = hide.run(&mut hidden);
        equivalence(graph, &hidden, &Default::default()).unwrap();
        hidden
    }

    /// A product of rows with a bias between other nodes, with heads.
    const LAYER: &str = "<ir_version: 8, opset_import: [\"\" : 17]>
        g (float[4,32,64] x, float[64,64] w, float[64] b, float[1] s) => (float[4,4,32,16] y)
        <float[4,32,64] h, float[4,32,64] m, float[4,32,64] a, float[4,32,4,16] r, float[4,4,32,16] t, float[4,4,32,16] e>
        {
            h = Tanh(x) m = MatMul(h, w) a = Add(m, b)
            k = Constant <value_ints = [4, 32, 4, 16]> ()
            r = Reshape(a, k) t = Transpose <perm = [0, 2, 1, 3]> (r) e = Exp(t) y = Neg(e)
        }";

    #[test]
    fn products_of_rows_get_back_the_sizes_that_barriers_hide() {
        let graph = parsed(LAYER);
        let hidden = hidden(&graph);
        insta::assert_snapshot!(diff(&graph.to_listing(), &hidden.to_listing()), @r#"
        - h = Tanh(x)
        - m = MatMul(h, w)
        + "ckpt-opt/barrier_0/size_0" = Size(s)
        + "ckpt-opt/barrier_0/zeros" = Constant()
        + "ckpt-opt/barrier_0/shape" = Min("ckpt-opt/barrier_0/size_0", "ckpt-opt/barrier_0/zeros")
        + "x/barrier_0" = Reshape(x, "ckpt-opt/barrier_0/shape")
        + h = Tanh("x/barrier_0")
        + "ckpt-opt/sizes/4x32x64" = Constant()
        + "h/sized" = Reshape(h, "ckpt-opt/sizes/4x32x64")
        + m = MatMul("h/sized", w)
          a = Add(m, b)
        ...
          r = Reshape(a, k)
        - t = Transpose(r)
        + "ckpt-opt/barrier_1/size_0" = Size(s)
        + "ckpt-opt/barrier_1/zeros" = Constant()
        + "ckpt-opt/barrier_1/shape" = Min("ckpt-opt/barrier_1/size_0", "ckpt-opt/barrier_1/zeros")
        + "r/barrier_1" = Reshape(r, "ckpt-opt/barrier_1/shape")
        + t = Transpose("r/barrier_1")
          e = Exp(t)
        "#);
        let shape = |name: &str| {
            let id = hidden.tensor_named(name).unwrap();
            let declared = hidden.tensor(id).declared.clone().unwrap();
            declared.first().cloned().unwrap()
        };
        let named = Dimension::Symbol("hidden_4".to_owned());
        for name in ["h", "t", "e"] {
            assert_eq!(shape(name), named, "{name}");
        }
        for name in ["h/sized", "m", "a", "r"] {
            assert_eq!(shape(name), Dimension::Known(4), "{name}");
        }
    }

    // Of what lost its rows, a product over them knows the columns: it is handed on itself.
    #[test]
    fn what_has_lost_one_size_keeps_the_others() {
        let graph = parsed(
            "<ir_version: 8, opset_import: [\"\" : 17]>
            g (float[32,64] x, float[64,64] w, float[1] s) => (float[64,64] y) <float[32,64] m, float[64,64] p>
            { m = MatMul(x, w) p = Gemm <transA = 1> (m, x) y = Neg(p) }",
        );
        let hidden = hidden(&graph);
        insta::assert_snapshot!(diff(&graph.to_listing(), &hidden.to_listing()), @r#"
          m = MatMul(x, w)
        - p = Gemm(m, x)
        - y = Neg(p)
        + "ckpt-opt/barrier_0/size_0" = Size(s)
        + "ckpt-opt/barrier_0/zeros" = Constant()
        + "ckpt-opt/barrier_0/shape" = Min("ckpt-opt/barrier_0/size_0", "ckpt-opt/barrier_0/zeros")
        + "m/barrier_0" = Reshape(m, "ckpt-opt/barrier_0/shape")
        + p = Gemm("m/barrier_0", x)
        + "p/barrier_1" = Reshape(p, "ckpt-opt/barrier_0/shape")
        + y = Neg("p/barrier_1")
        "#);
    }

    // Behind the barrier the Transpose could be moved, which matters where there are Shapes of its result and the runtime moves any.
    #[test]
    fn sizes_are_hidden_between_a_transpose_and_a_convolution() {
        let graph = parsed(
            "<ir_version: 8, opset_import: [\"\" : 17]>
            g (float[4,8,16,16] x, float[8,4,3,3] w, float[1] s) => (float[8,8,16,16] y)
            <float[4,8,16,16] e, float[8,4,16,16] t, float[8,8,16,16] c>
            { e = Tanh(x) t = Transpose <perm = [1, 0, 2, 3]> (e) c = Conv <pads = [1, 1, 1, 1]> (t, w) y = Neg(c) }",
        );
        let hidden = hidden(&graph);
        insta::assert_snapshot!(diff(&graph.to_listing(), &hidden.to_listing()), @r#"
        - e = Tanh(x)
        + "ckpt-opt/barrier_0/size_0" = Size(s)
        + "ckpt-opt/barrier_0/zeros" = Constant()
        + "ckpt-opt/barrier_0/shape" = Min("ckpt-opt/barrier_0/size_0", "ckpt-opt/barrier_0/zeros")
        + "x/barrier_0" = Reshape(x, "ckpt-opt/barrier_0/shape")
        + e = Tanh("x/barrier_0")
          t = Transpose(e)
        - c = Conv(t, w)
        + "t/barrier_1" = Reshape(t, "ckpt-opt/barrier_0/shape")
        + c = Conv("t/barrier_1", w)
          y = Neg(c)
        "#);
    }

    // 1.26.0 makes no session of a Reshape to numbers behind one to what is computed.
    #[test]
    fn what_a_barrier_hands_on_already_keeps_its_numbers_where_they_are_read() {
        let layer = LAYER.replace("m = MatMul(h, w)", "n = Size(h) z = Constant <value_ints = [0, 0, 0]> () p = Min(n, z) i = Reshape(h, p) m = MatMul(i, w)");
        let graph =
            parsed(&layer.replace("float[4,32,64] h,", "float[4,32,64] h, float[4,32,64] i,"));
        let hidden = hidden(&graph);
        let computed = out_of_computed(&hidden);
        let mut nodes = hidden.nodes();
        let is_behind = |node: &Node| {
            let read = node.input(0).filter(|_| node.is("", "Reshape"));
            read.is_some_and(|read| computed[read.index()])
        };
        assert!(!nodes.any(is_behind), "{}", hidden.to_listing());
        assert_ne!(hidden, graph);
    }

    // A barrier that nobody reads would be refused.
    #[test]
    fn what_bodies_alone_read_is_not_handed_on() {
        let mut graph = parsed(
            "<ir_version: 8, opset_import: [\"\" : 17]>
            g (float[32,64] x, float[64,64] w, float[1] s) => (float[32,64] y) <float[32,64] m>
            { m = MatMul(x, w) y = Exp(x) }",
        );
        let (m, last) = (graph.tensor_named("m").unwrap(), graph.order()[1]);
        graph.node_mut(last).captures = vec![m];
        assert_eq!(hidden(&graph), graph);
    }

    #[test]
    fn random_graphs_compute_the_same_whatever_is_hidden() {
        let mut changed = 0;
        for seed in 0..300 {
            let graph = random_training_graph(seed, 5 + seed as usize % 60);
            changed += usize::from(hidden_from(Bytes(1), &graph) != graph);
            // Some of it.
            let hide = HideSizes {
                from: Bytes(1),
                ..hide(stock())
            };
            let Some(known) = ByBarriers::of(&graph, &hide) else {
                continue;
            };
            let sources = known.worth.iter().map(|&(source, _)| source).enumerate();
            let half = sources.filter(|(at, _)| (seed as usize + at).is_multiple_of(2));
            let half = half.map(|(_, source)| source).collect();
            let mut partly = graph.clone();
            let Ok(_) = HideSizes {
                only: Some(&half),
                by_barriers: Some(&known),
                ..hide
            }
            .run(&mut partly);
            equivalence(&graph, &partly, &Default::default()).unwrap();
        }
        assert!(changed > 200, "{changed}");
    }

    #[test]
    fn training_builds_and_what_has_no_numbers_stay_as_they_are() {
        let graph = parsed(LAYER);
        assert!(ByBarriers::of(&graph, &hide(Runtime::DEFAULT)).is_none());
        let old = parsed(&LAYER.replace(": 17", ": 11"));
        assert!(ByBarriers::of(&old, &hide(stock())).is_none());
        let small = parsed(
            "<ir_version: 8, opset_import: [\"\" : 17]> g (float[4] x) => (float[4] y) <float[4] a> { a = Exp(x) y = Exp(a) }",
        );
        assert_eq!(hidden(&small), small);
    }
}

//! Values that the runtime rounds to 16 bits, or does not, by who reads and writes them.
//!
//! A node that the CPU computes in float32 hands its result on without rounding to others like it, but rounded
//! to nodes with a kernel for float16 (`casts.rs`). So copies of a node and of its readers change no bit, as each reads what the original
//! reads. What does change some:
//!
//! - a PassThrough between a node that writes and one that reads, unless the runtime computes it in float32 exactly where it would not have rounded;
//! - a reader more or less, where it is the readers together on which it depends: of a cast of the file that has another behind it, of
//!   a node whose kernel is used only because one of its readers has one, too.
//!
//! An Identity has such a kernel, and is gone once the runtime has optimized the graph; a product of rows gets Reshapes then, which have one. All
//! these forms count.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::Release;
use super::casting::{Casting, are_there, loses_bits};
use super::casts::{Party, parties};
use super::fusing::{Adding, Fusing};
use super::known_shapes::runtime_shapes;
use super::optimized_shapes::runtime_shapes_once_optimized;
use super::skeleton::Skeleton;
use crate::graph::{ElementType, Graph, MultipliedRows, Node, NodeId, TensorId, Uses, in_sequence};
use crate::operators::Provider;

/// Which parts of a graph have to keep their writers and their readers for the bits to stay.
#[derive(Default)]
pub(crate) struct Rounding {
    /// As the file has it.
    written: RoundedForm,
    /// Without its Identities, if there are any, and with the Reshapes that some releases have around products of rows, if there are any.
    optimized: Vec<OptimizedRounding>,
}

/// The graph as the runtime may have it once it has optimized it.
struct OptimizedRounding {
    form: RoundedForm,
    /// By tensor: what is read in its place.
    source: Vec<TensorId>,
    /// By Identity that went: who reads what it hands on, one of each party.
    readers: HashMap<NodeId, Vec<NodeId>>,
    /// By product of rows: what it reads by way of a Reshape, and that.
    before: BTreeMap<NodeId, (TensorId, NodeId)>,
    /// By the addition behind it: the Reshape of its result.
    behind: BTreeMap<NodeId, NodeId>,
    /// Additions behind products whose first Reshape is computed in float16. Where several read one product there is no such Reshape, and what is read
    /// can be rounded otherwise.
    alone: BTreeSet<NodeId>,
}

/// The same of one form of the graph.
#[derive(Default)]
struct RoundedForm {
    /// By tensor; empty where nothing is rounded.
    held: Vec<HeldRounding>,
    /// By tensor.
    writer: Vec<Option<Party>>,
    /// By node id.
    party: Vec<Party>,
    /// By node id: would a copy be computed otherwise?
    single: Vec<bool>,
}

/// What must stay as it is around a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeldRounding {
    /// It is not rounded.
    Wide,
    /// It is in float16; what one reader reads does not depend on others.
    Free,
    /// No node with a kernel may read it besides its readers.
    Alone,
    /// Its writer and its readers, all of them.
    All,
}

impl Rounding {
    /// O(nodes).
    pub(crate) fn of(graph: &Graph, provider: Provider, release: &Release) -> Rounding {
        // A GPU has the kernels.
        if provider != Provider::Cpu || !are_there(graph) {
            return Rounding::default();
        }
        let without = graph.without_identities();
        let mut optimized = Vec::new();
        if !release.trains {
            let base = without.as_ref().map_or(graph, |without| &without.graph);
            let rows = by_rows(base, provider);
            optimized.extend(rows.map(|rows| {
                let all = graph.tensor_ids().collect();
                let source = without.as_ref().map_or(all, |of| of.source.clone());
                OptimizedRounding::of(graph, rows, source, provider)
            }));
        }
        optimized.extend(without.map(|of| {
            let none = MultipliedRows {
                graph: of.graph,
                before: BTreeMap::new(),
                behind: BTreeMap::new(),
            };
            OptimizedRounding::of(graph, none, of.source, provider)
        }));
        Rounding {
            written: RoundedForm::of(graph, provider),
            optimized,
        }
    }

    /// May `reader`, and nobody else, read the tensor from a PassThrough? Whether that rounds depends on both ends.
    pub(crate) fn may_pass(&self, tensor: TensorId, reader: NodeId) -> bool {
        let once_optimized = |optimized: &OptimizedRounding| {
            let (form, source) = (&optimized.form, optimized.source(tensor));
            let readers = optimized.readers(source, reader);
            let is_wide = |&&reader: &&NodeId| form.party[reader.index()] == Party::Wide;
            // All of them read what the PassThrough hands on, which is rounded for all or for none.
            let wide = readers.iter().filter(is_wide).count();
            let may_pass = |&reader: &NodeId| form.may_pass(source, reader);
            readers.iter().all(may_pass) && (wide == 0 || wide == readers.len())
        };
        self.written.may_pass(tensor, reader) && self.optimized.iter().all(once_optimized)
    }

    /// May a PassThrough wait for the tensor, beside another that it passes on?
    pub(crate) fn may_wait(&self, tensor: TensorId) -> bool {
        let may_wait = |form: &RoundedForm, tensor| {
            matches!(form.held(tensor), HeldRounding::Wide | HeldRounding::Free)
        };
        self.in_all(tensor, may_wait)
    }

    /// Is it rounded anywhere?
    pub(crate) fn depends(&self, tensor: TensorId) -> bool {
        !self.in_all(tensor, |form, tensor| {
            form.held(tensor) == HeldRounding::Wide
        })
    }

    /// Does that hold for the tensor, and for what is read in its place once the graph is optimized?
    fn in_all(&self, tensor: TensorId, holds: impl Fn(&RoundedForm, TensorId) -> bool) -> bool {
        let once_optimized =
            |optimized: &OptimizedRounding| holds(&optimized.form, optimized.source(tensor));
        holds(&self.written, tensor) && self.optimized.iter().all(once_optimized)
    }

    /// Does the node read or write anything that is?
    pub(crate) fn touches(&self, node: &Node) -> bool {
        let mut all = node.reads().chain(node.writes());
        all.any(|tensor| self.depends(tensor))
    }

    /// Would a copy be computed otherwise than the original, or the original otherwise beside it?
    pub(crate) fn is_single(&self, graph: &Graph, id: NodeId) -> bool {
        let node = graph.node(id);
        let mut all = node.reads().chain(node.writes());
        let is_single = |form: &RoundedForm, id: NodeId| form.single.get(id.index()) == Some(&true);
        let once_optimized = |of: &OptimizedRounding| {
            let reshaped = of.behind.get(&id).copied();
            of.alone.contains(&id)
                || is_single(&of.form, id)
                || reshaped.is_some_and(|id| is_single(&of.form, id))
        };
        is_single(&self.written, id)
            || self.optimized.iter().any(once_optimized)
            || all.any(|t| !self.in_all(t, |form, t| form.held(t) != HeldRounding::All))
    }
}

/// The graph with Reshapes around each product of rows in float16 (`MatMulAddFusion` in builds after 1.20.1).
fn by_rows(graph: &Graph, provider: Provider) -> Option<MultipliedRows> {
    let shapes = runtime_shapes_once_optimized(graph);
    let skeleton = Skeleton::without_costs(graph, &shapes, provider);
    let uses = Uses::of(graph);
    let adds = Adding::ToRows;
    let addition = |(&id, &fusing): (&NodeId, &Fusing)| {
        let written = graph.node(id).output(0)?;
        let is_half = graph.tensor(written).element == Some(ElementType::Float16);
        let &addition = uses.readers(written).first()?;
        (is_half && fusing == Fusing::Product { adds }).then_some((id, addition))
    };
    let nodes = graph.order().iter().zip(&skeleton.fusing);
    graph.multiplying_rows(&nodes.filter_map(addition).collect())
}

impl OptimizedRounding {
    /// `rows` have the nodes of the graph by their ids, but for Identities.
    fn of(
        graph: &Graph,
        rows: MultipliedRows,
        source: Vec<TensorId>,
        provider: Provider,
    ) -> OptimizedRounding {
        let MultipliedRows {
            graph: optimized,
            before,
            behind: reshaped,
        } = rows;
        let form = RoundedForm::of(&optimized, provider);
        let optimized_uses = Uses::of(&optimized);
        let uses_kernel = |&(_, &(read, reshape)): &(&NodeId, &(TensorId, NodeId))| {
            form.writer[read.index()].is_some() && form.party[reshape.index()] == Party::Kernel
        };
        let addition = |(&product, _): (&NodeId, &(TensorId, NodeId))| {
            let written = optimized.node(product).output(0)?;
            optimized_uses.readers(written).first().copied()
        };
        let alone = before
            .iter()
            .filter(uses_kernel)
            .filter_map(addition)
            .collect();
        let mut readers: HashMap<NodeId, Vec<NodeId>> = HashMap::new();
        let mut is_there = vec![false; optimized.node_count()];
        for id in optimized.order() {
            is_there[id.index()] = true;
        }
        let uses = Uses::of(graph);
        let gone = |id: NodeId| !is_there[id.index()];
        for &id in in_sequence(graph).iter().rev().filter(|&&id| gone(id)) {
            let written = graph.node(id).writes();
            let direct = written.flat_map(|tensor| uses.readers(tensor).iter().copied());
            let behind = |reader: NodeId| readers.get(&reader).cloned().unwrap_or(vec![reader]);
            let mut behind: Vec<NodeId> = direct.flat_map(behind).collect();
            let mut parties = Vec::new();
            behind.retain(|reader| {
                let party = (form.party[reader.index()], before.contains_key(reader));
                let is_new = !parties.contains(&party);
                parties.extend(is_new.then_some(party));
                is_new
            });
            readers.insert(id, behind);
        }
        OptimizedRounding {
            form,
            source,
            readers,
            before,
            behind: reshaped,
            alone,
        }
    }

    fn source(&self, tensor: TensorId) -> TensorId {
        let source = self.source.get(tensor.index());
        source.copied().unwrap_or(tensor)
    }

    /// Who reads the tensor for the node now: the readers of an Identity that went, the Reshape before a product of rows, or the node itself.
    fn readers(&self, tensor: TensorId, reader: NodeId) -> Vec<NodeId> {
        let readers = self.readers.get(&reader).cloned();
        let mut readers = readers.unwrap_or_else(|| vec![reader]);
        for reader in &mut readers {
            if let Some(&(_, before)) = self.before.get(reader).filter(|of| of.0 == tensor) {
                *reader = before;
            }
        }
        readers
    }
}

impl RoundedForm {
    fn of(graph: &Graph, provider: Provider) -> RoundedForm {
        let skeleton = Skeleton::without_costs(graph, &runtime_shapes(graph), provider);
        let mut party = vec![Party::Kernel; graph.node_count()];
        let mut single = vec![false; graph.node_count()];
        for (&id, (is, could_be_forced)) in graph.order().iter().zip(parties(graph, &skeleton)) {
            party[id.index()] = is;
            single[id.index()] = could_be_forced;
        }
        let uses = Uses::of(graph);
        let writer = |tensor| uses.producer(tensor).map(|id| party[id.index()]);
        let is_cast = |party: Party| matches!(party, Party::Cast { .. });
        // Two casts of which the second may undo the first.
        let is_between = |tensor: TensorId| {
            let mut readers = uses.readers(tensor).iter();
            graph.tensor(tensor).element != Some(ElementType::Float16)
                && writer(tensor).is_some_and(is_cast)
                && readers.any(|id| is_cast(party[id.index()]))
                && !stays(graph, &uses, tensor)
        };
        let held = |tensor: TensorId| {
            if graph.tensor(tensor).element != Some(ElementType::Float16) {
                return match is_between(tensor) {
                    true => HeldRounding::All,
                    false => HeldRounding::Wide,
                };
            }
            let reader = |&id: &NodeId| (party[id.index()], gives_result(graph, id));
            let readers: Vec<_> = uses.readers(tensor).iter().map(reader).collect();
            let by = uses.producer(tensor).map(|id| graph.node(id));
            // Then a third one can undo what was before both.
            let third = by.is_some_and(|by| by.reads().any(is_between))
                && readers.iter().any(|&(reader, _)| is_cast(reader));
            match third {
                true => HeldRounding::All,
                false => held(writer(tensor), &readers),
            }
        };
        RoundedForm {
            held: graph.tensor_ids().map(held).collect(),
            writer: graph.tensor_ids().map(writer).collect(),
            party,
            single,
        }
    }

    fn held(&self, tensor: TensorId) -> HeldRounding {
        // What was added to the graph since is not rounded.
        let held = self.held.get(tensor.index());
        held.copied().unwrap_or(HeldRounding::Wide)
    }

    /// May `reader`, and nobody else, read the tensor from a PassThrough? Whether that rounds depends on both ends.
    fn may_pass(&self, tensor: TensorId, reader: NodeId) -> bool {
        match self.held(tensor) {
            HeldRounding::Wide => return true,
            HeldRounding::All => return false,
            HeldRounding::Free | HeldRounding::Alone => {}
        }
        match (self.writer[tensor.index()], self.party[reader.index()]) {
            (_, Party::Forced | Party::Pieces) | (Some(Party::Forced | Party::Pieces), _) => false,
            (Some(Party::Wide), reader) => !matches!(reader, Party::Cast { .. }),
            (Some(Party::Cast { .. }), reader) => reader != Party::Wide,
            (Some(Party::Kernel) | None, _) => true,
        }
    }
}

/// Do the casts on both sides of the tensor stay, whoever else reads it? One that changes the value does, with all that change
/// it back.
fn stays(graph: &Graph, uses: &Uses, tensor: TensorId) -> bool {
    let cast = |id: NodeId| match Casting::of(graph, graph.node(id)) {
        Casting::Cast { from, to } => Some((from, to)),
        _ => None,
    };
    let mut behind = uses.readers(tensor).iter().filter_map(|&id| cast(id));
    let before = uses.producer(tensor).and_then(cast);
    before.is_some_and(|(from, to)| loses_bits(from, to, false))
        && behind.all(|(from, to)| loses_bits(to, from, false))
}

fn gives_result(graph: &Graph, id: NodeId) -> bool {
    let mut writes = graph.node(id).writes();
    writes.any(|tensor| graph.outputs.contains(&tensor))
}

/// What must stay around a tensor in float16 with these readers; also, whether they give results to the caller.
fn held(writer: Option<Party>, readers: &[(Party, bool)]) -> HeldRounding {
    let any = |party: Party| readers.iter().any(|&(reader, _)| reader == party);
    let cast = |&(reader, gives_result): &(Party, bool)| match reader {
        Party::Cast { to, .. } => Some((to, gives_result)),
        _ => None,
    };
    let mut casts = readers.iter().filter_map(cast);
    let all_stay = match writer {
        _ if any(Party::Pieces) => true,
        Some(Party::Pieces) => true,
        Some(Party::Forced) => return HeldRounding::Alone,
        Some(Party::Kernel) | None => false,
        // A cast behind it that stays reads what is rounded only if others do.
        Some(Party::Wide) => {
            casts.any(|(to, gives_result)| to != ElementType::Float || gives_result)
        }
        // Others behind it tell whether it counts as rounding on purpose.
        Some(Party::Cast { from, .. }) => {
            let has_casts = casts.clone().next().is_some();
            let on_purpose = casts.all(|(to, _)| loses_bits(to, ElementType::Float16, false));
            !on_purpose || any(Party::Wide) && (has_casts || from != ElementType::Float)
        }
    };
    match all_stay {
        true => HeldRounding::All,
        false => HeldRounding::Free,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{STOCK, TRAINING};

    /// By tensor that is rounded: how it is held, and by reader whether it may read a PassThrough of it.
    fn held(text: &str) -> String {
        let graph = Graph::parse(text).unwrap();
        let of = |provider| Rounding::of(&graph, provider, &TRAINING);
        assert_eq!(of(Provider::Cuda).written.held, []);
        let rounding = of(Provider::Cpu);
        let uses = Uses::of(&graph);
        let depends = graph.tensor_ids().filter(|&id| rounding.depends(id));
        let lines = depends.map(|id| {
            let reader = |&reader: &NodeId| {
                let mark = match rounding.may_pass(id, reader) {
                    true => "",
                    false => "!",
                };
                let written = graph.node(reader).writes().next().unwrap();
                format!(" {mark}{}", graph.tensor(written).name)
            };
            let readers: String = uses.readers(id).iter().map(reader).collect();
            format!(
                "{} {:?}:{readers}",
                graph.tensor(id).name,
                rounding.written.held(id)
            )
        });
        let single = graph
            .order()
            .iter()
            .filter(|&&id| rounding.is_single(&graph, id));
        let single = single.map(|&id| graph.tensor(graph.node(id).output(0).unwrap()).name.clone());
        let single = single.collect::<Vec<_>>().join(" ");
        format!("{}\nsingle: {single}", lines.collect::<Vec<_>>().join("\n"))
    }

    #[test]
    fn casts_that_the_runtime_never_takes_out_are_as_other_nodes() {
        let between = |middle: &str, to: i64| {
            held(&format!(
                "g (int64[4] x) => (int64[4] y) <{middle}[4] m> {{ m = Cast<to = {to}>(x) y = Cast<to = 7>(m) }}"
            ))
        };
        // Half of the bits go, so both stay.
        assert_eq!(between("int32", 6), "\nsingle: ");
        // Nothing is lost, and whoever else reads the middle decides what stays.
        assert_eq!(between("int64", 7), "m All: !y\nsingle: m y");
    }

    #[test]
    fn between_nodes_without_a_kernel_all_may_be_repeated_and_passed_on() {
        insta::assert_snapshot!(held(
            "g (float[4] x) => (float[4] y) <float16[4] h, float16[4] a, float16[4] b, float[4] f>
            { h = Cast<to = 10>(x) a = Exp(h) b = Exp(a) f = Cast<to = 1>(b) y = Exp(f) }"
        ), @r"
        h Free: !a
        a Free: b
        b Free: !f
        single:
        ");
    }

    #[test]
    fn what_casts_of_the_file_round_and_widen_again_stays_as_it_is() {
        insta::assert_snapshot!(held(
            "g (float[4] x) => (float[4] y, float[4] z) <float16[4] h, float16[4] a, float[4] f>
            { h = Cast<to = 10>(x) a = Exp(h) f = Cast<to = 1>(a) y = Exp(f) z = Cast<to = 1>(h) }"
        ), @r"
        h All: !a !z
        a Free: !f
        single: h a z
        ");
    }

    #[test]
    fn a_kernel_that_is_not_used_keeps_its_surroundings_and_one_that_is_used_its_readers() {
        insta::assert_snapshot!(held(
            "g (float16[4,4] x) => (float16[4,4] y, float16[4,4] z)
            <float16[4,4] a, float16[4,4] t, float16[4,4] b, float16[4,4] s>
            { a = Exp(x) t = Transpose<perm = [1, 0]>(a) y = Log(t) b = Exp(a) s = Transpose<perm = [1, 0]>(b)
              z = Transpose<perm = [1, 0]>(s) }"
        ), @r"
        x Free: a
        y Free:
        z Free:
        a Free: !t b
        t Alone: !y
        b Free: s
        s Free: z
        single: s
        ");
    }

    #[test]
    fn what_is_taken_apart_and_what_lies_between_two_casts_of_the_file_stay() {
        insta::assert_snapshot!(held(
            "g (float[4] x) => (float[4] y) <float16[4] h, float16[4] a, float[4] f, float16[4] k, float16[4] b>
            { h = Cast<to = 10>(x) a = com.microsoft.Gelu(h) f = Cast<to = 1>(a) k = Cast<to = 10>(f) b = Exp(k)
              y = Cast<to = 1>(b) }"
        ), @r"
        h All: !a
        a All: !f
        f All: !k
        k Free: !b
        b All: !y
        single: h a f k b y
        ");
    }

    /// Without the Identity, a kernel and a node without one read what a PassThrough before it hands on.
    #[test]
    fn nobody_reads_a_pass_through_before_an_identity_that_hands_on_to_both_kinds() {
        let may = |first: &str| {
            let text = format!(
                "g (float16[4,4] x) => (float[4,4] y, float[4,4] z) <float16[4,4] a, float16[4,4] i, float16[4,4] l, float16[4,4] t>
                {{ a = Exp(x) i = Identity(a) l = {first} t = Transpose<perm = [1, 0]>(i) y = Cast<to = 1>(l) z = Cast<to = 1>(t) }}"
            );
            let graph = Graph::parse(&text).unwrap();
            let rounding = Rounding::of(&graph, Provider::Cpu, &TRAINING);
            rounding.may_pass(graph.tensor_named("a").unwrap(), graph.order()[1])
        };
        assert!(may("Transpose<perm = [1, 0]>(i)"));
        assert!(!may("Log(i)"));
    }

    #[test]
    fn casts_alone_round_as_they_say() {
        insta::assert_snapshot!(held(
            "g (float[4] x) => (float[4] y) <float16[4] h, float[4] f>
            { h = Cast<to = 10>(x) f = Cast<to = 1>(h) y = Exp(f) }"
        ), @r"
        h Free: f
        single:
        ");
    }

    /// Measured in 1.26.0 and 1.32.0: the first has other bits at ORT_ENABLE_BASIC where the Cast reads a copy of the sum.
    #[test]
    fn the_reshape_behind_a_product_of_rows_rounds_by_who_reads_it() {
        let sum = |readers: &str, release: &Release| {
            let text = format!(
                r#"<ir_version: 8, opset_import: ["" : 17]> g (float16[2,3,4] x, float16[4,5] w, float16[5] v) => (float16[2,3,5] y, float[2,3,5] z)
                <float16[2,3,5] a, float16[2,3,5] s, float[2,3,5] c, float16[5,3,2] t> {{ a = MatMul(x, w) s = Add(a, v) y = Softplus(s) {readers} }}"#
            );
            let graph = Graph::parse(&text).unwrap();
            let rounding = Rounding::of(&graph, Provider::Cpu, release);
            let (sum, reader) = (graph.order()[1], graph.order()[2]);
            let written = graph.tensor_named("s").unwrap();
            let may = [
                !rounding.is_single(&graph, sum),
                rounding.may_pass(written, reader),
                rounding.may_wait(written),
            ];
            may.map(|may| if may { "may" } else { "-" }).join(" ")
        };
        // May there be a copy of the sum, a barrier before the first reader, and one that waits for the sum?
        let cases = [
            ("c = Cast<to = 1>(s) z = Exp(c)", "- may may", "may may may"),
            ("t = Transpose(s) z = Exp(t)", "- may may", "may may may"),
            ("z = Tanh(s)", "may - -", "may may may"),
        ];
        for (readers, stock, training) in cases {
            assert_eq!(sum(readers, &STOCK), stock, "{readers}");
            assert_eq!(sum(readers, &TRAINING), training, "{readers}");
        }
    }

    #[test]
    fn the_sum_of_a_product_that_a_reshape_feeds_in_float16_is_added_once() {
        let is_single = |first: &str| {
            let text = format!(
                r#"<ir_version: 8, opset_import: ["" : 17]> g (float[2,3,4] x, float16[2,3,4] h, float16[4,5] w, float16[5] v) => (float16[2,3,5] y)
                <float16[2,3,4] n, float16[2,3,5] m, float16[2,3,5] s> {{ {first} m = MatMul(n, w) s = Add(m, v) y = Softplus(s) }}"#
            );
            let graph = Graph::parse(&text).unwrap();
            let sum = graph.order()[2];
            let of = |release| Rounding::of(&graph, Provider::Cpu, release).is_single(&graph, sum);
            assert!(!of(&TRAINING), "{first}");
            of(&STOCK)
        };
        assert!(is_single("n = Cast<to = 10>(x)"));
        assert!(is_single("n = Clip(h)"));
        assert!(!is_single("n = Tanh(h)"));
    }
}

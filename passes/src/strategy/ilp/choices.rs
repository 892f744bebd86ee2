//! The implementations that MONeT's program may choose from: variants of single backward nodes.
//!
//! What an implementation takes and allocates is what the cost model says of its parts, and what it
//! needs is counted part by part: one that is done with a forward result before its last part, such
//! as a convolution's weight gradient before its input gradient (MONeT, appendix D), lets go of it.

use std::collections::BTreeMap;

use super::monet::{Implementation, ImplementationChoice, Intermediate, Moment};
use super::units::Units;
use crate::analysis::cost::costs;
use crate::bytes::Bytes;
use crate::cost::Cost;
use crate::graph::{Graph, NodeId, TensorId, TensorKind, Uses};
use crate::operators::aliased;
use crate::operators::variants::nodes::{add_beside, fits_in_place};
use crate::operators::variants::{Group, Like, Part, Read, VARIANTS, Variant, Write};
use crate::runtime::liveness::TENSOR;
use crate::strategy::Task;

/// So many nodes have a choice at most: those that read most.
const MOST_CHOICES: usize = 60;

/// Every backward node with at least one variant that the node as it is does not make useless, the
/// largest first.
pub(super) fn choices(
    task: &Task<'_>,
    units: &Units,
    groups: &[Group],
    may: &dyn Fn(NodeId, &Variant) -> bool,
) -> Vec<ImplementationChoice> {
    let uses = Uses::of(task.graph);
    let mut places = vec![None; task.graph.node_count()];
    for (place, id) in task.order.iter().enumerate() {
        places[id.index()] = Some(place);
    }
    let place = |id: NodeId| places[id.index()];
    // The parts of all variants, for the cost model.
    let mut with = task.graph.clone();
    let mut sites = Vec::new();
    for (unit, of) in units.units.iter().enumerate().skip(units.forward) {
        for &node in &of.nodes {
            let allowed = VARIANTS.iter().filter(|variant| {
                groups.contains(&variant.group)
                    && variant.suits(task.device.provider)
                    && may(node, variant)
            });
            let forms: Vec<_> = allowed
                .filter_map(|variant| {
                    let parts = variant.parts(task.graph, &uses, node)?;
                    if !fits_in_place(&uses, place, node, &parts) {
                        return None;
                    }
                    let (nodes, _) = add_beside(&mut with, node, &parts, &[]);
                    Some((variant, parts, nodes))
                })
                .collect();
            if !forms.is_empty() {
                sites.push((unit, node, forms));
            }
        }
    }
    let view = Forms {
        costs: costs(&with, task.device, task.overrides),
        graph: with,
        units,
    };
    let mut found: Vec<(u64, ImplementationChoice)> = Vec::new();
    for (unit, node, forms) in sites {
        let mut options = vec![view.as_it_is(node)];
        for (variant, parts, nodes) in forms {
            if let Some(mut option) = view.implementation((unit, node), &parts, &nodes)
                && !options.iter().any(|known| known.dominates(&option))
            {
                option.variant = Some(variant);
                options.push(option);
            }
        }
        if options.len() > 1 {
            let sizes = task.graph.node(node).reads();
            let sizes = sizes.map(|tensor| bytes(task.graph, tensor));
            let choice = ImplementationChoice {
                node,
                unit,
                around: around(units, unit, node, &options),
                options,
            };
            found.push((sizes.sum::<Bytes>().0, choice));
        }
    }
    found.sort_by_key(|(bytes, choice)| (std::cmp::Reverse(*bytes), choice.node));
    found.truncate(MOST_CHOICES);
    found.into_iter().map(|(_, choice)| choice).collect()
}

/// Variants of forward nodes: the same results in less memory.
pub(super) fn dominating(
    task: &Task<'_>,
    units: &Units,
    groups: &[Group],
) -> Vec<(NodeId, &'static Variant)> {
    let uses = Uses::of(task.graph);
    let forward = units.units[..units.forward].iter();
    let nodes = forward.flat_map(|unit| unit.nodes.iter().copied());
    let variant = |node: NodeId| {
        let mut allowed = VARIANTS.iter().filter(|variant| {
            groups.contains(&variant.group) && variant.suits(task.device.provider)
        });
        let applies = |variant: &&Variant| variant.parts(task.graph, &uses, node).is_some();
        Some((node, allowed.find(applies)?))
    };
    nodes.filter_map(variant).collect()
}

/// What is there of the unit while the node runs, besides what the node as it is writes and allocates.
fn around(units: &Units, unit: usize, node: NodeId, options: &[Implementation]) -> f64 {
    let of = &units.units[unit];
    let place = of.nodes.iter().position(|&id| id == node);
    let need = place.map_or(0.0, |place| of.needs[place]);
    let own = options[0].moments[0].bytes;
    (need - own).max(0.0)
}

fn bytes(graph: &Graph, tensor: TensorId) -> Bytes {
    graph.tensor(tensor).bytes().unwrap_or(Bytes::ZERO)
}

impl Implementation {
    /// Is the other no better in anything?
    fn dominates(&self, other: &Implementation) -> bool {
        let covers = |one: &Moment, other: &Moment| {
            one.bytes <= other.bytes && one.reads.iter().all(|from| other.reads.contains(from))
        };
        self.time <= other.time
            && self.intermediate == other.intermediate
            && self
                .moments
                .iter()
                .all(|one| other.moments.iter().any(|other| covers(one, other)))
    }
}

/// The graph with the parts of all variants beside the nodes.
struct Forms<'t> {
    units: &'t Units,
    graph: Graph,
    /// By node of it.
    costs: Vec<Cost>,
}

impl Forms<'_> {
    fn time(&self, node: NodeId) -> f64 {
        self.costs[node.index()].time.0 as f64
    }

    fn as_it_is(&self, node: NodeId) -> Implementation {
        let reads = self.units.read_by(node);
        let kept = |from: &usize| *from < self.units.forward && self.units.units[*from].bytes > 0.0;
        let reads: Vec<usize> = reads.filter(kept).collect();
        let writes = self.graph.node(node).writes();
        let written: f64 = writes.map(|t| self.units.written[t.index()]).sum();
        let workspace = self.costs[node.index()].workspace.0 as f64;
        Implementation {
            variant: None,
            intermediate: None,
            sequence: vec![0],
            time: 0.0,
            moments: vec![Moment {
                reads,
                reads_intermediate: false,
                bytes: written + workspace,
            }],
        }
    }

    /// What the parts read of the forward part, need and take; `None` if what they read is not kept
    /// with the results of a unit.
    fn implementation(
        &self,
        (unit, node): (usize, NodeId),
        parts: &[Part],
        nodes: &[NodeId],
    ) -> Option<Implementation> {
        let units = self.units;
        let mut intermediate: Option<Intermediate> = None;
        // By part: does it read anything of the backward part? The forward units that it reads.
        let mut late: Vec<bool> = Vec::new();
        let mut reads: Vec<Vec<usize>> = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            let mut from: Vec<usize> = Vec::new();
            let mut is_late = part.inputs.is_empty();
            for read in part.inputs.iter().flatten() {
                match *read {
                    Read::Tensor(tensor) => match units.unit_of[tensor.index()] {
                        Some(of) if of < units.forward => from.push(of),
                        Some(of) => is_late |= of != unit || of >= units.forward,
                        // The caller's, or inside of a unit: only what was read before is known to be there.
                        None if self.graph.node(node).reads().any(|read| read == tensor) => {
                            is_late |= self.graph.tensor(tensor).kind == TensorKind::Value;
                        }
                        None => return None,
                    },
                    Read::Output(of, _) => is_late |= late[of] && !parts[of].inputs.is_empty(),
                }
            }
            let mut writes = part.outputs.iter().flatten();
            let mask = writes.find_map(|write| self.smaller(write));
            match (is_late, mask, from.as_slice()) {
                (false, Some(size), &[of]) if intermediate.is_none() => {
                    intermediate = Some(Intermediate {
                        part: at,
                        from: of,
                        bytes: (size + TENSOR).0 as f64,
                        time: self.time(nodes[at]),
                    });
                    reads.push(Vec::new());
                }
                _ => reads.push(from),
            }
            late.push(is_late);
        }
        let aside = intermediate.map(|one| one.part);
        let steps: Vec<usize> = (0..parts.len()).filter(|&at| Some(at) != aside).collect();
        let time: f64 = steps.iter().map(|&at| self.time(nodes[at])).sum();
        let (sequence, moments) = self.moments(node, parts, nodes, &steps, &reads, aside);
        Some(Implementation {
            variant: None,
            sequence,
            moments,
            intermediate,
            time: time - self.time(node),
        })
    }

    /// How large is what is written, if it is like another tensor but smaller?
    fn smaller(&self, write: &Write) -> Option<Bytes> {
        let Write::New {
            shape: Like::Tensor(like),
            element,
            ..
        } = write
        else {
            return None;
        };
        let size = element.bytes(self.graph.tensor(*like).element_count()?);
        (size < bytes(&self.graph, *like)).then_some(size)
    }

    /// What is there at each of the steps, which run in a sequence that reads forward results first.
    fn moments(
        &self,
        node: NodeId,
        parts: &[Part],
        nodes: &[NodeId],
        steps: &[usize],
        reads: &[Vec<usize>],
        aside: Option<usize>,
    ) -> (Vec<usize>, Vec<Moment>) {
        let source = |read: &Read| match *read {
            Read::Output(of, _) => Some(of),
            Read::Tensor(_) => None,
        };
        let sources = |at: usize| parts[at].inputs.iter().flatten().filter_map(source);
        // Names of what others wrote: by tensor, what it is a name of.
        let mut name_of: BTreeMap<TensorId, TensorId> = BTreeMap::new();
        // By part: the forward units whose results it reads, by whatever name.
        let mut reads = reads.to_vec();
        for &at in steps {
            for (output, input) in aliased(self.graph.node(nodes[at])) {
                let root = name_of.get(&input).copied().unwrap_or(input);
                name_of.insert(output, root);
            }
            for of in sources(at) {
                if aliased(self.graph.node(nodes[of])).next().is_some() {
                    let further = reads[of].clone();
                    reads[at].extend(further);
                }
            }
        }
        let root = |tensor: TensorId| name_of.get(&tensor).copied().unwrap_or(tensor);
        let mut sequence: Vec<usize> = Vec::new();
        while sequence.len() < steps.len() {
            let done = |of: usize| sequence.contains(&of) || Some(of) == aside;
            let is_ready = |at: &&usize| !sequence.contains(at) && sources(**at).all(done);
            let ready: Vec<usize> = steps.iter().filter(is_ready).copied().collect();
            let first = ready.iter().find(|&&at| !reads[at].is_empty());
            let Some(&next) = first.or(ready.first()) else {
                break;
            };
            sequence.push(next);
        }
        // What the node writes stays, and counts as much as it does without the variant.
        let mut results: BTreeMap<TensorId, f64> = BTreeMap::new();
        for tensor in self.graph.node(node).writes() {
            *results.entry(root(tensor)).or_default() += self.units.written[tensor.index()];
        }
        let mut moments = Vec::new();
        let mut written: Vec<TensorId> = Vec::new();
        for (place, &at) in sequence.iter().enumerate() {
            let later = &sequence[place..];
            let read_on = |tensor: TensorId| {
                let mut inputs = later
                    .iter()
                    .flat_map(|&at| self.graph.node(nodes[at]).reads());
                inputs.any(|input| root(input) == tensor)
            };
            let writes = self.graph.node(nodes[at]).writes();
            let own: Vec<TensorId> = writes.filter(|&tensor| root(tensor) == tensor).collect();
            written.extend(&own);
            if parts[at].inputs.is_empty() {
                continue;
            }
            let size = |&tensor: &TensorId| match results.get(&tensor) {
                Some(&bytes) => bytes,
                None if own.contains(&tensor) || read_on(tensor) => {
                    (bytes(&self.graph, tensor) + TENSOR).0 as f64
                }
                None => 0.0,
            };
            let workspace = self.costs[nodes[at].index()].workspace.0 as f64;
            let mut from: Vec<usize> = later.iter().flat_map(|&at| reads[at].clone()).collect();
            from.sort_unstable();
            from.dedup();
            moments.push(Moment {
                reads: from,
                reads_intermediate: later
                    .iter()
                    .any(|&at| sources(at).any(|of| Some(of) == aside)),
                bytes: written.iter().map(size).sum::<f64>() + workspace,
            });
        }
        (sequence, moments)
    }
}

/// Outputs that are other names of inputs.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::pass::Pass;
    use crate::rewrite::infer_shapes::InferShapes;
    use crate::strategy::tests::with_task;

    const CONVOLUTIONS: &str = "<ir_version: 8, opset_import: [\"\" : 17, \"com.microsoft\" : 1]>
        g (float[8,16,64,64] t0, float[64,16,3,3] w1, float[16,64,3,3] w2, float[8,16,64,64] d2)
          => (float[64,16,3,3] dw1, float[16,64,3,3] dw2)
        {
          t1 = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (t0, w1)
          t2 = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (t1, w2)
          d1, dw2 = com.microsoft.ConvGrad <kernel_shape = [3,3], pads = [1,1,1,1]> (d2, t1, w2)
          \"\", dw1 = com.microsoft.ConvGrad <kernel_shape = [3,3], pads = [1,1,1,1]> (d1, t0, w1)
        }";

    /// The options of the first choice, by name.
    fn options(text: &str) -> Vec<(&'static str, Implementation)> {
        let mut graph = Graph::parse(text).unwrap();
        let bindings = Default::default();
        InferShapes { bindings }.run(&mut graph).unwrap();
        with_task(&graph, |task| {
            let units = Units::of(task, [40; 2]).unwrap();
            let found = choices(task, &units, &Group::ALL, &|_, _| true);
            let options = found[0].options.iter().cloned();
            let name = |option: &Implementation| option.variant.map_or("as it is", |v| v.name);
            options.map(|option| (name(&option), option)).collect()
        })
    }

    #[test]
    fn a_convolution_lets_go_of_what_it_reads_behind_its_weight_gradient() {
        let options = options(CONVOLUTIONS);
        let names: Vec<_> = options.iter().map(|option| option.0).collect();
        // Of split-gradient both halves read t1 at once: it is never better than the node as it is.
        assert_eq!(names, ["as it is", "transposed-convolution"]);
        let moments = |at: usize| &options[at].1.moments;
        let reads = |at: usize| -> Vec<usize> {
            let moments = moments(at).iter();
            moments.map(|moment| moment.reads.len()).collect()
        };
        // The weights' gradient reads t1, ConvTranspose does not.
        assert_eq!([reads(0), reads(1)], [vec![1], vec![1, 0]]);
        // t1 and d1 have 8 x 64 x 64 x 64 numbers. Both kernels have columns of 9 x 64 rows for 64 x 64
        // windows, ConvGrad one row more.
        let (image, columns, row) = (8_388_608.0, 9_437_184.0, 16_384.0);
        let near = |moment: &Moment, bytes: f64| (moment.bytes - bytes).abs() < 100_000.0;
        assert!(
            near(&moments(0)[0], image + columns + row),
            "{:?}",
            moments(0)
        );
        assert!(near(&moments(1)[0], columns + row), "{:?}", moments(1));
        assert!(near(&moments(1)[1], image + columns), "{:?}", moments(1));
    }

    #[test]
    fn a_mask_costs_what_its_nodes_do_and_takes_what_they_write() {
        let options = options(
            "<ir_version: 8, opset_import: [\"\" : 17, \"com.microsoft\" : 1]>
            g (float[1024,1024] x, float[1024,1024] dy) => (float[1024,1024] dx)
            {
              a = Exp (x)
              r = Relu (a)
              dr = Mul (dy, r)
              da = com.microsoft.ReluGrad (dr, r)
              dx = Mul (da, a)
            }",
        );
        let (_, mask) = options
            .iter()
            .find(|option| option.0 == "relu-bool-mask")
            .unwrap();
        let one = mask.intermediate.unwrap();
        assert!((one.bytes - 1_048_576.0).abs() < 1_000.0, "{one:?}");
        assert!(one.time > 0.0 && mask.time > 0.0, "{mask:?}");
        // The byte becomes a number of four for the gradient, which is as large.
        let bytes = mask
            .moments
            .iter()
            .map(|moment| moment.bytes)
            .fold(0.0, f64::max);
        assert!((bytes - 8_388_608.0).abs() < 1_000.0, "{mask:?}");
    }
}

//! What XLA's rematerialization pass does (`HloRematerialization`), on the forward part's values.
//!
//! One pass over the sequence. Where memory exceeds the limit, the value is picked that frees most
//! just there: its own memory, less that of what it would be computed from and that had died. It
//! must not be in use at that step. It is computed again right before its next use. That is
//! repeated until the step fits or nothing frees anything; then the next step follows. Like XLA's,
//! the pass minds memory alone, not what the recomputation takes.

use std::sync::atomic::Ordering;

use super::{ForwardPart, Task};
use crate::bytes::Bytes;
use crate::graph::{NodeId, TensorId};
use crate::plan::Plan;

/// Plans for limits from everything down to nothing, in equal steps.
const LIMITS: u64 = 16;

/// Analysed steps in all, a few nanoseconds each.
const WORK: u64 = 1_000_000_000;

/// The plans.
pub(super) fn plans(task: &Task<'_>) -> Vec<Plan> {
    let forward = ForwardPart::of(task);
    let mut work = WORK;
    let mut plans = Vec::new();
    let all = Analysis::of(task, &forward, task.order).peak();
    for part in (0..LIMITS).rev() {
        let limit = all / LIMITS * part;
        plans.push(within(task, &forward, limit, &mut work));
        if work == 0 || task.stop.load(Ordering::Relaxed) {
            break;
        }
    }
    plans
}

fn within(task: &Task<'_>, forward: &ForwardPart, limit: u64, work: &mut u64) -> Plan {
    let mut sequence = task.order.to_vec();
    let mut analysis = Analysis::of(task, forward, &sequence);
    let mut step = 0;
    // A value that is computed again and again would never let a step fit.
    let most = sequence.len() * 4;
    while step < sequence.len() {
        if analysis.need[step] > limit
            && sequence.len() < most
            && let Some((vertex, before)) = analysis.best(forward, step)
        {
            let nodes = &forward.vertices[vertex as usize].nodes;
            sequence.splice(before..before, nodes.iter().copied());
            *work = work.saturating_sub(sequence.len() as u64);
            if *work == 0 {
                break;
            }
            analysis = Analysis::of(task, forward, &sequence);
        } else {
            step += 1;
        }
    }
    Plan {
        sequence,
        predicted_peak: Bytes::ZERO,
    }
}

/// One computation of a vertex, or a result of any other node.
struct Life {
    vertex: Option<u32>,
    bytes: u64,
    first: usize,
    /// Steps that read it, ascending.
    uses: Vec<usize>,
}

impl Life {
    fn last(&self) -> usize {
        self.uses.last().copied().unwrap_or(self.first)
    }
}

/// Who lives where in one sequence, counted plainly: without sharing of memory and workspace.
struct Analysis {
    lives: Vec<Life>,
    /// By step.
    need: Vec<u64>,
    /// By vertex: its computations, ascending.
    of_vertex: Vec<Vec<u32>>,
}

impl Analysis {
    fn of(task: &Task<'_>, forward: &ForwardPart, sequence: &[NodeId]) -> Analysis {
        const NONE: u32 = u32::MAX;
        let graph = task.graph;
        let mut analysis = Analysis {
            lives: Vec::new(),
            need: vec![0; sequence.len()],
            of_vertex: vec![Vec::new(); forward.vertices.len()],
        };
        let mut latest = vec![NONE; graph.tensor_count()];
        let mut latest_of_vertex = vec![NONE; forward.vertices.len()];
        for (step, &id) in sequence.iter().enumerate() {
            let node = graph.node(id);
            for tensor in node.reads() {
                if let Some(life) = analysis.lives.get_mut(latest[tensor.index()] as usize)
                    && life.uses.last() != Some(&step)
                {
                    life.uses.push(step);
                }
            }
            let vertex = forward.vertex_of[id.index()];
            let joins = vertex.filter(|&v| forward.vertices[v as usize].nodes[0] != id);
            let life = match joins {
                Some(v) => latest_of_vertex[v as usize],
                None => {
                    let bytes = |tensor: TensorId| graph.tensor(tensor).bytes();
                    let written = node.writes().filter_map(bytes).sum::<Bytes>().0;
                    analysis.lives.push(Life {
                        vertex,
                        bytes: vertex.map_or(written, |v| forward.vertices[v as usize].bytes.0),
                        first: step,
                        uses: Vec::new(),
                    });
                    analysis.lives.len() as u32 - 1
                }
            };
            if let (Some(v), None) = (vertex, joins) {
                latest_of_vertex[v as usize] = life;
                analysis.of_vertex[v as usize].push(life);
            }
            for tensor in node.writes() {
                latest[tensor.index()] = life;
            }
        }
        let mut change = vec![0i128; sequence.len() + 1];
        for life in &analysis.lives {
            change[life.first] += i128::from(life.bytes);
            change[life.last() + 1] -= i128::from(life.bytes);
        }
        let mut live = 0;
        for (need, change) in analysis.need.iter_mut().zip(change) {
            live += change;
            *need = u64::try_from(live).unwrap_or(u64::MAX);
        }
        analysis
    }

    fn peak(&self) -> u64 {
        self.need.iter().copied().max().unwrap_or(0)
    }

    /// The vertex that frees most at `step`, and the step before which it is to be computed again.
    fn best(&self, forward: &ForwardPart, step: usize) -> Option<(u32, usize)> {
        let mut best: Option<(u64, u32, usize)> = None;
        for life in &self.lives {
            let Some(v) = life.vertex else { continue };
            let vertex = &forward.vertices[v as usize];
            if life.first >= step || life.last() <= step || !vertex.recomputable {
                continue;
            }
            let next = life.uses.partition_point(|&at| at < step);
            let Some(&before) = life.uses.get(next).filter(|&&before| before > step) else {
                continue;
            };
            // What had died before would have to live until then.
            let revived = vertex.before.iter().filter_map(|&u| {
                let of = &self.of_vertex[u as usize];
                let latest = of.iter().rev().map(|&life| &self.lives[life as usize]);
                let latest = latest.into_iter().find(|life| life.first < before)?;
                (latest.first <= step && latest.last() < step).then_some(latest.bytes)
            });
            let freed = life.bytes.saturating_sub(revived.sum());
            if freed > 0 && best.is_none_or(|(most, ..)| freed > most) {
                best = Some((freed, v, before));
            }
        }
        best.map(|(_, vertex, before)| (vertex, before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;
    use crate::strategy::tests::{names, with_task};

    #[test]
    fn what_frees_most_at_the_step_runs_again_before_its_next_use() {
        // Limit 199. At d live a 40, b 80, c 40, d 40: b frees most, and what it reads is alive
        // anyway. When it comes back for the loss, a is in use, so c goes; at dc, with c back, b goes
        // again; at db it is a.
        let text = "g (float[10] x) => (float loss, float[10] da) <
            float[10] a, float[20] b, float[10] c, float[10] d, float[10] dc, float[10] db
        > {
            [a] a = com.microsoft.Gelu(x) [b] b = Concat <axis = 0> (a, a)
            [c] c = com.microsoft.Gelu(a) [d] d = com.microsoft.Gelu(c) [loss] loss = Foo(d, b)
            [dc] dc = com.microsoft.GeluGrad(d, c) [db] db = Foo(dc, b, d)
            [da] da = com.microsoft.GeluGrad(db, a)
        }";
        let graph = Graph::parse(text).unwrap();
        with_task(&graph, |task| {
            let task = &Task {
                order: graph.order(),
                stop: task.stop.clone(),
                ..*task
            };
            let forward = ForwardPart::of(task);
            let plan = within(task, &forward, 199, &mut 1_000_000);
            assert_eq!(names(&graph, &plan), "a b c d b loss c dc b db a da");
            let all = Analysis::of(task, &forward, task.order).peak();
            let plan = within(task, &forward, all, &mut 1_000_000);
            assert_eq!(plan.sequence, task.order);
        });
    }
}

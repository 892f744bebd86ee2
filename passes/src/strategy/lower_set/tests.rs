use super::dp::SequenceGoal;
use super::*;
use crate::strategy::Vertex;
use crate::testing::SplitMix64;

/// A random graph of at most seven vertices with small sizes and times that are counted as they
/// are: T(V) is below 512, so one counted time is a nanosecond. One vertex in five cannot be computed
/// again.
fn random_part(seed: u64) -> ForwardPart {
    let mut random = SplitMix64::new(seed);
    let n = 3 + random.below(5) as u32;
    let mut forward = ForwardPart::default();
    for v in 0..n {
        let before: Vec<u32> = (0..v)
            .filter(|&u| u + 1 == v && !random.one_in(4) || random.one_in(4))
            .collect();
        for &u in &before {
            forward.vertices[u as usize].after.push(v);
        }
        forward.vertices.push(Vertex {
            before,
            bytes: Bytes(1 + random.below(9) as u64),
            time: 1 + random.below(9) as u64,
            recomputable: !random.one_in(5),
            ..Vertex::default()
        });
    }
    forward
}

/// Sets of vertices as the bits of a number.
struct Plain<'f> {
    forward: &'f ForwardPart,
    all: u32,
}

impl Plain<'_> {
    fn sum(&self, set: u32, of: impl Fn(&Vertex) -> u64) -> u64 {
        let vertices = self.forward.vertices.iter().enumerate();
        let members = vertices.filter(|(v, _)| set & (1 << v) != 0);
        members.map(|(_, vertex)| of(vertex)).sum()
    }

    fn memory(&self, set: u32) -> u64 {
        self.sum(set, |vertex| vertex.bytes.0)
    }

    fn next(&self, set: u32) -> u32 {
        let vertices = self.forward.vertices.iter().enumerate();
        let reads = vertices.filter(|(_, v)| v.before.iter().any(|&u| set & (1 << u) != 0));
        reads.map(|(v, _)| 1 << v).sum()
    }

    fn previous(&self, set: u32) -> u32 {
        let vertices = self.forward.vertices.iter().enumerate();
        let read = vertices.filter(|(_, v)| v.after.iter().any(|&w| set & (1 << w) != 0));
        read.map(|(v, _)| 1 << v).sum()
    }

    /// ∂(L), and what cannot be computed again.
    fn boundary(&self, set: u32) -> u32 {
        let vertices = self.forward.vertices.iter().enumerate();
        let once = vertices.filter(|(_, vertex)| !vertex.recomputable);
        let once: u32 = once.map(|(v, _)| 1 << v).sum();
        (self.previous(self.all & !set) | once) & set
    }

    fn is_lower(&self, set: u32) -> bool {
        self.previous(set) & !set == 0
    }

    /// Every increasing sequence of `family` to all vertices, with formulas (1) and (2), as
    /// (time, memory).
    fn sequences(&self, family: &[u32]) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        // (L, U, time, memory) of a prefix.
        let mut open = vec![(0u32, 0u32, 0, 0)];
        while let Some((lower, kept, time, memory)) = open.pop() {
            if lower == self.all {
                found.push((time, memory));
                continue;
            }
            for &upper in family {
                if upper == lower || upper & lower != lower {
                    continue;
                }
                let inside = upper & !lower;
                let behind = self.next(upper) & !upper;
                let side = self.previous(self.next(upper)) & !upper;
                let need = self.memory(kept)
                    + 2 * self.memory(inside)
                    + self.memory(behind)
                    + self.memory(side);
                let again = inside & !self.boundary(upper);
                let time = time + self.sum(again, |vertex| vertex.time);
                let kept = kept | self.boundary(upper);
                open.push((upper, kept, time, memory.max(need)));
            }
        }
        found
    }
}

const ANY_TIME: SequenceGoal = SequenceGoal::LeastTime { below: u32::MAX };

#[test]
fn the_tables_find_what_trying_all_sequences_finds() {
    for seed in 0..60 {
        let forward = random_part(seed);
        let plain = Plain {
            forward: &forward,
            all: (1 << forward.vertices.len()) - 1,
        };
        let every: Vec<u32> = (1..=plain.all).filter(|&set| plain.is_lower(set)).collect();
        let mut ancestors: Vec<u32> = Vec::new();
        for (v, vertex) in forward.vertices.iter().enumerate() {
            let below = vertex.before.iter().map(|&u| ancestors[u as usize]);
            ancestors.push(below.fold(1 << v, |set, other| set | other));
        }
        ancestors.push(plain.all);
        let exact = Sets::all(&forward, MOST_SETS).unwrap();
        assert_eq!(exact.sets.len(), every.len() + 1, "seed {seed}");
        for (sets, family) in [(exact, every), (Sets::ancestors(&forward), ancestors)] {
            let sequences = plain.sequences(&family);
            let least = sequences.iter().map(|sequence| sequence.1).min().unwrap();
            let found = smallest_budget(&sets, &Watch::default());
            // The search ends within a thousandth, which is less than a byte here.
            assert_eq!(found, least, "seed {seed}");
            for budget in [least, least + 3, least * 3 / 2, least * 2] {
                let fitting = || {
                    let fits = sequences.iter().filter(|sequence| sequence.1 <= budget);
                    fits.map(|sequence| sequence.0)
                };
                for (goal, time) in [
                    (ANY_TIME, fitting().min()),
                    (SequenceGoal::MostTime, fitting().max()),
                ] {
                    let found = best_sequence(
                        &sets,
                        budget,
                        goal,
                        &mut u64::MAX.clone(),
                        &Watch::default(),
                    );
                    let (found, sequence) = found.unwrap();
                    assert_eq!(
                        Some(u64::from(found)),
                        time,
                        "seed {seed}, {budget}, {goal:?}"
                    );
                    // Formula (2), for it and for one segment.
                    assert!(sets.memory(&sequence) <= budget, "seed {seed}");
                    let whole = 2 * plain.memory(plain.all);
                    assert_eq!(sets.memory(&[sets.sets.len() - 1]), whole, "seed {seed}");
                    let below = SequenceGoal::LeastTime { below: found };
                    let mut work = u64::MAX;
                    let less = best_sequence(&sets, budget, below, &mut work, &Watch::default());
                    let least = fitting().min();
                    assert_eq!(
                        less.is_none(),
                        Some(u64::from(found)) == least,
                        "seed {seed}"
                    );
                }
            }
            assert_eq!(
                best_sequence(
                    &sets,
                    least - 1,
                    ANY_TIME,
                    &mut u64::MAX.clone(),
                    &Watch::default()
                ),
                None
            );
        }
    }
}

#[test]
fn the_segments_of_a_sequence_keep_what_formula_one_counts_as_kept() {
    for seed in 0..60 {
        let forward = random_part(seed);
        for modelled in modelled(&forward, Sequences::Exact, false, &Watch::default()).unwrap() {
            let kept = modelled.segments.boundaries(&forward);
            let vertices = forward.vertices.iter().zip(kept);
            let again = vertices.filter(|(vertex, kept)| vertex.recomputable && !kept);
            let again = again.map(|pair| pair.0.time);
            assert_eq!(u64::from(modelled.time), again.sum::<u64>(), "seed {seed}");
        }
    }
}

#[test]
fn time_centric_budgets_go_on_until_time_stops_falling() {
    for seed in 0..60 {
        let forward = random_part(seed);
        let exact = modelled(&forward, Sequences::Exact, false, &Watch::default()).unwrap();
        let times: Vec<u32> = exact.iter().map(|modelled| modelled.time).collect();
        assert!(
            times.windows(2).all(|pair| pair[0] > pair[1]),
            "seed {seed}: {times:?}"
        );
        // Every vertex a segment: only what nothing reads runs again.
        let ends = forward
            .vertices
            .iter()
            .filter(|v| v.after.is_empty() && v.recomputable);
        let least: u64 = ends.map(|vertex| vertex.time).sum();
        assert_eq!(
            times.last().map(|&time| u64::from(time)),
            Some(least),
            "seed {seed}"
        );
    }
    // A long chain, whose smallest budget is far below that of all segments.
    let mut forward = ForwardPart::default();
    for v in 0..200u32 {
        forward.vertices.push(Vertex {
            before: v.checked_sub(1).into_iter().collect(),
            after: (v < 199).then_some(v + 1).into_iter().collect(),
            bytes: Bytes(1_000),
            time: 1,
            recomputable: true,
            ..Vertex::default()
        });
    }
    let found = modelled(&forward, Sequences::Approximate, false, &Watch::default()).unwrap();
    let (first, last) = (&found[0], &found[found.len() - 1]);
    assert!(
        last.memory > 4 * first.memory,
        "{} {}",
        first.memory,
        last.memory
    );
    assert_eq!(last.time, 1);
}

#[test]
fn budgets_are_bounded() {
    for (least, most) in [(1, 0), (1, 5), (1_000, 40_000), (1, u64::MAX), (0, 0)] {
        let all: Vec<u64> = budgets(least, most, false).collect();
        assert_eq!(all.first(), Some(&least));
        assert!(all.len() <= 65 && all.iter().any(|&budget| budget >= most.min(256 * least)));
    }
}

#[test]
fn too_many_lower_sets_are_refused_by_number() {
    // Fourteen vertices without edges: 2^14 = 16384 lower sets.
    let vertex = Vertex {
        bytes: Bytes(1),
        time: 1,
        recomputable: true,
        ..Vertex::default()
    };
    let mut forward = ForwardPart::default();
    forward.vertices = vec![vertex; 14];
    let reason = modelled(&forward, Sequences::Exact, false, &Watch::default()).unwrap_err();
    assert!(
        reason.contains("14 variables") && reason.contains("more than 12000"),
        "{reason}"
    );
    assert!(modelled(&forward, Sequences::Approximate, false, &Watch::default()).is_ok());
}

use ckpt_passes::*;
use std::collections::BTreeMap;
fn main() {
    let lengths: Vec<u64> = std::env::args()
        .skip(1)
        .map(|a| a.parse().unwrap())
        .collect();
    for l in lengths {
        let chain = testing::UniformChain::new(l);
        let rules = analysis::recompute::Recomputation::of(&chain.graph, &BTreeMap::new());
        let effort = search::Effort {
            seed: 1,
            evaluations: 1_000_000,
        };
        let mut bad = 0;
        let mut all = 0;
        let t = std::time::Instant::now();
        let mut search = search::Search::new(
            &chain.graph,
            chain.graph.order(),
            operators::Provider::Cpu,
            &chain.costs,
            &rules,
            effort,
        );
        let least = search.smallest().predicted_peak;
        println!(
            "{l}: smallest {} want {} {:?}",
            (least - testing::UniformChain::owned()).0 >> 20,
            (chain.smallest_peak() - testing::UniformChain::owned()).0 >> 20,
            t.elapsed()
        );
        let mut line = String::new();
        for (i, peak) in chain.peaks().enumerate() {
            let want = chain.optimum(peak).unwrap();
            let t = std::time::Instant::now();
            let found = search
                .within(peak)
                .map(|p| p.sequence.len() as u64 - chain.graph.node_count() as u64);
            all += 1;
            if found != Some(want) {
                bad += 1;
                line += &format!(
                    " s={}: {:?}/{} {:.1}s",
                    i + 1,
                    found,
                    want,
                    t.elapsed().as_secs_f64()
                );
            }
        }
        println!("{l}: {bad} of {all} differ {:?}:{line}", t.elapsed());
    }
}

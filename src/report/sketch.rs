//! Memory over one step as a sketch of letters, for a terminal.

use std::fmt::Write;

use ckpt_passes::bytes::Bytes;

const COLUMNS: usize = 60;
const ROWS: usize = 8;
/// Eighths of a letter's height.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// What each step needs, with the time that it takes: the most of each part of the time as a column. The
/// lowest line is `floor`.
pub(super) fn sketch(steps: &[(u64, Bytes)], floor: Bytes) -> String {
    let columns = columns(steps);
    let Some(most) = columns.iter().copied().max().filter(|&most| most > floor) else {
        return String::new();
    };
    let height = |bytes: Bytes| {
        let part = (bytes - floor).0 as f64 / (most - floor).0 as f64;
        (part * (ROWS * 8) as f64).ceil() as usize
    };
    let heights: Vec<usize> = columns.into_iter().map(height).collect();
    let mut text = String::new();
    for row in (0..ROWS).rev() {
        let label = match row {
            row if row == ROWS - 1 => most.to_string(),
            0 => floor.to_string(),
            _ => String::new(),
        };
        let _ = write!(text, "{label:>12} │");
        for &height in &heights {
            text.push(BLOCKS[height.saturating_sub(row * 8).min(8)]);
        }
        let kept = text.trim_end().len();
        text.truncate(kept);
        text.push('\n');
    }
    let _ = writeln!(text, "{:>12} └{}", "", "─".repeat(COLUMNS));
    text
}

/// The most that is needed in each of so many equal parts of the time.
fn columns(steps: &[(u64, Bytes)]) -> Vec<Bytes> {
    let total: f64 = steps.iter().map(|&(time, _)| time as f64).sum();
    if total == 0.0 {
        return Vec::new();
    }
    let mut columns = vec![Bytes::ZERO; COLUMNS];
    let mut begin = 0.0;
    for &(time, bytes) in steps {
        let end = begin + time as f64;
        let column = |at: f64| ((at / total * COLUMNS as f64) as usize).min(COLUMNS - 1);
        for most in &mut columns[column(begin)..=column(end)] {
            *most = (*most).max(bytes);
        }
        begin = end;
    }
    columns
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    #[test]
    fn a_hill_is_a_hill() {
        let up = (0..30).map(|i| (1, Bytes((10 + i) << 20)));
        let down = (0..30).rev().map(|i| (1, Bytes((10 + i) << 20)));
        let steps: Vec<(u64, Bytes)> = up.chain(down).collect();
        assert_snapshot!(sketch(&steps, Bytes(10 << 20)), @r"
        39.0 MiB │                          ▂▄▆███▆▄▂
                 │                      ▁▃▅███████████▅▃▁
                 │                   ▂▅▇█████████████████▇▅▂
                 │               ▂▄▆█████████████████████████▆▄▂
                 │           ▁▃▅▇███████████████████████████████▇▅▃▁
                 │        ▂▄▇███████████████████████████████████████▇▄▂
                 │    ▁▄▆███████████████████████████████████████████████▆▄▁
        10.0 MiB │ ▃▅▇█████████████████████████████████████████████████████▇▅▃
                 └────────────────────────────────────────────────────────────
        ");
    }

    #[test]
    fn a_flat_or_empty_step_has_no_sketch() {
        assert_eq!(sketch(&[(1, Bytes(5))], Bytes(5)), "");
        assert_eq!(sketch(&[(0, Bytes(7))], Bytes(5)), "");
        assert_eq!(sketch(&[], Bytes(5)), "");
    }

    #[test]
    fn the_peak_of_a_short_step_is_seen() {
        let mut steps = vec![(1000, Bytes(100)); 100];
        steps[50] = (1, Bytes(900));
        assert!(columns(&steps).contains(&Bytes(900)));
    }
}

//! A line diff for snapshots.

use std::collections::HashMap;

/// The lines that differ, marked `-` and `+`, with one line of context; `...` stands for skipped
/// lines. Empty if nothing differs.
///
/// Lines that occur once on each side are aligned along their longest common subsequence
/// (patience diff), then equal neighbours join them: O(n log n). Nearly all lines of a graph
/// occur once, since every node writes tensors of its own.
pub fn diff(before: &str, after: &str) -> String {
    let before: Vec<&str> = before.lines().collect();
    let after: Vec<&str> = after.lines().collect();
    let mut lines = Vec::new();
    let (mut i, mut j) = (0, 0);
    for (next_i, next_j) in matches(&before, &after)
        .into_iter()
        .chain([(before.len(), after.len())])
    {
        lines.extend(before[i..next_i].iter().map(|line| ('-', *line)));
        lines.extend(after[j..next_j].iter().map(|line| ('+', *line)));
        lines.extend(before.get(next_i).map(|line| (' ', *line)));
        (i, j) = (next_i + 1, next_j + 1);
    }
    let changed = |k: usize| lines.get(k).is_some_and(|line| line.0 != ' ');
    let mut text = String::new();
    let mut skipped = false;
    for (k, (mark, line)) in lines.iter().enumerate() {
        if changed(k) || changed(k + 1) || (k > 0 && changed(k - 1)) {
            if std::mem::take(&mut skipped) && !text.is_empty() {
                text.push_str("...\n");
            }
            text.push_str(format!("{mark} {line}").trim_end());
            text.push('\n');
        } else {
            skipped = true;
        }
    }
    text
}

/// Pairs of equal lines, increasing on both sides.
fn matches(before: &[&str], after: &[&str]) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    let (mut i, mut j) = (0, 0);
    for (anchor_i, anchor_j) in anchors(before, after)
        .into_iter()
        .chain([(before.len(), after.len())])
    {
        while i < anchor_i && j < anchor_j && before[i] == after[j] {
            pairs.push((i, j));
            (i, j) = (i + 1, j + 1);
        }
        let (mut end_i, mut end_j) = (anchor_i, anchor_j);
        let behind = pairs.len();
        while end_i > i && end_j > j && before[end_i - 1] == after[end_j - 1] {
            (end_i, end_j) = (end_i - 1, end_j - 1);
            pairs.push((end_i, end_j));
        }
        pairs[behind..].reverse();
        if anchor_i < before.len() {
            pairs.push((anchor_i, anchor_j));
        }
        (i, j) = (anchor_i + 1, anchor_j + 1);
    }
    pairs
}

/// The longest increasing sequence of lines that occur exactly once on each side.
fn anchors(before: &[&str], after: &[&str]) -> Vec<(usize, usize)> {
    let mut seen: HashMap<&str, [usize; 4]> = HashMap::new();
    for (side, lines) in [before, after].into_iter().enumerate() {
        for (k, line) in lines.iter().enumerate() {
            let entry = seen.entry(line).or_default();
            entry[side] += 1;
            entry[2 + side] = k;
        }
    }
    let unique = before.iter().filter_map(|line| match seen[line] {
        [1, 1, i, j] => Some((i, j)),
        _ => None,
    });
    // Patience sorting: `tails[k]` ends the best sequence of length k + 1; links lead back.
    let unique: Vec<(usize, usize)> = unique.collect();
    let mut tails: Vec<usize> = Vec::new();
    let mut links: Vec<Option<usize>> = Vec::with_capacity(unique.len());
    for (k, pair) in unique.iter().enumerate() {
        let length = tails.partition_point(|&tail| unique[tail].1 < pair.1);
        links.push(length.checked_sub(1).map(|l| tails[l]));
        if length == tails.len() {
            tails.push(k);
        } else {
            tails[length] = k;
        }
    }
    let mut chain = Vec::new();
    let mut at = tails.last().copied();
    while let Some(k) = at {
        chain.push(unique[k]);
        at = links[k];
    }
    chain.reverse();
    chain
}

#[cfg(test)]
mod tests {
    use super::diff;

    #[test]
    fn equal_texts_have_no_difference() {
        assert_eq!(diff("a\nb\n", "a\nb\n"), "");
        assert_eq!(diff("", ""), "");
    }

    #[test]
    fn shows_changed_lines_with_one_line_around_them() {
        insta::assert_snapshot!(diff("a\nb\nc\nd\ne\nf\ng\n", "a\nB\nc\nd\ne\nf\nnew\ng\n"), @"
          a
        - b
        + B
          c
        ...
          f
        + new
          g
        ");
    }

    #[test]
    fn a_moved_line_leaves_and_arrives() {
        insta::assert_snapshot!(diff("a\nb\nc\nd\n", "b\nc\na\nd\n"), @"
        - a
          b
          c
        + a
          d
        ");
    }

    #[test]
    fn repeated_lines_are_matched_from_both_ends() {
        insta::assert_snapshot!(diff("x\nx\na\nx\nx\n", "x\nx\nb\nc\nx\nx\n"), @"
          x
        - a
        + b
        + c
          x
        ");
    }

    #[test]
    fn one_side_may_be_empty() {
        insta::assert_snapshot!(diff("", "a\nb\n"), @"
        + a
        + b
        ");
        insta::assert_snapshot!(diff("a\n", ""), @"- a");
    }
}

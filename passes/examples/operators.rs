//! Prints every operator that the tables know, one a line: its domain, a tab, its name.
#![allow(clippy::print_stdout)]

use ckpt_passes::operators;

fn main() {
    for (domain, name) in operators::all() {
        println!("{domain}\t{name}");
    }
}

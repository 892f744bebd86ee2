//! The tensors that a graph hands to its caller.

use std::collections::HashSet;
use std::ops::Deref;

use super::TensorId;

/// A list of tensors that knows at once whether it has one: graphs have tens of thousands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputList {
    list: Vec<TensorId>,
    set: HashSet<TensorId>,
}

impl OutputList {
    /// Adds one at the end.
    pub fn push(&mut self, id: TensorId) {
        self.list.push(id);
        self.set.insert(id);
    }

    /// Is it one of them?
    pub fn contains(&self, id: &TensorId) -> bool {
        self.set.contains(id)
    }
}

impl Deref for OutputList {
    type Target = [TensorId];

    fn deref(&self) -> &[TensorId] {
        &self.list
    }
}

impl FromIterator<TensorId> for OutputList {
    fn from_iter<I: IntoIterator<Item = TensorId>>(ids: I) -> OutputList {
        let mut outputs = OutputList::default();
        ids.into_iter().for_each(|id| outputs.push(id));
        outputs
    }
}

impl<'o> IntoIterator for &'o OutputList {
    type Item = &'o TensorId;
    type IntoIter = std::slice::Iter<'o, TensorId>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.iter()
    }
}

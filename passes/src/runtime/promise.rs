//! For which sessions a budget holds.

use super::level::Level;
use super::order::ExecutionOrder;

/// The ways of running a graph in which a peak is promised. That its results are right is promised in all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Promise {
    /// In that order; in every order where there is none.
    pub order: Option<ExecutionOrder>,
    /// At that level; at every level where there is none.
    pub level: Option<Level>,
}

impl Promise {
    /// Whatever a session does.
    pub const ANY: Promise = Promise {
        order: None,
        level: None,
    };

    /// A session of which nobody has changed order or level.
    pub const USUAL: Promise = Promise {
        order: Some(ExecutionOrder::Default),
        level: Some(Level::EnableAll),
    };

    /// The session of which is known what a step takes on a GPU. Runtime fact, measured in 1.31.1 (docs/gpu.md): there, all plans took at
    /// most what is worked out. At ORT_ENABLE_ALL some took more, since what the runtime copies between host and device is not
    /// simulated; in PRIORITY_BASED order nodes on either device take other turns than on one.
    pub const ON_GPU: Promise = Promise {
        order: Some(ExecutionOrder::Default),
        level: Some(Level::DisableAll),
    };

    /// The orders that can be promised, by name.
    pub const ORDERS: [(&'static str, Option<ExecutionOrder>); 3] = [
        ("any", None),
        ("default", Some(ExecutionOrder::Default)),
        ("priority", Some(ExecutionOrder::PriorityBased)),
    ];

    /// The levels that can be promised, by name.
    pub const LEVELS: [(&'static str, Option<Level>); 5] = [
        ("any", None),
        ("all", Some(Level::EnableAll)),
        ("extended", Some(Level::EnableExtended)),
        ("basic", Some(Level::EnableBasic)),
        ("disable", Some(Level::DisableAll)),
    ];

    /// What these names stand for; the runtime's own names are known, too.
    pub fn named(order: &str, level: &str) -> Option<Promise> {
        Some(Promise {
            order: by_name(&Promise::ORDERS, order, ExecutionOrder::name)?,
            level: by_name(&Promise::LEVELS, level, Level::name)?,
        })
    }

    /// The same where one or both may be left out: one alone goes for all of the other. Nothing in the inner option where nothing is
    /// said.
    pub fn said(order: Option<&str>, level: Option<&str>) -> Option<Option<Promise>> {
        match (order, level) {
            (None, None) => Some(None),
            _ => Promise::named(order.unwrap_or("any"), level.unwrap_or("any")).map(Some),
        }
    }

    /// What its order is called.
    pub fn order_name(self) -> &'static str {
        name_of(&Promise::ORDERS, self.order)
    }

    /// What its level is called.
    pub fn level_name(self) -> &'static str {
        name_of(&Promise::LEVELS, self.level)
    }

    /// Is it for a session with these options?
    pub fn holds(self, order: ExecutionOrder, level: Level) -> bool {
        self.order.is_none_or(|promised| promised == order)
            && self.level.is_none_or(|promised| promised == level)
    }

    /// Does it hold wherever the other one does?
    pub fn covers(self, other: Promise) -> bool {
        (self.order.is_none() || self.order == other.order)
            && (self.level.is_none() || self.level == other.level)
    }

    /// Is it for sessions that run a graph in that order and in a form that runs at these levels?
    pub(crate) fn holds_in(self, order: ExecutionOrder, runs_at: impl Fn(Level) -> bool) -> bool {
        self.order.is_none_or(|promised| promised == order) && self.level.is_none_or(runs_at)
    }

    /// Is it for one session alone?
    pub(crate) fn is_one_session(self) -> bool {
        self.order.is_some() && self.level.is_some()
    }

    /// Is it for graphs that run as they are?
    pub fn holds_unoptimized(self) -> bool {
        self.level.is_none_or(|level| level == Level::DisableAll)
    }

    /// The session of which the peak of an unmodified graph is told: the one that is promised, or of several DEFAULT order,
    /// unoptimized.
    pub fn reported(self) -> (ExecutionOrder, Level) {
        (
            self.order.unwrap_or(ExecutionOrder::Default),
            self.level.unwrap_or(Level::DisableAll),
        )
    }
}

fn by_name<T: Copy>(
    all: &[(&'static str, Option<T>)],
    name: &str,
    in_runtime: impl Fn(T) -> &'static str,
) -> Option<Option<T>> {
    let mut named = all.iter();
    let is_it = |&&(other, one): &&(&str, Option<T>)| {
        other == name || one.is_some_and(|one| in_runtime(one) == name)
    };
    named.find(is_it).map(|&(_, one)| one)
}

fn name_of<T: PartialEq>(all: &[(&'static str, T)], one: T) -> &'static str {
    let mut named = all.iter();
    named
        .find(|(_, other)| *other == one)
        .map_or("any", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_holds_in_the_sessions_that_it_names() {
        let named = Promise {
            order: Some(ExecutionOrder::Default),
            level: Some(Level::EnableAll),
        };
        assert!(named.holds(ExecutionOrder::Default, Level::EnableAll));
        assert!(!named.holds(ExecutionOrder::PriorityBased, Level::EnableAll));
        assert!(!named.holds(ExecutionOrder::Default, Level::DisableAll));
        assert!(Promise::ANY.holds(ExecutionOrder::PriorityBased, Level::EnableBasic));
        assert_eq!((named.order_name(), named.level_name()), ("default", "all"));
        assert!(Promise::ANY.covers(named) && named.covers(named));
        assert!(!named.covers(Promise::ANY));
        assert_eq!(Promise::named("default", "all"), Some(named));
        assert_eq!(Promise::named("any", "any"), Some(Promise::ANY));
        // As the tables call them.
        assert_eq!(Promise::named("DEFAULT", "ORT_ENABLE_ALL"), Some(named));
        assert_eq!(Promise::named("Default", "any"), None);
        assert_eq!(Promise::said(None, None), Some(None));
        let at_all = Promise::named("any", "all");
        assert!(at_all.is_some());
        assert_eq!(Promise::said(None, Some("all")), at_all.map(Some));
        assert_eq!(Promise::said(Some("Default"), None), None);
        assert_eq!(
            Promise::ANY.reported(),
            (ExecutionOrder::Default, Level::DisableAll)
        );
    }
}
